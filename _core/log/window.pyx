"""A sliding copy of a part of the log, for readers of bytes that the disk may fail to read.

A page that the disk cannot read kills the process (SIGBUS) when it is touched through a mapping.
Bytes that this process did not write itself are therefore read into a copy, piece by piece.

Unreadable bytes are zeros in the copy, and their range is recorded. The record has two uses: no
reader takes these zeros for zeros that were written, and no read asks the disk for them again. A
disk may retry a bad sector for seconds each time.

Layer 0: no I/O. A function that is passed in does the reading.
"""

from bisect import bisect_right

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memmove, memset

cdef enum:
    SECTOR_BYTES = 4096
    SPAN_BYTES = 1 << 18         # bytes of one read: they fit the processor's cache
    ROOM_MAX_BYTES = 1 << 23     # memory beyond that, for a large frame, is freed after it


cdef class LogWindow:
    """A copy of a contiguous part of the log, which moves along the log.

    Attributes:
        unreadable: (from, to, why) of each range that could not be read so far, in log positions.
    """

    def __cinit__(self, read not None, int64_t span=SPAN_BYTES):
        """Start with an empty window.

        Args:
            read: function of (log position, writable memory) that fills the memory from that
                position on. It writes zeros for bytes that it cannot read, and returns (from, to,
                why) of each such range, ascending. Each call is within one segment.
            span: bytes of one read, a power of two of at least 4096; a larger frame takes more, and
                a read after as many bytes that were not asked for takes less.
        """
        self.read = read
        self.span = span
        self.unreadable = []
        self.fresh = []

    def take_unreadable(self):
        """Return the ranges found unreadable since the last call, as (from, to, why)."""
        found = self.fresh
        self.fresh = []
        return found

    cdef int hold(self, int64_t pos, int64_t size, int64_t base, int64_t limit) except -1:
        """Move the window so that it holds at least `size` bytes from `pos` on.

        REQUIRES: size > 0, and the bytes lie in the segment from `base` to `limit`.
        """
        cdef int64_t start, end, kept = 0
        if self.start <= pos and pos + size <= self.end:
            return 0
        start = pos - (pos - base) % SECTOR_BYTES
        # Who passes over so much needs little: a header, by which it passes over the next frame.
        end = max(pos + size, start + (SECTOR_BYTES if pos - self.end >= self.span else self.span))
        end = min(base + ((end - base + SECTOR_BYTES - 1) & ~<int64_t>(SECTOR_BYTES - 1)), limit)
        if self.start <= start < self.end <= end:
            kept = self.end - start
        self._make_room(end - start, start, kept)
        self.start = start
        self.end = start + kept  # all that is valid if the read raises
        self._fill(start + kept, end)
        self.end = end
        return 0

    cdef int _make_room(self, int64_t size, int64_t start, int64_t kept) except -1:
        """Ensure room for `size` bytes that begin with the last `kept` bytes of the window."""
        cdef int64_t room = 0 if self.buffer is None else len(self.buffer)
        cdef const uint8_t* data = self.data + (start - self.start)
        old = self.buffer  # so that `data` stays where it is
        if room < size or room > max(size, ROOM_MAX_BYTES):
            self.buffer = bytearray(max(size, self.span))
            self.data = <const uint8_t*><char*>self.buffer
        if kept and data != self.data:
            memmove(<uint8_t*>self.data, data, kept)
        return 0

    cdef int _fill(self, int64_t start, int64_t end) except -1:
        """Read everything except the ranges known to be unreadable."""
        cdef int64_t at = start, begin, behind
        cdef tuple known
        while at < end:
            known = self.unreadable_in(at, end)
            if known is None:
                return self._read(at, end)
            begin, behind = known[0], min(<int64_t>known[1], end)
            if at < begin:
                self._read(at, begin)
                at = begin
            memset(<uint8_t*>self.data + (at - self.start), 0, behind - at)
            at = behind
        return 0

    cdef int _read(self, int64_t start, int64_t end) except -1:
        memory = memoryview(self.buffer)[start - self.start:end - self.start]
        for begin, behind, why in self.read(start, memory):
            self._note(begin, behind, why)
        return 0

    cdef int _note(self, int64_t start, int64_t end, str why) except -1:
        cdef Py_ssize_t at = len(self.fresh)
        if at and self.fresh[at - 1][1:] == (start, why):
            self.fresh[at - 1] = (self.fresh[at - 1][0], end, why)
        else:
            self.fresh.append((start, end, why))
        at = bisect_right(self.unreadable, (start,))
        if at < len(self.unreadable) and self.unreadable[at][0] == end:
            if self.unreadable[at][2] == why:
                end = self.unreadable.pop(at)[1]
        if at and self.unreadable[at - 1][1:] == (start, why):
            self.unreadable[at - 1] = (self.unreadable[at - 1][0], end, why)
        else:
            self.unreadable.insert(at, (start, end, why))
        return 0

    cdef tuple unreadable_in(self, int64_t start, int64_t end):
        """The first unreadable range that overlaps [start, end), as (from, to, why), or None."""
        cdef Py_ssize_t at
        if not self.unreadable or start >= end:
            return None
        at = bisect_right(self.unreadable, (start, INT64_MAX))
        if at and self.unreadable[at - 1][1] > start:
            return self.unreadable[at - 1]
        if at < len(self.unreadable) and self.unreadable[at][0] < end:
            return self.unreadable[at]
        return None
