from libc.stdint cimport int32_t, int64_t

# Offsets whose saved units are wrong since their records were relocated.
cdef struct MovedRange:
    int64_t first             # first offset
    int64_t end               # offset after the last
    int64_t pos               # position of the frame that holds the records now
    int64_t tags_code
    int32_t size              # of that frame

cdef class MovedUnits:
    cdef MovedRange* ranges
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int _grow(self) except -1
    cdef void _shift(self, Py_ssize_t i, Py_ssize_t by) noexcept nogil
    cdef int add(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1
    cdef Py_ssize_t ending_after(self, int64_t offset) noexcept nogil
    cdef const MovedRange* find(self, int64_t offset) noexcept nogil
    cdef void drop_below(self, int64_t offset) noexcept nogil
    cdef void cut(self, int64_t offset) noexcept nogil
    cdef tuple first_units(self, int64_t count_max, int64_t units_per_file)
