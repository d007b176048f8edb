from libc.stdint cimport int64_t, uint8_t

cdef class LogWindow:
    cdef object read
    cdef bytearray buffer
    cdef int64_t span                   # bytes of one read
    cdef const uint8_t* data            # the byte at log position `start`
    cdef int64_t start                  # the window holds log positions [start, end)
    cdef int64_t end
    cdef readonly list unreadable       # (from, to, why), ascending, neither overlap nor touch
    cdef list fresh                     # those found since `take_unreadable`
    cdef int hold(self, int64_t pos, int64_t size, int64_t base, int64_t limit) except -1
    cdef int _make_room(self, int64_t size, int64_t start, int64_t kept) except -1
    cdef int _fill(self, int64_t start, int64_t end) except -1
    cdef int _read(self, int64_t start, int64_t end) except -1
    cdef int _note(self, int64_t start, int64_t end, str why) except -1
    cdef tuple unreadable_in(self, int64_t start, int64_t end)
