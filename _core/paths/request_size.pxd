from libc.stdint cimport int32_t, int64_t

cpdef str describe_size(int32_t size, int64_t size_max)
