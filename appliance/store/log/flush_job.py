"""One flush of the log, on a thread. Layer 2."""

from dataclasses import dataclass

from appliance.system.files import File


@dataclass(frozen=True, slots=True)
class FlushJob:
    """One flush, which makes everything up to `target` durable."""

    target: int
    files: tuple[File, ...]
    flushed: int
    """Log position up to which everything is already durable."""

    def run(self) -> None:
        """Do all of it; may run on any thread.

        Raises:
            StorageError: a sync failed. Never retry it: the kernel has dropped the error.
        """
        for file in self.files:
            file.fdatasync()
