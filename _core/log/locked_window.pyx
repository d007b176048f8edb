"""A window onto a file whose pages are locked in the page cache, to be read without a copy.

`lock_window` succeeds only if all pages are in memory already, so it does not wait for the disk.
Locked pages are not evicted. Reading them can therefore neither block nor raise a signal, unless
the file is truncated. See mincore(2) and mlock(2).

Layer 0: it opens no file and reads none.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport EAGAIN, ENOMEM, EPERM, errno
from libc.stdint cimport int64_t, uint8_t


cdef extern from "<sys/mman.h>" nogil:
    enum: PROT_READ
    enum: MAP_SHARED
    void* MAP_FAILED
    void* mmap(void* addr, size_t length, int prot, int flags, int fd, int64_t offset)
    int munmap(void* addr, size_t length)
    int mlock(const void* addr, size_t length)
    int mincore(void* addr, size_t length, unsigned char* vec)


cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    enum: _SC_PAGESIZE


cdef enum:
    PAGES_MAX = 4096
    WINDOW_COLD = 0
    WINDOW_LOCKED = 1
    WINDOW_OVER_LIMIT = 2

cdef Py_ssize_t PAGE = sysconf(_SC_PAGESIZE)

WINDOW_MAX_BYTES = (PAGES_MAX - 1) * PAGE


cdef bint _all_there(void* address, Py_ssize_t size) noexcept nogil:
    """Whether all pages are in memory now."""
    cdef unsigned char there[PAGES_MAX]
    cdef Py_ssize_t i
    if mincore(address, size, there) != 0:
        return False
    for i in range((size + PAGE - 1) // PAGE):
        if not there[i] & 1:
            return False
    return True


cdef class LockedWindow:
    """A read-only buffer of locked bytes of a file.

    It keeps its owner alive, so that nobody reuses the file as long as a slice of it is in use.
    """

    cdef object owner
    cdef uint8_t* mapped
    cdef Py_ssize_t mapped_size
    cdef Py_ssize_t skip
    cdef Py_ssize_t size

    def __dealloc__(self):
        if self.mapped != NULL:
            munmap(self.mapped, self.mapped_size)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.mapped + self.skip, self.size, 1, flags)

    cdef int _lock(self, int fd, int64_t offset) except -1 nogil:
        cdef void* mapped
        self.skip = offset % PAGE
        self.mapped_size = self.skip + self.size
        mapped = mmap(NULL, self.mapped_size, PROT_READ, MAP_SHARED, fd, offset - self.skip)
        if mapped == MAP_FAILED:
            return WINDOW_COLD
        self.mapped = <uint8_t*>mapped
        if not _all_there(mapped, self.mapped_size):
            return WINDOW_COLD
        if mlock(mapped, self.mapped_size) == 0:
            return WINDOW_LOCKED
        if errno == ENOMEM or errno == EAGAIN or errno == EPERM:
            return WINDOW_OVER_LIMIT
        return WINDOW_COLD


def lock_window(int fd, int64_t offset, Py_ssize_t size, owner=None):
    """Lock a part of a file if all of it is in the page cache already.

    Args:
        fd: descriptor of a file that can be mapped.
        offset: place of the first byte in the file, >= 0.
        size: bytes, 1 to WINDOW_MAX_BYTES. All of them lie before the end of the file.
        owner: lives as long as the window, or a slice of it.

    Returns:
        A memoryview of a `LockedWindow`. None if a page is not in memory or cannot be mapped or
        locked. False if this process may not lock more memory (RLIMIT_MEMLOCK).
    """
    cdef LockedWindow window = LockedWindow.__new__(LockedWindow)
    cdef int result
    assert offset >= 0 and 0 < size <= (PAGES_MAX - 1) * PAGE
    window.size = size
    window.owner = owner
    with nogil:
        result = window._lock(fd, offset)
    if result == WINDOW_LOCKED:
        return memoryview(window)
    return False if result == WINDOW_OVER_LIMIT else None
