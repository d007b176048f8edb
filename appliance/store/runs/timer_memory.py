"""Which timers are in memory: those that are due soon, as far as a limit goes.

                loaded                 horizon
    ------------|----------------------|---------------------------------->  due times
    in memory   being loaded           in the TimerLog and the memtables alone

How many timers are pending, and when, is always known, and what becomes of one is noted where it
is. A start restores the counts and loads what is due soon. Later the horizon moves away as timers
are delivered, and comes near when memory is short. A request that needs timers beyond it asks for
them, and they stay for a while. A list reads them from there.

All methods run on the loop. Layer 2.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Protocol

from _core.bytes.layout import RUN_DUE
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from _core.timers.memtable import TimerMemtable
from _core.timers.time_wheel import TimeWheel
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.runs.run_files import RunEntry
from appliance.store.runs.timer_load import ALL_MS, TimerLoad
from appliance.system.files import FileSystem
from appliance.units import MIB, MS_PER_MINUTE, MS_PER_SECOND

MEMORY_BYTES: Final = 256 * MIB
"""Ten million timers."""

TIMER_BYTES: Final = 26
"""What a timer takes in the due tree, about."""

LOADED_AT_ONCE: Final = 1 << 18
"""So many timers are loaded before the broker is ready, in 50 ms, and nobody has to wait later."""

NEAR_MS: Final = 10 * MS_PER_SECOND
"""Timers due within this time are loaded before the broker is ready ..."""

NEAR_PIECES: Final = 40
"""... as far as they are in so many pieces, which take 30 ms."""

KEPT_MS: Final = MS_PER_MINUTE
"""Timers due within this time stay in memory, and are loaded, whatever the limit."""

OVERDUE_BYTES: Final = 64 * MIB
"""Memory of timers that are due within that time, at least."""

UNCOUNTED_MS: Final = 10 * MS_PER_MINUTE
"""What is loaded at once while nobody knows how many timers are due when."""

WANTED_NS: Final = 60 * 1_000_000_000
"""How long timers stay that a request needed."""

DUE_END_MS: Final = 1 << 48
"""No timer is due later."""

EVICTED_BYTES: Final = 4 * MIB
"""Timers that one turn drops: 160,000 of them, about a millisecond."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedCounts:
    """How many timers are pending in a saved state.

    Attributes:
        pending: by partition and level: see docs/FORMAT.md.
        minutes: by minutes of their due times; None if they were not counted.
    """

    pending: bytes
    minutes: bytes | None


class Rows(Protocol):
    """All pending timers at one moment."""

    def blocks(self) -> Generator[bytes, None, None]:
        """Yield their rows."""


