"""What a state snapshot has of each partition: docs/FORMAT.md, partition, kept bytes and pending.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf, release, reserve
from _core.bytes.octets cimport store_u32, store_u64
from _core.queue.partition cimport Partition, Topic
from _core.state.level_queues cimport LEVELS_MAX
from _core.state.projections cimport Projections

cdef enum:
    PARTITION_ROW_SIZE = 40
    KEPT_ROW_SIZE = 16


def partition_rows(Projections projections not None):
    """Encode the rows of all partitions: offsets, highest timestamp, bytes in the log."""
    cdef Topic topic
    cdef Partition partition
    cdef uint8_t* p
    cdef Buf out
    out.data = NULL
    out.size = out.capacity = 0
    try:
        for topic in projections.topics_by_id.values():
            for partition in topic.partitions:
                p = reserve(&out, PARTITION_ROW_SIZE)
                store_u32(p, topic.topic_id)
                store_u32(p + 4, partition.index)
                store_u64(p + 8, partition.start_offset)
                store_u64(p + 16, partition.next_offset)
                store_u64(p + 24, partition.running_max)
                store_u64(p + 32, partition.log_bytes)
                out.size += PARTITION_ROW_SIZE
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        release(&out)


def kept_bytes(Projections projections not None):
    """Return about the size of the frames of all records that can be fetched. O(partitions)."""
    cdef Partition partition
    cdef int64_t total = 0
    for partition in projections.partitions:
        if partition is not None:
            total += partition.kept_bytes
    return total


def kept_rows(Projections projections not None):
    """Encode the kept bytes of partitions; zeros are left out."""
    cdef Topic topic
    cdef Partition partition
    cdef uint8_t* p
    cdef Buf out
    out.data = NULL
    out.size = out.capacity = 0
    try:
        for topic in projections.topics_by_id.values():
            for partition in topic.partitions:
                if partition.kept_bytes == 0:
                    continue
                p = reserve(&out, KEPT_ROW_SIZE)
                store_u32(p, topic.topic_id)
                store_u32(p + 4, partition.index)
                store_u64(p + 8, partition.kept_bytes)
                out.size += KEPT_ROW_SIZE
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        release(&out)


cdef int _add_pending(Buf* out, Partition partition, int level, int64_t count) except -1:
    cdef uint8_t* p
    if count:
        p = reserve(out, PENDING_ROW_SIZE)
        store_u32(p, partition.topic.topic_id)
        store_u32(p + 4, partition.index)
        store_u32(p + 8, level)
        store_u64(p + 12, count)
        out.size += PENDING_ROW_SIZE
    return 0


def pending_rows(Projections projections not None):
    """Encode how many timers of partitions are pending, in all and by level; no zeros.

    Returns:
        The rows; None if the due queue has other timers than the runs will have, or if levels are
        not known.
    """
    cdef Topic topic
    cdef Partition partition
    cdef Buf out
    cdef int32_t level
    if projections.dropped or not projections.levels.is_exact:
        return None
    out.data = NULL
    out.size = out.capacity = 0
    try:
        for topic in projections.topics_by_id.values():
            for partition in topic.partitions:
                if projections.due.pending_of(partition.handle) == 0:
                    continue
                _add_pending(&out, partition, 0, projections.due.pending_of(partition.handle))
                for level in range(1, LEVELS_MAX + 1):
                    _add_pending(
                        &out, partition, level,
                        projections.levels.count_of(partition.handle, level),
                    )
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        release(&out)
