from libc.stdint cimport uint8_t, uint32_t

# Extends `crc`, a finished CRC32C (0 to begin), over `size` bytes at `p`.
cdef uint32_t extend(uint32_t crc, const uint8_t* p, Py_ssize_t size) noexcept nogil
