"""Users' ids of timers as the rows of runs have them, and as people ask for them.

Layer 0: no I/O. Used by the event loop thread.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.id_index cimport (
    DELIVERED, STATE_BITS, IdIndex, NameKey, NamedTimer, NameSlot, due_level_of,
)

cdef enum:
    KEY_SIZE = RUN_ID_AT_TOPIC_ID + 4    # what a row of an id begins with


cdef int put_row(
    IdIndex index, const NameKey* key, const uint8_t* row, int32_t handle
) except -1 nogil:
    cdef NameSlot* slot = index.open_slot(key)
    slot.position = load_i64(row + RUN_ID_AT_ACCEPT_POS)
    slot.due_level = due_level_of(load_i64(row + RUN_ID_AT_DUE), row[RUN_ID_AT_LEVEL])
    slot.completed_pos = load_i64(row + RUN_ID_AT_COMPLETED_POS)
    slot.record_index = load_i32(row + RUN_ID_AT_INDEX)
    slot.partition_state = <uint32_t>handle << STATE_BITS | row[RUN_ID_AT_STATE]
    if row[RUN_ID_AT_STATE] == DELIVERED and not row[RUN_ID_AT_HAS_OFFSET]:
        slot.position = -1  # an older latermq wrote it
    index.close_slot(slot)
    return 0

def recall_ids(Projections projections not None, list found not None):
    """Put what the runs say of some ids into the index, but for those that it knows.

    Args:
        projections: have the index and the topics.
        found: (key, row) of each; the row is empty if no run has the id.
    """
    cdef IdIndex index = projections.ids
    cdef bytes packed, row
    cdef const uint8_t* p
    cdef NameKey key
    cdef Topic topic
    for packed, row in found:
        assert len(packed) == KEY_SIZE
        key = name_key_of(<const uint8_t*><const char*>packed)
        if index.holds(&key):
            continue
        topic = <Topic>projections.topics_by_id.get(key.topic_id)
        assert len(row) in (0, RUN_ID_SIZE)
        p = <const uint8_t*><const char*>row
        if topic is None or not row or load_i32(p + RUN_ID_AT_PARTITION) >= len(topic.partitions):
            index.note_absent(&key)
        else:
            put_row(
                index, &key, p,
                (<Partition>topic.partitions[load_i32(p + RUN_ID_AT_PARTITION)]).handle,
            )


def named_timer(Projections projections not None, Topic topic not None, bytes user_id not None):
    """Look up the timer that an id names now; reads a run if that must be.

    Args:
        projections: have it.
        topic: topic of the id.
        user_id: 1 to 255 bytes.

    Returns:
        (state, due in epoch ms, partition, position, index), or None if the id is unknown or has
        expired. The state is "pending", "cancelled" or "delivered". Position and index are the
        timer id; of a delivered timer, its offset or -1, and `delivered_mark`.
    """
    cdef NamedTimer known
    cdef Partition partition
    cdef const uint8_t* name = <const uint8_t*><const char*>user_id
    if not projections.find_id(topic.topic_id, name, len(user_id), &known):
        return None
    found = projections.ids.named(topic.topic_id, user_id)
    state, due_ms, handle, position, index = found
    partition = <Partition>projections.partitions[handle]
    return None if partition is None else (state, due_ms, partition.index, position, index)
