from libc.stdint cimport int64_t

from _core.timers.cancelled_timers cimport CancelledTimers
from _core.timers.timer_heap cimport TimerHeap
from _core.timers.timer_list cimport ChunkPool, Timer

cdef class HeldTimers:
    cdef TimerHeap heap       # the next timer to deliver is at index 0
    cdef ChunkPool pool
    cdef int64_t next_ns      # when the next one may go, epoch ns, if a burst is used up
    cdef int64_t sweep_end
    cdef int add(self, const Timer* timer) except -1
    # REQUIRES: it holds a timer.
    cdef void drop_first(self) noexcept
    # Whether a timer may go now if `per_s` may go in any second; `note_gone` says that it did.
    cdef bint may_go(self, int64_t now_ms, int64_t per_s) noexcept
    cdef void note_gone(self, int64_t now_ms, int64_t per_s) noexcept
    # When the next one may go, epoch ms.
    cdef int64_t next_ms(self, int64_t now_ms, int64_t per_s) noexcept
    # Frees the entries of some cancelled timers.
    cdef void sweep(self, CancelledTimers cancelled) noexcept
