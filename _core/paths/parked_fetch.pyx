"""A fetch that waits. Layer 0: no I/O, no clock."""

from libc.stdint cimport int64_t

from _core.queue.partition cimport Partition


cdef class ParkedFetch:
    """A fetch that waits for more data, or for frames to be read from disk.

    Attributes:
        session: the connection.
        wait_ms: how long the client is willing to wait, ms.
        cold: places that a thread must read first (`FrameFinder.place`); empty if it waits for
            data.
        answered: whether it has been answered.
        timer: the owner's handle of the time-out.
        is_expired: set by the owner when the time-out expires.
    """

    def unpark(self):
        """Stop watching its partitions."""
        cdef Partition partition
        for partition in self.partitions:
            partition.waiters.pop(self, None)
        self.partitions = []

    def may_have_enough(self, int64_t visible_pos):
        """Return whether there may be enough data now that the log is visible up to a position.

        What became visible since the fetch was tried is no more than the log is longer. So a fetch
        that waits for much is not tried again for each record.
        """
        return visible_pos >= self.enough_pos

    def drop(self):
        """Let go of everything: the connection is closed, and nobody waits for the answer."""
        self.unpark()
        self.answered = True
        self.session = self.answer = None
        self.request = b""
        self.cold = []
