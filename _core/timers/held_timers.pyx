"""Due timers of one topic that is paused, or that delivers only so many a second.

They are in a heap, by due time, then by arrival: timers may be added in any order. They stay
pending, but `DueQueue` no longer has them; `DueList` shows them.

The pace is the generic cell rate algorithm (ITU-T I.371): a timer goes if the time at which it
would go at an even pace is at most a burst of them ahead. The even pace is chosen so that it and
the burst together never exceed the bound in any second.

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
        heap_push(&self.heap, timer)
        return 0

    cdef void drop_first(self) noexcept:
        heap_drop_first(&self.pool, &self.heap)

    cdef bint may_go(self, int64_t now_ms, int64_t per_s) noexcept:
        cdef int64_t spacing = spacing_ns(per_s)
        cdef int64_t ahead = burst_of(per_s) * spacing
        if self.next_ns > now_ms * NS_PER_MS + ahead:
            # The bound was lower, or the clock later.
            self.next_ns = now_ms * NS_PER_MS + ahead
        return self.next_ns - now_ms * NS_PER_MS <= ahead - spacing

    cdef void note_gone(self, int64_t now_ms, int64_t per_s) noexcept:
        self.next_ns = max(self.next_ns, now_ms * NS_PER_MS) + spacing_ns(per_s)

    cdef int64_t next_ms(self, int64_t now_ms, int64_t per_s) noexcept:
        cdef int64_t early_ns
        if self.may_go(now_ms, per_s):
            return now_ms
        early_ns = self.next_ns - (burst_of(per_s) - 1) * spacing_ns(per_s)
        return (early_ns + NS_PER_MS - 1) // NS_PER_MS

    cdef void sweep(self, CancelledTimers cancelled) noexcept:
        if self.sweep_end == 0:
            self.sweep_end = self.heap.count
        heap_sweep_step(&self.pool, &self.heap, cancelled, &self.sweep_end)
