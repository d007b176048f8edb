from libc.stdint cimport int64_t, uint64_t

from _core.timers.due_tree cimport DueTree
from _core.timers.timer_list cimport ChunkPool, Timer, TimerList
from _core.timers.cancelled_timers cimport CancelledTimers

cdef enum:
    LEVEL_COUNT_MAX = 64      # one bit per level in a word

cdef struct Level:
    TimerList timers          # the first entry is not a gap, and min_due_ms is its due time
    int64_t head_offset       # level offset of the first entry; next_offset if there is none
    int64_t end_offset        # level offset after the last entry
    int64_t next_offset       # level offset of the next timer of this level
    Timer last                # the last timer pushed; due_ms is -1 before the first

cdef class DelayLevels:
    cdef int level_count
    cdef Level* levels        # 1..level_count
    cdef uint64_t occupied    # bit level - 1 is set if the FIFO of the level is not empty
    cdef DueTree tree         # owns the pool
    cdef ChunkPool* pool
    cdef CancelledTimers cancelled
    cdef int swept_level      # the FIFO being swept
    cdef bint sweeps_list
    # Appends a timer with that offset. False if it would break the order of the FIFO: the offset is
    # used up, and the timer must go to the tree.
    cdef bint push(self, int level, const Timer* timer, int64_t offset) except -1 nogil
    cdef void use_up(self, int level, int64_t next_offset) noexcept nogil
    # REQUIRES: the FIFO is not empty. Drops its first entry, which may be a gap.
    cdef void drop_first(self, int level) noexcept nogil
    # Restores the invariants of the first entry after entries were dropped.
    cdef void advance(self, int level) noexcept nogil
    # Drops the cancelled timers before the first pending one.
    cdef void trim(self, int level) noexcept nogil
    cdef int64_t min_due_ms(self) noexcept nogil      # a lower bound; INT64_MAX when empty
    cdef void begin_sweep(self) noexcept nogil
    # One bounded step; returns the number of entries examined, -1 at the end of the sweep.
    cdef int64_t sweep_step(self) noexcept nogil
