"""How far the log has come: wrote >= committed >= flushed, and what may be fetched.

Every move asserts the invariants, so a wrong order of write and flush stops the broker instead of
losing a message:

 I1  flushed <= committed <= wrote
 I2  no pointer moves back
 I3  with sync flush, visible == flushed; with async flush, visible == committed

Layer 0: no I/O.
"""

from libc.stdint cimport int64_t


cdef class Pointers:
    """The pointers of one log, in bytes from its beginning."""

    def __init__(self, int64_t start, *, bint sync_flush):
        """Begin with everything up to `start` written and flushed.

        Args:
            start: log position, bytes, >= 0.
            sync_flush: True: nothing is visible before it is flushed.
        """
        assert start >= 0
        self.wrote = self.committed = self.flushed = self.replicated = start
        self.sync_flush = sync_flush

    cdef int64_t visible_pos(self) noexcept nogil:
        return self.flushed if self.sync_flush else self.committed

    @property
    def visible(self):
        """Log position up to which records may be fetched."""
        return self.visible_pos()

    def advance_wrote(self, int64_t pos):
        """Bytes up to `pos` are encoded."""
        assert pos >= self.wrote  # I2
        self.wrote = pos

    def advance_committed(self, int64_t pos):
        """Bytes up to `pos` are in the page cache."""
        assert pos >= self.committed  # I2
        assert pos <= self.wrote  # I1
        self.committed = pos

    def advance_flushed(self, int64_t pos):
        """Bytes up to `pos` are on the disk."""
        assert pos >= self.flushed  # I2
        assert pos <= self.committed  # I1
        self.flushed = pos
        self.replicated = pos
