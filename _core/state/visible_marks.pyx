"""Records that are appended and not yet visible: a queue of marks, in the order of the log.

Layer 0: no I/O, no clock.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

cdef enum:
    CAPACITY_MIN = 256


@cython.final
cdef class VisibleMarks:
    """A ring of marks, one for each frame with visible records."""

    def __dealloc__(self):
        free(self.marks)

    cdef int add(self, int64_t end_pos, int64_t next_offset, int32_t handle) except -1:
        cdef VisibleMark* grown
        cdef Py_ssize_t i, capacity
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else CAPACITY_MIN
            grown = <VisibleMark*>malloc(capacity * sizeof(VisibleMark))
            if grown == NULL:
                raise MemoryError("cannot allocate the list of records not yet visible")
            for i in range(self.count):
                grown[i] = self.marks[(self.head + i) % self.capacity]
            free(self.marks)
            self.marks = grown
            self.head = 0
            self.capacity = capacity
        i = (self.head + self.count) % self.capacity
        self.marks[i] = VisibleMark(end_pos, next_offset, handle)
        self.count += 1
        return 0

    cdef const VisibleMark* first_until(self, int64_t pos) noexcept nogil:
        if self.count == 0 or self.marks[self.head].end_pos > pos:
            return NULL
        return &self.marks[self.head]

    cdef void drop_first(self) noexcept nogil:
        self.head = (self.head + 1) % self.capacity
        self.count -= 1
