"""When to deliver, and how much at a time.

Sans-IO: the owner tells the time, delivers what `deliver_due` says, and wakes at `next_wake_ms`.
Chunks are bounded, so that a burst of a million due timers does not keep producers and consumers
waiting. Layer 3.
"""

from dataclasses import dataclass, field
from typing import Final

from _core.deliver import DeliverPath
from _core.due_queue import DueQueue

DISK_FULL_RETRY_MS: Final = 200
"""Due timers that found no room are tried again this much later."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one call did.

    Attributes:
        count: timers delivered.
        has_more: more are due now.
        cold: positions of frames to be read from the disk first; nothing was delivered then.
    """

    count: int
    has_more: bool
    cold: list[int] = field(default_factory=list)


class Scheduler:
    """Delivers due timers in chunks."""

    def __init__(self, due: DueQueue, path: DeliverPath, *, chunk_records: int) -> None:
        """Join the pending timers with the way they are delivered.

        Args:
            due: pending timers.
            path: gathers and appends.
            chunk_records: most timers of one call, >= 1.
        """
        self._due = due
        self._path = path
        self._chunk_records = chunk_records
        self._not_before_ms = 0

    def deliver_due(self, now_ms: int) -> Delivery:
        """Append the next chunk of what is due at `now_ms` (epoch ms) to the log."""
        count = self._path.deliver(now_ms, self._chunk_records)
        if count < 0:
            return Delivery(0, True, self._path.cold)
        self._not_before_ms = now_ms + DISK_FULL_RETRY_MS if self._path.disk_full else 0
        next_due = self._due.next_due
        has_more = 0 <= next_due <= now_ms and not self._path.disk_full
        return Delivery(count, has_more)

    def next_wake_ms(self) -> int | None:
        """When the owner must call `deliver_due` again, epoch ms; None while nothing is pending."""
        next_due = self._due.next_due
        return None if next_due < 0 else max(next_due, self._not_before_ms)
