"""The segments of the CommitLog as readable memory: position in, pointer out.

The store attaches the read-only mapping of each segment. Before bytes are touched, `is_resident`
must say that they are in the page cache: a cold page would stall the loop, a bad sector would raise
SIGBUS. What is cold is read and verified by a thread, then marked here. Answers are remembered
until `forget_residency`, which the store calls about once a second: those of the kernel per
granule, those of the thread per frame. Where a thread has read from a granule, the kernel is not
asked any more: pages that came along with what was read are resident, and nobody has checked them.
Layer 0: no I/O; `probe` is the store's.
"""

from bisect import bisect_left, bisect_right

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset


cdef class LogView:
    """All mapped segments, ascending by base position."""

    def __cinit__(self):
        self.buffers = []
        self.damaged = set()
        self.hot_from = 0
        self.verified_starts = []
        self.verified_ends = []

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            free(self.segments[i].resident)
        free(self.segments)

    def attach(self, int64_t base, memory not None):
        """Add the segment that begins at log position `base`.

        Args:
            base: log position of the segment's first byte; above every attached one.
            memory: read-only buffer of the whole segment, kept alive until `detach`.

        Raises:
            ValueError: the segment does not follow the attached ones.
        """
        cdef Py_buffer view
        cdef MappedSegment* moved
        cdef MappedSegment* last
        cdef uint8_t* flags
        if self.count:
            last = &self.segments[self.count - 1]
            if base < last.base + last.size:
                raise ValueError(
                    f"segment {base} overlaps the one at {last.base}, size {last.size}"
                )
        if self.count == self.capacity:
            moved = <MappedSegment*>realloc(
                self.segments, (self.capacity * 2 + 8) * sizeof(MappedSegment)
            )
            if moved == NULL:
                raise MemoryError("no memory for the segment table")
            self.segments = moved
            self.capacity = self.capacity * 2 + 8
        PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
        flags = <uint8_t*>calloc(view.len // GRANULE + 1, 1)
        if flags == NULL:
            PyBuffer_Release(&view)
            raise MemoryError("no memory for the residency flags of a segment")
        self.segments[self.count].resident = flags
        self.segments[self.count].base = base
        self.segments[self.count].size = view.len
        self.segments[self.count].data = <const uint8_t*>view.buf
        # The object kept here holds the export; the address does not change while it lives.
        PyBuffer_Release(&view)
        self.buffers.append(memory)
        self.count += 1

    cdef MappedSegment* segment_of(self, int64_t pos, int64_t size) noexcept nogil:
        """The segment that holds all `size` bytes at `pos`, or NULL."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        cdef MappedSegment* s
        while low < high:
            middle = (low + high) // 2
            s = &self.segments[middle]
            if pos < s.base:
                high = middle
            elif pos >= s.base + s.size:
                low = middle + 1
            elif size < 0 or pos + size > s.base + s.size:
                return NULL
            else:
                return s
        return NULL

    cdef const uint8_t* at(self, int64_t pos, int64_t size) noexcept nogil:
        """The `size` bytes at log position `pos`, or NULL if not inside one attached segment."""
        cdef MappedSegment* s = self.segment_of(pos, size)
        return NULL if s == NULL else s.data + (pos - s.base)

    cdef bint is_resident(self, int64_t pos, int64_t size) except -1:
        """Whether those bytes can be touched without waiting for the disk."""
        cdef MappedSegment* s
        cdef int64_t granule, last
        if pos >= self.hot_from:
            return True
        s = self.segment_of(pos, size)
        if s == NULL or self._is_verified(pos, size):
            return True
        granule = (pos - s.base) // GRANULE
        last = (pos - s.base + size - 1) // GRANULE
        while granule <= last:
            if s.resident[granule] == MUST_BE_VERIFIED:
                return False
            if s.resident[granule] == NOT_KNOWN:
                if self.probe is not None and not self.probe(s.base + granule * GRANULE, GRANULE):
                    return False
                s.resident[granule] = RESIDENT
            granule += 1
        return True

    cdef bint _is_verified(self, int64_t pos, int64_t size) except -1:
        cdef Py_ssize_t i
        if not self.verified_starts:
            return False
        i = bisect_right(self.verified_starts, pos) - 1
        return i >= 0 and pos + size <= <int64_t>self.verified_ends[i]

    def mark_resident(self, int64_t pos, int64_t size):
        """Those bytes, a whole frame, were read and verified a moment ago."""
        cdef MappedSegment* s = self.segment_of(pos, size)
        cdef int64_t end = pos + size
        cdef Py_ssize_t first, behind
        if s == NULL or size <= 0:
            return
        memset(s.resident + (pos - s.base) // GRANULE, MUST_BE_VERIFIED,
               (pos - s.base + size - 1) // GRANULE - (pos - s.base) // GRANULE + 1)
        first = bisect_left(self.verified_ends, pos)
        behind = bisect_right(self.verified_starts, end)
        if first < behind:
            pos = min(pos, <int64_t>self.verified_starts[first])
            end = max(end, <int64_t>self.verified_ends[behind - 1])
        self.verified_starts[first:behind] = [pos]
        self.verified_ends[first:behind] = [end]

    def forget_residency(self):
        """Ask again from now on: the kernel may have dropped pages since."""
        cdef Py_ssize_t i, granule
        self.verified_starts.clear()
        self.verified_ends.clear()
        for i in range(self.count):
            for granule in range(self.segments[i].size // GRANULE + 1):
                if self.segments[i].resident[granule] == RESIDENT:
                    self.segments[i].resident[granule] = NOT_KNOWN

    def verify_before(self, int64_t pos):
        """Nobody has read what lies below `pos` since the start, whatever the kernel has of it."""
        cdef MappedSegment* s
        cdef Py_ssize_t i
        cdef int64_t size
        for i in range(self.count):
            s = &self.segments[i]
            size = min(s.size, pos - s.base)
            if size > 0:
                memset(s.resident, MUST_BE_VERIFIED, (size + GRANULE - 1) // GRANULE)

    def mark_damaged(self, int64_t pos):
        """The frame at `pos` was read and failed its check: it is never served."""
        cdef MappedSegment* s = self.segment_of(pos, 1)
        if s != NULL:
            s.resident[(pos - s.base) // GRANULE] = MUST_BE_VERIFIED
        self.damaged.add(pos)

    cdef bint is_damaged(self, int64_t pos) except -1:
        return bool(self.damaged) and pos in self.damaged

    cdef object slice(self, int64_t pos, int64_t size):
        """A memoryview of those bytes, without a copy. REQUIRES: `at` is not NULL for them."""
        cdef Py_ssize_t i = 0
        while pos >= self.segments[i].base + self.segments[i].size:
            i += 1
        return self.buffers[i][pos - self.segments[i].base:pos - self.segments[i].base + size]

    def is_whole(self, int64_t pos):
        """False if the frame at `pos` was read and failed its check."""
        return not self.is_damaged(pos)

    def read_hot(self, int64_t pos, int64_t size):
        """A copy of bytes, or None if the disk would have to be waited for.

        Args:
            pos, size: where they are; a frame that fails its check is the caller's to avoid.

        Raises:
            IndexError: they are not inside one attached segment.
        """
        return self.read(pos, size) if self.is_resident(pos, size) else None

    def read(self, int64_t pos, int64_t size):
        """A copy of the `size` bytes at log position `pos`.

        Raises:
            IndexError: they are not inside one attached segment.
        """
        cdef const uint8_t* p = self.at(pos, size)
        if p == NULL:
            raise IndexError(f"log positions {pos} .. {pos + size} are not mapped")
        return (<const char*>p)[:size]
