from libc.stdint cimport uint8_t

# The state of a request: it has a response, it waits for one, it gets none.
cpdef enum:
    TRACE_ANSWERED = 0
    TRACE_PARKED = 1
    TRACE_SILENT = 2


cdef tuple traced_head(const uint8_t* p, Py_ssize_t size)
