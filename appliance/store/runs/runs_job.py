"""The job that writes a checkpoint of timers and ids, on a thread, and which runs are merged when.

A checkpoint merges few rows of older runs at once; `runs_merge` does that with many. Layer 2.
"""

from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from _core.bytes.layout import RUN_DUE, RUN_IDS, RUN_TIMERS
from _core.timers.memtable import TimerMemtable
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.runs.id_run import IdRunReader
from appliance.store.runs.merging import memtable_blocks, merged_blocks, open_run
from appliance.store.runs.run_files import RunEntry, RunWriter
from appliance.store.runs.runs_merge import MergeRules, make_writer, write_merged
from appliance.store.runs.saved_ids import open_id_runs
from appliance.system.files import FileSystem
from appliance.units import MIB

KINDS: Final = (RUN_TIMERS, RUN_DUE, RUN_IDS)
"""In the order in which they are written: the TimerLog can be made of the runs of timers."""

GROWTH: Final = 3
"""A run is merged when newer runs have this many times its rows."""

SLACK_ROWS: Final = 65_536
"""Number of obsolete rows that does not cause a full merge: a few MB, loaded in 20 ms."""

AT_ONCE_ROWS: Final = 500_000
"""A checkpoint merges that many rows of older runs itself: in a few hundred milliseconds."""

PIECE_BYTES: Final = 64 * MIB
"""Memory of the rows that are sorted at once when the TimerLog is written anew."""

LogMode: TypeAlias = Literal["merge", "anew", "none"]
"""What a job does with the TimerLog: it merges it, writes it anew from the runs of timers, or drops
it, because frames of an older latermq do not say which due times they complete."""


def first_to_merge(rows: Sequence[int], added: int, live: int) -> int:
    """Return the index of the first run to merge with the added rows; `len(rows)`: none.

    - Merge everything when more than half of all rows are obsolete. So there are at most
      2 x live + SLACK_ROWS rows, and as many new rows pay for each full merge.
    - Otherwise merge the longest tail in which each run has at least GROWTH times its own rows
      after it. So with n rows and no obsolete ones, a row is written about
      log(n) / log(1 + GROWTH) times, and there are about GROWTH runs of each order of size.

    Args:
        rows: number of rows of each run, the oldest first.
        added: number of rows to be added.
        live: number of rows that are not obsolete.
    """
    if rows and sum(rows) + added > 2 * live + SLACK_ROWS:
        return 0
    first = len(rows)
    newer = added
    for i in reversed(range(len(rows))):
        if GROWTH * rows[i] <= newer:
            first = i
        newer += rows[i]
    return first


def first_at_once(
    present: Sequence[RunEntry],
    added: int,
    live: int,
    *,
    merging: Sequence[RunEntry],
    rows_max: int,
) -> int:
    """Return the index of the first run that a checkpoint merges; `len(present)`: none.

    As `first_to_merge`, but without runs that have many rows, and those that are being merged.

    Args:
        present: the runs of one kind, the oldest first.
        added, live: as for `first_to_merge`.
        merging: runs that are being merged, perhaps of another kind.
        rows_max: number of rows of these runs that it may merge.
    """
    rows = [entry.rows for entry in present]
    least, tail = len(rows), 0
    while least > 0 and present[least - 1] not in merging:
        tail += rows[least - 1]
        if tail > rows_max:
            break
        least -= 1
    if least == 0:
        return first_to_merge(rows, added, live)
    # A merge of everything is not for a checkpoint.
    return least + first_to_merge(rows[least:], added, tail + added)


