from libc.stdint cimport int64_t, uint8_t

from _core.bytes.octets cimport Cursor

cdef int64_t check_partitions(
    Cursor c, bint flexible, dict topics_by_name, int64_t serial, int64_t count_max
) except -2
cdef str find_name(frozenset names, const uint8_t* name, int64_t size)
