"""The slave from which consumers may read: who is sent there (KIP-392).

A master names the slave as the preferred read replica if the consumer is in the slave's rack, or
far behind. It then returns no records. A client that comes back nevertheless, because it ignores
that or because the slave refuses it, is served for a while: else it would never read.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.kafka_wire cimport skip_tags, take_array, take_string
from _core.bytes.octets cimport Cursor, cursor_of, take
from _core.queue.partition cimport UNIT_COLD, Partition, Unit

cdef enum:
    FIRST_WITH_RACK = 11
    FIRST_FLEXIBLE = 12
    FIRST_WITH_TOPIC_IDS = 13
    TOPIC_ID_SIZE = 16
    PARTITION_INDEX_SIZE = 4
    # Fetches of a partition on one connection that the master serves after it named the slave.
    REDIRECT_EVERY = 16
    # Partitions of a connection of which that is remembered; others stay with the master.
    REDIRECTED_MAX = 1024


cdef class ReadReplica:
    """The slave, if there is one.

    Attributes:
        node_id: its id; -1 if there is none.
        near_count, late_count: partitions sent there because of the rack of the consumer, and
            because it was far behind, since the start.
    """

    def __cinit__(self):
        """Begin without a slave."""
        self.node_id = -1
        self.rack = b""

    def set(self, int32_t node_id, bytes rack not None, int64_t late_bytes):
        """Let consumers read from a slave.

        Args:
            node_id: the id of the slave; -1 if there is none now.
            rack: consumers of this rack are sent there; b"": none because of its rack.
            late_bytes: how far behind the end of the log a consumer is sent there; 0: never.
        """
        self.node_id = node_id
        self.rack = rack
        self.late_bytes = late_bytes

    cdef bint is_near(self, const uint8_t* topics, Py_ssize_t size, int version) except -1:
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef Cursor c
        cdef const uint8_t* rack
        cdef int64_t length
        if self.node_id < 0 or version < FIRST_WITH_RACK or not self.rack:
            return False
        c = cursor_of(topics, size)
        _skip_topics(&c, version, False)
        _skip_topics(&c, version, True)
        rack = take_string(&c, flexible, &length)
        return not c.failed and length >= 0 and (<const char*>rack)[:length] == self.rack

    cdef bint takes(
        self, Partition partition, int64_t offset, int64_t visible_pos, bint is_near,
        dict redirected
    ) except -1:
        cdef Unit unit
        cdef int64_t left
        if self.node_id < 0 or redirected is None:
            return False
        if not is_near:
            # Most consumers are near the end, whose units are in memory.
            if self.late_bytes == 0 or offset >= partition.visible_offset:
                return False
            if partition.find_unit(offset, &unit) <= UNIT_COLD or unit.size < 0:
                return False  # once the unit was read
            if visible_pos - unit.pos <= self.late_bytes:
                return False
        left = redirected.get(partition.handle, -1)
        if left > 0:
            redirected[partition.handle] = left - 1
            return False
        if left < 0 and len(redirected) >= REDIRECTED_MAX:
            return False
        redirected[partition.handle] = REDIRECT_EVERY
        if is_near:
            self.near_count += 1
        else:
            self.late_count += 1
        return True


cdef int _skip_topics(Cursor* c, int version, bint forgotten) except -1:
    """Skip the topics of a Fetch, or those that are to be forgotten."""
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef int64_t i, k, length, count = take_array(c, flexible, 3)
    for i in range(count):
        if version >= FIRST_WITH_TOPIC_IDS:
            take(c, TOPIC_ID_SIZE)
        else:
            take_string(c, flexible, &length)
        length = take_array(c, flexible, PARTITION_INDEX_SIZE if forgotten else 16)
        if forgotten:
            take(c, PARTITION_INDEX_SIZE * length)
            length = 0
        for k in range(length):
            take(c, partition_size(version))
            skip_tags(c, flexible)
            if c.failed:
                return 0
        skip_tags(c, flexible)
        if c.failed:
            return 0
    return 0
