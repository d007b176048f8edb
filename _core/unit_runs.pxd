from libc.stdint cimport int32_t, int64_t

# Offsets that share one entry, however many they are.
cdef struct UnitRun:
    int64_t first             # the first of them
    int64_t end               # the one behind the last
    int64_t pos               # of the frame that is the answer for all of them
    int64_t tags_code         # of that frame
    int64_t skipped           # offsets in the runs before this one
    int32_t size              # as in a unit

cdef class UnitRuns:
    cdef UnitRun* runs
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int add(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1
    cdef Py_ssize_t up_to(self, int64_t offset) noexcept nogil
    cdef const UnitRun* find(self, int64_t offset) noexcept nogil
    cdef const UnitRun* next_from(self, int64_t offset) noexcept nogil
    cdef int64_t place_of(self, int64_t offset) noexcept nogil
    cdef void cut(self, int64_t offset) noexcept nogil
