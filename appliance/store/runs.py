"""Pending timers and users' ids as of a checkpoint: which runs there are, and when they are merged.

While the broker runs, `TimerDeltas` gathers what happens to timers and ids. A checkpoint freezes
it (`freeze`, on the loop, at once), and a thread writes it as one run of each kind (`RunsJob.run`).
All runs together, the newer ones counting more, are the state at that position of the log; a start
loads them and replays what follows.

Runs are merged by size: see `first_to_merge`. A run is never changed and a name never used again,
so what a checkpoint names is what it named when it was written, until `keep` deletes it.

Left to the caller: to name the runs in a checkpoint, and not to use any before `check` has passed.
Layer 2.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Final

from _core.layout import RUN_IDS, RUN_TIMERS
from _core.projections import Projections
from _core.run_loader import RunLoader
from _core.run_merge import RunMerge
from _core.timer_deltas import TimerDeltas
from appliance.errors import CorruptionError, StorageError
from appliance.fs import FileSystem
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.store.run_files import (
    RunEntry,
    RunReader,
    RunWriter,
    decode_entry,
    encode_entry,
    read_rows,
    run_directory,
)
from appliance.units import MIB

__all__ = ["RunEntry", "Runs", "RunsJob", "decode_entry", "encode_entry", "read_rows"]

KINDS: Final = (RUN_TIMERS, RUN_IDS)

DELTA_MAX_BYTES: Final = 64 * MIB
"""Beyond it a checkpoint is wanted: 1.6 million timers, sorted in about half a second."""

ABSORBED_MAX_BYTES: Final = MIB
"""So little beside what a failed checkpoint left goes into the same rows, in half a millisecond:
else a disk that stays full would leave ever more buffers, each for a few rows."""

GROWTH: Final = 3
"""A run is merged when this many times its rows have come after it."""

SLACK_ROWS: Final = 65_536
"""So many rows may be out of date without a merge of everything: a few MB, loaded in 20 ms."""

_DONE: Final = -1
"""What `RunMerge.run` answers."""


def first_to_merge(rows: Sequence[int], added: int, live: int) -> int:
    """The first of the runs that are merged with what is added; `len(rows)`: none.

    - Everything, when more than half of all rows are out of date. So there are at most
      2 x live + SLACK_ROWS rows, and each merge of this kind is paid for by as many new rows.
    - Else the longest tail of which each run has GROWTH times its own rows behind it. So in n
      rows that only grow in number a row is written about log(n) / log(1 + GROWTH) times, and
      there are some GROWTH runs of each order of size.

    Args:
        rows: of each run, the oldest first.
        added: rows to be added.
        live: how many say something still.
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


