"""Units of relocated records that the ConsumeQueue files do not have yet.

Carried records keep their offsets and change their place, so units that were saved must change.
They are kept here, one entry for each frame, until the store has written them. A lookup asks here
before it trusts a file.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from _core.bytes.layout cimport *
from _core.bytes.octets cimport store_u32, store_u64


cdef class MovedUnits:
    """The ranges of one partition, ascending and without overlap.

    Attributes:
        count: number of ranges.
    """

    def __dealloc__(self):
        free(self.ranges)

    cdef int _grow(self) except -1:
        cdef MovedRange* grown
        if self.count + 2 <= self.capacity:
            return 0
        grown = <MovedRange*>realloc(self.ranges, (self.capacity * 2 + 8) * sizeof(MovedRange))
        if grown == NULL:
            raise MemoryError("cannot allocate the units of relocated records")
        self.ranges = grown
        self.capacity = self.capacity * 2 + 8
        return 0

    cdef int add(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1:
        """Map the offsets from `first` to before `end` to a frame, whatever they were mapped to."""
        cdef Py_ssize_t i, k
        assert first < end
        self._grow()
        i = self.ending_after(first)
        if i < self.count and self.ranges[i].first < first:
            if self.ranges[i].end > end:
                self._shift(i, 1)
                self.ranges[i + 1].first = end
            self.ranges[i].end = first
            i += 1
        k = i
        while k < self.count and self.ranges[k].end <= end:
            k += 1
        if k < self.count and self.ranges[k].first < end:
            self.ranges[k].first = end
        self._shift(k, i + 1 - k)
        self.ranges[i] = MovedRange(first, end, pos, tags_code, size)
        return 0

    cdef void _shift(self, Py_ssize_t i, Py_ssize_t by) noexcept nogil:
        """Move the ranges from index `i` on by `by` places. REQUIRES: room for them."""
        memmove(&self.ranges[i + by], &self.ranges[i], (self.count - i) * sizeof(MovedRange))
        self.count += by

    cdef Py_ssize_t ending_after(self, int64_t offset) noexcept nogil:
        """Index of the first range that ends after `offset`. O(log n)."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.ranges[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef const MovedRange* find(self, int64_t offset) noexcept nogil:
        """The range that contains `offset`, or NULL."""
        cdef Py_ssize_t i = self.ending_after(offset)
        if i == self.count or self.ranges[i].first > offset:
            return NULL
        return &self.ranges[i]

    cdef void drop_below(self, int64_t offset) noexcept nogil:
        """Remove all offsets below `offset`."""
        cdef Py_ssize_t i = self.ending_after(offset)
        self._shift(i, -i)
        if self.count and self.ranges[0].first < offset:
            self.ranges[0].first = offset

    cdef void cut(self, int64_t offset) noexcept nogil:
        """Remove all offsets from `offset` on."""
        while self.count and self.ranges[self.count - 1].first >= offset:
            self.count -= 1
        if self.count and self.ranges[self.count - 1].end > offset:
            self.ranges[self.count - 1].end = offset

    cdef tuple first_units(self, int64_t count_max, int64_t units_per_file):
        """The units of the first offsets that follow each other in one file, `count_max` at most.

        Returns:
            The first offset, and the bytes of the units. REQUIRES: there is a range.
        """
        cdef int64_t first = self.ranges[0].first, end = first
        cdef int64_t stop = min(first + count_max, first - first % units_per_file + units_per_file)
        cdef Py_ssize_t i = 0
        cdef uint8_t* p
        while i < self.count and self.ranges[i].first == end and end < stop:
            end = min(self.ranges[i].end, stop)
            i += 1
        units = PyBytes_FromStringAndSize(NULL, (end - first) * UNIT_SIZE)
        p = <uint8_t*>PyBytes_AS_STRING(units)
        i = 0
        for offset in range(first, end):
            if offset == self.ranges[i].end:
                i += 1
            store_u64(p + UNIT_AT_POSITION, self.ranges[i].pos)
            store_u32(p + UNIT_AT_SIZE, self.ranges[i].size)
            store_u64(p + UNIT_AT_TAGS_CODE, self.ranges[i].tags_code)
            p += UNIT_SIZE
        return first, units
