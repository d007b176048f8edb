"""One flush of the log, on a thread. Layer 2."""

from dataclasses import dataclass

from appliance.store.checkpoint import CheckpointFile
from appliance.system.files import File


@dataclass(frozen=True, slots=True)
class FlushJob:
    """One flush, which makes everything up to `target` durable."""

    target: int
    files: tuple[File, ...]
    checkpoint: CheckpointFile
    flushed: int
    """Log position up to which everything is already durable."""
    watermark: int | None = None
    """The new allocation watermark, if it is time to raise it."""

    def run(self) -> None:
        """Do all of it; may run on any thread.

        Raises:
            StorageError: a sync failed. Never retry it: the kernel has dropped the error.
        """
        # First, while the disk is idle: otherwise the log may reach the old one before.
        self.raise_watermark()
        for file in self.files:
            file.fdatasync()

    def raise_watermark(self) -> None:
        """Raise the watermark if it is time; beside or before the syncs of the files.

        The log is not written beyond the old one before the flush has ended.

        Raises:
            StorageError: as `run`.
        """
        if self.watermark is not None:
            self.checkpoint.write(self.flushed, self.watermark)
