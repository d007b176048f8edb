from libc.stdint cimport int64_t

from _core.timers.due_tree cimport DueTree
from _core.timers.time_wheel cimport TimeWheel
from _core.timers.timer_list cimport Timer, TimerList

cdef class DueWheels:
    cdef readonly TimeWheel minutes
    cdef readonly TimeWheel seconds
    cdef DueTree tree
    cdef int64_t kept_max_ms      # no timer that is kept outside of the queue is due later
    cdef bint is_stale            # timers are gone since a count of all began
    cdef bint is_lost             # the counts are not those of the queue: they are made anew
    # A timer is pending now; or it is not any more.
    cdef void add(self, const Timer* timer) noexcept nogil
    cdef void take(self, const Timer* timer) noexcept nogil
    # A timer is pending that the queue does not hold: the walk does not find it.
    cdef void note_kept(self, const Timer* timer) noexcept nogil
    # Timers are gone whose due times are not known.
    cdef void lose(self) noexcept nogil
    # Extends what the wheels count, by a walk of about `budget` timers. Returns whether it has more
    # to do. It does not go beyond the timers that are loaded.
    cdef bint advance(self, int64_t now_ms, int64_t loaded_ms, int64_t budget) noexcept nogil
    # How many timers are due in the second that has this time or, if that is not known, in its
    # minute; -1: neither is.
    cdef int64_t count_at(self, int64_t due_ms, bint* is_minute) noexcept nogil
    # Counts by intervals; returns how many of `pending` timers are due before them, -1: not known.
    cdef int64_t tally(
        self, int64_t pending, int64_t begin_ms, int64_t step_ms, int64_t* counts, int64_t size
    ) noexcept nogil
    cdef bint _is_whole(self) noexcept nogil
    cdef void _walk(self, TimeWheel wheel, int64_t end_ms, int64_t* budget) noexcept nogil
    cdef bint _count_leaf(
        self, TimeWheel wheel, TimerList* leaf, Timer* reached, int64_t end_ms, int64_t* budget
    ) noexcept nogil
    cdef void _count_some(
        self, TimeWheel wheel, const Timer* timers, int64_t count, const Timer* from_timer,
        const Timer* until
    ) noexcept nogil
