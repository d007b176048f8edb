from libc.stdint cimport int64_t, uint64_t

from _core.due_tree cimport DueTree
from _core.timer_list cimport ChunkPool, Timer, TimerList
from _core.withdrawn_timers cimport WithdrawnTimers

cdef enum:
    LEVEL_COUNT_MAX = 64      # one bit each in a word

cdef struct Level:
    TimerList timers          # min_due_ms is that of the first; the first entry is no gap
    int64_t head_offset       # level offset of the first entry; next_offset if there is none
    int64_t end_offset        # level offset after the last entry
    int64_t next_offset       # level offset that the next timer of this level gets
    Timer last                # the last one taken in; due -1 before the first

cdef class DelayLevels:
    cdef int level_count
    cdef Level* levels        # 1..level_count
    cdef uint64_t occupied    # bit level - 1: its FIFO is not empty
    cdef DueTree tree         # owns the pool
    cdef ChunkPool* pool
    cdef WithdrawnTimers withdrawn
    cdef int swept_level      # the FIFO being swept
    cdef bint sweeps_list
    # Uses up the offset; False if the timer has to go elsewhere to keep the FIFO's order.
    cdef bint push(self, int level, const Timer* timer, int64_t offset) except -1 nogil
    cdef void use_up(self, int level, int64_t next_offset) noexcept nogil
    # REQUIRES: the FIFO is not empty. Drops its first entry, which may be a gap.
    cdef void drop_first(self, int level) noexcept nogil
    # Restores what holds for the first entry, after one or many were dropped.
    cdef void settle(self, int level) noexcept nogil
    # Drops withdrawn timers in front of the first pending one.
    cdef void trim(self, int level) noexcept nogil
    cdef int64_t min_due_ms(self) noexcept nogil      # a lower bound; INT64_MAX when empty
    cdef void begin_sweep(self) noexcept nogil
    # One bounded step; the number of entries looked at, -1 when everything has been.
    cdef int64_t sweep_step(self) noexcept nogil
