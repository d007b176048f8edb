"""The set of runs: pending timers and users' ids as of a checkpoint.

While the broker runs, `TimerMemtable` collects the changes of timers and ids. A checkpoint freezes
it (`freeze`, immediate, on the loop), and a thread writes it as one run of each kind
(`RunsJob.run`). All runs of a kind together, where newer ones override older ones, are the state at
that log position; recovery loads them and replays the log after it.

Timers are in two kinds of runs: by arrival, which is the order of the log and of what frees it, and
in the TimerLog by due time, which is the order in which a start needs them. A run never changes and
a name is never reused, so a name in a checkpoint always means the same run, until `keep` deletes
it.

Merges of many rows are made beside the checkpoints: see `runs_merge`.

The caller names the runs in a checkpoint, and uses none before `check` has passed. Layer 2.
"""

import sys
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from _core.bytes.layout import RUN_DUE, RUN_IDS, RUN_TIMER_SIZE, RUN_TIMERS
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from _core.timers.memtable import TimerMemtable
from _core.timers.row_places import lowest_place, rows_between
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.store.runs.merging import memtable_blocks, merged_blocks, open_reader, open_run
from appliance.store.runs.run_files import RunEntry, run_directory
from appliance.store.runs.runs_job import (
    AT_ONCE_ROWS,
    KINDS,
    LogMode,
    RunsJob,
    first_to_merge,
)
from appliance.store.runs.runs_merge import MergeRules, RunsMerge
from appliance.store.runs.saved_ids import SavedIds
from appliance.store.runs.timer_memory import MEMORY_BYTES, SavedCounts, TimerMemory
from appliance.system.files import FileSystem
from appliance.units import MIB

DELTA_MAX_BYTES: Final = 64 * MIB
"""Memtable size above which a checkpoint is due: 1.6 million timers, sorted in about half a
second."""

ABSORBED_MAX_BYTES: Final = MIB
"""A memtable up to this size is added to the one that a failed checkpoint left, in half a
millisecond. Otherwise a disk that stays full would leave ever more buffers of a few rows each."""

