from libc.stdint cimport uint8_t, uint64_t

# An integer of `size` <= 8 bytes.
cdef inline uint64_t load_little_endian(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    for i in range(size):
        value |= <uint64_t>p[i] << (8 * i)
    return value

cdef inline void store_little_endian(uint8_t* p, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        p[i] = <uint8_t>(value >> (8 * i))

# The two 64-bit words of the hash of a message; the key has two words.
cdef void siphash(
    const uint64_t* key, const uint8_t* message, Py_ssize_t size, uint64_t* out
) noexcept nogil
