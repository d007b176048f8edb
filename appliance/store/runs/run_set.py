"""The set of runs: pending timers and users' ids as of a checkpoint, and how runs are merged.

While the broker runs, `TimerMemtable` collects the changes of timers and ids. A checkpoint freezes
it (`freeze`, immediate, on the loop), and a thread writes it as one run of each kind
(`RunsJob.run`). All runs together, where newer ones override older ones, are the state at that log
position; recovery loads them and replays the log after it.

Runs are merged by size: see `first_to_merge`. A run never changes and a name is never reused, so a
name in a checkpoint always means the same run, until `keep` deletes it.

The caller names the runs in a checkpoint, and uses none before `check` has passed. Layer 2.
"""

from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final

from _core.bytes.layout import RUN_IDS, RUN_TIMER_SIZE, RUN_TIMERS
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from _core.timers.memtable import TimerMemtable
from _core.timers.row_places import lowest_place, rows_between
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.store.runs.run_files import (
    RunEntry,
    RunReader,
    RunWriter,
    decode_entry,
    encode_entry,
    read_rows,
    run_directory,
)
from appliance.system.files import FileSystem
from appliance.units import MIB

__all__ = ["RunEntry", "Runs", "RunsJob", "decode_entry", "encode_entry", "read_rows"]

KINDS: Final = (RUN_TIMERS, RUN_IDS)

DELTA_MAX_BYTES: Final = 64 * MIB
"""Memtable size above which a checkpoint is due: 1.6 million timers, sorted in about half a
second."""

ABSORBED_MAX_BYTES: Final = MIB
"""A memtable up to this size is added to the one that a failed checkpoint left, in half a
millisecond. Otherwise a disk that stays full would leave ever more buffers of a few rows each."""

COPIED_MAX_BYTES: Final = MIB
"""A larger memtable is saved before it is copied: a copy of this one takes a millisecond."""

GROWTH: Final = 3
"""A run is merged when newer runs have this many times its rows."""

SLACK_ROWS: Final = 65_536
"""Number of obsolete rows that does not cause a full merge: a few MB, loaded in 20 ms."""

_DONE: Final = -1
"""The result of `RunMerge.run` at the end."""


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