class RunsJob:
    """A checkpoint of timers and ids that is being written. Made by `Runs.freeze`.

    Attributes:
        pos: log position: what it holds is the state after all frames below, before all others.
        entries: after `run`: all runs that are this state together.
        damage: after `run`: why older runs could not be merged. They are named still, though a
            start will refuse them and replay the log instead.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        *,
        runs: tuple[RunEntry, ...],
        deltas: tuple[TimerDeltas, ...],
        live: dict[int, int],
        topics: "array[int]",
        numbers: dict[int, int],
        from_pos: int,
        pos: int,
        now_ms: int,
    ) -> None:
        """Take what the loop hands over; touches no file.

        Args:
            fs: all files.
            paths: their names.
            runs: those of the state before.
            deltas: what has happened since, the oldest first; they are sorted here.
            live: rows that are worth keeping, by kind.
            topics: ids of those that exist.
            numbers: the number of the next run, by kind.
            from_pos: log position where the deltas begin.
            pos: where they end.
            now_ms: epoch ms.
        """
        self._fs = fs
        self._paths = paths
        self._runs = runs
        self._deltas = deltas
        self._live = live
        self._topics = topics
        self._numbers = numbers
        self._from_pos = from_pos
        self._now_ms = now_ms
        self.pos = pos
        self._writers: list[RunWriter] = []
        self.entries: tuple[RunEntry, ...] = ()
        self.damage: tuple[StorageError | CorruptionError, ...] = ()

    def run(self) -> None:
        """Sort, merge what is due, write and sync; on any thread. Call it once.

        Mostly without the GIL: it is held for some ten microseconds of each 256 KiB.

        Raises:
            StorageError: nothing has changed: see `Runs.abandon`. If it `is_fatal` the process must
                stop.
            MemoryError: the same.
        """
        entries: list[RunEntry] = []
        try:
            for kind in KINDS:
                entries += self._write_kind(kind)
        except (StorageError, MemoryError):
            for writer in self._writers:
                writer.discard()
            raise
        for deltas in self._deltas:
            deltas.release()
        self.entries = tuple(entries)

    def _write_kind(self, kind: int) -> list[RunEntry]:
        present = [entry for entry in self._runs if entry.kind == kind]
        rows = [entry.rows for entry in present]
        added = sum(deltas.row_count(kind) for deltas in self._deltas)
        first = first_to_merge(rows, added, self._live[kind])
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
        """Write one run of the present ones from `first` on and of the deltas."""
        merged = present[first:]
        writer = RunWriter(
            self._fs,
            self._paths,
            kind=kind,
            number=self._numbers[kind],
            from_pos=merged[0].from_pos if merged else self._from_pos,
            to_pos=self.pos,
        )
        self._writers.append(writer)
        for deltas in self._deltas:
            deltas.sort()
        merge = RunMerge(
            kind,
            source_count=len(merged) + len(self._deltas),
            topics=self._topics,
            is_whole=first == 0,
            now_ms=self._now_ms,
        )
        with ExitStack() as stack:
            sources = [open_run(stack, self._fs, self._paths, entry) for entry in merged]
            sources += [iter(delta_blocks(deltas, kind)) for deltas in self._deltas]
            for block, rows in merged_blocks(merge, sources):
                writer.append(block, rows)
        made = writer.finish()
        if made is None:
            return present[:first]
        self._fs.sync_dir(writer.path.parent)
        return [*present[:first], made]


def open_run(
    stack: ExitStack, fs: FileSystem, paths: DataPaths, entry: RunEntry
) -> Iterator[bytes]:
    """The rows of a run, block by block; the stack closes its file."""
    reader = stack.enter_context(closing(RunReader(fs, entry.path(paths), entry)))
    return reader.blocks()


def delta_blocks(deltas: TimerDeltas, kind: int) -> Iterator[bytes]:
    """Yield the rows of sorted deltas, block by block."""
    while block := deltas.next_block(kind):
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


class Runs:
    """The runs of one store. All but `RunsJob.run`, `check` and `keep` belong to the event loop."""

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        projections: Projections,
        *,
        delta_max_bytes: int = DELTA_MAX_BYTES,
    ) -> None:
        """Begin to gather what happens in `projections`; touches no file.

        Args:
            fs: all files.
            paths: their names.
            projections: what is saved and loaded.
            delta_max_bytes: `is_due` from so much unsaved on.
        """
        self._fs = fs
        self._paths = paths
        self._projections = projections
        self._delta_max_bytes = delta_max_bytes
        self._deltas = TimerDeltas()
        self._frozen: tuple[TimerDeltas, ...] = ()
        self._job: RunsJob | None = None
        self._pos = 0
        self._next_numbers = dict.fromkeys(KINDS, 1)
        self._entries: tuple[RunEntry, ...] = ()
        projections.deltas = self._deltas

    @property
    def entries(self) -> tuple[RunEntry, ...]:
        """The runs as of the last job that ended: by kind, the oldest first."""
        return self._entries

    @property
    def delta_bytes(self) -> int:
        """Memory of what no run has yet, bytes."""
        return self._deltas.memory_bytes + sum(deltas.memory_bytes for deltas in self._frozen)

    @property
    def is_due(self) -> bool:
        """So much is unsaved that a checkpoint is wanted now, if none is under way."""
        return self._job is None and self.delta_bytes >= self._delta_max_bytes

    # Start

    def open(self) -> None:
        """See which names were used; the directories exist.

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
        """Start without runs: the log is replayed from `pos`, its beginning."""
        self._entries = ()
        self._pos = pos

    def check(self, entries: Iterable[RunEntry]) -> Iterator[int]:
        """Read all of these runs and see that they are whole; yields the bytes read so far.

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

    def load(self, entries: Sequence[RunEntry], pos: int, now_ms: int) -> Iterator[int]:
        """Take the state of a checkpoint into the projections; yields the rows taken so far.

        The topics are there already, and nothing else of timers and ids; the states of the levels
        are restored afterwards. Timers and ids of topics that are gone are left out.

        Args:
            entries: runs that `check` found whole.
            pos: the position of the checkpoint.
            now_ms: epoch ms; ids to be forgotten by then are.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: one was damaged since; the projections hold a part of it.
            MemoryError: they do not fit.
        """
        loader = RunLoader(self._projections)
        for kind in KINDS:
            of_kind = [entry for entry in entries if entry.kind == kind]
            merge = RunMerge(
                kind,
                source_count=len(of_kind),
                topics=self._projections.topics_by_id,
                is_whole=True,
                now_ms=now_ms,
            )
            take = loader.load_timers if kind == RUN_TIMERS else loader.load_ids
            with ExitStack() as stack:
                sources = [open_run(stack, self._fs, self._paths, entry) for entry in of_kind]
                for block, _ in merged_blocks(merge, sources):
                    take(block)
                    yield loader.timers + loader.ids
        self._entries = tuple(entries)
        self._pos = pos

    # Checkpoints

    def freeze(self, pos: int, now_ms: int) -> RunsJob:
        """Begin a checkpoint; the caller runs the job, then ends or abandons it.

        Args:
            pos: log position: every frame below was applied, and none from there on.
            now_ms: epoch ms.
        """
        assert self._job is None, "one checkpoint at a time"
        assert pos >= self._pos, "positions do not fall"
        projections = self._projections
        if self._frozen and self._deltas.memory_bytes <= ABSORBED_MAX_BYTES:
            self._frozen[-1].absorb(self._deltas)
        else:
            self._frozen = (*self._frozen, self._deltas)
        self._deltas = projections.deltas = TimerDeltas()
        self._job = RunsJob(
            self._fs,
            self._paths,
            runs=self._entries,
            deltas=self._frozen,
            live={RUN_TIMERS: projections.due.pending, RUN_IDS: projections.ids.count},
            topics=array("i", projections.topics_by_id),
            numbers=dict(self._next_numbers),
            from_pos=self._pos,
            pos=pos,
            now_ms=now_ms,
        )
        for kind in KINDS:
            # Also if the job fails: a name is used once.
            self._next_numbers[kind] += 1
        return self._job

    def end(self, job: RunsJob) -> None:
        """A job has run: its entries are those of the store now."""
        assert job is self._job
        self._job = None
        self._frozen = ()
        self._entries = job.entries
        self._pos = job.pos

    def abandon(self, job: RunsJob) -> None:
        """A job has failed: the next one saves what it should have."""
        assert job is self._job
        self._job = None

    def keep(self, entries: Iterable[RunEntry]) -> None:
        """Delete all run files but these; on any thread, while no job is under way.

        Args:
            entries: those that any checkpoint names which a start may use.

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
