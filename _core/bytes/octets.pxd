"""Big-endian loads and stores, and a checked cursor.

Everything that latermq reads from a socket or a file goes through this module.

The loads and stores are unchecked. They are marked REQUIRES: the caller ensures that the bytes
exist. The cursor checks before it advances. A read that does not fit sets `failed` for good, and
every later read returns zero. A decoder therefore reads a whole structure and checks `failed` once.

Layer 0: no I/O.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef LATERMQ_OCTETS
    #define LATERMQ_OCTETS
    #include <stdint.h>
    #include <string.h>
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define LMQ_BE16(x) __builtin_bswap16(x)
    #define LMQ_BE32(x) __builtin_bswap32(x)
    #define LMQ_BE64(x) __builtin_bswap64(x)
    #else
    #define LMQ_BE16(x) (x)
    #define LMQ_BE32(x) (x)
    #define LMQ_BE64(x) (x)
    #endif
    static inline uint16_t load_u16(const void *p) {
        uint16_t v;
        memcpy(&v, p, 2);
        return LMQ_BE16(v);
    }
    static inline uint32_t load_u32(const void *p) {
        uint32_t v;
        memcpy(&v, p, 4);
        return LMQ_BE32(v);
    }
    static inline uint64_t load_u64(const void *p) {
        uint64_t v;
        memcpy(&v, p, 8);
        return LMQ_BE64(v);
    }
    static inline void store_u16(void *p, uint16_t v) {
        v = LMQ_BE16(v);
        memcpy(p, &v, 2);
    }
    static inline void store_u32(void *p, uint32_t v) {
        v = LMQ_BE32(v);
        memcpy(p, &v, 4);
    }
    static inline void store_u64(void *p, uint64_t v) {
        v = LMQ_BE64(v);
        memcpy(p, &v, 8);
    }
    #endif
    """
    # REQUIRES: the bytes loaded or stored lie inside the caller's buffer.
    uint16_t load_u16(const void* p) noexcept nogil
    uint32_t load_u32(const void* p) noexcept nogil
    uint64_t load_u64(const void* p) noexcept nogil
    void store_u16(void* p, uint16_t v) noexcept nogil
    void store_u32(void* p, uint32_t v) noexcept nogil
    void store_u64(void* p, uint64_t v) noexcept nogil


cdef inline int16_t load_i16(const void* p) noexcept nogil:
    return <int16_t>load_u16(p)


cdef inline int32_t load_i32(const void* p) noexcept nogil:
    return <int32_t>load_u32(p)


cdef inline int64_t load_i64(const void* p) noexcept nogil:
    return <int64_t>load_u64(p)


cdef struct Cursor:
    const uint8_t* p      # next byte to read
    const uint8_t* end    # one past the last
    bint failed           # a read did not fit, or a varint was malformed


cdef inline Cursor cursor_of(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef Cursor cursor
    cursor.p = p
    cursor.end = p + size
    cursor.failed = size < 0
    return cursor


cdef inline Py_ssize_t left(const Cursor* c) noexcept nogil:
    return 0 if c.failed else c.end - c.p


cdef inline const uint8_t* take(Cursor* c, int64_t size) noexcept nogil:
    """Return the next `size` bytes; NULL if they do not fit, and the cursor fails."""
    cdef const uint8_t* p = c.p
    if c.failed or size < 0 or size > c.end - c.p:
        c.failed = True
        return NULL
    c.p += size
    return p


cdef inline int8_t take_i8(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 1)
    return 0 if p == NULL else <int8_t>p[0]


cdef inline int16_t take_i16(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 2)
    return 0 if p == NULL else load_i16(p)


cdef inline int32_t take_i32(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 4)
    return 0 if p == NULL else load_i32(p)


cdef inline int64_t take_i64(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 8)
    return 0 if p == NULL else load_i64(p)


cdef inline uint64_t take_uvarint(Cursor* c) noexcept nogil:
    """Read an unsigned varint of at most ten bytes."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 64:
        if c.failed or c.p >= c.end:
            c.failed = True
            return 0
        byte = c.p[0]
        c.p += 1
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    c.failed = True
    return 0


cdef inline int64_t take_varint(Cursor* c) noexcept nogil:
    """Read a zigzag varint, as in Kafka's records."""
    cdef uint64_t raw = take_uvarint(c)
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)


cdef inline int store_uvarint(uint8_t* p, uint64_t value) noexcept nogil:
    """Return the number of bytes written. REQUIRES: ten bytes at `p`."""
    cdef int n = 0
    while value >= 0x80:
        p[n] = <uint8_t>(value | 0x80)
        value >>= 7
        n += 1
    p[n] = <uint8_t>value
    return n + 1


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int store_varint(uint8_t* p, int64_t value) noexcept nogil:
    """Return the number of bytes written. REQUIRES: ten bytes at `p`."""
    return store_uvarint(p, zigzag(value))


cdef inline int uvarint_size(uint64_t value) noexcept nogil:
    cdef int n = 1
    while value >= 0x80:
        value >>= 7
        n += 1
    return n


cdef inline int varint_size(int64_t value) noexcept nogil:
    return uvarint_size(zigzag(value))
