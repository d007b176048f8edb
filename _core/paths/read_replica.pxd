from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.queue.partition cimport Partition

cdef class ReadReplica:
    cdef readonly int32_t node_id
    cdef readonly int64_t near_count
    cdef readonly int64_t late_count
    cdef bytes rack
    cdef int64_t late_bytes
    # Whether the consumer that sends the rest of a Fetch, from its topics on, is in the rack of the
    # slave.
    cdef bint is_near(self, const uint8_t* topics, Py_ssize_t size, int version) except -1
    # Whether the consumer of a partition is to read from the slave; counts it.
    cdef bint takes(
        self, Partition partition, int64_t offset, int64_t visible_pos, bint is_near,
        dict redirected
    ) except -1

cdef inline int partition_size(int version) noexcept nogil:
    """Bytes of a requested partition: index, epoch, offset, last epoch, log start, limit."""
    return 16 + 4 * (version >= 9) + 4 * (version >= 12) + 8 * (version >= 5)
