"""Due timers of one topic that is paused, or whose deliveries are bounded.

They are in a heap, by due time, then by arrival: timers may be added in any order. They stay
pending, but `DueQueue` no longer has them; `DueList` shows them.

The bound of a second is kept by the generic cell rate algorithm (ITU-T I.371): a timer goes if the
time at which it would go at an even pace is at most a burst of them ahead. The even pace is chosen
so that it and the burst together never exceed the bound in any second.

What is due at once is spread by a pace that is set anew with each timer that goes: the time until
the mean of the others must go, divided by their number. A timer that is due with no other goes at
once, and one whose time is over goes whatever the pace says.

Layer 0: no I/O, no clock.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from _core.timers.cancelled_timers cimport CancelledTimers
from _core.timers.timer_heap cimport (
    heap_drop_first, heap_push, heap_reserve, heap_sweep_step,
)
from _core.timers.timer_list cimport Timer

cdef enum:
    BURST_PART = 100    # of a second's timers go at once: the loop wakes once a millisecond
    SHORTER_PART = 8
    LATE_TURN_NS = 20_000_000
    NS_PER_MS = 1_000_000
    NS_PER_S = 1_000_000_000


cdef inline int64_t burst_of(int64_t per_s) noexcept nogil:
    return max(1, per_s // BURST_PART)


cdef inline int64_t spacing_ns(int64_t per_s) noexcept nogil:
    cdef int64_t even = per_s - burst_of(per_s) + 1
    return (NS_PER_S + even - 1) // even


@cython.final
@cython.no_gc    # no cycle can go through it
cdef class HeldTimers:
    """The timers that one topic holds back. It has no Python API."""

    def __dealloc__(self):
        free(self.heap.timers)

    cdef int add(self, const Timer* timer) except -1:
        if not heap_reserve(&self.pool, &self.heap, 1):
            raise MemoryError("cannot allocate a timer that is held back")
        if self.heap.count == 0:
            self.base_due_ms = timer.due_ms
            self.due_sum_ms = 0
        self.due_sum_ms += timer.due_ms - self.base_due_ms
        heap_push(&self.heap, timer)
        return 0

    cdef void drop_first(self) noexcept:
        self.due_sum_ms -= self.heap.timers[0].due_ms - self.base_due_ms
        heap_drop_first(&self.pool, &self.heap)

    cdef bint may_go(self, int64_t now_ms, const Bounds* bounds) noexcept:
        return 0 <= self.next_ms(now_ms, bounds) <= now_ms

    cdef void note_gone(self, int64_t now_ms, const Bounds* bounds) noexcept:
        cdef int64_t now_ns = now_ms * NS_PER_MS
        cdef int64_t rest = self.heap.count - 1
        cdef int64_t first_ms = self.heap.timers[0].due_ms
        cdef int64_t mean_ms, spread_ms
        if bounds.per_s > 0:
            self.rate_ns = max(self.rate_ns, now_ns) + spacing_ns(bounds.per_s)
        if bounds.spread_ms == 0:
            return
        # A turn of the loop may come late, but who comes after a pause does not catch up.
        if rest == 0 or self.spread_ns < now_ns - LATE_TURN_NS:
            self.spread_ns = now_ns
        if rest > 0:
            mean_ms = self.base_due_ms + (self.due_sum_ms - (first_ms - self.base_due_ms)) // rest
            spread_ms = bounds.spread_ms
            if mean_ms > first_ms:
                # The first ones must go before the mean: this makes up for it.
                spread_ms -= spread_ms // SHORTER_PART
            self.spread_ns += max(mean_ms + spread_ms - now_ms, 0) * NS_PER_MS // rest

    cdef int64_t next_ms(self, int64_t now_ms, const Bounds* bounds) noexcept:
        # Later than now if the clock was set back.
        cdef int64_t first_ms = self.heap.timers[0].due_ms
        cdef int64_t found = max(now_ms, first_ms)
        if bounds.per_s == 0:
            return -1
        if bounds.per_s > 0:
            found = max(found, self._next_by_rate_ms(now_ms, bounds.per_s))
        if bounds.spread_ms > 0:
            found = max(found, min(self.spread_ns // NS_PER_MS, first_ms + bounds.spread_ms))
        return found

    cdef int64_t _next_by_rate_ms(self, int64_t now_ms, int64_t per_s) noexcept:
        cdef int64_t spacing = spacing_ns(per_s)
        cdef int64_t ahead = burst_of(per_s) * spacing
        # It is later if the bound was lower, or the clock was set back.
        self.rate_ns = min(self.rate_ns, now_ms * NS_PER_MS + ahead)
        return (self.rate_ns - ahead + spacing + NS_PER_MS - 1) // NS_PER_MS

    cdef void sweep(self, CancelledTimers cancelled) noexcept:
        cdef int64_t i
        if self.sweep_end == 0:
            self.sweep_end = self.heap.count
        heap_sweep_step(&self.pool, &self.heap, cancelled, &self.sweep_end)
        if self.sweep_end == 0:
            self.due_sum_ms = 0
            for i in range(self.heap.count):
                self.due_sum_ms += self.heap.timers[i].due_ms - self.base_due_ms
