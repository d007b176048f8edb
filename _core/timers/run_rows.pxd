"""Rows of run files: their keys and sizes. docs/FORMAT.md draws them.

Timers are ordered by timer id, which is the order of arrival. User ids are ordered by hash, which
is the order of the shards of the id index.

Layer 0: no I/O. Header only: these functions are compiled into the modules that cimport them.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_u32, load_u64

cdef struct RowKey:
    uint64_t high         # position of the accept frame, or the first word of the hash
    uint32_t low          # index in the batch, or the next 32 bits of the hash
    int32_t topic_id      # topic of an id, 0 for a timer


cdef inline bint is_key_before(const RowKey* a, const RowKey* b) noexcept nogil:
    if a.high != b.high:
        return a.high < b.high
    if a.low != b.low:
        return a.low < b.low
    return a.topic_id < b.topic_id


cdef inline bint is_key_equal(const RowKey* a, const RowKey* b) noexcept nogil:
    return a.high == b.high and a.low == b.low and a.topic_id == b.topic_id


cdef inline RowKey key_of_row(int kind, const uint8_t* row) noexcept nogil:
    """REQUIRES: a whole row."""
    if kind == RUN_TIMERS:
        return RowKey(
            load_u64(row + RUN_TIMER_AT_ACCEPT_POS), load_u32(row + RUN_TIMER_AT_INDEX), 0
        )
    return RowKey(
        load_u64(row + RUN_ID_AT_HASH_HIGH),
        load_u32(row + RUN_ID_AT_HASH_LOW),
        load_i32(row + RUN_ID_AT_TOPIC_ID),
    )


cdef inline int size_of_row(int kind, const uint8_t* row) noexcept nogil:
    """REQUIRES: RUN_COMPLETED_SIZE bytes."""
    if kind == RUN_IDS:
        return RUN_ID_SIZE
    return RUN_TIMER_SIZE if row[RUN_TIMER_AT_KIND] == RUN_ROW_PENDING else RUN_COMPLETED_SIZE
