"""The key index of a running broker: built behind the flushed log, never on the way of a record.

A job on a thread takes the frames of a slice of the log and sorts their rows, which stay in memory
as one piece. Adjacent pieces are written as a run when they have enough rows or cover enough of the
log; adjacent runs of about one size are merged. What the index covers is its pieces, so a run that
is missing or damaged is a gap, which the next jobs fill from the log. The newest pieces are lost at
every stop and gathered again after it.

 loop     `step` finds what to do next
 thread   `IndexJob.run`
 loop     `end`

Nothing is written to the log, and no checkpoint names a run. Layer 2.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

from _core.tables.key_scan import KeyRows
from appliance.errors import CorruptionError, StorageError
from appliance.store.keys.key_runs import (
    TEMPORARY_SUFFIX,
    Covered,
    KeyRun,
    MemoryPiece,
    merged,
    write_run,
)
from appliance.store.keys.key_search import KeySearch, Piece
from appliance.store.keys.log_part import LogPart
from appliance.store.log.data_files import DataFiles
from appliance.store.paths import parse_range_name
from appliance.units import GIB, MIB, MS_PER_SECOND, NS_PER_MS

SLICE_BYTES: Final = 16 * MIB
"""Bytes of the log that one job takes. There are ten jobs a second, so 160 MB/s are indexed."""

RUN_ROWS: Final = 1 << 20
"""Rows that are written as one run: 16 MiB of memory."""

RUN_SPAN_BYTES: Final = GIB
"""A part of the log that is written as one run, however few rows it has."""

MEMORY_PIECES_MAX: Final = 32
"""Adjacent pieces in memory before they are joined."""

MERGED_RUNS: Final = 4
"""Adjacent runs of one size that are merged into one."""

MERGED_ROWS_MAX: Final = 1 << 26
"""Rows of a merged run: a file of 1 GiB. So the index of a freed part of the log is freed soon."""

BUSY_BYTES_PER_S: Final = 16 * MIB
"""From this growth of the log on the index gives way to producers."""

BUSY_PAUSE: Final = 50
"""While the log grows so fast, a job is followed by a pause of so many times its duration."""

GROWTH_NS: Final = MS_PER_SECOND * NS_PER_MS // 20
"""Over this time the growth of the log is measured."""

BUSY_PAUSE_MAX_NS: Final = 5 * MS_PER_SECOND * NS_PER_MS

RETRY_NS: Final = 10 * MS_PER_SECOND * NS_PER_MS
"""Pause after a job that failed, on a full disk for example."""

IndexPiece = MemoryPiece | KeyRun

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """Which pieces a job took away and which it made."""

    removed: Sequence[IndexPiece] = ()
    added: Sequence[IndexPiece] = ()


@dataclass(slots=True, eq=False)
class IndexJob:
    """One piece of work on the index.

    Attributes:
        change: the outcome; nothing changed if it failed.
        error: why it failed; None if it succeeded.
    """

    work: Callable[[], Change]
    change: Change = field(default_factory=Change)
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Do it; may run on any thread.

        Raises:
            StorageError: a sync failed; the process must stop.
        """
        try:
            self.change = self.work()
        except CorruptionError as error:
            self.error = error
        except StorageError as error:
            self.error = error
            if error.is_fatal:
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLimits:
    """When pieces become runs; see the constants of this module."""

    slice_bytes: int = SLICE_BYTES
    run_rows: int = RUN_ROWS
    run_span_bytes: int = RUN_SPAN_BYTES
    memory_pieces_max: int = MEMORY_PIECES_MAX
    merged_runs: int = MERGED_RUNS
    merged_rows_max: int = MERGED_ROWS_MAX


