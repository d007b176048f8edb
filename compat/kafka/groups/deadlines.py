"""Deadlines that are usually postponed before they expire: a heap with lazy deletion.

A heartbeat only writes a new time into its member's deadline. The heap still has the earlier time;
when that comes, the deadline is pushed again with the new time. A heartbeat is therefore O(1), and
the cost of a turn depends on the due deadlines and not on the number of groups.
Layer 3; does no I/O.
"""

import heapq
from collections.abc import Callable
from typing import Final

COMPACT_SLACK: Final = 64
"""Entries that the heap may have beyond twice the number of set deadlines. A cancelled entry stays
until its time, which may be half an hour away, and clients could create very many."""


class Deadline:
    """A callback at a set time, unless it is postponed or cancelled before.

    Attributes:
        at_ms: the time, monotonic ms; None if it is not set.
        expired: the callback; called with the current time, once for each `set` that expires.
    """

    __slots__ = ("_queue", "at_ms", "expired", "queued_ms")

    def __init__(self, queue: "DeadlineQueue") -> None:
        self._queue = queue
        self.expired: Callable[[int], None] = _do_nothing
        self.at_ms: int | None = None
        self.queued_ms: int | None = None
        """The time of the valid entry in the heap; all others are stale."""

    def set(self, at_ms: int) -> None:
        """Set the time, replacing the previous one."""
        if self.at_ms is None:
            self._queue.set_count += 1
        self.at_ms = at_ms
        if self.queued_ms is None or at_ms < self.queued_ms:
            self._queue.push(self, at_ms)

    def cancel(self) -> None:
        """Cancel the callback."""
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
        """The number of heap entries, including those of cancelled and postponed deadlines."""
        return len(self._heap)

    def push(self, deadline: Deadline, at_ms: int) -> None:
        """Push an entry; only Deadline calls it. O(log n)."""
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
            # Of two entries with the same time only one is kept.
            deadline.queued_ms = None
            kept.append(entry)
        for at_ms, _, deadline in kept:
            deadline.queued_ms = at_ms
        self._heap = kept
        heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """Return when to call `expire` again, None if never; it may be too early."""
        while self._heap:
            at_ms, _, deadline = self._heap[0]
            if deadline.queued_ms == at_ms and deadline.at_ms is not None:
                return at_ms
            heapq.heappop(self._heap)
            if deadline.queued_ms == at_ms:
                deadline.queued_ms = None
        return None

    def expire(self, now_ms: int) -> None:
        """Call the callbacks of all due deadlines, in order of time.

        A deadline that was postponed may come before one that is due earlier. Deadlines that a
        callback sets to `now_ms` or earlier are called too. O(log n) for each.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, deadline = heapq.heappop(self._heap)
            if deadline.queued_ms != at_ms:
                continue  # Stale: it was set to an earlier time, which has its own entry.
            deadline.queued_ms = None
            if deadline.at_ms is None:
                continue
            if deadline.at_ms > now_ms:
                self.push(deadline, deadline.at_ms)
                continue
            deadline.cancel()
            deadline.expired(now_ms)
