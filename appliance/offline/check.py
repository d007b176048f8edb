"""`latermq check`: verifies that a data directory is intact and agrees with its log.

It reads the log once, frame by frame, and applies it to a state as a start does. It compares all
other files with that state. It writes nothing. Layer 4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.offline.check_backup import BackupCheck
from appliance.offline.check_queues import QueueCheck
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from appliance.offline.log_rows import LogRows
from appliance.offline.log_state import LogState
from appliance.offline.log_walk import SLICE_BYTES, LogWalk
from appliance.offline.saved_states import SavedStates, WholeState
from appliance.store.checkpoint import COPY_SIZE, is_of_other_version
from appliance.store.paths import parse_segment_name
from appliance.store.recovery.lost import cuts
from appliance.units import counted

CLUSTER_AT: Final = 32
"""Offset of the cluster id in a copy of the checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check covered.

    Attributes:
        start, end: log positions of the first frame and after the last one.
        frames, units: whole frames, and ConsumeQueue units derived from them.
        states: saved states that were compared with the log.
        epoch: of the last frame.
        is_clean: the last broker stopped cleanly.
        is_live: a broker was running; what it wrote during the check was not checked.
        is_snapshot: it is a snapshot of a log, or a backup.
        is_backup: it is a backup, whose files were compared with its manifest.
        faults: the number of faults.
    """

    start: int
    end: int
    frames: int
    units: int
    states: int
    epoch: int
    is_clean: bool
    is_live: bool
    is_snapshot: bool
    is_backup: bool
    faults: int


class Check:
    """One check of an open data directory; exhaust `run`.

    Attributes:
        report: what the check covered; set when `run` ends.
        state: what follows from the log; set when `run` ends.
    """

    report: CheckReport
    state: LogState

    def __init__(
        self,
        data: DataDir,
        findings: Findings,
        *,
        slice_bytes: int = SLICE_BYTES,
        wants_manifest: bool = True,
    ) -> None:
        """Prepare a check; reads nothing yet.

        Args:
            data: the open directory.
            findings: receives the faults.
            slice_bytes: bytes of the log to check between two reports of progress.
            wants_manifest: compare the files of a backup with its manifest.
        """
        self._slice_bytes = slice_bytes
        self._wants_manifest = wants_manifest
        self._data = data
        self._findings = findings
        self._states = SavedStates(data, findings)
        self._met: set[int] = set()
        """Numbers of the states whose position the walk has reached."""
        self._compared = 0

    def run(self) -> Iterator[tuple[int, int]]:
        """Check everything.

        Yields:
            Bytes of the log checked so far, and in total.

        Raises:
            FormatVersionError: a newer latermq wrote to the log.
            StorageError: a file cannot be opened.
        """
        log, states = self._data.log, self._states
        if self._data.is_half_restored:
            path = self._data.paths.snapshot_mark
            self._findings.fault(Fault(path, 0, "no such file", "that a restore did not end"))
        states.read()
        newest = states.newest
        queues = QueueCheck(
            self._data,
            self._findings,
            states.required_units(),
            applied=0 if newest is None else newest.applied,
        )

        def new_state(fault: Callable[[int, str, str], None]) -> LogState:
            return LogState(fault=fault, removed=queues.forget_topic)

        walk = LogWalk(self._data, self._findings, new_state)
        if newest is not None:
            walk.state.projections.set_id_key(newest.id_key)
        rows = LogRows(walk.state.projections, 0 if newest is None else newest.forget_pos)
        total, start = log.written_bytes, log.start
        stops = [state.saved.applied for state in states.states]
        for _ in walk.slices(self._slice_bytes, stops):
            queues.compare(walk.state, walk.damage)
            for state in states.states:
                if state.saved.applied == walk.pos:
                    self._compare(state, walk, rows)
            rows.bound_memory()
            yield min(walk.pos - start, total), total
        walk.note_tail()
        self._check_checkpoint(walk)
        self._check_positions(walk)
        self._note_unnamed()
        self._note_cuts()
        queues.finish()
        if self._data.is_backup and self._wants_manifest:
            yield from BackupCheck(self._data.fs, self._data.paths, self._findings).run(walk.pos)
        self.state = walk.state
        self.report = CheckReport(
            start=start,
            end=walk.pos,
            frames=walk.frames,
            units=queues.units,
            states=self._compared,
            epoch=walk.epoch,
            is_clean=self._data.is_clean,
            is_live=self._data.is_live,
            is_snapshot=self._data.is_snapshot,
            is_backup=self._data.is_backup,
            faults=self._findings.fault_count,
        )

    # Saved states

    def _compare(self, state: WholeState, walk: LogWalk, rows: LogRows) -> None:
        newest = self._states.newest
        assert newest is not None
        if state.saved.number in self._met:
            return
        self._met.add(state.saved.number)
        if walk.damage:
            text = "not compared with the log, which is damaged before its position"
        elif state.control.settings != newest.settings:
            text = "not compared with the log: it was saved under other settings than the newest"
        else:
            self._compared += 1
            self._states.compare(state, walk.state, rows, last=walk.last_frame, epoch=walk.epoch)
            return
        self._findings.note(state.path, None, text)

    def _check_positions(self, walk: LogWalk) -> None:
        """Report states whose position is not the end of a frame."""
        if walk.damage or self._data.is_live:
            return
        for state in self._states.states:
            if state.saved.applied < self._data.log.start:
                text = "not compared with the log: what follows its position was freed since"
                self._findings.note(state.path, None, text)
            elif state.saved.number not in self._met:
                expected = f"a position where a frame ends, up to the end of the log at {walk.pos}"
                self._findings.fault(Fault(state.path, 0, expected, f"{state.saved.applied}"))

    def _note_unnamed(self) -> None:
        """Note files of states that no checkpoint names: a crash came before it was written."""
        if self._data.is_live:
            return
        paths = self._data.paths
        entries = [entry for state in self._states.states for entry in state.control.runs]
        named = {entry.path(paths) for entry in entries}
        named |= {paths.snapshot(saved.number) for saved in self._data.checkpoint.states}
        # The runs that a damaged state snapshot names are unknown.
        is_known = len(self._states.states) == self._states.count
        derived = (paths.control, paths.timer, paths.index, paths.timer_log)
        for directory in derived if is_known else ():
            unnamed = [path for path in self._files(directory) if path not in named]
            if unnamed:
                files = counted(len(unnamed), "file")
                text = f"{files} that no checkpoint names, for the next one to remove"
                self._findings.note(directory, None, text)

    def _files(self, directory: Path) -> list[Path]:
        if not self._data.fs.exists(directory):
            return []
        names = self._data.fs.list_dir(directory)
        return [directory / name for name in names if parse_segment_name(name) is not None]

    # The checkpoint itself

    def _note_cuts(self) -> None:
        """Note the parts of the log that starts cut off and kept in separate files."""
        for cut in cuts(self._data.fs, self._data.paths):
            self._findings.note(
                self._data.paths.lost_file(cut.pos, cut.epoch),
                0,
                f"{cut.size} bytes that the start of epoch {cut.epoch} cut off the log at position "
                f"{cut.pos}; nothing reads them, and they may be removed",
            )

    def _check_checkpoint(self, walk: LogWalk) -> None:
        checkpoint = self._data.checkpoint
        for place, (raw, copy) in enumerate(zip(checkpoint.raw, checkpoint.copies, strict=True)):
            # A copy that was never written is not damage. After a crash, neither is a torn one if
            # the other copy is whole.
            if copy is not None or not any(raw):
                continue
            if is_of_other_version(raw):
                text = "a copy of another format version; the next checkpoint clears it"
                self._findings.note(checkpoint.path, place * COPY_SIZE, text)
                continue
            if (self._data.is_live or not self._data.is_clean) and checkpoint.newest is not None:
                text = "this copy is torn, which a crash may cause; the other copy is whole"
                self._findings.note(checkpoint.path, place * COPY_SIZE, text)
                continue
            self._checkpoint_fault(
                place * COPY_SIZE,
                "a whole copy of the checkpoint",
                "one whose magic, version, positions or CRC are wrong",
            )
        newest = checkpoint.newest
        if newest is None:
            return
        place = newest.sequence % 2 * COPY_SIZE
        if not checkpoint.is_own:
            expected = f"the cluster of the log, {self._data.cluster}"
            self._checkpoint_fault(place + CLUSTER_AT, expected, f"{newest.log.cluster}")
        elif newest.watermark < walk.pos and not self._data.is_live:
            expected = f"a watermark of {walk.pos} or more, where the log ends"
            self._checkpoint_fault(place, expected, f"{newest.watermark}")

    def _checkpoint_fault(self, offset: int, expected: str, found: str) -> None:
        self._findings.fault(Fault(self._data.checkpoint.path, offset, expected, found))