class KeyIndex:
    """The index of one log. All methods run on the loop."""

    def __init__(
        self,
        files: DataFiles,
        *,
        cluster: UUID,
        salt: int,
        decompress: Callable[[int, memoryview], bytes],
        left_out: Set[int] = frozenset(),
        is_on: bool = True,
        limits: IndexLimits | None = None,
    ) -> None:
        """Touch no file yet.

        Args:
            files: of the broker.
            cluster, salt: of the log.
            decompress: (codec, section) -> records.
            left_out: ids of the topics that are not indexed; each job reads them again.
            is_on: build it; otherwise its files are removed.
            limits: sizes.
        """
        self._clock, self._fs = files.clock, files.fs
        self._paths, self._log = files.paths, files.log
        self._cluster = cluster
        self._salt = salt
        self._decompress = decompress
        self._left_out = left_out
        self._is_on = is_on
        self._limits = limits or IndexLimits()
        # Clients never see the salt, so none can choose keys of one hash.
        self._secret = cluster.bytes[:12] + salt.to_bytes(4)
        self._is_open = False
        self._is_stopping = False
        self._job: IndexJob | None = None
        self._failed_ns: int | None = None
        self._seen = (self._clock.monotonic_ns(), self._log.pointers.committed)
        self._bytes_per_s = 0
        self._began_ns = 0
        self._resume_ns = 0
        self._damaged: list[IndexPiece] = []
        self._retired: list[KeyRun] = []
        self._search_count = 0
        self.pieces: tuple[IndexPiece, ...] = ()
        self.row_count = 0

    # What is covered

    @property
    def indexed_pos(self) -> int:
        """Log position up to which everything is indexed."""
        pos = self._log.start_pos
        for piece in self.pieces:
            if piece.from_pos > pos:
                break
            pos = max(pos, piece.to_pos)
        return pos

    @property
    def is_on(self) -> bool:
        """Whether it is built."""
        return self._is_on

    @property
    def run_count(self) -> int:
        """The number of files."""
        return sum(isinstance(piece, KeyRun) for piece in self.pieces)

    # Jobs

    def step(self) -> IndexJob | None:
        """Return a job to run on a thread and then pass to `end`; None if there is none now."""
        if self._job is not None:
            return None
        now_ns = self._clock.monotonic_ns()
        self._note_growth(now_ns)
        if self._failed_ns is not None:
            if now_ns - self._failed_ns < RETRY_NS:
                return None
            self._failed_ns = None
        if now_ns < self._resume_ns:
            return None
        work = self._next_work()
        if work is not None:
            self._began_ns = now_ns
            self._job = IndexJob(work)
        return self._job

    def _note_growth(self, now_ns: int) -> None:
        """Measure how fast the log grows."""
        then_ns, before = self._seen
        if now_ns - then_ns >= GROWTH_NS:
            committed = self._log.pointers.committed
            seconds_ns = MS_PER_SECOND * NS_PER_MS
            self._bytes_per_s = (committed - before) * seconds_ns // (now_ns - then_ns)
            self._seen = now_ns, committed

    def end(self, job: IndexJob) -> None:
        """Note that a job has run."""
        assert job is self._job
        self._job = None
        self._pause()
        error = job.error
        if error is not None:
            self._failed_ns = self._clock.monotonic_ns()
            _log.warning("the key index was not extended, will be retried: %s", error)
            if isinstance(error, CorruptionError) or error.is_unreadable:
                self.note_damage(run for run in self._runs() if run.path == error.path)
            return
        self._is_open = True
        change = job.change
        removed = {id(piece) for piece in change.removed}
        kept = [piece for piece in self.pieces if id(piece) not in removed]
        self.pieces = tuple(sorted([*kept, *change.added], key=lambda piece: piece.from_pos))
        self.row_count = sum(piece.row_count for piece in self.pieces)
        self._damaged = [piece for piece in self._damaged if id(piece) not in removed]
        self._retired += [piece for piece in change.removed if isinstance(piece, KeyRun)]
        self._close_retired()

    def _pause(self) -> None:
        """Leave the processors to producers if the log grows fast."""
        now_ns = self._clock.monotonic_ns()
        self._note_growth(now_ns)
        if self._bytes_per_s >= BUSY_BYTES_PER_S:
            pause_ns = (now_ns - self._began_ns) * BUSY_PAUSE
            self._resume_ns = now_ns + min(pause_ns, BUSY_PAUSE_MAX_NS)

    def stop(self) -> None:
        """Make a job that runs on a thread end soon."""
        self._is_stopping = True

    def close(self) -> None:
        """Close all files; the job, if any, has ended."""
        for run in [*self._runs(), *self._retired]:
            run.close()
        self.pieces = ()

    def _runs(self) -> list[KeyRun]:
        return [piece for piece in self.pieces if isinstance(piece, KeyRun)]

    def _next_work(self) -> Callable[[], Change] | None:
        part = self._part(self._log.pointers.flushed)
        if not self._is_open:
            return lambda: self._open(part)
        if not self._is_on:
            return None
        useless = self._useless()
        if useless:
            return lambda: self._drop(useless)
        for chain in _chains(self.pieces):
            if self._is_large(chain):
                return lambda: self._write(chain)
            if len(chain) >= self._limits.memory_pieces_max:
                return lambda: Change(chain, [merged(chain)])
        runs = self._to_merge()
        if runs:
            return lambda: self._write(runs)
        gap = self._first_gap()
        if gap is None:
            return None
        left_out = frozenset(self._left_out)
        return lambda: self._gather(part, gap, left_out)

    def _part(self, end: int) -> LogPart:
        segments = self._log.files.places
        return LogPart(self._fs, self._paths.commit_log, segments, end, salt=self._salt)

    def _useless(self) -> list[IndexPiece]:
        """Return pieces that are damaged, or lie before the begin of the log."""
        start = self._log.start_pos
        gone = [piece for piece in self.pieces if piece.to_pos <= start]
        return [*gone, *(piece for piece in self._damaged if piece not in gone)]

    def _is_large(self, chain: Sequence[MemoryPiece]) -> bool:
        """Return whether adjacent pieces are to be written."""
        rows = sum(piece.row_count for piece in chain)
        span = chain[-1].to_pos - chain[0].from_pos
        is_closed = any(run.from_pos == chain[-1].to_pos for run in self._runs())
        return rows >= self._limits.run_rows or span >= self._limits.run_span_bytes or is_closed

    def _to_merge(self) -> list[KeyRun]:
        """Return adjacent runs of one size, few enough rows to be merged."""
        count = self._limits.merged_runs
        runs = self._runs()
        for first in range(len(runs) - count, -1, -1):
            some = runs[first : first + count]
            rows = sum(run.row_count for run in some)
            is_adjacent = all(a.to_pos == b.from_pos for a, b in pairwise(some))
            sizes = {self._size_class(run) for run in some}
            if is_adjacent and len(sizes) == 1 and rows <= self._limits.merged_rows_max:
                return some
        return []

    def _size_class(self, run: KeyRun) -> int:
        """Return how often runs were merged to make one of this size."""
        limits, span = self._limits, run.to_pos - run.from_pos
        size = max(run.row_count // limits.run_rows, span // limits.run_span_bytes)
        times = 0
        while size >= limits.merged_runs:
            size //= limits.merged_runs
            times += 1
        return times

    def _first_gap(self) -> tuple[int, int] | None:
        """Return the first part of the flushed log that no piece covers."""
        pos, flushed = self._log.start_pos, self._log.pointers.flushed
        for piece in self.pieces:
            if piece.from_pos > pos:
                return pos, min(piece.from_pos, flushed)
            pos = max(pos, piece.to_pos)
        return (pos, flushed) if pos < flushed else None

    # On the thread

    def _open(self, part: LogPart) -> Change:
        """Open the runs that a start finds; remove what is no use."""
        directory = self._paths.key_index
        if not self._fs.exists(directory):
            return Change()
        if not self._is_on:
            self._fs.remove_tree(directory)
            return Change()
        found: list[KeyRun] = []
        names = self._fs.list_dir(directory)
        try:
            # A merged run comes before those that it was made of.
            for name in sorted(names, key=_by_size):
                run = self._open_run(name, part)
                if run is None or any(_overlaps(run, other) for other in found):
                    if run is not None:
                        run.close()
                    self._fs.unlink(directory / name)
                else:
                    found.append(run)
        finally:
            part.close()
        return Change(added=found)

    def _open_run(self, name: str, part: LogPart) -> KeyRun | None:
        path = self._paths.key_index / name
        if name.endswith(TEMPORARY_SUFFIX) or parse_range_name(name) is None:
            return None
        try:
            run = KeyRun.open(self._fs, path, cluster=self._cluster, salt=self._salt)
        except CorruptionError as error:
            _log.warning("%s; it is made again from the log", error)
            return None
        except StorageError as error:
            if not error.is_unreadable:
                raise
            return None
        if run.fits(part):
            return run
        run.close()
        return None

    def _drop(self, pieces: Sequence[IndexPiece]) -> Change:
        for piece in pieces:
            if isinstance(piece, KeyRun) and self._fs.exists(piece.path):
                self._fs.unlink(piece.path)
        return Change(removed=pieces)

    def _write(self, pieces: Sequence[IndexPiece]) -> Change:
        self._fs.make_dirs(self._paths.key_index)
        path = write_run(
            self._fs,
            self._paths.key_index,
            pieces,
            cluster=self._cluster,
            salt=self._salt,
            goes_on=lambda: not self._is_stopping,
        )
        if path is None:
            return Change()
        run = KeyRun.open(self._fs, path, cluster=self._cluster, salt=self._salt)
        for piece in pieces:
            if isinstance(piece, KeyRun) and piece.path != path:
                with suppress(StorageError):
                    # What is left is removed by the next start.
                    self._fs.unlink(piece.path)
        return Change(removed=pieces, added=[run])

    def _gather(self, part: LogPart, gap: tuple[int, int], left_out: frozenset[int]) -> Change:
        start, stop = gap
        rows = KeyRows(self._decompress, self._salt, self._secret, left_out)
        try:
            end = part.scan(
                rows,
                start,
                until=start + self._limits.slice_bytes,
                stop=stop,
                goes_on=lambda: True,
            )
        finally:
            part.close()
        if end <= start:
            return Change()
        covered = Covered(
            from_pos=start,
            to_pos=end,
            stored=rows.stored,
            left_out=frozenset(rows.topics_left_out),
            last_pos=rows.last_pos,
            last_crc=rows.last_crc,
        )
        return Change(added=[MemoryPiece(covered, rows.take())])

    # Searches

    def begin_search(self, end: int) -> tuple[KeySearch, LogPart]:
        """Return a search of the log up to a position, for any thread; `end_search` follows.

        Args:
            end: where a frame ends.
        """
        self._search_count += 1
        part = self._part(end)
        search = KeySearch(
            part,
            self.pieces if self._is_on else (),
            secret=self._secret,
            salt=self._salt,
            decompress=self._decompress,
        )
        return search, part

    def end_search(self, damaged: Iterable[Piece] = ()) -> None:
        """Note that a search has ended, and which pieces it could not use."""
        self._search_count -= 1
        self.note_damage(damaged)
        self._close_retired()

    def note_damage(self, pieces: Iterable[Piece]) -> None:
        """Give up pieces that are damaged; the next jobs make them again."""
        for piece in pieces:
            for known in self.pieces:
                if known is piece and known not in self._damaged:
                    _log.warning(
                        "the key index is damaged from %d to %d; it is made again from the log",
                        known.from_pos,
                        known.to_pos,
                    )
                    self._damaged.append(known)

    def _close_retired(self) -> None:
        """Close the runs that are gone, once no search reads them."""
        if self._search_count == 0:
            for run in self._retired:
                run.close()
            self._retired = []


def _chains(pieces: Sequence[IndexPiece]) -> Iterator[list[MemoryPiece]]:
    """Yield the longest rows of adjacent pieces in memory."""
    chain: list[MemoryPiece] = []
    for piece in pieces:
        if chain and (isinstance(piece, KeyRun) or chain[-1].to_pos != piece.from_pos):
            yield chain
            chain = []
        if isinstance(piece, MemoryPiece):
            chain.append(piece)
    if chain:
        yield chain


def _by_size(name: str) -> tuple[int, str]:
    """Return the order in which the files of a start are opened: the largest range first."""
    named = parse_range_name(name)
    return (0 if named is None else named[0] - named[1], name)


def _overlaps(run: KeyRun, other: KeyRun) -> bool:
    first, second = run.covered, other.covered
    return first.from_pos < second.to_pos and second.from_pos < first.to_pos
