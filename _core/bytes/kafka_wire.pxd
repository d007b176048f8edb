"""Kafka's primitive types, in both encodings: classic and flexible.

The flexible encoding has compact lengths and tagged fields. Source: the protocol guide of Apache
Kafka and KIP-482. Layer 0: no I/O.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _core.bytes.buffer cimport Buf, append, reserve
from _core.bytes.octets cimport (
    Cursor, left, store_u16, store_u32, store_u64, store_uvarint, take, take_i16, take_i32,
    take_uvarint,
)


cdef inline const uint8_t* take_string(Cursor* c, bint flexible, int64_t* size) noexcept nogil:
    """Read a nullable string or byte sequence: its bytes and size; size -1 = null."""
    size[0] = <int64_t>take_uvarint(c) - 1 if flexible else take_i16(c)
    if size[0] < -1:
        c.failed = True
    if size[0] <= 0:
        return c.p
    return take(c, size[0])


cdef inline bint is_text(const uint8_t* data, int64_t size) except -1:
    """Whether `data` is UTF-8. Other bytes must not be echoed: most clients cannot decode them."""
    cdef int64_t i
    for i in range(size):
        if data[i] >= 0x80:
            try:
                PyUnicode_DecodeUTF8(<const char*>data, size, NULL)
            except UnicodeDecodeError:
                return False
            return True
    return True


cdef inline int64_t take_array(Cursor* c, bint flexible, int entry_size_min) noexcept nogil:
    """Read the length of an array and check it against the bytes left; 0 for a null array."""
    cdef int64_t count = <int64_t>take_uvarint(c) - 1 if flexible else take_i32(c)
    if count < 0 or count > left(c) // entry_size_min:
        c.failed = c.failed or count != -1
        return 0
    return count


cdef inline void skip_tags(Cursor* c, bint flexible) noexcept nogil:
    cdef uint64_t count, i
    if not flexible:
        return
    count = take_uvarint(c)
    for i in range(count):
        if c.failed:
            return
        take_uvarint(c)
        take(c, <int64_t>take_uvarint(c))


cdef inline int put_array(Buf* out, bint flexible, int64_t count) except -1 nogil:
    cdef uint8_t* p = reserve(out, 10)
    if flexible:
        out.size += store_uvarint(p, count + 1)
    else:
        store_u32(p, <uint32_t>count)
        out.size += 4
    return 0


cdef inline int put_string(
    Buf* out, bint flexible, const uint8_t* data, int64_t size
) except -1 nogil:
    """Append a nullable string; size -1 = null."""
    cdef uint8_t* p = reserve(out, 10)
    if flexible:
        out.size += store_uvarint(p, size + 1)
    else:
        store_u16(p, <uint16_t>size)
        out.size += 2
    if size > 0:
        append(out, data, size)
    return 0


cdef inline int put_i8(Buf* out, int value) except -1 nogil:
    reserve(out, 1)[0] = <uint8_t>value
    out.size += 1
    return 0


cdef inline int put_i16(Buf* out, int value) except -1 nogil:
    store_u16(reserve(out, 2), <uint16_t>value)
    out.size += 2
    return 0


cdef inline int put_i32(Buf* out, int32_t value) except -1 nogil:
    store_u32(reserve(out, 4), <uint32_t>value)
    out.size += 4
    return 0


cdef inline int put_i64(Buf* out, int64_t value) except -1 nogil:
    store_u64(reserve(out, 8), <uint64_t>value)
    out.size += 8
    return 0
