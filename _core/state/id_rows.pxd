from libc.stdint cimport int32_t, uint8_t

from _core.bytes.layout cimport (
    RUN_ID_AT_HASH_HIGH, RUN_ID_AT_HASH_LOW, RUN_ID_AT_TOPIC_ID,
)
from _core.bytes.octets cimport load_i32, load_u32, load_u64
from _core.timers.id_index cimport IdIndex, NameKey

cdef inline NameKey name_key_of(const uint8_t* row) noexcept nogil:
    return NameKey(
        load_u64(row + RUN_ID_AT_HASH_HIGH),
        load_u32(row + RUN_ID_AT_HASH_LOW),
        load_i32(row + RUN_ID_AT_TOPIC_ID),
    )

# Puts what a row says into the index; `handle` is that of its partition.
cdef int put_row(
    IdIndex index, const NameKey* key, const uint8_t* row, int32_t handle
) except -1 nogil
