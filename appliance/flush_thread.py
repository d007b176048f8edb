"""Runs the flushes of the log beside the event loop, one at a time.

Files are synced by a thread that never waits for the interpreter. Those that are not the system's
go to a thread of Python, which also raises the watermark in the checkpoint meanwhile. Layer 5.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from appliance.errors import StorageError
from appliance.store.log.flush_job import FlushJob
from appliance.system.sync_thread import SyncThread


class FlushThread:
    """Both threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guard: Callable[[Callable[[], None]], None],
        ended: Callable[[], None],
    ) -> None:
        """Start without work.

        Args:
            loop: calls back.
            guard: runs a step of the loop; an error in it ends the broker.
            ended: called once after each flush; a failed one raises StorageError to the guard
                instead.
        """
        self._loop = loop
        self._guard = guard
        self._ended = ended
        self._syncer = SyncThread()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-flush")
        self._future: asyncio.Future[None] | None = None
        self._is_running = False

    def start(self) -> None:
        """Begin to call back."""
        self._loop.add_reader(self._syncer.fileno(), self._guard, self._end_sync)

    def begin(self, job: FlushJob) -> None:
        """Run a flush; the one before has ended."""
        if not self._syncer.try_begin(job.files):
            self._run(job.run)
        elif job.watermark is not None:
            self._run(job.raise_watermark)

    def _run(self, work: Callable[[], None]) -> None:
        self._is_running = True
        self._future = self._loop.run_in_executor(self._executor, work)
        self._future.add_done_callback(lambda _: self._guard(self._end_work))

    def _end_sync(self) -> None:
        self._syncer.end()  # a failed fdatasync is raised here and ends the process
        self._end()

    def _end_work(self) -> None:
        assert self._future is not None
        self._is_running = False
        self._future.result()  # or here
        self._end()

    def _end(self) -> None:
        if not self._is_running and not self._syncer.is_busy:
            self._ended()

    async def stop(self) -> BaseException | None:
        """Call back no more, and wait for a flush in flight; return its error."""
        self._loop.remove_reader(self._syncer.fileno())
        await asyncio.to_thread(self._executor.shutdown)
        await asyncio.to_thread(self._syncer.shutdown)
        error = None
        if self._future is not None:
            await asyncio.wait((self._future,))
            error = self._future.exception()
        if self._syncer.is_busy:
            try:
                self._syncer.end()
            except StorageError as failure:
                error = failure
        self._syncer.close()
        return error
