"""What moves the content of the log's head to its end, before the head is freed. Layer 2."""

from typing import Protocol


class CarryJob(Protocol):
    """Work for a thread. Its errors are in the job."""

    def run(self) -> None:
        """Do it; may run on any thread."""


class Carrier(Protocol):
    """Appends one kind of content again. All methods run on the loop.

    Attributes:
        carried_bytes: bytes of carry frames appended since the start of the broker.
        is_done: nothing of this kind lives below the cut.
        has_failed: the pass must end, because the disk is full or the content cannot be read.
        blocked_at: the log position of a frame that cannot be read, so that its segment must stay;
            None if there is none.
    """

    @property
    def carried_bytes(self) -> int: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def has_failed(self) -> bool: ...
    @property
    def blocked_at(self) -> int | None: ...

    def begin(self, cut: int) -> None:
        """Start a pass: move what lives below log position `cut`, the base of a segment."""

    def step(self) -> CarryJob | None:
        """Append a slice, about a millisecond; or return a job to run and then pass to `end`."""

    def end(self, job: CarryJob) -> None:
        """Note that a job has run."""

    def stop(self) -> None:
        """End the pass. What was appended does no harm if nothing is freed."""
