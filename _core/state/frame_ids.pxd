from libc.stdint cimport int32_t, uint8_t

from _core.bytes.octets cimport load_u32
from _core.timers.id_index cimport IdIndex

# The first entry from `entry` on whose id is not certain; NULL if there is none.
cdef inline const uint8_t* next_uncertain(
    IdIndex ids, int32_t topic_id, const uint8_t* names, const uint8_t* entry,
    const uint8_t* end, int entry_size, int size_at, int pos_at
) noexcept nogil:
    while entry < end:
        if entry[size_at] and not ids.is_certain(
            topic_id, names + load_u32(entry + pos_at), entry[size_at]
        ):
            return entry
        entry += entry_size
    return NULL

# `keys`, which may be None, and the keys of those ids of a table that are not certain.
cdef inline list keys_of(
    IdIndex ids, int32_t topic_id, const uint8_t* names, const uint8_t* entry, int32_t count,
    int entry_size, int size_at, int pos_at, list keys
):
    cdef const uint8_t* end = entry + count * <Py_ssize_t>entry_size
    while True:
        with nogil:
            entry = next_uncertain(
                ids, topic_id, names, entry, end, entry_size, size_at, pos_at
            )
        if entry == NULL:
            return keys
        keys = keys or []
        keys.append(ids.key_bytes(topic_id, names + load_u32(entry + pos_at), entry[size_at]))
        entry += entry_size
