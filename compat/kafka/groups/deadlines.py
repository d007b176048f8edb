"""Many deadlines of which most are moved again before they come: a heap with lazy deletion.

A heartbeat only writes a new time into its member's deadline. The heap holds an earlier one, and
when that comes the deadline goes back into the heap with the new time. So a heartbeat costs nothing
and a turn costs what came due, however many groups there are.
Layer 3; does no I/O.
"""

import heapq
from collections.abc import Callable
from typing import Final

COMPACT_SLACK: Final = 64
"""Entries that the heap may have beyond twice the deadlines that are set. What was cancelled stays
in it until its time, which may be half an hour away, and clients could make that many."""


class Deadline:
    """One thing that happens at a time, unless it is put off or cancelled before.

    Attributes:
        at_ms: when, in monotonic ms; None if it is not set.
        expired: what happens; called with the present time, once for each time that is set.
    """

    __slots__ = ("_queue", "at_ms", "expired", "queued_ms")

    def __init__(self, queue: "DeadlineQueue") -> None:
        self._queue = queue
        self.expired: Callable[[int], None] = _do_nothing
        self.at_ms: int | None = None
        self.queued_ms: int | None = None
        """The time of the one entry in the heap that counts."""

    def set(self, at_ms: int) -> None:
        """Let it happen at a time, in place of the one it had."""
        if self.at_ms is None:
            self._queue.set_count += 1
        self.at_ms = at_ms
        if self.queued_ms is None or at_ms < self.queued_ms:
            self._queue.push(self, at_ms)

    def cancel(self) -> None:
        """Let it not happen."""
        if self.at_ms is not None:
            self._queue.set_count -= 1
            self.at_ms = None


def _do_nothing(now_ms: int) -> None:
    pass


class DeadlineQueue:
    """All deadlines.

    Attributes:
        set_count: how many are set.
    """

    def __init__(self) -> None:
        self.set_count = 0
        self._heap: list[tuple[int, int, Deadline]] = []
        self._pushed_count = 0

    def __len__(self) -> int:
        """How many entries there are, also of deadlines that were cancelled or put off."""
        return len(self._heap)

    def push(self, deadline: Deadline, at_ms: int) -> None:
        """Put an entry into the heap; for Deadline alone. O(log n)."""
        deadline.queued_ms = at_ms
        self._pushed_count += 1
        heapq.heappush(self._heap, (at_ms, self._pushed_count, deadline))
        if len(self._heap) > 2 * self.set_count + COMPACT_SLACK:
            self._compact()

    def _compact(self) -> None:
        kept = []
        for entry in self._heap:
            at_ms, _, deadline = entry
            if deadline.queued_ms != at_ms:
                continue
            if deadline.at_ms is None:
                deadline.queued_ms = None
                continue
            # An entry that was made twice for one time stays once.
            deadline.queued_ms = None
            kept.append(entry)
        for at_ms, _, deadline in kept:
            deadline.queued_ms = at_ms
        self._heap = kept
        heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """When to call `expire` again, None if never; may be earlier than anything happens."""
        while self._heap:
            at_ms, _, deadline = self._heap[0]
            if deadline.queued_ms == at_ms and deadline.at_ms is not None:
                return at_ms
            heapq.heappop(self._heap)
            if deadline.queued_ms == at_ms:
                deadline.queued_ms = None
        return None

    def expire(self, now_ms: int) -> None:
        """Let everything happen whose time has come, in the order of the times.

        What is set meanwhile for `now_ms` or earlier happens as well. O(log n) for each.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, deadline = heapq.heappop(self._heap)
            if deadline.queued_ms != at_ms:
                continue  # It was set to an earlier time, which has its own entry.
            deadline.queued_ms = None
            if deadline.at_ms is None:
                continue
            if deadline.at_ms > now_ms:
                self.push(deadline, deadline.at_ms)
                continue
            deadline.cancel()
            deadline.expired(now_ms)
