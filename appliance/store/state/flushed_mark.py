"""Publishes the flushed position of the log in the checkpoint, about once a second.

A reader of a directory that a broker serves goes no further than that position, and so does a start
that tells damage from a torn tail. A checkpoint and a raised watermark publish it as well, but may
be gigabytes apart.

 loop     `step` finds that the published position is behind
 thread   `MarkJob.run` writes one copy of the checkpoint
 loop     `end`

Layer 2.
"""

from dataclasses import dataclass
from typing import Final

from appliance.errors import StorageError
from appliance.store.checkpoint import CheckpointFile
from appliance.store.log.commit_log import CommitLog
from appliance.system.clock import Clock
from appliance.units import MS_PER_SECOND, NS_PER_MS

MARK_NS: Final = MS_PER_SECOND * NS_PER_MS
"""The minimum time between two marks: one small write and sync per second cost a disk little."""


@dataclass(slots=True, eq=False)
class MarkJob:
    """Writes the flushed position to the checkpoint, and nothing else.

    Attributes:
        error: the error that ended it; None if it succeeded.
    """

    checkpoint: CheckpointFile
    flushed: int
    error: StorageError | None = None

    def run(self) -> None:
        """Write it; may run on any thread.

        Raises:
            StorageError: it failed; the process must stop.
        """
        try:
            self.checkpoint.note_flushed(self.flushed)
        except StorageError as error:
            self.error = error
            raise


class FlushedMark:
    """Keeps the published position close to the flushed one. All methods run on the loop."""

    def __init__(self, clock: Clock, log: CommitLog, checkpoint: CheckpointFile) -> None:
        self._clock = clock
        self._log = log
        self._checkpoint = checkpoint
        self._job: MarkJob | None = None
        self._began_ns: int | None = None

    def step(self) -> MarkJob | None:
        """Return a job to run on a thread and then pass to `end`; None if none is needed yet.

        Call it often: a new position is published by the first call that is `MARK_NS` after the
        last mark.
        """
        last = self._checkpoint.last
        flushed, now_ns = self._log.pointers.flushed, self._clock.monotonic_ns()
        if self._job is not None or (last is not None and last.flushed >= flushed):
            return None
        if self._began_ns is not None and now_ns - self._began_ns < MARK_NS:
            return None
        self._began_ns = now_ns
        self._job = MarkJob(self._checkpoint, flushed)
        return self._job

    def end(self, job: MarkJob) -> None:
        """Note that a job has run successfully."""
        assert job is self._job
        self._job = None

    def finish(self) -> None:
        """Check the last job, whose thread has ended, possibly without a call of `end`.

        Raises:
            StorageError: it failed; this is not a clean stop.
        """
        if self._job is not None and self._job.error is not None:
            raise self._job.error
        self._job = None
