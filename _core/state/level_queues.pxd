from libc.stdint cimport int32_t, int64_t, uint32_t

cdef enum:
    LEVELS_MAX = 255    # a timer entry holds its level in one byte

# The pending timers of one partition by level; [0] is not used.
cdef struct LevelCounts:
    uint32_t* counts
    int size            # levels above it have none

cdef class LevelQueues:
    cdef int64_t following[LEVELS_MAX + 1]     # next offset of each delay level; [0] is not used
    cdef int64_t pending[LEVELS_MAX + 1]
    cdef LevelCounts* partitions               # by handle
    cdef int64_t capacity
    cdef readonly bint is_exact
    # Notes a timer of a level with that offset.
    cdef void note(self, int level, int64_t offset) noexcept nogil
    # A timer of a partition is pending; level 0 is none.
    cdef int push(self, int32_t handle, int level) except -1 nogil
    # The pending timers of a partition and a level.
    cdef int64_t count_of(self, int32_t handle, int level) noexcept nogil
    cdef int restore_count(self, int32_t handle, int level, int64_t count) except -1
    # It is no longer pending.
    cdef void complete(self, int32_t handle, int level) noexcept nogil
    # None of a partition is: it is deleted.
    cdef void forget(self, int32_t handle) noexcept nogil
    # A timer is no longer pending whose level is not known.
    cdef void lose(self) noexcept nogil
    cdef int _reserve(self, int32_t handle, int level) except -1 nogil
