"""Runs: ranges of offsets that share one entry instead of a unit each.

A run of ten billion offsets takes no more memory than a run of one. There are two causes for a run.
Offsets whose records were lost to damage map to the next whole frame, or to none.
A frame that spans many more offsets than it has records, such as an empty batch, answers all of
them. Runs are few, ascending, and do not overlap.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove


cdef class UnitRuns:
    """The runs of one partition.

    Attributes:
        count: number of runs.
    """

    def __dealloc__(self):
        free(self.runs)

    cdef int add(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1:
        """Append a run. REQUIRES: it starts at or after the end of the last run."""
        cdef const UnitRun* last
        self._grow()
        last = &self.runs[self.count - 1] if self.count else NULL
        assert first < end and (last == NULL or last.end <= first)
        self.runs[self.count] = UnitRun(
            first, end, pos, tags_code,
            0 if last == NULL else last.skipped + last.end - last.first, size,
        )
        self.count += 1
        return 0

    cdef int _grow(self) except -1:
        """Make room for one more run."""
        cdef UnitRun* grown
        if self.count < self.capacity:
            return 0
        grown = <UnitRun*>realloc(self.runs, (self.capacity * 2 + 4) * sizeof(UnitRun))
        if grown == NULL:
            raise MemoryError("cannot allocate the runs of a partition")
        self.runs = grown
        self.capacity = self.capacity * 2 + 4
        return 0

    cdef int replace(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) except -1:
        """Make one run of offsets that are all in runs; what is left of these stays."""
        cdef Py_ssize_t i
        self.cut_out(first, end)
        self._grow()
        i = self.up_to(first)
        memmove(&self.runs[i + 1], &self.runs[i], (self.count - i) * sizeof(UnitRun))
        self.runs[i] = UnitRun(first, end, pos, tags_code, 0, size)
        self.count += 1
        self._count_skipped()
        return 0

    cdef int cut_out(self, int64_t first, int64_t end) except -1:
        """Take offsets out of the runs, so that each has a unit of its own. O(n)."""
        cdef Py_ssize_t i = max(self.up_to(first) - 1, 0)
        self._grow()
        while i < self.count and self.runs[i].first < end:
            if self.runs[i].end <= first:
                i += 1
            elif first <= self.runs[i].first and self.runs[i].end <= end:
                self.count -= 1
                memmove(&self.runs[i], &self.runs[i + 1], (self.count - i) * sizeof(UnitRun))
            elif self.runs[i].first < first and end < self.runs[i].end:
                memmove(&self.runs[i + 1], &self.runs[i], (self.count - i) * sizeof(UnitRun))
                self.count += 1
                self.runs[i].end = first
                self.runs[i + 1].first = end
                break
            elif self.runs[i].first < first:
                self.runs[i].end = first
                i += 1
            else:
                self.runs[i].first = end
                break
        self._count_skipped()
        return 0

    cdef void _count_skipped(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef int64_t skipped = 0
        for i in range(self.count):
            self.runs[i].skipped = skipped
            skipped += self.runs[i].end - self.runs[i].first

    cdef int64_t lost_between(self, int64_t first, int64_t end) noexcept nogil:
        """Number of offsets whose records are lost; -1 if a frame answers a run of them."""
        cdef Py_ssize_t i = max(self.up_to(first) - 1, 0)
        cdef int64_t lost = 0
        while i < self.count and self.runs[i].first < end:
            if self.runs[i].end > first:
                if self.runs[i].size >= 0:
                    return -1
                lost += min(end, self.runs[i].end) - max(first, self.runs[i].first)
            i += 1
        return lost

    cdef Py_ssize_t up_to(self, int64_t offset) noexcept nogil:
        """Number of runs that begin at or before `offset`. O(log n)."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.runs[middle].first <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef UnitRun* find(self, int64_t offset) noexcept nogil:
        """The run that contains `offset`, or NULL."""
        cdef Py_ssize_t i = self.up_to(offset)
        if i == 0 or offset >= self.runs[i - 1].end:
            return NULL
        return &self.runs[i - 1]

    cdef const UnitRun* next_from(self, int64_t offset) noexcept nogil:
        """The first run that begins at or after `offset`, or NULL."""
        cdef Py_ssize_t i = self.up_to(offset - 1)
        return NULL if i == self.count else &self.runs[i]

    cdef int64_t place_of(self, int64_t offset) noexcept nogil:
        """Number of offsets from 0 to before `offset` that are in no run."""
        cdef Py_ssize_t i = self.up_to(offset)
        cdef const UnitRun* run
        if i == 0:
            return offset
        run = &self.runs[i - 1]
        return offset - run.skipped - (min(offset, run.end) - run.first)

    cdef void cut(self, int64_t offset) noexcept nogil:
        """Remove all offsets from `offset` on."""
        while self.count and self.runs[self.count - 1].first >= offset:
            self.count -= 1
        if self.count and self.runs[self.count - 1].end > offset:
            self.runs[self.count - 1].end = offset

    def overlapping(self, int64_t start, int64_t stop):
        """The runs that overlap offsets from `start` to before `stop`.

        Returns:
            A list of (first offset, offset after the last, log position, size, tags code). The size
            is negative if the records were lost; the frame there is then the next whole one.
        """
        cdef Py_ssize_t i = max(self.up_to(start) - 1, 0)
        cdef const UnitRun* run
        found = []
        while i < self.count and self.runs[i].first < stop:
            run = &self.runs[i]
            if run.end > start:
                found.append((run.first, run.end, run.pos, run.size, run.tags_code))
            i += 1
        return found
