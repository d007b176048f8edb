from libc.stdint cimport int64_t

from _core.queue.unit_runs cimport UnitRuns

# Offsets of carried records whose places ascend.
cdef struct CarriedPart:
    int64_t first             # first offset
    int64_t end               # offset after the last
    int64_t place             # no record of the part lies below this log position

cdef class CarriedParts:
    cdef CarriedPart* parts
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int add(self, int64_t first, int64_t end, int64_t place, UnitRuns runs) except -1
    cdef void _shift(self, Py_ssize_t i, Py_ssize_t by) noexcept nogil
    cdef Py_ssize_t _cut_out(self, int64_t first, int64_t end) except -1
    cdef Py_ssize_t _ending_after(self, int64_t offset) noexcept nogil
    cdef int restore(self, int64_t first, int64_t end, int64_t place) except -1
    cdef const CarriedPart* find(self, int64_t offset) noexcept nogil
    cdef void raise_places(self, int64_t pos) noexcept nogil
    cdef void drop_below(self, int64_t offset) noexcept nogil
    cdef int64_t end(self) noexcept nogil
    cdef list rows(self)