@dataclass(slots=True, kw_only=True, eq=False)
class RunsJob:
    """The job that writes a checkpoint of timers and ids. Made by `Runs.freeze`.

    Attributes:
        runs: the runs of the previous state.
        memtables: the frozen memtables, the oldest first; `run` sorts them.
        live: number of rows that are not obsolete, by kind.
        topics: ids of existing topics.
        numbers: the number of the next run, by kind; it rises as runs are written.
        from_pos: log position at which the memtables begin.
        pos: where they end: the state includes all frames below it and no others.
        forget_pos: log position; ids of timers that frames below it completed are dropped.
        merging: runs that are being merged meanwhile, which stay as they are.
        at_once_rows: how many rows of older runs it may merge itself.
        log_mode: what becomes of the TimerLog.
        opens_ids: open the runs of ids, for look-ups.
        known_ids: those that are open.
        id_readers: after `run`: all of them; None if they were not opened.
        has_released: what the memtables had is in files; they are empty, or about to be.
        has_timer_log: after `run`: the entries have a TimerLog with all timers.
        entries: after `run`: all runs that form this state.
        damage: after `run`: why older runs could not be merged. The checkpoint still names them,
            although recovery will reject them and replay the log instead.
    """

    fs: FileSystem
    paths: DataPaths
    runs: tuple[RunEntry, ...]
    memtables: tuple[TimerMemtable, ...]
    live: dict[int, int]
    topics: "array[int]"
    numbers: dict[int, int]
    from_pos: int
    pos: int
    forget_pos: int
    merging: tuple[RunEntry, ...] = ()
    at_once_rows: int = AT_ONCE_ROWS
    log_mode: LogMode = "merge"
    opens_ids: bool = False
    known_ids: tuple[IdRunReader, ...] = ()
    id_readers: tuple[IdRunReader, ...] | None = None
    has_released: bool = False
    has_timer_log: bool = False
    entries: tuple[RunEntry, ...] = ()
    damage: tuple[StorageError | CorruptionError, ...] = ()
    _writers: list[RunWriter] = field(default_factory=list)

    def run(self) -> None:
        """Sort, merge, write and sync; on any thread. Call it once.

        It mostly runs without the GIL, which it holds for about ten microseconds per 256 KiB.

        Raises:
            StorageError: nothing has changed: call `Runs.abandon`. If it `is_fatal`, the process
                must stop.
            MemoryError: nothing has changed: call `Runs.abandon`.
        """
        entries: list[RunEntry] = []
        try:
            for kind in KINDS:
                entries += self._write_log(entries) if kind == RUN_DUE else self._write_kind(kind)
        except (StorageError, MemoryError):
            for writer in self._writers:
                writer.discard()
            raise
        self.has_released = True  # before: the loop reads them until then
        for memtable in self.memtables:
            memtable.release()
        if self.opens_ids:
            self._open_ids([entry for entry in entries if entry.kind == RUN_IDS])
        self.entries = tuple(entries)

    def _open_ids(self, entries: list[RunEntry]) -> None:
        try:
            self.id_readers = open_id_runs(self.fs, self.paths, entries, self.known_ids)
        except (StorageError, CorruptionError) as error:
            self.damage = (*self.damage, error)

    def _lacks_directories(self, present: list[RunEntry]) -> bool:
        """Return whether an older latermq wrote some of these runs of ids."""
        if not self.opens_ids:
            return False
        try:
            return open_id_runs(self.fs, self.paths, present, self.known_ids) is None
        except (StorageError, CorruptionError):
            return False  # the merge or the end reports it

    def _write_kind(self, kind: int) -> list[RunEntry]:
        present = [entry for entry in self.runs if entry.kind == kind]
        added = sum(memtable.row_count(kind) for memtable in self.memtables)
        first = first_at_once(
            present,
            added,
            self.live[kind],
            merging=self.merging,
            rows_max=self.at_once_rows,
        )
        if kind == RUN_IDS and self._lacks_directories(present):
            first = 0
        if added == 0 and first == len(present):
            return present
        begun = len(self._writers)
        try:
            return self._merge(kind, present, first)
        except (StorageError, CorruptionError) as error:
            if first == len(present):
                raise
            self._note_damage(error, begun)
        return self._merge(kind, present, len(present))

    def _note_damage(self, error: StorageError | CorruptionError, begun: int) -> None:
        """Go on without older runs that cannot be read; raise an error of what is written.

        Args:
            error: the error.
            begun: number of files that stay; the later ones are discarded.
        """
        if any(error.path == writer.path for writer in self._writers):
            raise error
        while len(self._writers) > begun:
            self._writers.pop().discard()
        if all(error.path != known.path for known in self.damage):
            self.damage = (*self.damage, error)

    def _write_log(self, timers: list[RunEntry]) -> list[RunEntry]:
        """Write the TimerLog; `timers` are the runs of timers of this state."""
        begun = len(self._writers)
        self.has_timer_log = self.log_mode != "none"
        if self.log_mode == "merge":
            entries = self._write_kind(RUN_DUE)
            if all(error.path.parent != self.paths.timer_log for error in self.damage):
                return entries
            # All of it is in the runs of timers too.
            while len(self._writers) > begun:
                self._writers.pop().discard()
        if self.has_timer_log:
            try:
                return self._write_anew(timers)
            except (StorageError, CorruptionError) as error:
                self._note_damage(error, begun)
                self.has_timer_log = False
        return []

    def _merge(self, kind: int, present: list[RunEntry], first: int) -> list[RunEntry]:
        """Merge the present runs from `first` on and the memtables into one run."""
        merged = present[first:]
        made = write_merged(
            self._writer(kind, merged[0].from_pos if merged else self.from_pos),
            self.fs,
            self.paths,
            MergeRules(topics=self.topics, forget_pos=self.forget_pos, is_whole=first == 0),
            merged,
            memtables=self.memtables,
        )
        return present[:first] if made is None else [*present[:first], made]

    def _writer(self, kind: int, from_pos: int) -> RunWriter:
        number = self.numbers[kind]
        self.numbers[kind] += 1
        writer = make_writer(
            self.fs, self.paths, kind=kind, number=number, from_pos=from_pos, to_pos=self.pos
        )
        self._writers.append(writer)
        return writer

    def _write_anew(self, timers: list[RunEntry]) -> list[RunEntry]:
        """Write a TimerLog with all timers of these runs."""
        merge = RunMerge(
            RUN_TIMERS,
            source_count=len(timers),
            topics=self.topics,
            is_whole=True,
            forget_pos=self.forget_pos,
        )
        made: list[RunEntry] = []
        piece = TimerMemtable()
        with ExitStack() as stack:
            sources = [open_run(stack, self.fs, self.paths, entry) for entry in timers]
            for block, _ in merged_blocks(merge, sources):
                piece.add_rows(block)
                if piece.memory_bytes >= PIECE_BYTES:
                    made += self._write_piece(piece)
                    piece = TimerMemtable()
        return made + self._write_piece(piece)

    def _write_piece(self, piece: TimerMemtable) -> list[RunEntry]:
        """Write a part of all timers: its changes are those up to this state."""
        writer = self._writer(RUN_DUE, self.pos)
        piece.sort()
        merge = RunMerge(
            RUN_DUE, source_count=1, topics=self.topics, is_whole=True, forget_pos=self.forget_pos
        )
        for block, rows in merged_blocks(merge, [memtable_blocks(piece, RUN_DUE)]):
            writer.append(block, rows)
        piece.release()
        made = writer.finish()
        if made is None:
            return []
        self.fs.sync_dir(writer.path.parent)
        return [made]
