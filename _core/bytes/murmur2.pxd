from libc.stdint cimport int32_t, uint8_t, uint32_t

# The hash of the bytes of a key, as Kafka's clients compute it.
cdef uint32_t murmur2(const uint8_t* p, Py_ssize_t size) noexcept nogil
# The partition of a record with a key, 0 to count - 1, that Kafka's default partitioner chooses.
cdef int32_t partition_of_key(const uint8_t* p, Py_ssize_t size, int32_t count) noexcept nogil
