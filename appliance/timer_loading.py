"""Loads timers while the broker serves, and drops them: `TimerMemory` says which.

    loop     step      a thread reads some pieces of the TimerLog, if more timers should be loaded
    loop     _take     one piece a turn; deliveries may go as far as that

Layer 5: runs on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from appliance.store.runs.timer_load import LoadJob, TimerLoad
from appliance.store.runs.timer_memory import CountJob, TimerMemory
from appliance.system.clock import Clock
from appliance.system.process import yield_to_others
from appliance.units import MS_PER_SECOND, counted

PAUSE_S: Final = 0.001
"""Between two pieces: the loop has other work, and a piece takes almost as long."""

Guard: TypeAlias = Callable[[Callable[[], None]], None]

_log = logging.getLogger(__name__)


class TimerLoading:
    """Drives one `TimerMemory`.

    Args:
        memory: says which timers should be loaded.
        clock: of the broker.
        loop: the event loop.
        guard: calls a step, and ends the process if it raises.
        loaded: called when more timers are loaded, some of which may be due.
    """

    def __init__(
        self,
        memory: TimerMemory,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        guard: Guard,
        loaded: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._loop = loop
        self._guard = guard
        self._loaded = loaded
        self._threads = ThreadPoolExecutor(1, "latermq-load")
        # A count takes seconds; a load of timers that are due soon does not wait for it.
        self._counters = ThreadPoolExecutor(1, "latermq-count", yield_to_others)
        self._began_s = loop.time()
        self._job: LoadJob | None = None
        self._count: CountJob | None = None
        self._faulty: TimerLoad | None = None
        self._is_over = False
        self._reading: asyncio.Future[None] | None = None

    def step(self) -> None:
        """Begin or go on if more timers should be loaded; call it every now and then."""
        if self._job is not None or self._is_over:
            return
        now_ms, now_ns = self._clock.wall_ms(), self._clock.monotonic_ns()
        self._memory.evict(now_ms, now_ns)
        load = self._memory.next(now_ms, now_ns)
        if load is None and self._count is None:
            self._begin_count(now_ms)
        if load is not None:
            job = self._job = LoadJob(load)
            self._reading = self._loop.run_in_executor(self._threads, job.run)
            self._reading.add_done_callback(lambda _: self._guard(lambda: self._take(job)))

    def _note_fault(self, load: TimerLoad) -> None:
        if load.fault is not None and self._faulty is not load:
            self._faulty = load
            _log.error(
                "the TimerLog is damaged: %s; the timers are loaded from the runs of timers, and "
                "those that are due meanwhile are late",
                load.fault,
            )

    def _begin_count(self, now_ms: int) -> None:
        count = self._count = self._memory.begin_count(now_ms)
        if count is not None:
            future = self._loop.run_in_executor(self._counters, count.run)
            future.add_done_callback(lambda _: self._guard(lambda: self._end_count(count)))

    def _end_count(self, count: CountJob) -> None:
        if self._is_over:
            return  # its result is of no use: somebody else may have begun another one
        self._count = None
        self._memory.end_count(count)

    def _take(self, job: LoadJob) -> None:
        """Take one piece, and let the loop serve others before the next."""
        if self._is_over:
            return
        load = job.load
        self._note_fault(load)
        if not job.pieces:
            if job.error is not None:
                raise job.error
            self._job = None
            self.step()
            return
        load.take(job.pieces.pop(0))
        self._loaded()
        if load.is_done and load.total is not None:
            took_ms = (self._loop.time() - self._began_s) * MS_PER_SECOND
            _log.info("loaded %s in %d ms", counted(load.total, "timer"), took_ms)
        self._loop.call_later(PAUSE_S, self._guard, lambda: self._take(job))

    async def finish(self) -> None:
        """Take all that was read, and read no more; then another one can drive the same memory.

        Raises:
            StorageError, CorruptionError: the timers cannot be read.
        """
        self._is_over = True
        if self._job is not None and self._reading is not None:
            await asyncio.wait([self._reading])
            self._note_fault(self._job.load)
            for piece in self._job.pieces:
                self._job.load.take(piece)
            if self._job.error is not None:
                raise self._job.error
        for threads in (self._threads, self._counters):
            threads.shutdown(wait=False)

    async def stop(self) -> None:
        """Wait for the thread."""
        for threads in (self._threads, self._counters):
            await asyncio.to_thread(threads.shutdown)
