cimport cython
from libc.stdint cimport uint8_t


@cython.final
cdef class Borrowed:
    cdef Py_buffer buffer
    cdef const uint8_t* p
    cdef Py_ssize_t size
