from libc.stdint cimport int32_t, int64_t

from _core.delay_levels cimport DelayLevels
from _core.due_tree cimport DueTree
from _core.timer_list cimport Timer
from _core.withdrawn_timers cimport WithdrawnTimers

cdef class DueQueue:
    cdef readonly int64_t pending
    cdef readonly int level_count
    cdef DueTree tree
    cdef WithdrawnTimers withdrawn
    cdef DelayLevels levels
    cdef int64_t* partition_pending
    cdef int64_t partition_capacity
    cdef bint is_sweeping
    cdef bint is_sweeping_levels    # first the levels, then the tree
    cdef int64_t sweep_credit
    # Adds a pending timer. level 0 or level_offset -1: any due time; 1..level_count: that level's
    # FIFO, unless it would break its order. due_ms >= 0; the timer is not pending yet.
    cdef int push(self, const Timer* timer, int level, int64_t level_offset) except -1 nogil
    # The offset that the next timer of this level would get; -1 if it is due before the last one
    # pushed there, so that it has to be pushed with -1.
    cdef int64_t level_offset_for(self, int level, int64_t due_ms) noexcept nogil
    # Takes up to `limit` timers due by now_ms, by due time, then arrival. Returns how many.
    cdef Py_ssize_t pop_due(self, int64_t now_ms, Timer* out, Py_ssize_t limit) except -1 nogil
    # Makes popped timers pending again; those of forgotten partitions vanish.
    cdef int unpop(self, const Timer* timers, Py_ssize_t count) except -1 nogil
    # Lets a popped timer stay pending in other hands; False if its partition is forgotten.
    cdef bint keep(self, const Timer* timer) except -1 nogil
    # Makes a kept timer a popped one again; False if it was withdrawn meanwhile.
    cdef bint take_kept(self, const Timer* timer) noexcept nogil
    # Withdraws a pending timer. Returns 1; 0 if it was withdrawn already.
    cdef int cancel(
        self, int64_t phys_offset, int32_t record_index, int32_t partition
    ) except -1 nogil
    # Withdraws a partition's timers, for good: later ones of it vanish.
    cdef int forget_partition(self, int32_t partition) except -1 nogil
    # Nothing is due before; -1 when empty. Earlier than the first pending timer only if a withdrawn
    # one was before it; popping at that time drops what stood in the way.
    cdef int64_t next_due_ms(self) noexcept nogil
    # The next level offset as a carry or checkpoint tells it; it never falls.
    cdef int restore_level(self, int level, int64_t next_offset) except -1
    # Takes out withdrawn entries once they outnumber the pending ones, looking at some `budget` of
    # them. Each call does a little of it; an idle broker may do more. Returns whether work is left.
    cdef bint sweep(self, int64_t budget) noexcept nogil
    cdef int _check_level(self, int level) except -1
    cdef int _ensure_counter(self, int32_t partition) except -1 nogil
    cdef void _count_pushed(self, int32_t partition) noexcept nogil
    cdef void _count_popped(self, int32_t partition) noexcept nogil
    cdef int _choose(self, int64_t now_ms, Timer* bound) noexcept nogil
    cdef Py_ssize_t _drain_heap(
        self, int64_t now_ms, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil
    cdef Py_ssize_t _drain_run(
        self, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil
    cdef Py_ssize_t _drain_level(
        self, int level, int64_t now_ms, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil
    cdef void _consider_sweep(self) noexcept nogil
