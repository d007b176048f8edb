"""Runs: ranges of offsets that share one entry instead of a unit each.

A run of ten billion offsets takes no more memory than a run of one. There are two causes for a run.
Offsets whose records were lost to damage map to the next whole frame.
A frame that spans many more offsets than it has records, such as an empty batch, answers all of
them. Runs are few, ascending, and do not overlap.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc


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
        cdef UnitRun* grown
        cdef const UnitRun* last = &self.runs[self.count - 1] if self.count else NULL
        assert first < end and (last == NULL or last.end <= first)
        if self.count == self.capacity:
            grown = <UnitRun*>realloc(self.runs, (self.capacity * 2 + 4) * sizeof(UnitRun))
            if grown == NULL:
                raise MemoryError("cannot allocate the runs of a partition")
            self.runs = grown
            self.capacity = self.capacity * 2 + 4
            last = &self.runs[self.count - 1] if self.count else NULL
        self.runs[self.count] = UnitRun(
            first, end, pos, tags_code,
            0 if last == NULL else last.skipped + last.end - last.first, size,
        )
        self.count += 1
        return 0

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

    cdef const UnitRun* find(self, int64_t offset) noexcept nogil:
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
