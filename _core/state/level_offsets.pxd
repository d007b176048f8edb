from libc.stdint cimport int64_t

cdef enum:
    LEVELS_MAX = 255    # a timer entry holds its level in one byte

cdef class LevelOffsets:
    cdef int64_t following[LEVELS_MAX + 1]     # next offset of each delay level; [0] is not used
    # Notes a timer of a level with that offset.
    cdef void note(self, int level, int64_t offset) noexcept nogil
