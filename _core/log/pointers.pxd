from libc.stdint cimport int64_t

cdef class Pointers:
    cdef readonly int64_t wrote       # encoded
    cdef readonly int64_t committed   # pwritev returned
    cdef readonly int64_t flushed     # fdatasync returned
    cdef readonly int64_t replicated  # the slave has it; INT64_MAX: nothing waits for a slave
    cdef readonly bint sync_flush
    cdef int64_t visible_pos(self) noexcept nogil
