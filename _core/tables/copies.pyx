"""What a log holds more than once: what was carried out of segments that are about to be freed.

Each thing has one place in a table. That is its original or, if the log has that no more, its first
copy. A reader that goes on where it ended before has an exact rule as well.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memset

from _core.bytes.buffer cimport append, extend_zero, release

cdef enum:
    SLOTS_MIN = 64

_READ_NOTHING = (0, 0, 0, 0)


cdef Since since_of(tuple read) except *:
    """What was read before, as `Copies.left_out` takes it."""
    cdef Since since
    since.position, since.gap_from, since.gap_to, since.gap_end = read
    return since


cdef inline uint64_t _hash(int64_t origin, int32_t index) noexcept nogil:
    cdef uint64_t h = <uint64_t>origin * 0x9E3779B97F4A7C15ULL
    h += <uint64_t>index * 0xC2B2AE3D27D4EB4FULL
    h ^= h >> 32
    return h * 0xD6E8FEB86659FD93ULL >> 20


cdef class Copies:
    """The copies in a log, in its order, about 100 bytes each.

    Attributes:
        count: number of copies.
    """

    def __dealloc__(self):
        release(&self.copies)
        release(&self.slots)

    cdef Copy* at(self, int64_t place) noexcept nogil:
        return <Copy*>self.copies.data + place

    cdef int64_t find(self, int64_t origin, int32_t index) noexcept nogil:
        cdef const int64_t* slots = <const int64_t*>self.slots.data
        cdef uint64_t mask = <uint64_t>(self.slots.size // 8 - 1), i
        cdef const Copy* copy
        if self.count == 0:
            return -1
        i = _hash(origin, index) & mask
        while slots[i]:
            copy = self.at(slots[i] - 1)
            if copy.origin == origin and copy.index == index:
                return slots[i] - 1
            i = (i + 1) & mask
        return -1

    cdef int add(
        self, int64_t pos, int64_t origin, int32_t index, int64_t number, int64_t original
    ) except -1:
        cdef int64_t* slots
        cdef int64_t before = self.find(origin, index)
        cdef uint64_t mask, i
        cdef Copy copy
        memset(&copy, 0, sizeof(Copy))
        copy.pos = pos
        copy.origin = origin
        copy.index = index
        copy.number = number
        copy.has_original = original >= 0
        copy.is_first = before < 0
        copy.home = self.at(before).home if before >= 0 else original if original >= 0 else number
        copy.next = -1
        if (self.used + 1) * 2 > self.slots.size // 8:
            self._grow()
        append(&self.copies, &copy, sizeof(Copy))
        if before >= 0:
            self.at(before).next = self.count
        slots = <int64_t*>self.slots.data
        mask = <uint64_t>(self.slots.size // 8 - 1)
        i = _hash(origin, index) & mask
        while slots[i] and slots[i] - 1 != before:
            i = (i + 1) & mask
        self.used += slots[i] == 0
        self.count += 1
        slots[i] = self.count
        return 0

    cdef int _grow(self) except -1:
        """Make the hash table twice as large, with the newest copy of each thing."""
        cdef Py_ssize_t room = max(SLOTS_MIN, self.slots.size // 8 * 2)
        cdef uint64_t mask = <uint64_t>room - 1, i
        cdef int64_t* slots
        cdef int64_t place
        self.slots.size = 0
        extend_zero(&self.slots, room * 8)
        slots = <int64_t*>self.slots.data
        for place in range(self.count):
            if self.at(place).next >= 0:
                continue
            i = _hash(self.at(place).origin, self.at(place).index) & mask
            while slots[i]:
                i = (i + 1) & mask
            slots[i] = place + 1
        return 0

    cdef int64_t first_at(self, int64_t pos) noexcept nogil:
        cdef int64_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.at(middle).pos < pos:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint is_taken(self, const Copy* copy, const Since* since) noexcept nogil:
        if copy.has_original:
            return False
        if since.gap_from <= copy.origin < since.gap_to:
            return copy.pos < since.gap_end and (
                copy.next < 0 or self.at(copy.next).pos >= since.gap_end
            )
        return copy.is_first and copy.origin >= since.position

    def is_row(self, int64_t pos):
        """Return whether the copy in the frame at a log position stands for its thing.

        So it is if the log has neither its original nor an earlier copy.
        """
        cdef Since since = since_of(_READ_NOTHING)
        cdef int64_t place = self.first_at(pos)
        return place < self.count and self.at(place).pos == pos and self.is_taken(
            self.at(place), &since
        )

    def left_out(self, int64_t start, int64_t end, tuple read not None=(0, 0, 0, 0)):
        """Return which copies between two log positions do not stand for their thing.

        Args:
            start, end: log positions.
            read: (position, from, to, end): everything below `position` was read before. But what
                was first held between `from` and `to` was not read there, because the log began
                at `to`. Its last copy below `end` stands for it.

        Returns:
            The positions of their frames, an i64 each in the byte order of the machine, ascending.
        """
        cdef Since since = since_of(read)
        cdef int64_t place = self.first_at(start)
        cdef Buf found
        memset(&found, 0, sizeof(Buf))
        try:
            while place < self.count and self.at(place).pos < end:
                if not self.is_taken(self.at(place), &since):
                    append(&found, &self.at(place).pos, 8)
                place += 1
            return PyBytes_FromStringAndSize(<const char*>found.data, found.size)
        finally:
            release(&found)

    def superseded(self):
        """Return the positions of frames of which a later one holds a copy, ascending."""
        cdef int64_t place
        cdef const Copy* copy
        found = set()
        for place in range(self.count):
            copy = self.at(place)
            if copy.has_original:
                found.add(copy.origin)
            if copy.next >= 0:
                found.add(copy.pos)
        return sorted(found)

    def last_of_gap(self, int64_t gap_to):
        """Return the position of the last frame with a copy whose original lies below `gap_to`.

        -1 if there is none.
        """
        cdef int64_t place = self.count - 1
        while place >= 0 and self.at(place).origin >= gap_to:
            place -= 1
        return self.at(place).pos if place >= 0 else -1
