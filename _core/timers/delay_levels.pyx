"""Timers with fixed delays: one FIFO per delay level, because due times within a level ascend.

The entries of a level have consecutive level offsets, so offsets are not stored. Only the offset of
the first entry is known, and a gap entry counts the offsets missing at its place.

Some timers would break the order of the FIFO: those due before the last one of their level, because
the clock was stepped back, and those that arrive late, because they were relocated. They go to the
`DueTree`.

Layer 0: no I/O, no clock.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from _core.timers.due_tree cimport DueTree
from _core.timers.timer_list cimport (
    GAP,
    Timer,
    TimerList,
    is_before,
    list_append,
    list_clear,
    list_drop_first,
    list_first,
    list_sweep_chunk,
)
from _core.timers.cancelled_timers cimport CancelledTimers

cdef extern from *:
    int count_trailing_zeros "__builtin_ctzll"(unsigned long long) noexcept nogil


@cython.final
@cython.no_gc    # no cycle can go through it, and its members must outlive __dealloc__
cdef class DelayLevels:
    """The delay levels of a `DueQueue`. They have no Python API."""

    def __cinit__(self, int level_count, DueTree tree not None, CancelledTimers cancelled not None):
        cdef int level
        if not 0 <= level_count <= LEVEL_COUNT_MAX:
            raise ValueError(
                f"level_count {level_count} is out of range: use 0 to {LEVEL_COUNT_MAX}"
            )
        self.tree = tree
        self.pool = &tree.pool
        self.cancelled = cancelled
        self.levels = <Level*>calloc(level_count + 1, sizeof(Level))
        if self.levels == NULL:
            raise MemoryError("cannot allocate the delay levels")
        self.level_count = level_count
        for level in range(1, level_count + 1):
            self.levels[level].last.due_ms = -1

    def __dealloc__(self):
        cdef int level
        for level in range(1, self.level_count + 1):
            list_clear(self.pool, &self.levels[level].timers)
        free(self.levels)

    cdef bint push(self, int level, const Timer* timer, int64_t offset) except -1 nogil:
        cdef Level* fifo = &self.levels[level]
        cdef Timer gap
        if offset < fifo.next_offset or not is_before(&fifo.last, timer):
            self.use_up(level, offset + 1)
            return False
        if fifo.timers.count and offset > fifo.end_offset:
            gap = Timer(timer.due_ms, offset - fifo.end_offset, 0, GAP)
            if not list_append(self.pool, &fifo.timers, &gap):
                raise MemoryError("cannot allocate a timer")
            fifo.end_offset = offset
        if not list_append(self.pool, &fifo.timers, timer):
            raise MemoryError("cannot allocate a timer")
        if fifo.timers.count == 1:
            fifo.head_offset = offset
        fifo.end_offset = fifo.next_offset = offset + 1
        fifo.last = timer[0]
        self.occupied |= 1ULL << (level - 1)
        return True

    cdef void use_up(self, int level, int64_t next_offset) noexcept nogil:
        self.levels[level].next_offset = max(self.levels[level].next_offset, next_offset)
        self.advance(level)

    cdef void drop_first(self, int level) noexcept nogil:
        cdef Level* fifo = &self.levels[level]
        cdef Timer* first = list_first(&fifo.timers)
        fifo.head_offset += first.position if first.partition == GAP else 1
        list_drop_first(self.pool, &fifo.timers)

    cdef void advance(self, int level) noexcept nogil:
        cdef Level* fifo = &self.levels[level]
        cdef Timer* first
        while fifo.timers.count:
            first = list_first(&fifo.timers)
            if first.partition != GAP:
                fifo.timers.min_due_ms = first.due_ms
                return
            self.drop_first(level)
        fifo.head_offset = fifo.next_offset
        self.occupied &= ~(1ULL << (level - 1))

    cdef void trim(self, int level) noexcept nogil:
        cdef TimerList* timers = &self.levels[level].timers
        cdef Timer* first
        while timers.count:
            first = list_first(timers)
            if not self.cancelled.claim(first.position, first.record_index, first.partition):
                return
            self.drop_first(level)
            self.advance(level)

    cdef int64_t min_due_ms(self) noexcept nogil:
        cdef int64_t due_ms = INT64_MAX
        cdef uint64_t left = self.occupied
        while left:
            due_ms = min(due_ms, self.levels[count_trailing_zeros(left) + 1].timers.min_due_ms)
            left &= left - 1
        return due_ms

    cdef void begin_sweep(self) noexcept nogil:
        self.swept_level = 1
        self.sweeps_list = False

    cdef int64_t sweep_step(self) noexcept nogil:
        cdef TimerList* timers
        cdef int64_t examined
        if self.swept_level > self.level_count:
            return -1
        timers = &self.levels[self.swept_level].timers
        if not self.sweeps_list:
            self.pool.swept = NULL
            self.pool.sweep_next = timers.head
            self.sweeps_list = True
        if self.pool.sweep_next == NULL:
            self.swept_level += 1
            self.sweeps_list = False
            return 0
        examined = list_sweep_chunk(self.pool, timers, self.cancelled, True)
        self.advance(self.swept_level)
        return examined