COPIED_MAX_BYTES: Final = MIB
"""A larger memtable is saved before it is copied: a copy of this one takes a millisecond."""


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
    """The runs of one store. All but `run` of a job, `check` and `keep` belong to the event loop.

    Attributes:
        entries: the runs of the last completed job: by kind, the oldest first.
        timer_memory: decides which timers are in memory.
        ids: the ids that the runs have.
        at_once_rows: number of rows of older runs that a checkpoint merges itself.
        merge_error: why runs could not be merged beside the last checkpoint; None if they were.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        projections: Projections,
        *,
        delta_max_bytes: int = DELTA_MAX_BYTES,
        timer_memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Start to collect the changes in `projections`; touch no file.

        Args:
            fs: all files.
            paths: their names.
            projections: the timers and ids to save and load.
            delta_max_bytes: unsaved bytes from which `is_due` is true.
            timer_memory_bytes: memory of timers that are due later than soon; half as much is for
                ids.
        """
        self._fs = fs
        self._paths = paths
        self._projections = projections
        self._delta_max_bytes = delta_max_bytes
        self._memtable = TimerMemtable()
        self._frozen: tuple[TimerMemtable, ...] = ()
        self._job: RunsJob | None = None
        self._merge: RunsMerge | None = None
        self._has_merged = False
        """`_merge` has ended, but its result was not taken."""
        self._tried_kinds: set[int] = set()
        """What was merged since the last checkpoint."""
        self.at_once_rows = AT_ONCE_ROWS
        self.merge_error: StorageError | CorruptionError | None = None
        self._pos = 0
        self._next_numbers = dict.fromkeys(KINDS, 1)
        self._is_save_wanted = False
        """The memtables are to be saved before they are copied."""
        self._is_save_tried = False
        self.entries: tuple[RunEntry, ...] = ()
        self._has_log = True
        """The TimerLog of the entries has every timer."""
        self.timer_memory = TimerMemory(fs, paths, projections, self, timer_memory_bytes)
        self.ids = SavedIds(fs, paths, projections, timer_memory_bytes // 2)
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
        self._has_log = True
        self._pos = pos

    def check(
        self, entries: Sequence[RunEntry], counts: SavedCounts | None = None
    ) -> Iterator[int]:
        """Check that all that `load` will read is intact; yield the bytes read so far.

        Of a TimerLog that is loaded in pieces, and of ids that stay on the disk, the directories
        are checked; blocks are checked when they are read. The runs of timers are not needed then.

        Args:
            entries: all runs of a state.
            counts: as for `load`.

        Raises:
            StorageError: one is missing, or cannot be read.
            CorruptionError: one is damaged.
        """
        done = 0
        ends = dict.fromkeys(KINDS, -1)
        loads_later = self.timer_memory.loads_later(entries, counts)
        leaves_ids = counts is not None and self.ids.readers_of(entries) is not None
        for entry in entries:
            path = entry.path(self._paths)
            if entry.kind not in KINDS:
                raise CorruptionError(path, 0, "a run of timers or of ids", f"kind {entry.kind}")
            if not ends[entry.kind] <= entry.from_pos <= entry.to_pos:
                expected = f"a run from {ends[entry.kind]} on"
                raise CorruptionError(path, 0, expected, f"{entry.from_pos} to {entry.to_pos}")
            ends[entry.kind] = entry.to_pos
            with closing(open_reader(self._fs, path, entry)) as reader:
                if leaves_ids if entry.kind == RUN_IDS else loads_later:
                    continue
                for block in reader.blocks():
                    done += len(block)
                    yield done

    def load(
        self,
        entries: Sequence[RunEntry],
        pos: int,
        *,
        has_timer_log: bool = False,
        counts: SavedCounts | None = None,
        now_ms: int = 0,
    ) -> Iterator[int]:
        """Load timers and ids of a checkpoint into the projections; yield the rows loaded so far.

        The projections have the topics already, but no timers and ids; the caller restores the
        states of the levels afterwards. Timers and ids of deleted topics are dropped. If there are
        many timers, those that are due later are left to `timer_memory`.

        Args:
            entries: runs that `check` has passed.
            pos: the position of the checkpoint.
            has_timer_log: they have a TimerLog with all timers.
            counts: how many timers are pending; None: load all of them now.
            now_ms: epoch ms.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run was damaged since; the projections hold a part of it.
            ValueError: the counts are not those of these topics.
            MemoryError: they do not fit into memory.
        """
        if counts is not None and self.timer_memory.loads_later(entries, counts):
            yield from self.timer_memory.begin(entries, counts, now_ms)
        else:
            yield from self._load_kind(entries, RUN_TIMERS)
        readers = None if counts is None else self.ids.readers_of(entries)
        if readers is not None:
            self.ids.restore(readers)
        else:
            yield from self._load_kind(entries, RUN_IDS)
        self.entries = tuple(entries)
        self._has_log = has_timer_log
        self._pos = pos

    def _load_kind(self, entries: Sequence[RunEntry], kind: int) -> Iterator[int]:
        loader = RunLoader(self._projections)
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

    def close(self) -> None:
        """Close the files of a load that has not ended, and the runs of ids."""
        if self.timer_memory.load is not None:
            self.timer_memory.load.close()
        self.ids.close()

    # Timers that are not in memory

    @property
    def has_timer_log(self) -> bool:
        """A TimerLog has every timer that the runs of timers have."""
        return self._has_log

    @property
    def has_every_timer(self) -> bool:
        """The TimerLog and the memtables together have every pending timer, by its due time."""
        memtables = (*self._frozen, self._memtable)
        return self._has_log and not any(memtable.unplaced for memtable in memtables)

    @property
    def can_copy(self) -> bool:
        """`entries` and `changes_due` together have all timers: not in the last part of a job."""
        return self._job is None or not self._job.has_released

    def changes_due(self, from_ms: int, until_ms: int) -> TimerMemtable:
        """Return a copy of the rows that no run has, of timers due in an interval; epoch ms."""
        assert self.can_copy
        copy = TimerMemtable()
        for memtable in (*self._frozen, self._memtable):
            copy.add_due(memtable, from_ms, until_ms)
        return copy

    # Checkpoints

    def freeze(self, pos: int, *, is_replay: bool = False) -> RunsJob:
        """Begin a checkpoint; the caller runs the job, then ends or abandons it.

        Args:
            pos: log position: every frame below it is applied, and none from it on.
            is_replay: no state names the runs, so that a TimerLog is not written anew yet.
        """
        assert self._job is None, "one checkpoint at a time"
        assert pos >= self._pos, "positions do not fall"
        projections = self._projections
        if self._frozen and self._memtable.memory_bytes <= ABSORBED_MAX_BYTES:
            self._frozen[-1].absorb(self._memtable)
        else:
            self._frozen = (*self._frozen, self._memtable)
        self._memtable = projections.memtable = TimerMemtable()
        self._memtable.older_bytes = sum(memtable.memory_bytes for memtable in self._frozen)
        self._job = RunsJob(
            fs=self._fs,
            paths=self._paths,
            runs=self.entries,
            memtables=self._frozen,
            merging=() if self._merge is None else self._merge.runs,
            # Nothing else merges while the log is replayed.
            at_once_rows=sys.maxsize if is_replay else self.at_once_rows,
            log_mode=self._log_mode(is_replay=is_replay),
            live=self._live_rows(),
            topics=array("i", projections.topics_by_id),
            numbers=dict(self._next_numbers),
            from_pos=self._pos,
            pos=pos,
            forget_pos=projections.ids.forget_pos,
            opens_ids=self.ids.begin_save(),
            known_ids=self.ids.readers,
        )
        return self._job

    def _log_mode(self, *, is_replay: bool) -> LogMode:
        load = self.timer_memory.load
        if load is not None and load.fault is not None and not load.is_fault_known:
            load.is_fault_known = True
            self._has_log = False
        if self._has_log and not any(memtable.unplaced for memtable in self._frozen):
            return "merge"
        return "none" if is_replay else "anew"

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
        self._frozen = ()
        self._memtable.older_bytes = 0
        self.entries = job.entries
        self._has_log = job.has_timer_log
        self._pos = job.pos
        if job.id_readers is not None:
            self.ids.end_save(job.id_readers)
        self._end_job(job)

    def abandon(self, job: RunsJob) -> None:
        """Note that a job has failed: the next one saves its memtables too."""
        self._end_job(job)

    def _end_job(self, job: RunsJob) -> None:
        assert job is self._job
        self._job = None
        # Even if the job failed, its names are never reused.
        self._next_numbers = dict(job.numbers)
        self._is_save_tried = self._is_save_wanted
        self._tried_kinds.clear()
        if self._has_merged:
            self._take_merge()

    # Merges beside checkpoints

    def _live_rows(self) -> dict[int, int]:
        """The number of rows that are not obsolete, by kind."""
        pending = self._projections.due.pending
        return {RUN_TIMERS: pending, RUN_DUE: pending, RUN_IDS: self._projections.ids.count}

    def begin_merge(self) -> RunsMerge | None:
        """Return a merge of many rows for a thread, or None; the caller calls `end_merge` then.

        One runs at a time, beside checkpoints or without one. A kind that could not be merged, or
        was, is not looked at again before the end of the next checkpoint.
        """
        if self._job is not None or self._merge is not None:
            return None
        live = self._live_rows()
        for kind in KINDS:
            present = [entry for entry in self.entries if entry.kind == kind]
            rows = [entry.rows for entry in present]
            first = first_to_merge(rows, 0, live[kind])
            if kind in self._tried_kinds or sum(rows[first:]) <= self.at_once_rows:
                continue
            number = self._next_numbers[kind]
            self._next_numbers[kind] += 1
            self._tried_kinds.add(kind)
            self._merge = RunsMerge(
                fs=self._fs,
                paths=self._paths,
                rules=MergeRules(
                    topics=array("i", self._projections.topics_by_id),
                    forget_pos=self._projections.ids.forget_pos,
                    is_whole=first == 0,
                ),
                runs=tuple(present[first:]),
                number=number,
            )
            return self._merge
        return None

    def end_merge(self, merge: RunsMerge) -> None:
        """Note that a merge has run, successfully or not."""
        assert merge is self._merge
        self._has_merged = True
        if self._job is None:  # else its entries have the runs
            self._take_merge()

    def drop_merge(self) -> None:
        """Forget a merge whose thread has ended, if there is one: its file is nobody's."""
        self._merge = None
        self._has_merged = False

    def _take_merge(self) -> None:
        merge = self._merge
        assert merge is not None
        self.drop_merge()
        self.merge_error = merge.error
        if merge.error is not None and merge.is_damage and merge.kind == RUN_DUE:
            self._has_log = False  # the next checkpoint writes it anew, from the runs of timers
        if merge.error is not None or merge.is_stopped:
            return
        count = len(merge.runs)
        for at in range(len(self.entries) - count + 1):
            if self.entries[at : at + count] == merge.runs:
                made = () if merge.made is None else (merge.made,)
                self.entries = (*self.entries[:at], *made, *self.entries[at + count :])
                return
        # Else the TimerLog was written anew meanwhile, or the runs of an older latermq were.

    def keep(self, entries: Iterable[RunEntry]) -> None:
        """Delete all other run files but that of a merge; on any thread.

        No job may begin or end meanwhile.

        Args:
            entries: the runs that any usable checkpoint names.

        Raises:
            StorageError: a file could not be deleted.
        """
        kept = {(entry.kind, entry.number) for entry in entries}
        merge = self._merge
        if merge is not None:
            kept.add((merge.kind, merge.number))
        for kind in KINDS:
            directory = run_directory(self._paths, kind)
            for name in self._fs.list_dir(directory):
                number = parse_segment_name(name)
                if number is not None and (kind, number) not in kept:
                    self._fs.unlink(directory / name)
