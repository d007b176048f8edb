"""The allocation watermark in the checkpoint: how far the log may be written. Layer 2.

After a crash, a start searches the log for frames up to the watermark. So nothing is written at or
after it before a higher one is durable. A thread raises it early: to sync the checkpoint takes as
long as the syncs before it, 150 ms on a busy disk, and the event loop must not wait for that.
"""

from dataclasses import dataclass

from appliance.store.checkpoint import CheckpointFile


@dataclass(frozen=True, slots=True)
class WatermarkJob:
    """One raise; `run` may be called on any thread."""

    checkpoint: CheckpointFile
    flushed: int
    """Log position up to which everything is already durable."""
    watermark: int

    def run(self) -> None:
        """Raise it durably.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        self.checkpoint.write(self.flushed, self.watermark)


class AllocationWatermark:
    """The watermark of one log.

    Attributes:
        pos: log position, which the checkpoint has durably; 0 until the first raise.
    """

    def __init__(self, checkpoint: CheckpointFile, *, step_bytes: int) -> None:
        """Begin below any log.

        Args:
            checkpoint: gets each raise.
            step_bytes: distance from the end of the log to a new watermark.
        """
        self._checkpoint = checkpoint
        self._step_bytes = step_bytes
        self.pos = 0

    def raise_to_fit(self, end: int, flushed: int) -> None:
        """Raise it on this thread if the next write would go beyond it.

        Args:
            end: log position after that write.
            flushed: as in a job.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        if end > self.pos:
            self.raise_after(end, flushed)

    def raise_after(self, end: int, flushed: int) -> None:
        """Raise it on this thread, in any case; see `raise_to_fit`."""
        watermark = end + self._step_bytes
        self._checkpoint.write(flushed, watermark)
        self.pos = watermark

    def begin_raise(self, end: int, flushed: int) -> WatermarkJob | None:
        """Return a raise for a thread, None while less than a quarter of the step is used up.

        Args:
            end: log position after the last write.
            flushed: as in a job.
        """
        if end <= self.pos - self._step_bytes * 3 // 4:
            return None
        return WatermarkJob(self._checkpoint, flushed, end + self._step_bytes)

    def end_raise(self, job: WatermarkJob) -> None:
        """Note that a job has run."""
        self.pos = max(self.pos, job.watermark)
