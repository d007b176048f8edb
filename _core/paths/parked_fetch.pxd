from libc.stdint cimport int32_t, int64_t

from _core.paths.answer cimport Answer

cdef class ParkedFetch:
    cdef public object session    # Session, None once the connection is closed
    cdef readonly int32_t wait_ms
    cdef readonly list cold
    cdef readonly bint answered
    cdef public object timer
    cdef public bint is_expired
    cdef Answer answer
    cdef bytes request
    cdef int version
    cdef int32_t correlation
    cdef list partitions
    cdef int64_t enough_pos   # of the log, before which there cannot be enough data
