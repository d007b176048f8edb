"""Rows of run files: their keys and sizes. docs/FORMAT.md draws them.

Timers are in two orders: by timer id, which is the order of arrival, and in the TimerLog by due
time first, which is the order of delivery. User ids are ordered by hash, which is the order of the
shards of the id index.

Layer 0: no I/O. Header only: these functions are compiled into the modules that cimport them.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64, load_u32, load_u64

cdef struct RowKey:
    int64_t due_ms        # in the TimerLog, else 0
    uint64_t high         # position of the accept frame, or the first word of the hash
    uint32_t low          # index in the batch, or the next 32 bits of the hash
    int32_t topic_id      # topic of an id, 0 for a timer


cdef inline bint is_key_before(const RowKey* a, const RowKey* b) noexcept nogil:
    if a.due_ms != b.due_ms:
        return a.due_ms < b.due_ms
    if a.high != b.high:
        return a.high < b.high
    if a.low != b.low:
        return a.low < b.low
    return a.topic_id < b.topic_id


cdef inline bint is_key_equal(const RowKey* a, const RowKey* b) noexcept nogil:
    return (
        a.high == b.high and a.low == b.low and a.topic_id == b.topic_id and a.due_ms == b.due_ms
    )


cdef inline RowKey key_of_row(int kind, const uint8_t* row) noexcept nogil:
    """REQUIRES: a whole row."""
    if kind != RUN_IDS:
        return RowKey(
            load_i64(row + RUN_TIMER_AT_DUE) if kind == RUN_DUE else 0,
            load_u64(row + RUN_TIMER_AT_ACCEPT_POS), load_u32(row + RUN_TIMER_AT_INDEX), 0,
        )
    return RowKey(
        0,
        load_u64(row + RUN_ID_AT_HASH_HIGH),
        load_u32(row + RUN_ID_AT_HASH_LOW),
        load_i32(row + RUN_ID_AT_TOPIC_ID),
    )


cdef inline int size_of_row(int kind, const uint8_t* row) noexcept nogil:
    """REQUIRES: RUN_COMPLETED_SIZE bytes."""
    if kind == RUN_IDS:
        return RUN_ID_SIZE
    if row[RUN_TIMER_AT_KIND] == RUN_ROW_PENDING:
        return RUN_TIMER_SIZE
    return RUN_COMPLETED_DUE_SIZE if kind == RUN_DUE else RUN_COMPLETED_SIZE


cdef inline int size_of_completed(int kind) noexcept nogil:
    return RUN_COMPLETED_DUE_SIZE if kind == RUN_DUE else RUN_COMPLETED_SIZE