@dataclass(slots=True, eq=False)
class CountJob:
    """Counts all timers by minutes, on a thread.

    Attributes:
        wheel: the counts.
        error: why the runs cannot be read; None if they were.
    """

    rows: Rows
    from_ms: int
    wheel: TimeWheel = field(default_factory=lambda: TimeWheel(MS_PER_MINUTE))
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read the runs; may run on any thread."""
        try:
            with closing(self.rows.blocks()) as blocks:
                for block in blocks:
                    self.wheel.count_rows(block, self.from_ms)
        except (StorageError, CorruptionError) as error:
            self.error = error


class TimerSource(Protocol):
    """The runs and what they do not have yet."""

    entries: tuple[RunEntry, ...]

    @property
    def has_timer_log(self) -> bool:
        """A TimerLog has every timer that the runs of timers have."""

    @property
    def has_every_timer(self) -> bool:
        """A TimerLog and the memtables together have every pending timer, by its due time."""

    @property
    def can_copy(self) -> bool:
        """`entries` and `changes_due` have all timers; if not, they have soon."""

    def timers_now(self) -> Rows | None:
        """Return all pending timers as of now, or None: ask again soon."""

    def changes_due(self, from_ms: int, until_ms: int) -> TimerMemtable:
        """Return a copy of the rows that no run has, of timers due in an interval."""


class TimerMemory:
    """Loads and drops the timers of one store.

    Attributes:
        load: the load in progress, or the last one; None before the first.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        projections: Projections,
        source: TimerSource,
        limit_bytes: int,
    ) -> None:
        """All timers are in memory.

        Args:
            fs: all files.
            paths: their names.
            projections: have the timers.
            source: has those that are not in memory.
            limit_bytes: memory of timers that are due later than soon.
        """
        self._fs, self._paths = fs, paths
        self._projections = projections
        self._due = projections.due
        self._source = source
        self._limit_bytes = limit_bytes
        self._wanted_ms = 0
        self._wanted_until_ns = 0
        self.load: TimerLoad | None = None

    # At a start

    @staticmethod
    def loads_later(entries: Sequence[RunEntry], counts: SavedCounts | None) -> bool:
        """Return whether a start leaves some of the timers of a state to be loaded later."""
        rows = sum(entry.rows for entry in entries if entry.kind == RUN_DUE)
        return counts is not None and rows > LOADED_AT_ONCE

    def begin(self, entries: Sequence[RunEntry], counts: SavedCounts, now_ms: int) -> Iterator[int]:
        """Restore the counts of a saved state, and load what is due soon; yield in between.

        Raises:
            StorageError: a file is missing or cannot be read.
            CorruptionError: it is damaged.
            ValueError: the counts are not those of these topics.
        """
        due = self._due
        RunLoader(self._projections).restore_counts(counts.pending)
        due.wheels.restore(counts.minutes)
        minutes = due.wheels.minutes
        until_ms = ALL_MS
        if due.pending * TIMER_BYTES > self._limit_bytes:
            until_ms = now_ms + KEPT_MS
            if due.wheels.is_whole:
                count = self._limit_bytes // 2 // TIMER_BYTES
                until_ms = max(until_ms, minutes.reach(count))
        due.leave_out(until_ms)
        load = self.load = TimerLoad(
            self._fs,
            self._paths,
            self._projections,
            entries,
            from_ms=max(minutes.first_ms(), 0) if minutes.total == due.pending else 0,
            until_ms=until_ms,
            total=due.pending if until_ms == ALL_MS else None,
        )
        load.open()
        for _ in range(NEAR_PIECES):
            if load.is_done or due.loaded_ms > now_ms + NEAR_MS:
                return
            load.take(load.read())
            yield load.loaded

    # While the broker serves

    @property
    def left(self) -> int:
        """Number of pending timers that are not in memory: about, if there is a horizon."""
        if self._due.is_loaded:
            return 0
        if self.load is not None and self.load.total is not None and not self.load.is_done:
            return self.load.total - self.load.loaded
        return max(1, self._due.pending - self._due.tree_bytes // TIMER_BYTES)

    def want(self, until_ms: int, now_ns: int) -> None:
        """Let all timers due up to a time be loaded, epoch ms, and stay for a minute.

        Args:
            until_ms: up to when.
            now_ns: a monotonic clock.
        """
        self._wanted_ms = max(self._wanted_ms, min(until_ms, DUE_END_MS))
        self._wanted_until_ns = now_ns + WANTED_NS

    @property
    def has_pages(self) -> bool:
        """Timers can be read in their order without being taken into memory."""
        return self._source.has_every_timer and not self._projections.dropped

    def read_from(self, from_ms: int, until_ms: int, count: int) -> TimerLoad | None:
        """Return a load of timers due from a time on that stay on the disk; None: ask again soon.

        Args:
            from_ms: not before the time up to which timers are loaded, epoch ms.
            until_ms: up to when, epoch ms.
            count: timers that the caller wants; the load may end once it had so many.
        """
        if not self._source.can_copy:
            return None
        minutes = self._due.wheels.minutes
        if self._due.wheels.is_whole:
            reached_ms = minutes.reach(minutes.count_before(from_ms) + count + 1)
            if reached_ms > from_ms:
                until_ms = min(until_ms, reached_ms)
        return self._load_of(from_ms, until_ms)

    def _load_of(self, from_ms: int, until_ms: int) -> TimerLoad:
        """Return a load of what is due in an interval, as the runs and the memtables have it."""
        return TimerLoad(
            self._fs,
            self._paths,
            self._projections,
            self._source.entries,
            from_ms=from_ms,
            until_ms=until_ms,
            changes=self._source.changes_due(from_ms, until_ms),
            has_log=self._source.has_timer_log,
        )

    def next(self, now_ms: int, now_ns: int) -> TimerLoad | None:
        """Return the load that should go on; begin one if there is reason to. None: rest.

        Args:
            now_ms: epoch ms.
            now_ns: a monotonic clock.
        """
        if self._due.is_loaded:
            return None
        if now_ns >= self._wanted_until_ns:
            self._wanted_ms = 0
        load = self.load
        if load is not None and not load.is_done:
            return load if self._is_needed(now_ms) or self._used < self._limit_bytes else None
        if not self._is_needed(now_ms) and self._used >= self._limit_bytes // 2:
            return None
        return self._begin_load(now_ms) if self._source.can_copy else None

    @property
    def _used(self) -> int:
        return self._due.tree_bytes

    def _is_needed(self, now_ms: int) -> bool:
        if self._due.loaded_ms <= self._wanted_ms:
            return True
        # Of millions that are overdue the first ones are delivered before others are loaded.
        room = max(2 * self._limit_bytes, OVERDUE_BYTES)
        return self._due.loaded_ms <= now_ms + KEPT_MS and self._used < room

    def _begin_load(self, now_ms: int) -> TimerLoad:
        """Begin to load from the horizon on, as many timers as there is memory for."""
        due = self._due
        from_ms = due.horizon_ms
        room = max(self._limit_bytes * 3 // 4 - self._used, 0) // TIMER_BYTES
        until_ms = from_ms + UNCOUNTED_MS
        if due.wheels.is_whole:
            near = due.wheels.minutes.count_before(from_ms)
            until_ms = due.wheels.minutes.reach(near + room + 1)
            until_ms = ALL_MS if until_ms < 0 else until_ms
        until_ms = max(until_ms, now_ms + 2 * KEPT_MS, self._wanted_ms + 1, from_ms + MS_PER_MINUTE)
        if until_ms > DUE_END_MS:
            until_ms = ALL_MS
        self.load = self._load_of(from_ms, until_ms)
        due.begin_load(until_ms)
        return self.load

    def begin_count(self, now_ms: int) -> "CountJob | None":
        """Begin to count timers anew if the wheels do not have all, which a walk would have to see.

        Args:
            now_ms: epoch ms.
        """
        due = self._due
        if due.is_loaded or due.wheels.is_whole or self._projections.dropped:
            return None
        rows = self._source.timers_now()
        return None if rows is None else CountJob(rows, due.wheels.begin_count(now_ms))

    def end_count(self, job: "CountJob") -> None:
        """Note that a count has ended; another one follows if timers were lost meanwhile."""
        if job.error is not None:
            _log.warning("the timers cannot be counted: %s", job.error)
        else:
            self._due.wheels.end_count(job.wheel)

    def evict(self, now_ms: int, now_ns: int) -> bool:
        """Drop some of the timers that are due last if there are too many; return whether any.

        Args:
            now_ms: epoch ms.
            now_ns: a monotonic clock.
        """
        if self._used <= self._limit_bytes or now_ns < self._wanted_until_ns:
            return False
        if not self._source.has_every_timer or not self._due.wheels.is_whole:
            return False
        was_evicted = False
        until_bytes = max(self._limit_bytes // 8 * 7, self._used - EVICTED_BYTES)
        while self._used > until_bytes and self._due.evict(now_ms + KEPT_MS):
            was_evicted = True
        return was_evicted
