"""Makes files before they are needed, on a thread: the next segment, and files of units. Layer 5.

Otherwise the event loop would make them when it writes to them. A new name may need a block of the
file system that is not in memory, and on a busy disk that takes 50 ms.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from appliance.broker import Broker
from appliance.store.log.segment import SpareJob
from appliance.store.queue.consume_queue import UnitFilesJob


class FileMaker:
    """The thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guard: Callable[[Callable[[], None]], None],
        broker: Broker,
    ) -> None:
        """Start without work.

        Args:
            loop: calls back.
            guard: runs a step of the loop; an error in it ends the broker.
            broker: whose files they are.
        """
        self._loop = loop
        self._guard = guard
        self._broker = broker
        self._segments = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-spare")
        # A segment may be filled with zeros for a minute; units do not wait for that.
        self._units = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-unit-files")

    def step(self) -> None:
        """Begin to make what is needed soon."""
        spare = self._broker.log.begin_spare()
        if spare is not None:
            self._loop.run_in_executor(self._segments, _make_spare, spare)
        job = self._broker.units.begin_files()
        if job is not None:
            future = self._loop.run_in_executor(self._units, job.run)
            future.add_done_callback(lambda done: self._guard(lambda: self._end(done, job)))

    def _end(self, done: asyncio.Future[None], job: UnitFilesJob) -> None:
        done.result()
        self._broker.units.end_files(job)

    def shutdown(self) -> None:
        """Wait for the end of what is in progress."""
        self._segments.shutdown()
        self._units.shutdown()


def _make_spare(spare: SpareJob) -> None:
    """Make the next segment, then write its zeros as far as time permits."""
    spare.run()
    spare.prewrite()
