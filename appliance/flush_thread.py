"""Runs the flushes of the log beside the event loop, one at a time, and raises its watermark.

Files are synced by a thread that never waits for the interpreter. Those that are not the system's
go to a thread of Python. A third thread raises the watermark, also during a flush, because the log
may reach the watermark before a long flush ends. Layer 5.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from appliance.errors import StorageError
from appliance.store.log.flush_job import FlushJob
from appliance.store.log.watermark import WatermarkJob
from appliance.system.sync_thread import SyncThread
from appliance.thread_jobs import ThreadJobs


class FlushThread:
    """The threads.

    Attributes:
        is_raising: a raise of the watermark is in progress.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guard: Callable[[Callable[[], None]], None],
        ended: Callable[[], None],
        raised: Callable[[WatermarkJob], None],
    ) -> None:
        """Start without work.

        Args:
            loop: calls back.
            guard: runs a step of the loop; an error in it ends the broker.
            ended: called once after each flush; a failed one raises StorageError to the guard
                instead.
            raised: called after each raise of the watermark, with its job; a failed one likewise.
        """
        self._loop = loop
        self._guard = guard
        self._ended = ended
        self._raised = raised
        self._syncer = SyncThread()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-flush")
        self._future: asyncio.Future[None] | None = None
        self._raiser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-watermark")
        self._jobs = ThreadJobs(loop, guard)
        self._raise: asyncio.Future[None] | None = None
        self.is_raising = False

    def start(self) -> None:
        """Begin to call back."""
        self._loop.add_reader(self._syncer.fileno(), self._guard, self._end_sync)

    def begin(self, job: FlushJob) -> None:
        """Run a flush; the one before has ended."""
        if not self._syncer.try_begin(job.files):
            self._future = self._jobs.begin(self._executor, job.run, lambda _: self._ended())

    def begin_raise(self, job: WatermarkJob) -> None:
        """Raise the watermark; the raise before has ended."""
        self.is_raising = True
        self._raise = self._jobs.begin(self._raiser, job.run, lambda _: self._end_raise(job))

    def _end_sync(self) -> None:
        self._syncer.end()  # a failed fdatasync is raised here and ends the process
        self._ended()

    def _end_raise(self, job: WatermarkJob) -> None:
        self.is_raising = False
        self._raised(job)

    async def stop(self) -> BaseException | None:
        """Call back no more, and wait for a flush and a raise in flight; return an error of one."""
        self._loop.remove_reader(self._syncer.fileno())
        for shut_down in (self._executor.shutdown, self._raiser.shutdown, self._syncer.shutdown):
            await asyncio.to_thread(shut_down)
        error = None
        for future in (self._raise, self._future):
            if future is not None:
                await asyncio.wait((future,))
                error = future.exception() or error
        if self._syncer.is_busy:
            try:
                self._syncer.end()
            except StorageError as failure:
                error = failure
        self._syncer.close()
        return error
