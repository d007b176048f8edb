"""The counters of the delay levels: how many timers of each were accepted.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int64_t


cdef class LevelOffsets:
    """The next level offset of each level, 1 to 255."""

    cdef void note(self, int level, int64_t offset) noexcept nogil:
        self.following[level] = max(self.following[level], offset + 1)

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
