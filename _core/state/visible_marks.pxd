from libc.stdint cimport int32_t, int64_t

# Records up to next_offset become visible once the log is visible up to end_pos.
cdef struct VisibleMark:
    int64_t end_pos
    int64_t next_offset
    int32_t handle

cdef class VisibleMarks:
    cdef VisibleMark* marks
    cdef Py_ssize_t head
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int add(self, int64_t end_pos, int64_t next_offset, int32_t handle) except -1
    # The first mark if it ends at or below `pos`, else NULL. Valid until the next `add`.
    cdef const VisibleMark* first_until(self, int64_t pos) noexcept nogil
    # REQUIRES: there is a mark.
    cdef void drop_first(self) noexcept nogil
