"""The pointers of the log: wrote >= committed >= flushed, and how far records are visible.

Every change asserts the invariants, so that a wrong order of write and flush stops the broker
before it can lose a message:

 I1  flushed <= committed <= wrote
 I2  no pointer moves back
 I3  with sync flush, visible == flushed; with async flush, visible == committed; with sync
     replication, what the slave lacks is not visible either

Layer 0: no I/O.
"""

from libc.stdint cimport INT64_MAX, int64_t


cdef class Pointers:
    """The pointers of one log, as log positions in bytes."""

    def __init__(self, int64_t start, *, bint sync_flush):
        """Start with everything up to `start` written and flushed.

        Args:
            start: log position in bytes, >= 0.
            sync_flush: True if records become visible when flushed, False when committed.
        """
        assert start >= 0
        self.wrote = self.committed = self.flushed = start
        self.sync_flush = sync_flush
        self.replicated = INT64_MAX

    cdef int64_t visible_pos(self) noexcept nogil:
        return min(self.flushed if self.sync_flush else self.committed, self.replicated)  # I3

    def need_replica(self):
        """Let nothing more become visible before the slave has it."""
        if self.replicated == INT64_MAX:
            self.replicated = self.visible_pos()

    def release_replica(self):
        """Let everything become visible that is durable here, whatever a slave has."""
        self.replicated = INT64_MAX

    def advance_replicated(self, int64_t pos):
        """Record that the slave has everything up to `pos`."""
        if self.replicated < pos:
            self.replicated = min(pos, INT64_MAX - 1)

    @property
    def visible(self):
        """The log position up to which records may be fetched."""
        return self.visible_pos()

    def advance_wrote(self, int64_t pos):
        """Record that bytes up to `pos` are encoded."""
        assert pos >= self.wrote  # I2
        self.wrote = pos

    def advance_committed(self, int64_t pos):
        """Record that bytes up to `pos` are in the page cache."""
        assert pos >= self.committed  # I2
        assert pos <= self.wrote  # I1
        self.committed = pos

    def advance_flushed(self, int64_t pos):
        """Record that bytes up to `pos` are on the disk."""
        assert pos >= self.flushed  # I2
        assert pos <= self.committed  # I1
        self.flushed = pos
