"""A part of the log in memory of our own, for those who look at bytes that the disk may refuse.

A page that the disk cannot read ends the process when it is touched through a mapping. So whoever
looks at bytes that this process did not write itself looks at a copy, which is read piece by piece.
What cannot be read is zeros in the copy, and is remembered: nobody may take it for zeros that were
written, and nobody asks the disk for it again, which may try for seconds each time.

Layer 0: no I/O; a function that is passed in reads.
"""

from bisect import bisect_right

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memset

cdef enum:
    SECTOR_BYTES = 4096
    SPAN_BYTES = 1 << 18         # read at once: it stays in the processor's cache
    SPAN_MAX_BYTES = 1 << 23     # where frames are larger; memory beyond that is given back


cdef class LogWindow:
    """The bytes from one log position to another, which move along the log.

    Attributes:
        unreadable: (from, to, why) of what could not be read so far, in log positions.
    """

    def __cinit__(self, read not None):
        """Hold nothing yet.

        Args:
            read: function of (log position, writable memory) that fills the memory with what is
                there, zeros where that cannot be read, and returns (from, to, why) of such parts,
                ascending. It is asked for bytes of one segment at a time.
        """
        self.read = read
        self.span = SPAN_BYTES
        self.unreadable = []
        self.fresh = []

    def take_unreadable(self):
        """What turned out to be unreadable since the last call."""
        found = self.fresh
        self.fresh = []
        return found

    cdef int hold(self, int64_t pos, int64_t size, int64_t base, int64_t limit) except -1:
        """Hold at least `size` bytes from `pos` on.

        REQUIRES: they are in the segment that reaches from `base` to `limit`, and size > 0.
        """
        cdef int64_t start, end
        if self.start <= pos and pos + size <= self.end:
            return 0
        start = pos - (pos - base) % SECTOR_BYTES
        if size > self.span:
            self.span = min(2 * size, SPAN_MAX_BYTES)
        end = max(pos + size, start + self.span)
        end = min(base + ((end - base + SECTOR_BYTES - 1) & ~<int64_t>(SECTOR_BYTES - 1)), limit)
        self.start = self.end = start  # nothing is held if the read raises
        self._make_room(end - start)
        self._fill(start, end)
        self.end = end
        return 0

    cdef int _make_room(self, int64_t size) except -1:
        cdef int64_t room = 0 if self.buffer is None else len(self.buffer)
        if room < size or room > max(size, SPAN_MAX_BYTES):
            self.data = NULL
            self.buffer = None
            self.buffer = bytearray(max(size, self.span))
            self.data = <const uint8_t*><char*>self.buffer
        return 0

    cdef int _fill(self, int64_t start, int64_t end) except -1:
        """Read all but what is known to be unreadable."""
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
            memset(<uint8_t*>self.data + (at - start), 0, behind - at)
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
        """The first part of a range that could not be read, as (from, to, why); or None."""
        cdef Py_ssize_t at
        if not self.unreadable or start >= end:
            return None
        at = bisect_right(self.unreadable, (start, INT64_MAX))
        if at and self.unreadable[at - 1][1] > start:
            return self.unreadable[at - 1]
        if at < len(self.unreadable) and self.unreadable[at][0] < end:
            return self.unreadable[at]
        return None
