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
        has_more: more are due now, and can be delivered.
        cold: positions of frames to be read from the disk, so that timers that wait for them go on;
            call `note_read` then.
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
        path = self._path
        count = path.deliver(now_ms, self._chunk_records)
        self._not_before_ms = now_ms + DISK_FULL_RETRY_MS if path.disk_full else 0
        if path.disk_full:
            return Delivery(count, has_more=False)
        cold = path.next_cold()
        is_due = 0 <= self._due.next_due <= now_ms and not path.is_clogged
        return Delivery(count, is_due or path.ready > 0, cold)

    def note_read(self) -> None:
        """What a `Delivery` named as cold was read, as far as it can be; deliver again."""
        self._path.note_read()

    @property
    def is_waiting(self) -> bool:
        """Timers wait for the disk, and nothing is being read for them."""
        path = self._path
        return not path.is_reading and (path.waiting > 0 or path.unreadable_count > 0)

    def next_wake_ms(self) -> int | None:
        """When the owner must call `deliver_due` again, epoch ms; None if nothing will be due."""
        next_due = self._due.next_due
        if next_due < 0 or self._path.is_clogged:
            return None
        return max(next_due, self._not_before_ms)
