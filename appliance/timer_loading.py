"""Loads the timers of a saved state while the broker serves: those that are due next come first.

    loop     begin     a thread reads some pieces of the TimerLog
    loop     _take     one piece a turn; deliveries may go as far as that

Layer 5: runs on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from appliance.store.runs.timer_load import LoadJob, TimerLoad
from appliance.system.process import yield_to_others
from appliance.units import MS_PER_SECOND, counted

PAUSE_S: Final = 0.001
"""Between two pieces: the loop has other work, and a piece takes almost as long."""

Guard: TypeAlias = Callable[[Callable[[], None]], None]

_log = logging.getLogger(__name__)


class TimerLoading:
    """Drives one load to its end.

    Args:
        load: what is to be loaded.
        loop: the event loop.
        guard: calls a step, and ends the process if it raises.
        loaded: called when more timers are loaded, some of which may be due.
    """

    @classmethod
    def of(
        cls,
        load: TimerLoad | None,
        loop: asyncio.AbstractEventLoop,
        guard: Guard,
        loaded: Callable[[], None],
    ) -> "TimerLoading | None":
        """Return what drives a load; None if nothing is left to load."""
        return None if load is None or load.is_done else cls(load, loop, guard, loaded)

    def __init__(
        self,
        load: TimerLoad,
        loop: asyncio.AbstractEventLoop,
        guard: Guard,
        loaded: Callable[[], None],
    ) -> None:
        self._load = load
        self._loop = loop
        self._guard = guard
        self._loaded = loaded
        self._threads = ThreadPoolExecutor(1, "latermq-load", yield_to_others)
        self._began = loop.time()
        self._is_fault_known = False

    def begin(self) -> None:
        """Read the next pieces."""
        job = LoadJob(self._load)
        future = self._loop.run_in_executor(self._threads, job.run)
        future.add_done_callback(lambda _: self._guard(lambda: self._take(job)))

    def _take(self, job: LoadJob) -> None:
        """Take one piece, and let the loop serve others before the next."""
        if self._load.fault is not None and not self._is_fault_known:
            self._is_fault_known = True
            _log.error(
                "the TimerLog is damaged: %s; the timers are loaded from the runs of timers, and "
                "those that are due meanwhile are late",
                self._load.fault,
            )
        if not job.pieces:
            if job.error is not None:
                raise job.error
            self.begin()
            return
        self._load.take(job.pieces.pop(0))
        self._loaded()
        if self._load.is_done:
            took_ms = (self._loop.time() - self._began) * MS_PER_SECOND
            _log.info("loaded %s in %d ms", counted(self._load.total, "timer"), took_ms)
        else:
            self._loop.call_later(PAUSE_S, self._guard, lambda: self._take(job))

    async def stop(self) -> None:
        """Wait for the thread."""
        await asyncio.to_thread(self._threads.shutdown)
