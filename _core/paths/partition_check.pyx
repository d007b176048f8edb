"""The partition pre-check of Produce: parses a whole request before any of it is stored.

A malformed request must store nothing, and neither must a partition that is named twice. Both are
known only at the end of the request, so this pass comes first. Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.kafka_wire cimport is_text, skip_tags, take_array, take_string
from _core.bytes.octets cimport Cursor, take, take_i16, take_i32, take_uvarint
from _core.queue.partition cimport Partition, Topic


cdef int64_t check_partitions(
    Cursor c, bint flexible, dict topics_by_name, int64_t serial, int64_t count_max
) except -2:
    """Count the topics and partitions that a request body names, and mark the known partitions.

    Batches are skipped.

    Args:
        c: a cursor at the transactional id. The body ends with its last tagged field.
        flexible: whether the version has the flexible encoding.
        topics_by_name: all topics.
        serial: serial number of the request, 1 or more, for `Partition.mention`.
        count_max: counting stops above this number.

    Returns:
        The count; -1 if the body is not a Produce request.
    """
    cdef int64_t topics, partitions, items, i, k, size
    cdef const uint8_t* name
    cdef Topic topic = None
    cdef int32_t index
    take_string(&c, flexible, &size)
    take_i16(&c)  # acks
    take_i32(&c)  # time-out
    items = topics = take_array(&c, flexible, 2)
    if items > count_max:
        return items
    for i in range(topics):
        name = take_string(&c, flexible, &size)
        if c.failed or size < 0 or not is_text(name, size):
            return -1
        partitions = take_array(&c, flexible, 5)
        items += partitions
        if items > count_max:
            return items
        if topics > 1 or partitions > 1:  # rare; with a single partition there is no duplicate
            topic = topics_by_name.get((<const char*>name)[:size])
        for k in range(partitions):
            index = take_i32(&c)
            size = <int64_t>take_uvarint(&c) - 1 if flexible else take_i32(&c)
            if size > 0:
                take(&c, size)
            skip_tags(&c, flexible)
            if c.failed:
                return -1
            if topic is not None and 0 <= index < len(topic.partitions):
                (<Partition>topic.partitions[index]).mention(serial)
        skip_tags(&c, flexible)
    skip_tags(&c, flexible)
    return -1 if c.failed else items


cdef str find_name(frozenset names, const uint8_t* name, int64_t size):
    """Return a topic's name if it is one of some names, which are bytes; else None."""
    text = (<const char*>name)[:size]
    return text.decode() if text in names else None
