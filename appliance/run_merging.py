"""Merges runs of many rows on a thread, beside the checkpoints of a broker or a slave. Layer 5."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from appliance.errors import StorageError
from appliance.store.runs.runs_merge import RunsMerge
from appliance.store.state.checkpointer import Checkpointer
from appliance.system.process import yield_to_others
from appliance.thread_jobs import ThreadJobs


class RunMerging:
    """The thread.

    Args:
        jobs: runs its work, and what follows on the loop.
        checkpoints: those that it merges for.
    """

    def __init__(self, jobs: ThreadJobs, checkpoints: Checkpointer) -> None:
        self._jobs = jobs
        self._checkpoints = checkpoints
        self._thread = ThreadPoolExecutor(1, "latermq-merge", yield_to_others)
        self._merge: RunsMerge | None = None

    def step(self) -> None:
        """Begin a merge if one is due; call it every now and then."""
        if self._merge is None:
            merge = self._merge = self._checkpoints.begin_merge()
            if merge is not None:
                self._jobs.begin(self._thread, merge.run, lambda _: self._end(merge))

    def _end(self, merge: RunsMerge) -> None:
        if self._merge is merge:  # else `stop` has forgotten it
            self._merge = None
            self._checkpoints.end_merge(merge)

    async def stop(self) -> StorageError | None:
        """End the thread soon, and forget its merge; return an error that must end the process."""
        merge, self._merge = self._merge, None
        if merge is not None:
            merge.stop()
        await asyncio.to_thread(self._thread.shutdown)
        if merge is None:
            return None
        self._checkpoints.drop_merge()
        error = merge.error
        return error if isinstance(error, StorageError) and error.is_fatal else None
