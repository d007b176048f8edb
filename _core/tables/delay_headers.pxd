# The headers that a delayed record got when it was accepted.

from libc.stdint cimport int64_t
from libc.string cimport memcmp

from _core.bytes.batch cimport Record, Slice, next_header
from _core.bytes.octets cimport Cursor, cursor_of, take_varint

cdef enum:
    DIGITS_MAX = 15              # of an instant in a delay header

# Epoch ms; -1 = the record has none.
cdef struct DelayHeaders:
    int64_t due_ms
    int64_t accepted_ms


# The value of a decimal number, or -1 if the text is none.
cdef inline int64_t _decimal(const Slice* text) noexcept nogil:
    cdef int64_t value = 0, i
    if text.size <= 0 or text.size > DIGITS_MAX:
        return -1
    for i in range(text.size):
        if not 48 <= text.data[i] <= 57:
            return -1
        value = value * 10 + text.data[i] - 48
    return value


cdef inline bint _is_named(const Slice* key, const char* name, int64_t size) noexcept nogil:
    return key.size == size and memcmp(key.data, name, size) == 0


# Takes the instant from a header that has one.
cdef inline void take_delay(
    DelayHeaders* found, const Slice* key, const Slice* value
) noexcept nogil:
    if _is_named(key, b"x-due-at", 8):
        found.due_ms = _decimal(value)
    elif _is_named(key, b"x-accepted-at", 13):
        found.accepted_ms = _decimal(value)


# When a record was accepted as a timer; -1 if its headers do not say it or are malformed.
cdef inline int64_t accepted_ms_of(const Record* r) noexcept nogil:
    cdef Cursor c = cursor_of(r.headers, r.end - r.headers)
    cdef DelayHeaders found = DelayHeaders(-1, -1)
    cdef Slice key, value
    cdef int64_t i
    if r.header_count:
        take_varint(&c)
    for i in range(r.header_count):
        if not next_header(&c, &key, &value):
            return -1
        take_delay(&found, &key, &value)
    return found.accepted_ms
