from libc.stdint cimport int32_t, int64_t

# A range of offsets that share one entry.
cdef struct UnitRun:
    int64_t first             # first offset
    int64_t end               # offset after the last
    int64_t pos               # position of the frame that answers all of them
    int64_t tags_code         # tags code of that frame
    int64_t skipped           # number of offsets in all earlier runs
    int32_t size              # as in a unit

cdef class UnitRuns:
    cdef UnitRun* runs
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int add(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1
    cdef int _grow(self) except -1
    cdef int replace(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1
    cdef int cut_out(self, int64_t first, int64_t end) except -1
    cdef void _count_skipped(self) noexcept nogil
    cdef int64_t lost_between(self, int64_t first, int64_t end) noexcept nogil
    cdef Py_ssize_t up_to(self, int64_t offset) noexcept nogil
    cdef UnitRun* find(self, int64_t offset) noexcept nogil
    cdef const UnitRun* next_from(self, int64_t offset) noexcept nogil
    cdef int64_t place_of(self, int64_t offset) noexcept nogil
    cdef void cut(self, int64_t offset) noexcept nogil
