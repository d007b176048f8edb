from libc.stdint cimport int64_t

cdef str delayed_size_text(int64_t size, int64_t size_max)
cdef str unpacked_size_text(int64_t size_max)
cdef str frame_size_text(int64_t size, int64_t size_max)
