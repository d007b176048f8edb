"""Gives the memory of large objects back without the interpreter's lock.

To free 64 MiB takes the kernel some ms, page by page. The interpreter frees an object while it
holds its lock, so every other thread waits. Here the pages go first, without the lock, and what is
left to free is an empty mapping: see madvise(2), MADV_DONTNEED. Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void*, size_t, int)
    enum:
        MADV_DONTNEED

cdef enum:
    PAGE_BYTES = 4096
    LARGE_BYTES = 256 << 10


def free_all(list parts):
    """Empty a list of bytes objects; free the large ones to which nobody else refers.

    Args:
        parts: bytes objects; any others are removed from the list like small ones.
    """
    cdef object part
    while parts:
        part = parts.pop()
        # One reference is the variable's.
        if PyBytes_CheckExact(part) and Py_REFCNT(<PyObject*>part) == 1:
            _empty(PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))


cdef int _empty(char* data, Py_ssize_t size) except -1:
    """Give back the whole pages between two places; they read as zeros then."""
    cdef uintptr_t begin = (<uintptr_t>data + PAGE_BYTES - 1) & ~<uintptr_t>(PAGE_BYTES - 1)
    cdef uintptr_t end = (<uintptr_t>data + size) & ~<uintptr_t>(PAGE_BYTES - 1)
    if size < LARGE_BYTES:
        return 0
    with nogil:
        # Pages of another size or locked ones are refused; then freeing the object takes longer.
        madvise(<void*>begin, end - begin, MADV_DONTNEED)
    return 0
