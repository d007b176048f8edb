"""Which offsets of a partition are of carried records, and how low in the log these records lie.

    log        ...[ 20 .. 29 ]...[ 50 .. 59 ]...[ 30 .. 49 carried ]...[ 0 .. 19 carried ]...
    parts      0 to 20 from the last place on, 20 to 50 from the first carried place on

Without carried records, the places of a partition ascend with its offsets. A pass of carrying moves
all records below its cut to the end of the log, in their order. So the places ascend within parts,
and the first place of each says where the part begins in the log. There are about as many parts as
the log was carried as a whole while the partition grew.

Layer 0: no I/O.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64
from _core.queue.unit_runs cimport UnitRuns


cdef class CarriedParts:
    """The parts of one partition, ascending and without overlap.

    Attributes:
        count: number of parts.
    """

    def __dealloc__(self):
        free(self.parts)

    cdef int add(self, int64_t first, int64_t end, int64_t place, UnitRuns runs) except -1:
        """Note that the records of these offsets are at `place` now, which is above all others.

        They extend the part before them, unless a record between them was not carried: `runs` says
        which offsets are lost.
        """
        cdef Py_ssize_t i = self._cut_out(first, end)
        cdef CarriedPart* left = &self.parts[i - 1] if i else NULL
        if left != NULL and (
            left.end == first or runs.lost_between(left.end, first) == first - left.end
        ):
            left.end = end
            return 0
        self._shift(i, 1)
        self.parts[i] = CarriedPart(first, end, place)
        return 0

    cdef Py_ssize_t _cut_out(self, int64_t first, int64_t end) except -1:
        """Remove offsets; return the index at which a part of them belongs, with room for it."""
        cdef CarriedPart* grown
        cdef Py_ssize_t i = self._ending_after(first), k
        assert first < end
        if self.count + 2 > self.capacity:
            grown = <CarriedPart*>realloc(
                self.parts, (self.capacity * 2 + 4) * sizeof(CarriedPart)
            )
            if grown == NULL:
                raise MemoryError("cannot allocate the carried parts of a partition")
            self.parts = grown
            self.capacity = self.capacity * 2 + 4
        if i < self.count and self.parts[i].first < first:
            if self.parts[i].end > end:
                # The rest lies above the first place, so that remains a bound.
                self._shift(i, 1)
                self.parts[i + 1].first = end
            self.parts[i].end = first
            i += 1
        k = i
        while k < self.count and self.parts[k].end <= end:
            k += 1
        if k < self.count and self.parts[k].first < end:
            self.parts[k].first = end
        self._shift(k, i - k)
        return i

    cdef void _shift(self, Py_ssize_t i, Py_ssize_t by) noexcept nogil:
        memmove(&self.parts[i + by], &self.parts[i], (self.count - i) * sizeof(CarriedPart))
        self.count += by

    cdef int restore(self, int64_t first, int64_t end, int64_t place) except -1:
        """Add a part as `rows` returned it; it replaces known ones."""
        cdef Py_ssize_t i = self._cut_out(first, end)
        self._shift(i, 1)
        self.parts[i] = CarriedPart(first, end, place)
        return 0

    cdef const CarriedPart* find(self, int64_t offset) noexcept nogil:
        """The part that contains `offset`, or NULL."""
        cdef Py_ssize_t i = self._ending_after(offset)
        if i == self.count or self.parts[i].first > offset:
            return NULL
        return &self.parts[i]

    cdef Py_ssize_t _ending_after(self, int64_t offset) noexcept nogil:
        """Index of the first part that ends after `offset`. O(log n)."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.parts[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def confirm(self, int64_t offset, int64_t place):
        """Note where the first record of a part lies that can be fetched.

        Args:
            offset: of that record.
            place: log position of its frame.
        """
        cdef Py_ssize_t i = self._ending_after(offset)
        if i < self.count and self.parts[i].first <= offset:
            self.parts[i].place = max(self.parts[i].place, place)

    cdef void raise_places(self, int64_t pos) noexcept nogil:
        """Note that no record of any part lies below log position `pos`."""
        cdef Py_ssize_t i
        for i in range(self.count):
            self.parts[i].place = max(self.parts[i].place, pos)

    cdef void drop_below(self, int64_t offset) noexcept nogil:
        """Remove the parts that end at or below `offset`."""
        cdef Py_ssize_t i = 0
        while i < self.count and self.parts[i].end <= offset:
            i += 1
        self._shift(i, -i)

    cdef int64_t end(self) noexcept nogil:
        """The offset after the last part; 0 if there is none."""
        return self.parts[self.count - 1].end if self.count else 0

    def forget_earlier(self, int64_t first, bytes units not None):
        """Forget that records were carried which units find at an earlier place again.

        Their last place is damaged then, and an earlier one is still in the log.

        Args:
            first: offset of the first unit.
            units: units that were rebuilt from the log.
        """
        cdef const uint8_t* p = <const uint8_t*><const char*>units
        cdef int64_t offset, pos
        cdef const CarriedPart* part
        for offset in range(first, first + len(units) // UNIT_SIZE):
            part = self.find(offset)
            pos = load_i64(p + UNIT_AT_POSITION)
            if part != NULL and load_i32(p + UNIT_AT_SIZE) > 0 and pos < part.place:
                self._cut_out(offset, offset + 1)
            p += UNIT_SIZE

    cdef list rows(self):
        """(first offset, offset after the last, lowest place) of each part."""
        cdef Py_ssize_t i
        return [
            (self.parts[i].first, self.parts[i].end, self.parts[i].place)
            for i in range(self.count)
        ]
