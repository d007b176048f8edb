"""Notices from a thread that does not wait for the interpreter; see eventfd(2). Layer 0."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t


cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void* data, size_t size)


cdef inline void add_one(int eventfd) noexcept nogil:
    """Add 1 to an eventfd, which makes it readable."""
    cdef uint64_t one = 1
    while write(eventfd, &one, sizeof(one)) < 0 and errno == EINTR:
        pass
