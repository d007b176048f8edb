"""MurmurHash2 of Austin Appleby, 32 bits, with the seed of Kafka's default partitioner.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    MULTIPLIER = 0x5BD1E995
    SHIFT = 24

cdef uint32_t SEED = 0x9747B28C


cdef uint32_t murmur2(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef uint32_t h = SEED ^ <uint32_t>size
    cdef uint32_t k
    while size >= 4:
        k = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        k *= <uint32_t>MULTIPLIER
        k ^= k >> SHIFT
        h = h * <uint32_t>MULTIPLIER ^ k * <uint32_t>MULTIPLIER
        p += 4
        size -= 4
    if size == 3:
        h ^= <uint32_t>p[2] << 16
    if size >= 2:
        h ^= <uint32_t>p[1] << 8
    if size >= 1:
        h = (h ^ p[0]) * <uint32_t>MULTIPLIER
    h = (h ^ h >> 13) * <uint32_t>MULTIPLIER
    return h ^ h >> 15


cdef int32_t partition_of_key(const uint8_t* p, Py_ssize_t size, int32_t count) noexcept nogil:
    """REQUIRES: count >= 1."""
    return <int32_t>(murmur2(p, size) & 0x7FFFFFFF) % count


def hash_key(bytes key not None):
    """Return `murmur2` of a key, 0 to 2^32 - 1."""
    return murmur2(<const uint8_t*><const char*>key, len(key))
