"""The delay levels as queues: how many timers of each were accepted, and how many are pending.

RocketMQ keeps the messages of a level in a queue of the topic SCHEDULE_TOPIC_XXXX, and delivers
them from there in order. Here the timers of all levels are in the due queue, and a level has two
numbers: the offset of its next timer, and its lag, the timers that are pending. What was cancelled
counts as delivered.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

cdef enum:
    CAPACITY_MIN = 64


cdef class LevelQueues:
    """The next level offset and the pending timers of each level, 1 to 255.

    Attributes:
        is_exact: False if a timer was completed by a frame of an older latermq, which does not say
            its level.
    """

    def __cinit__(self):
        self.is_exact = True

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.capacity):
            free(self.partitions[i].counts)
        free(self.partitions)

    cdef void note(self, int level, int64_t offset) noexcept nogil:
        self.following[level] = max(self.following[level], offset + 1)

    # Pending timers

    cdef int _reserve(self, int32_t handle, int level) except -1 nogil:
        """Make room for a level of a partition."""
        cdef int64_t capacity = max(handle + 1, self.capacity + (self.capacity >> 1), CAPACITY_MIN)
        cdef LevelCounts* grown
        cdef LevelCounts* of
        cdef uint32_t* counts
        if handle >= self.capacity:
            grown = <LevelCounts*>realloc(self.partitions, capacity * sizeof(LevelCounts))
            if grown == NULL:
                raise MemoryError("cannot allocate the levels of partitions")
            memset(grown + self.capacity, 0, (capacity - self.capacity) * sizeof(LevelCounts))
            self.partitions = grown
            self.capacity = capacity
        of = &self.partitions[handle]
        if level >= of.size:
            counts = <uint32_t*>realloc(of.counts, (level + 1) * sizeof(uint32_t))
            if counts == NULL:
                raise MemoryError("cannot allocate the levels of a partition")
            memset(counts + of.size, 0, (level + 1 - of.size) * sizeof(uint32_t))
            of.counts = counts
            of.size = level + 1
        return 0

    cdef int push(self, int32_t handle, int level) except -1 nogil:
        if level == 0:
            return 0
        self._reserve(handle, level)
        self.partitions[handle].counts[level] += 1
        self.pending[level] += 1
        return 0

    cdef int64_t count_of(self, int32_t handle, int level) noexcept nogil:
        if handle >= self.capacity or level >= self.partitions[handle].size:
            return 0
        return self.partitions[handle].counts[level]

    cdef int restore_count(self, int32_t handle, int level, int64_t count) except -1:
        self._reserve(handle, level)
        self.partitions[handle].counts[level] += <uint32_t>count
        self.pending[level] += count
        return 0

    cdef void complete(self, int32_t handle, int level) noexcept nogil:
        # A level that an older latermq did not save may be missing.
        if level and handle < self.capacity and level < self.partitions[handle].size:
            if self.partitions[handle].counts[level]:
                self.partitions[handle].counts[level] -= 1
                self.pending[level] -= 1

    cdef void forget(self, int32_t handle) noexcept nogil:
        cdef LevelCounts* of
        cdef int level
        if handle >= self.capacity:
            return
        of = &self.partitions[handle]
        for level in range(of.size):
            self.pending[level] -= of.counts[level]
        free(of.counts)
        of[0] = LevelCounts(NULL, 0)

    cdef void lose(self) noexcept nogil:
        self.is_exact = False

    def pending_of(self, int level):
        """Number of pending timers of a level, 1 to 255.

        Raises:
            IndexError: no such level.
        """
        if not 1 <= level <= LEVELS_MAX:
            raise IndexError(f"level {level} is out of range: use 1 to {LEVELS_MAX}")
        return self.pending[level]

    # Offsets

    def of(self, int level):
        """Level offset of the next timer of a level: how many were accepted so far.

        Args:
            level: 1 to 255.

        Raises:
            IndexError: no such level.
        """
        if not 1 <= level <= LEVELS_MAX:
            raise IndexError(f"level {level} is out of range: use 1 to {LEVELS_MAX}")
        return self.following[level]

    def all(self):
        """The next level offset of each level, from 1 to the highest level that has timers."""
        cdef int highest = LEVELS_MAX
        while highest and self.following[highest] == 0:
            highest -= 1
        return tuple([self.following[level] for level in range(1, highest + 1)])

    def restore(self, offsets not None):
        """Restore the result of `all`; no offset decreases.

        Raises:
            ValueError: there are more than 255 levels.
        """
        cdef int level
        if len(offsets) > LEVELS_MAX:
            raise ValueError(f"got {len(offsets)} levels, expected at most {LEVELS_MAX}")
        for level, offset in enumerate(offsets, start=1):
            self.following[level] = max(self.following[level], <int64_t>offset)
