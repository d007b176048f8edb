"""The idempotent producers of all partitions as they are at one moment, for a checkpoint.

They are too many to be encoded in one turn. `begin` sets the moment, `collect` encodes some of them
in each turn, and `note` encodes those of a partition before a batch changes them.

Layer 0: no I/O, no clock.
"""

from _core.queue.partition cimport Partition


cdef class ProducerCapture:
    """The capture of one checkpoint after the other."""

    def begin(self, list partitions not None):
        """Start to capture the producers of all partitions as they are now.

        Args:
            partitions: all of them; None stands for one that is deleted.
        """
        self.serial += 1
        self.captured = []
        self.uncaptured = [
            partition for partition in partitions
            if partition is not None and (<Partition>partition).producers
        ]

    cpdef int note(self, Partition partition) except -1:
        if partition.captured_in == self.serial:
            return 0
        partition.captured_in = self.serial
        if partition.producers and self.uncaptured is not None:
            self.captured.append((partition.topic.topic_id, partition.encode_producers()))
        return 0

    def collect(self, int count):
        """Capture the next `count` partitions; True once all are done."""
        if self.uncaptured is None:
            return True
        while count and self.uncaptured:
            self.note(<Partition>self.uncaptured.pop())
            count -= 1
        if self.uncaptured:
            return False
        self.uncaptured = None
        return True

    def take(self):
        """Return and clear the capture: (topic id, sequences) of each partition with producers."""
        captured, self.captured, self.uncaptured = self.captured, [], None
        return captured
