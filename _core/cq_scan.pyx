"""From ConsumeQueue units to frames, and from frames back to units.

A unit that comes from a file is never trusted: the frame that it names must be whole by its CRC,
of that topic and partition, and hold the offset. `FrameFinder` does that for what is in memory,
`holds_offset` for a thread that has read the frame from the disk, and `UnitScan` makes the units
anew from the frames of the log.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.buffer cimport extend_zero, release
from _core.frames cimport FRAME_OK, FrameHeader, check_frame, decode_header, frame_crc
from _core.layout cimport *
from _core.log_view cimport LogView
from _core.octets cimport (
    load_i32, load_i64, load_u16, load_u32, store_u32, store_u64,
)
from _core.partition cimport (
    UNIT_COLD, UNIT_IN_MEMORY, UNIT_NONE, Partition, Unit,
)

# The size in a unit whose record was lost to damage, and of which no later frame is known.
LOST = UNIT_LOST


cdef bint _belongs(
    const uint8_t* frame, int32_t topic_id, int32_t index, int64_t offset, bint is_lost
) noexcept nogil:
    """Whether a frame has records of that partition, and that one among them.

    Of a record that was lost to damage it has a later one: `is_lost`.
    """
    cdef int64_t base = load_i64(frame + AT_BASE_OFFSET)
    if frame[AT_KIND] != KIND_ACCEPT and frame[AT_KIND] != KIND_DELIVER:
        return False
    if load_i32(frame + AT_TOPIC_ID) != topic_id or load_i32(frame + AT_PARTITION) != index:
        return False
    if is_lost:
        return base > offset
    return base <= offset <= base + load_i32(frame + AT_LAST_DELTA)


cdef class FrameFinder:
    """Finds the frame of an offset, if it is in memory.

    Attributes:
        place: after a look at what is cold: the log position of a frame that a thread must read
            and check first, or (partition handle, offset) where it must do so with the unit too.
        header: after `look` found it: the fields of the frame's header.
        first_offset, next_offset: after `look` found that the record is lost: the first offset that
            was lost with it, and the offset to look at next.
    """

    def __cinit__(self, LogView view not None):
        """Read a log."""
        self.view = view

    cdef int find(
        self, Partition partition, int64_t offset, Found* found, int64_t room
    ) except -1:
        """The frame that holds `offset`, as `LogView.frame_at` has it. A FindResult.

        A frame of more than `room` bytes, but for header and padding, is not read in vain.
        """
        cdef Unit unit
        cdef int32_t size
        cdef int where = partition.find_unit(offset, &unit)
        cdef bint is_lost = where > UNIT_COLD and unit.size < 0
        if where == UNIT_NONE:
            return FIND_NONE
        self.place = (partition.handle, offset)
        if where == UNIT_COLD:
            return FIND_COLD
        found.first_offset = unit.first
        found.next_offset = unit.end
        found.pos = unit.pos
        found.size = -unit.size if is_lost else unit.size
        if unit.size == UNIT_LOST and unit.pos != 0:
            return FIND_COLD  # a sector of ones, and the like
        if unit.size == UNIT_LOST or self.view.is_damaged(unit.pos):
            return FIND_LOST  # its offset stays unused: the next readable batch is the answer
        if where == UNIT_IN_MEMORY:
            self.place = unit.pos
        if found.size < FRAME_HEADER_SIZE:
            return FIND_COLD
        if not is_lost and found.size - FRAME_HEADER_SIZE - FRAME_ALIGNMENT >= room:
            return FIND_TOO_LARGE
        size = found.size
        found.frame = self.view.frame_at(unit.pos, &size)
        if found.frame == NULL or size != found.size:
            return FIND_COLD  # what is damaged a thread finds out, and reports
        if not _belongs(
            found.frame, partition.topic.topic_id, partition.index, offset, is_lost
        ):
            return FIND_COLD
        if is_lost:
            found.next_offset = load_i64(found.frame + AT_BASE_OFFSET)
            return FIND_LOST
        return FIND_FOUND

    def look(self, Partition partition not None, int64_t offset):
        """Whether the frame of `offset` is found; then see `header`.

        Else `place` if it is cold, None if not: then it is lost, and `next_offset` is behind it.
        """
        cdef Found found
        cdef FrameHeader h
        cdef int result = self.find(partition, offset, &found, UNLIMITED)
        if result == FIND_FOUND:
            decode_header(found.frame, &h)
            self.header = h
            return True
        if result != FIND_COLD:
            self.place = None
            self.first_offset = found.first_offset if result == FIND_LOST else offset
            self.next_offset = found.next_offset if result == FIND_LOST else offset + 1
        return False


def holds_offset(
    const uint8_t[::1] frame, *, int topic_id, int partition, int64_t offset, bint is_lost
):
    """Whether a frame, a whole one, is what the unit of an offset must name.

    Args:
        frame: its bytes.
        topic_id, partition: whose unit it is.
        offset: of the record.
        is_lost: the unit says that the record was lost: then the frame has later ones.
    """
    if frame.shape[0] < FRAME_HEADER_SIZE:
        return False
    return _belongs(&frame[0], topic_id, partition, offset, is_lost)


cdef int64_t _candidate(
    const uint8_t* data, int64_t size, int64_t pos, int64_t at
) noexcept nogil:
    while at + FRAME_HEADER_SIZE <= size:
        if load_u16(data + at) == FRAME_MAGIC and load_i64(data + at + AT_PHYS_OFFSET) == pos + at:
            return at
        at += FRAME_ALIGNMENT
    return size


def find_candidate(const uint8_t[::1] data, int64_t pos, int64_t start):
    """Offset in `data` of the first header that says to be of its own place; the size if none is.

    Args:
        data: a part of the log, of any size.
        pos: its position, a multiple of 8.
        start: offset to begin at, likewise.
    """
    cdef int64_t found
    if data.shape[0] < FRAME_HEADER_SIZE:
        return data.shape[0]
    with nogil:
        found = _candidate(&data[0], data.shape[0], pos, start)
    return found


cdef class UnitScan:
    """Makes the units of a range of offsets of one partition from the frames of the log.

    Attributes:
        topic_id, partition: whose.
        first, stop: the range.
        reached: units below it are known; the scan may end when that is `stop`.
    """

    def __cinit__(self, *, int topic_id, int partition, int64_t first, int64_t stop):
        """Begin with nothing known.

        Args:
            topic_id, partition: whose units.
            first, stop: of which offsets, `stop` excluded.
        """
        assert 0 <= first < stop
        self.topic_id = topic_id
        self.partition = partition
        self.first = self.reached = first
        self.stop = stop
        extend_zero(&self.units, (stop - first) * UNIT_SIZE)

    def __dealloc__(self):
        release(&self.units)

    def feed(self, const uint8_t[::1] data not None, int64_t pos):
        """Go through the frames that lie whole in `data`, which begins with one.

        Args:
            data: bytes of one segment.
            pos: their log position.

        Returns:
            The log position behind the last of them. It is `pos` if the first one is damaged or
            goes on behind `data`; a blank frame is passed although it does.
        """
        cdef int64_t end
        if data.shape[0] == 0:
            return pos
        with nogil:
            end = self._walk(&data[0], data.shape[0], pos)
        return end

    cdef int64_t _walk(self, const uint8_t* data, int64_t size, int64_t pos) noexcept nogil:
        cdef FrameHeader h
        cdef int64_t at = 0
        while at + FRAME_HEADER_SIZE <= size and self.reached < self.stop:
            if data[at + AT_KIND] == KIND_BLANK:
                # What it fills is not at hand; its header alone must be right.
                decode_header(data + at, &h)
                h.tables_size = h.visible_size = h.held_size = 0
                if (
                    load_u16(data + at) != FRAME_MAGIC or h.phys_offset != pos + at
                    or h.size < FRAME_HEADER_SIZE
                    or load_u32(data + at + AT_CRC) != frame_crc(data + at, &h)
                ):
                    break
            elif check_frame(data + at, size - at, pos + at, &h, True) != FRAME_OK:
                break
            else:
                self._take(&h)
            at += h.size
        return pos + at

    cdef void _take(self, const FrameHeader* h) noexcept nogil:
        if h.kind != KIND_ACCEPT and h.kind != KIND_DELIVER:
            return
        if h.topic_id != self.topic_id or h.partition != self.partition or not h.visible_size:
            return
        self._fill(h.base_offset, h.phys_offset, -h.size, 0)
        self._fill(h.base_offset + h.last_delta + 1, h.phys_offset, h.size, h.tags)

    cdef void _fill(
        self, int64_t stop, int64_t pos, int32_t size, int64_t tags_code
    ) noexcept nogil:
        """One unit for each offset from what was reached to before `stop`."""
        cdef uint8_t* p = self.units.data + (self.reached - self.first) * UNIT_SIZE
        stop = min(stop, self.stop)
        while self.reached < stop:
            store_u64(p + UNIT_AT_POSITION, pos)
            store_u32(p + UNIT_AT_SIZE, size)
            store_u64(p + UNIT_AT_TAGS_CODE, tags_code)
            p += UNIT_SIZE
            self.reached += 1

    def finish(self):
        """The units of the whole range; what no frame told of is lost."""
        self._fill(self.stop, 0, UNIT_LOST, 0)
        return PyBytes_FromStringAndSize(<const char*>self.units.data, self.units.size)


def scan_units(const uint8_t[::1] units not None, int64_t first, tags_code=None):
    """The units of records that are there, in order.

    Args:
        units: whole units, one after the other.
        first: the queue offset of the first of them.
        tags_code: only units with this hash of a tag; None for all. Records with another tag may
            have the same hash.

    Returns:
        A list of (queue offset, log position of the frame, its size, tags code).
    """
    cdef int64_t wanted = 0 if tags_code is None else tags_code
    cdef bint is_any = tags_code is None
    cdef int64_t i, count = units.shape[0] // UNIT_SIZE
    cdef const uint8_t* p
    found = []
    for i in range(count):
        p = &units[i * UNIT_SIZE]
        if load_i32(p + UNIT_AT_SIZE) <= 0:
            continue
        if is_any or load_i64(p + UNIT_AT_TAGS_CODE) == wanted:
            found.append((
                first + i, load_i64(p + UNIT_AT_POSITION), load_i32(p + UNIT_AT_SIZE),
                load_i64(p + UNIT_AT_TAGS_CODE),
            ))
    return found
