"""The allocation watermark in the checkpoint: how far the log may be written. Layer 2.

After a crash a start searches the log up to there for frames after a gap. So the log is never
written after what the disk has of the watermark. A thread raises it ahead of time: the sync of a
checkpoint takes as long as the syncs before it, 150 ms on a busy disk, and the event loop must not
wait for it.
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
    """The watermark that the checkpoint has.

    Attributes:
        pos: log position; 0 until the first raise.
    """

    def __init__(self, checkpoint: CheckpointFile, *, step_bytes: int) -> None:
        """Begin below any log.

        Args:
            checkpoint: gets each raise.
            step_bytes: how far after the end of the log it is put.
        """
        self._checkpoint = checkpoint
        self._step_bytes = step_bytes
        self.pos = 0

    def raise_to_fit(self, end: int, flushed: int) -> None:
        """Raise it on this thread, if it is below the end of what is written next.

        Args:
            end: log position after the bytes that are written next.
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
            end: log position after what is written.
            flushed: as in a job.
        """
        if end <= self.pos - self._step_bytes * 3 // 4:
            return None
        return WatermarkJob(self._checkpoint, flushed, end + self._step_bytes)

    def end_raise(self, job: WatermarkJob) -> None:
        """Note that a job has run."""
        self.pos = max(self.pos, job.watermark)