@dataclass(slots=True, kw_only=True, eq=False)
class RunsJob:
    """The job that writes a checkpoint of timers and ids. Made by `Runs.freeze`.

    Attributes:
        runs: the runs of the previous state.
        memtables: the frozen memtables, the oldest first; `run` sorts them.
        live: number of rows that are not obsolete, by kind.
        topics: ids of existing topics.
        numbers: the number of the next run, by kind.
        from_pos: log position at which the memtables begin.
        pos: where they end: the state includes all frames below it and no others.
        forget_pos: log position; ids of timers that frames below it completed are dropped.
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
                entries += self._write_kind(kind)
        except (StorageError, MemoryError):
            for writer in self._writers:
                writer.discard()
            raise
        for memtable in self.memtables:
            memtable.release()
        self.entries = tuple(entries)

    def _write_kind(self, kind: int) -> list[RunEntry]:
        present = [entry for entry in self.runs if entry.kind == kind]
        rows = [entry.rows for entry in present]
        added = sum(memtable.row_count(kind) for memtable in self.memtables)
        first = first_to_merge(rows, added, self.live[kind])
        if added == 0 and first == len(present):
            return present
        try:
            return self._merge(kind, present, first)
        except (StorageError, CorruptionError) as error:
            if first == len(present) or error.path == self._writers[-1].path:
                raise
            self._writers.pop().discard()
            self.damage = (*self.damage, error)
        return self._merge(kind, present, len(present))

    def _merge(self, kind: int, present: list[RunEntry], first: int) -> list[RunEntry]:
        """Merge the present runs from `first` on and the memtables into one run."""
        merged = present[first:]
        writer = RunWriter(
            self.fs,
            self.paths,
            kind=kind,
            number=self.numbers[kind],
            from_pos=merged[0].from_pos if merged else self.from_pos,
            to_pos=self.pos,
        )
        self._writers.append(writer)
        for memtable in self.memtables:
            memtable.sort()
        merge = RunMerge(
            kind,
            source_count=len(merged) + len(self.memtables),
            topics=self.topics,
            is_whole=first == 0,
            forget_pos=self.forget_pos,
        )
        with ExitStack() as stack:
            sources = [open_run(stack, self.fs, self.paths, entry) for entry in merged]
            sources += [iter(memtable_blocks(memtable, kind)) for memtable in self.memtables]
            for block, rows in merged_blocks(merge, sources):
                writer.append(block, rows)
        made = writer.finish()
        if made is None:
            return present[:first]
        self.fs.sync_dir(writer.path.parent)
        return [*present[:first], made]


def open_run(
    stack: ExitStack, fs: FileSystem, paths: DataPaths, entry: RunEntry
) -> Iterator[bytes]:
    """Return the blocks of a run; the stack closes its file."""
    reader = stack.enter_context(closing(RunReader(fs, entry.path(paths), entry)))
    return reader.blocks()


def memtable_blocks(memtable: TimerMemtable, kind: int) -> Iterator[bytes]:
    """Yield the rows of a sorted memtable, block by block."""
    while block := memtable.next_block(kind):
        yield block


def merged_blocks(
    merge: RunMerge, sources: Sequence[Iterator[bytes]]
) -> Iterator[tuple[bytes, int]]:
    """Yield the rows of a merge and their count, block by block."""
    while True:
        wanted = merge.run()
        if wanted >= 0:
            merge.feed(wanted, next(sources[wanted], b""))
            continue
        rows = merge.out_rows
        block = merge.take()
        if block:
            yield block, rows
        if wanted == _DONE:
            return


@dataclass(slots=True, kw_only=True, eq=False)
class RowsNow:
    """All pending timers at one moment, or all ids, for a thread to read: the runs, and a copy of
    what no run holds yet.

    A timer whose record lies before `log_start` is lost: its segment was freed after it was
    carried, and then damage took the carry frame. No place is returned for it.

    They can be read several times, by one caller at a time: the copy keeps how far it was read.
    """

    fs: FileSystem
    paths: DataPaths
    entries: tuple[RunEntry, ...]
    memtable: TimerMemtable
    topics: "array[int]"
    kind: int
    forget_pos: int
    log_start: int

    def first_place(self) -> int | None:
        """Find the first frame of the log that holds a pending timer.

        Returns:
            Its log position, None if nothing is pending.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run is damaged.
        """
        lowest: int | None = None
        assert self.kind == RUN_TIMERS
        with closing(self.blocks()) as blocks:
            for block in blocks:
                place = lowest_place(block, self.log_start)
                if place >= 0:
                    lowest = place if lowest is None else min(lowest, place)
                # Timers that were accepted later are in later frames.
                last_pos = int.from_bytes(block[-RUN_TIMER_SIZE:][:8], "big")
                if lowest is not None and lowest <= last_pos:
                    break
        return lowest

    def rows_below(self, cut: int) -> Generator[bytes, None, None]:
        """Yield rows of the timers whose records are below a log position.

        The files are opened at the first block, and stay open if they are removed.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run is damaged.
        """
        assert self.kind == RUN_TIMERS
        with closing(self.blocks()) as blocks:
            for block in blocks:
                rows = rows_between(block, self.log_start, cut)
                if rows:
                    yield rows
                if int.from_bytes(block[-RUN_TIMER_SIZE:][:8], "big") >= cut:
                    return

    def blocks(self) -> Generator[bytes, None, None]:
        """Yield all rows, block by block, in the order of a run.

        The files are opened at the first block, and stay open if they are removed.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run is damaged.
        """
        merge = RunMerge(
            self.kind,
            source_count=len(self.entries) + 1,
            topics=self.topics,
            is_whole=True,
            forget_pos=self.forget_pos,
        )
        self.memtable.sort()
        with ExitStack() as stack:
            sources = [open_run(stack, self.fs, self.paths, entry) for entry in self.entries]
            sources.append(iter(memtable_blocks(self.memtable, self.kind)))
            for block, _ in merged_blocks(merge, sources):
                yield block


class Runs:
    """The runs of one store. All but `RunsJob.run`, `check` and `keep` belong to the event loop.

    Attributes:
        entries: the runs of the last completed job: by kind, the oldest first.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        projections: Projections,
        *,
        delta_max_bytes: int = DELTA_MAX_BYTES,
    ) -> None:
        """Start to collect the changes in `projections`; touch no file.

        Args:
            fs: all files.
            paths: their names.
            projections: the timers and ids to save and load.
            delta_max_bytes: unsaved bytes from which `is_due` is true.
        """
        self._fs = fs
        self._paths = paths
        self._projections = projections
        self._delta_max_bytes = delta_max_bytes
        self._memtable = TimerMemtable()
        self._frozen: tuple[TimerMemtable, ...] = ()
        self._job: RunsJob | None = None
        self._pos = 0
        self._next_numbers = dict.fromkeys(KINDS, 1)
        self._is_save_wanted = False
        """The memtables are to be saved before they are copied."""
        self._is_save_tried = False
        self.entries: tuple[RunEntry, ...] = ()
        projections.memtable = self._memtable

    @property
    def delta_bytes(self) -> int:
        """Memory of the memtables, which no run holds yet, in bytes."""
        return self._memtable.memory_bytes + sum(memtable.memory_bytes for memtable in self._frozen)

    @property
    def is_due(self) -> bool:
        """The memtables are so large that a checkpoint is due, and none is in progress."""
        is_awaited = self._is_save_wanted and not self._is_save_tried
        return self._job is None and (is_awaited or self.delta_bytes >= self._delta_max_bytes)

    # Start

    def open(self) -> None:
        """Find the names in use; the directories must exist.

        Raises:
            StorageError: a directory cannot be read.
        """
        for kind in KINDS:
            for number in self._numbers_of(kind):
                self._next_numbers[kind] = max(self._next_numbers[kind], number + 1)

    def _numbers_of(self, kind: int) -> list[int]:
        names = self._fs.list_dir(run_directory(self._paths, kind))
        return [number for name in names if (number := parse_segment_name(name)) is not None]

    def begin(self, pos: int) -> None:
        """Start without runs: the log is replayed from its beginning, `pos`."""
        self.entries = ()
        self._pos = pos

    def check(self, entries: Iterable[RunEntry]) -> Iterator[int]:
        """Read all of these runs and check that they are intact; yield the bytes read so far.

        Raises:
            StorageError: one is missing, or cannot be read.
            CorruptionError: one is damaged.
        """
        done = 0
        ends = dict.fromkeys(KINDS, -1)
        for entry in entries:
            path = entry.path(self._paths)
            if entry.kind not in KINDS:
                raise CorruptionError(path, 0, "a run of timers or of ids", f"kind {entry.kind}")
            if not ends[entry.kind] <= entry.from_pos <= entry.to_pos:
                expected = f"a run from {ends[entry.kind]} on"
                raise CorruptionError(path, 0, expected, f"{entry.from_pos} to {entry.to_pos}")
            ends[entry.kind] = entry.to_pos
            with closing(RunReader(self._fs, path, entry)) as reader:
                for block in reader.blocks():
                    done += len(block)
                    yield done

    def load(self, entries: Sequence[RunEntry], pos: int) -> Iterator[int]:
        """Load timers and ids of a checkpoint into the projections; yield the rows loaded so far.

        The projections have the topics already, but no timers and ids; the caller restores the
        states of the levels afterwards. Timers and ids of deleted topics are dropped.

        Args:
            entries: runs that `check` has passed.
            pos: the position of the checkpoint.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run was damaged since; the projections hold a part of it.
            MemoryError: they do not fit into memory.
        """
        loader = RunLoader(self._projections)
        for kind in KINDS:
            of_kind = [entry for entry in entries if entry.kind == kind]
            merge = RunMerge(
                kind,
                source_count=len(of_kind),
                topics=self._projections.topics_by_id,
                is_whole=True,
                forget_pos=self._projections.ids.forget_pos,
            )
            take = loader.load_timers if kind == RUN_TIMERS else loader.load_ids
            with ExitStack() as stack:
                sources = [open_run(stack, self._fs, self._paths, entry) for entry in of_kind]
                for block, _ in merged_blocks(merge, sources):
                    take(block)
                    yield loader.timers + loader.ids
        self.entries = tuple(entries)
        self._pos = pos

    # Checkpoints

    def freeze(self, pos: int) -> RunsJob:
        """Begin a checkpoint; the caller runs the job, then ends or abandons it.

        Args:
            pos: log position: every frame below it is applied, and none from it on.
        """
        assert self._job is None, "one checkpoint at a time"
        assert pos >= self._pos, "positions do not fall"
        projections = self._projections
        if self._frozen and self._memtable.memory_bytes <= ABSORBED_MAX_BYTES:
            self._frozen[-1].absorb(self._memtable)
        else:
            self._frozen = (*self._frozen, self._memtable)
        self._memtable = projections.memtable = TimerMemtable()
        self._job = RunsJob(
            fs=self._fs,
            paths=self._paths,
            runs=self.entries,
            memtables=self._frozen,
            live={RUN_TIMERS: projections.due.pending, RUN_IDS: projections.ids.count},
            topics=array("i", projections.topics_by_id),
            numbers=dict(self._next_numbers),
            from_pos=self._pos,
            pos=pos,
            forget_pos=projections.ids.forget_pos,
        )
        for kind in KINDS:
            # Even if the job fails, its names are never reused.
            self._next_numbers[kind] += 1
        return self._job

    def timers_now(self) -> RowsNow | None:
        """Return all pending timers as of now, or None: ask again soon.

        None while a job writes some of them, or if so many are in no run that a copy would take
        long. Then a checkpoint is due, and after an attempt at it the answer is never None.
        """
        return self._rows_now(RUN_TIMERS)

    def ids_now(self) -> RowsNow | None:
        """Return all ids as of now, or None, as `timers_now` does."""
        return self._rows_now(RUN_IDS)

    def _rows_now(self, kind: int) -> RowsNow | None:
        if self._job is not None:
            return None
        if self.delta_bytes > COPIED_MAX_BYTES and not self._is_save_tried:
            self._is_save_wanted = True
            return None
        self._is_save_wanted = self._is_save_tried = False
        copy = TimerMemtable()
        for memtable in (*self._frozen, self._memtable):
            if kind == RUN_TIMERS:
                copy.add_timers(memtable)
            else:
                copy.add_ids(memtable)
        return RowsNow(
            fs=self._fs,
            paths=self._paths,
            entries=tuple(entry for entry in self.entries if entry.kind == kind),
            memtable=copy,
            topics=array("i", self._projections.topics_by_id),
            kind=kind,
            forget_pos=self._projections.ids.forget_pos,
            log_start=self._projections.moved.start,
        )

    def end(self, job: RunsJob) -> None:
        """Note that a job has succeeded: its entries are now those of the store."""
        assert job is self._job
        self._job = None
        self._is_save_tried = self._is_save_wanted
        self._frozen = ()
        self.entries = job.entries
        self._pos = job.pos

    def abandon(self, job: RunsJob) -> None:
        """Note that a job has failed: the next one saves its memtables too."""
        assert job is self._job
        self._job = None
        self._is_save_tried = self._is_save_wanted

    def keep(self, entries: Iterable[RunEntry]) -> None:
        """Delete all other run files; on any thread, while no job runs.

        Args:
            entries: the runs that any usable checkpoint names.

        Raises:
            StorageError: a file could not be deleted.
        """
        kept = {(entry.kind, entry.number) for entry in entries}
        for kind in KINDS:
            directory = run_directory(self._paths, kind)
            for name in self._fs.list_dir(directory):
                number = parse_segment_name(name)
                if number is not None and (kind, number) not in kept:
                    self._fs.unlink(directory / name)
