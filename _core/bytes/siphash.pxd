"""SipHash-2-4 with 128 bits of output: a keyed hash of Aumasson and Bernstein.

Without the key nobody can construct two messages with one hash. Layer 0: no I/O. Header only: these
functions are compiled into the modules that cimport them.
"""

from libc.stdint cimport uint8_t, uint64_t


cdef inline uint64_t load_little_endian(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Load an integer of `size` <= 8 bytes."""
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    for i in range(size):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef inline void store_little_endian(uint8_t* p, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        p[i] = <uint8_t>(value >> (8 * i))


cdef struct SipState:
    uint64_t v0
    uint64_t v1
    uint64_t v2
    uint64_t v3


cdef inline uint64_t rotate_left(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void sip_rounds(SipState* s, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        s.v0 += s.v1
        s.v2 += s.v3
        s.v1 = rotate_left(s.v1, 13) ^ s.v0
        s.v3 = rotate_left(s.v3, 16) ^ s.v2
        s.v0 = rotate_left(s.v0, 32)
        s.v2 += s.v1
        s.v0 += s.v3
        s.v1 = rotate_left(s.v1, 17) ^ s.v2
        s.v3 = rotate_left(s.v3, 21) ^ s.v0
        s.v2 = rotate_left(s.v2, 32)


cdef inline void sip_word(SipState* s, uint64_t word) noexcept nogil:
    s.v3 ^= word
    sip_rounds(s, 2)
    s.v0 ^= word


cdef inline void siphash(
    const uint64_t* key, const uint8_t* message, Py_ssize_t size, uint64_t* out
) noexcept nogil:
    """The two 64-bit words of the hash of a message; the key has two words."""
    cdef SipState s
    cdef Py_ssize_t pos = 0
    s.v0 = 0x736F6D6570736575ULL ^ key[0]
    s.v1 = 0x646F72616E646F6DULL ^ key[1] ^ 0xEE
    s.v2 = 0x6C7967656E657261ULL ^ key[0]
    s.v3 = 0x7465646279746573ULL ^ key[1]
    while pos + 8 <= size:
        sip_word(&s, load_little_endian(message + pos, 8))
        pos += 8
    sip_word(&s, <uint64_t>size << 56 | load_little_endian(message + pos, size - pos))
    s.v2 ^= 0xEE
    sip_rounds(&s, 4)
    out[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
    s.v1 ^= 0xDD
    sip_rounds(&s, 4)
    out[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
