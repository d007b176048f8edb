from libc.stdint cimport int64_t

from _core.timers.cancelled_timers cimport CancelledTimers
from _core.timers.timer_heap cimport TimerHeap
from _core.timers.timer_list cimport ChunkPool, Timer

# What bounds the deliveries of a topic.
cdef struct Bounds:
    int64_t per_s             # deliveries in any second; 0 = none, -1 = any number
    int64_t spread_ms         # what is due at once is spread over this time; 0 = it is not

cdef class HeldTimers:
    cdef TimerHeap heap       # the next timer to deliver is at index 0
    cdef ChunkPool pool
    cdef int64_t rate_ns      # when the next one may go by per_s, epoch ns, if a burst is used up
    cdef int64_t spread_ns    # when it may go by spread_ms
    cdef int64_t base_due_ms  # due time of the first one since it was empty
    cdef int64_t due_sum_ms   # due times of all, from there; those of swept ones until a sweep ends
    cdef int64_t sweep_end
    cdef bint is_blocked      # the record of the next one is being read from the disk
    cdef int add(self, const Timer* timer) except -1
    # REQUIRES for the next five: it holds a timer.
    cdef void drop_first(self) noexcept
    # Whether a timer may go now; `note_gone` says that it did.
    cdef bint may_go(self, int64_t now_ms, const Bounds* bounds) noexcept
    cdef void note_gone(self, int64_t now_ms, const Bounds* bounds) noexcept
    # When the next one may go, epoch ms; -1 if none may.
    cdef int64_t next_ms(self, int64_t now_ms, const Bounds* bounds) noexcept
    cdef int64_t _next_by_rate_ms(self, int64_t now_ms, int64_t per_s) noexcept
    # Frees the entries of some cancelled timers.
    cdef void sweep(self, CancelledTimers cancelled) noexcept
