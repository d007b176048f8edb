"""Decides when to deliver, and how much at a time.

Sans-IO: the owner passes the time to `deliver_due` and wakes at `next_wake_ms`. Chunks are bounded,
so a burst of a million due timers does not block producers and consumers. Layer 3.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from _core.paths.deliver import DeliverPath
from _core.timers.due_queue import DueQueue
from appliance.log_text import quoted, quoted_bytes

DISK_FULL_RETRY_MS: Final = 200
"""Delay before due timers are retried after a full disk."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of one call of `deliver_due`.

    Attributes:
        count: timers delivered.
        has_more: more are due now, and can be delivered.
        cold: log positions of frames that timers wait for: read them from the disk, then call
            `note_read`.
    """

    count: int
    has_more: bool
    cold: list[int] = field(default_factory=list)


class Scheduler:
    """Delivers due timers in chunks.

    Attributes:
        is_stopped: nothing is delivered, until the owner sets this to false.
    """

    def __init__(self, due: DueQueue, path: DeliverPath, *, chunk_records: int) -> None:
        """Deliver the timers of a queue.

        Args:
            due: pending timers.
            path: gathers and appends.
            chunk_records: maximum number of timers per call, >= 1.
        """
        self._due = due
        self._path = path
        self._chunk_records = chunk_records
        self._not_before_ms = 0
        self.is_stopped = False
        self._is_debug = _log.isEnabledFor(logging.DEBUG)

    def deliver_due(self, now_ms: int) -> Delivery:
        """Append the next chunk of what is due at `now_ms` (epoch ms) to the log."""
        if self.is_stopped:
            return Delivery(0, has_more=False)
        path = self._path
        frames_before = path.frames
        count = path.deliver(now_ms, self._chunk_records)
        if self._is_debug and count:
            _log.debug(
                "delivered timers=%d frames=%d late_ms_max=%d waiting=%d",
                count,
                path.frames - frames_before,
                path.late_ms_max,
                path.waiting,
            )
        for topic, user_id in path.take_ended():
            _log.warning(
                "a recurring record came for the last time: its schedule has no further instant "
                "within ten years topic=%s id=%s",
                quoted(topic),
                quoted_bytes(user_id),
            )
        self._not_before_ms = now_ms + DISK_FULL_RETRY_MS if path.disk_full else 0
        if path.disk_full:
            return Delivery(count, has_more=False)
        cold = path.next_cold()
        is_due = not path.is_clogged and (
            0 <= self._due.next_due <= now_ms
            or 0 <= path.held_back.next_release_ms(now_ms) <= now_ms
        )
        return Delivery(count, is_due or path.ready > 0, cold)

    def note_read(self) -> None:
        """Note that the cold frames of a `Delivery` were read, or are unreadable; deliver again."""
        self._path.note_read()

    @property
    def is_waiting(self) -> bool:
        """Timers wait for the disk, and nothing is being read for them."""
        path = self._path
        if self.is_stopped:
            return False
        is_waiting = path.waiting > 0 or path.unreadable_count > 0 or path.held_back.is_blocked
        return is_waiting and not path.is_reading

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When the owner must call `deliver_due` again, epoch ms; None if nothing will be due.

        Args:
            now_ms: epoch ms.
        """
        wakes = [self._due.next_due, self._path.held_back.next_release_ms(now_ms)]
        wakes = [wake_ms for wake_ms in wakes if wake_ms >= 0]
        if not wakes or self._path.is_clogged or self.is_stopped:
            return None
        return max(min(wakes), self._not_before_ms)
