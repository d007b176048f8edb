from libc.stdint cimport int64_t

from _core.bytes.octets cimport Cursor

cdef int64_t check_partitions(
    Cursor c, bint flexible, dict topics_by_name, int64_t serial, int64_t count_max
) except -2
