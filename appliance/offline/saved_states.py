"""Checks the saved states that the checkpoint names: are they whole, and do they match the log?

Each state is first read and checked by itself. When the log has been applied up to its position, it
is compared with the state derived from the log. Layer 4.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import RUN_DUE, RUN_IDS, RUN_TIMER_SIZE, RUN_TIMERS
from _core.timers.row_places import sum_of_rows
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.offline import log_rows
from appliance.offline.control_facts import Fact, FactKey, describe, facts_of
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from appliance.offline.log_rows import LogRows, Row, RowKey
from appliance.offline.log_state import LogState
from appliance.store.checkpoint import SavedState
from appliance.store.runs.merging import merged_blocks, open_reader, open_run
from appliance.store.runs.run_files import BLOCK_HEAD, CRC, HEAD, RunEntry, rows_of
from appliance.store.state import snapshot
from appliance.store.state.snapshot import PARTITION, ControlState
from appliance.store.state.state import Capture, encode_control

LIVE_READS_MAX: Final = 5

REPORTED_MAX: Final = 100
"""Differences of one part of a state that are reported one by one."""


@dataclass(frozen=True, slots=True)
class WholeState:
    """A state whose state snapshot is whole."""

    saved: SavedState
    path: Path
    data: bytes
    control: ControlState
    has_runs: bool
    """All of its runs are whole as well."""


class SavedStates:
    """All states that a whole copy of the checkpoint names. `read` comes first.

    Attributes:
        states: those whose state snapshot is whole, by position.
        count: all named states.
    """

    def __init__(self, data: DataDir, findings: Findings) -> None:
        self._data = data
        self._findings = findings
        self._faults: list[Fault] = []
        self.states: list[WholeState] = []
        self.count = 0

    @property
    def newest(self) -> ControlState | None:
        """The state snapshot of the last state."""
        return self.states[-1].control if self.states else None

    # By themselves

    def read(self) -> None:
        """Read every file of every state, and report damaged ones."""
        for _ in range(LIVE_READS_MAX):
            self._faults = []
            self._read()
            if not self._faults or not self._data.is_live:
                break
            # A running broker takes checkpoints, and removes files that are no longer named.
            before = self._data.checkpoint.states
            self._data.read_checkpoint()
            if self._data.checkpoint.states == before:
                break
        for fault in self._faults:
            self._findings.fault(fault)

    def _read(self) -> None:
        named = self._data.checkpoint.states
        self.count = len(named)
        self.states = []
        checked: dict[RunEntry, bool] = {}
        for saved in named:
            path = self._data.paths.snapshot(saved.number)
            try:
                control = snapshot.read(self._data.fs, path, saved)
                with closing(self._data.fs.open(path, writable=False)) as file:
                    data = file.pread(saved.size, 0)
            except (StorageError, CorruptionError) as error:
                self._add_fault(path, error, f"the state snapshot of state {saved.number}")
                continue
            for entry in control.runs:
                if entry not in checked:
                    checked[entry] = self._is_whole(entry)
            has_runs = all(checked[entry] for entry in control.runs)
            self.states.append(WholeState(saved, path, data, control, has_runs))
        self.states.sort(key=lambda state: state.saved.applied)

    def _is_whole(self, entry: RunEntry) -> bool:
        path = entry.path(self._data.paths)
        try:
            with closing(open_reader(self._data.fs, path, entry)) as reader:
                for _ in reader.blocks():
                    pass
        except (StorageError, CorruptionError) as error:
            self._add_fault(path, error, "a run that the checkpoint names")
            return False
        return True

    def _add_fault(self, path: Path, error: StorageError | CorruptionError, what: str) -> None:
        if isinstance(error, CorruptionError):
            expected, found = str(error.expected), str(error.found)
            self._faults.append(Fault(path, error.offset, expected, found))
        else:
            found = "no such file" if error.is_missing else str(error)
            self._faults.append(Fault(path, 0, what, found))

    # Against the log

    def compare(
        self, state: WholeState, log: LogState, rows: LogRows, *, last: tuple[int, int], epoch: int
    ) -> None:
        """Compare a state with the one derived from the log at its position.

        Args:
            state: the saved state.
            log: the state after all frames before the position and none after it.
            rows: the timers and ids of `log`.
            last: position and CRC of the last frame.
            epoch: of that frame.
        """
        self._compare_control(state, log, last=last, epoch=epoch)
        # Timers and ids that were completed later may have been accepted in what was freed since.
        if not state.has_runs or state.control.start < self._data.log.start:
            return
        rows.fold()
        try:
            self._compare_rows(state, rows, RUN_TIMERS)
            if state.control.has_timer_log:
                self._compare_timer_log(state, rows)
            if state.control.id_key == log.projections.id_key:
                self._compare_rows(state, rows, RUN_IDS)
        except StorageError as error:
            if not (self._data.is_live and error.is_missing):
                raise
            text = "replaced by the broker during the check; its timers and ids are not compared"
            self._findings.note(state.path, None, text)

    def _compare_control(
        self, state: WholeState, log: LogState, *, last: tuple[int, int], epoch: int
    ) -> None:
        control = ControlState(
            number=state.saved.number,
            start=self._data.log.start,
            applied=state.saved.applied,
            last_pos=last[0],
            last_crc=last[1],
            epoch=epoch,
            next_producer_id=0,
            next_topic_id=0,
        )
        log.release_units()
        capture = Capture(log, control)
        while not capture.step():
            pass
        expected = facts_of(b"".join(encode_control(capture.control, capture.values)))
        found = facts_of(state.data)
        if state.control.pending is None:  # an older latermq wrote it, or damage left no count
            expected = {key: fact for key, fact in expected.items() if key[0] != "pending timers"}
        agree = _agree
        if state.control.start < control.start:
            agree = _agree_partly
        elif control.start > 0:
            agree = _agree_without_history
        differing = [
            _difference(state.path, key, expected.get(key), found.get(key))
            for key in dict.fromkeys((*found, *expected))
            if not agree(key, expected.get(key), found.get(key))
        ]
        for fault in differing[:REPORTED_MAX]:
            self._findings.fault(fault)
        if len(differing) > REPORTED_MAX:
            more = f"{len(differing) - REPORTED_MAX} more values are wrong"
            self._findings.note(state.path, None, more)

    def _compare_rows(self, state: WholeState, rows: LogRows, kind: int) -> None:
        """Compare the rows of one kind: row by row only if their checksums differ."""
        ours = _sum_of(rows.blocks(kind))
        with ExitStack() as stack:
            theirs = _sum_of(self._merged(stack, state, rows, kind))
        if ours == theirs:
            return
        with ExitStack() as stack:
            pairs = log_rows.differences(
                kind, rows.blocks(kind), self._merged(stack, state, rows, kind)
            )
            differing = list(islice(pairs, REPORTED_MAX))
        wanted = {log_rows.key_of(row) for _, row in differing if row is not None}
        places = self._places(state, kind, wanted)
        for our, their in differing:
            path, offset = self._place_of(state, kind, their, places)
            self._findings.fault(
                Fault(path, offset, log_rows.describe(our), log_rows.describe(their))
            )

    def _compare_timer_log(self, state: WholeState, rows: LogRows) -> None:
        """Compare the TimerLog with the timers of the log, whatever their order."""
        ours = _sum_of_any_order(rows.blocks(RUN_TIMERS))
        with ExitStack() as stack:
            theirs = _sum_of_any_order(self._merged(stack, state, rows, RUN_DUE))
        if ours != theirs:
            expected = f"{ours[0]} pending timers, those of the log"
            found = f"{theirs[0]} pending timers"
            path = self._data.paths.timer_log
            self._findings.fault(Fault(path, 0, expected, f"{found}, or others"))

    def _merged(
        self, stack: ExitStack, state: WholeState, rows: LogRows, kind: int
    ) -> Iterator[bytes]:
        entries = [entry for entry in state.control.runs if entry.kind == kind]
        merge = RunMerge(
            kind,
            source_count=len(entries),
            topics=rows.topics,
            is_whole=True,
            forget_pos=rows.forget_pos,
        )
        fs, paths = self._data.fs, self._data.paths
        sources = [open_run(stack, fs, paths, entry) for entry in entries]
        return (block for block, _ in merged_blocks(merge, sources))

    def _places(
        self, state: WholeState, kind: int, wanted: set[RowKey]
    ) -> dict[RowKey, tuple[Path, int]]:
        """Return the file and offset of rows, in the newest run that has them."""
        places = {}
        for entry in state.control.runs:
            if entry.kind != kind:
                continue
            path = entry.path(self._data.paths)
            at = HEAD.size
            with closing(open_reader(self._data.fs, path, entry)) as reader:
                for block in reader.blocks():
                    at += BLOCK_HEAD.size
                    offset = at
                    for row in rows_of(kind, block):
                        if log_rows.key_of(row) in wanted:
                            places[log_rows.key_of(row)] = path, offset
                        offset += log_rows.size_of(row)
                    at += len(block) + CRC.size
        return places

    def _place_of(
        self,
        state: WholeState,
        kind: int,
        row: Row | None,
        places: dict[RowKey, tuple[Path, int]],
    ) -> tuple[Path, int]:
        if row is not None:
            return places[log_rows.key_of(row)]
        entries = [entry for entry in state.control.runs if entry.kind == kind]
        return (entries[-1].path(self._data.paths), 0) if entries else (state.path, 0)

    def required_units(self) -> dict[tuple[int, int], int]:
        """Return the offset below which a start expects units, by topic id and partition."""
        newest = self.newest
        if newest is None:
            return {}
        return {
            (topic_id, partition): following
            for topic_id, partition, _, following, _, _ in PARTITION.iter_unpack(newest.partitions)
        }


def _sum_of(blocks: Iterator[bytes]) -> tuple[int, int]:
    size = crc = 0
    for block in blocks:
        crc = crc32c(block, crc)
        size += len(block)
    return size, crc


def _sum_of_any_order(blocks: Iterator[bytes]) -> tuple[int, int]:
    count = total = 0
    for block in blocks:
        count += len(block) // RUN_TIMER_SIZE
        total += sum_of_rows(block)
    return count, total & 0xFFFF_FFFF_FFFF_FFFF


def _agree(key: FactKey, expected: Fact | None, found: Fact | None) -> bool:
    if found is None:
        # A broker expires idle producers; the log does not.
        return bool(key[0] == "producer")
    return bool(expected is not None and expected.value == found.value)


def _agree_without_history(key: FactKey, expected: Fact | None, found: Fact | None) -> bool:
    """Compare a state with a log whose first segments were freed before the state was saved.

    Totals and sizes count what is no longer there, and the log does not say what was lost there.
    """
    if key[0] in ("total", "run of offsets") or key[-1] == "log bytes":
        return True
    return _agree(key, expected, found)


def _agree_partly(key: FactKey, expected: Fact | None, found: Fact | None) -> bool:
    """Compare a state with a log whose first segments were freed after the state was saved.

    What they said was carried to a place after the state.
    """
    if expected is None or key[0] in (
        *("head", "level", "partition", "pending timers", "producer"),
    ):
        return True
    return _agree_without_history(key, expected, found)


def _difference(path: Path, key: FactKey, expected: Fact | None, found: Fact | None) -> Fault:
    nothing = f"{' '.join(map(str, key))}: nothing"
    return Fault(
        path,
        0 if found is None else found.offset,
        nothing if expected is None else describe(key, expected.value),
        nothing if found is None else describe(key, found.value),
    )
