"""Lookup of frames by offset, and reconstruction of ConsumeQueue units from frames.

A unit from a file is never trusted. The frame that it names must pass its CRC check, belong to the
topic and partition, and hold the offset. `FrameFinder` checks this for frames in memory, and
`holds_offset` for a thread that has read the frame from disk. `UnitScan` rebuilds units from the
frames of the log.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.borrowed cimport Borrowed
from _core.bytes.buffer cimport extend_zero, release
from _core.log.frames cimport (
    FRAME_OK, FrameHeader, check_frame, decode_header, frame_crc, has_records, original_pos,
)
from _core.bytes.layout cimport *
from _core.log.view cimport LogView
from _core.bytes.octets cimport (
    load_i32, load_i64, load_u16, load_u32, store_u32, store_u64,
)
from _core.queue.partition cimport (
    UNIT_COLD, UNIT_IN_MEMORY, UNIT_NONE, Partition, Unit,
)

# The size in a unit whose record was lost to damage and after which no frame is known.
LOST = UNIT_LOST


cdef bint _belongs(
    const uint8_t* frame, int32_t topic_id, int32_t index, int64_t offset, bint is_lost
) noexcept nogil:
    """Whether a frame holds `offset` of that partition.

    If the record is lost (`is_lost`): whether the frame holds later offsets of that partition.
    """
    cdef int64_t base = load_i64(frame + AT_BASE_OFFSET)
    if not has_records(frame[AT_KIND]):
        return False
    if load_i32(frame + AT_TOPIC_ID) != topic_id or load_i32(frame + AT_PARTITION) != index:
        return False
    if is_lost:
        return base > offset
    return base <= offset <= base + load_i32(frame + AT_LAST_DELTA)


cdef class FrameFinder:
    """Finds the frame of an offset if it is in memory.

    Attributes:
        place: set if the record is cold: the log position of a frame that a thread must read and
            check first, or (partition handle, offset) if the thread must also read the unit.
        header: set by `look` if it finds the frame: the fields of the frame header, and as `origin`
            the log position of the frame that first held its records.
        first_offset, next_offset: set by `look` if the record is lost: the first offset of the lost
            range, and the offset to look up next.
    """

    def __cinit__(self, LogView view not None):
        """Find frames in the frame cache `view`."""
        self.view = view

    cdef int find(
        self, Partition partition, int64_t offset, Found* found, int64_t room
    ) except -1:
        """Find the frame that holds `offset`. Returns a FindResult.

        `found.frame` is valid as long as a result of `LogView.frame_at`. A frame of more than
        `room` bytes, not counting header and padding, is not read.
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
        if is_lost and where == UNIT_IN_MEMORY:
            return FIND_LOST  # a run: the frame that it names may be carried, or freed
        if unit.size == UNIT_LOST and unit.pos != 0:
            return FIND_COLD  # a corrupt unit, such as a sector of ones
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
            return FIND_COLD  # a thread reads it, and detects and reports damage
        if not _belongs(
            found.frame, partition.topic.topic_id, partition.index, offset, is_lost
        ):
            return FIND_COLD
        if is_lost:
            found.next_offset = load_i64(found.frame + AT_BASE_OFFSET)
            return FIND_LOST
        return FIND_FOUND

    def look(self, Partition partition not None, int64_t offset):
        """Look up the frame of `offset`.

        Returns:
            True if it is found; `header` is set. False if not: `place` is set if it is cold. If
            `place` is None the record is lost or does not exist, and `next_offset` comes after it.
        """
        cdef Found found
        cdef FrameHeader h
        cdef int result = self.find(partition, offset, &found, UNLIMITED)
        if result == FIND_FOUND:
            decode_header(found.frame, &h)
            self.header = h
            self.header["origin"] = original_pos(found.frame)
            return True
        if result != FIND_COLD:
            self.place = None
            self.first_offset = found.first_offset if result == FIND_LOST else offset
            self.next_offset = found.next_offset if result == FIND_LOST else offset + 1
        return False


def holds_offset(
    frame, *, int topic_id, int partition, int64_t offset, bint is_lost
):
    """Whether a frame is the one that the unit of an offset must name.

    Args:
        frame: the bytes of a whole frame.
        topic_id, partition: the partition of the unit.
        offset: offset of the record.
        is_lost: the unit says that the record is lost. The frame must then hold later records.
    """
    cdef Borrowed octets = Borrowed(frame)
    if octets.size < FRAME_HEADER_SIZE:
        return False
    return _belongs(octets.p, topic_id, partition, offset, is_lost)


cdef int64_t _candidate(
    const uint8_t* data, int64_t size, int64_t pos, int64_t at
) noexcept nogil:
    while at + FRAME_HEADER_SIZE <= size:
        if load_u16(data + at) == FRAME_MAGIC and load_i64(data + at + AT_PHYS_OFFSET) == pos + at:
            return at
        at += FRAME_ALIGNMENT
    return size


def find_candidate(data, int64_t pos, int64_t start):
    """Find the first place in `data` that may be a frame header: its magic and position match.

    Args:
        data: a part of the log, of any size.
        pos: its log position, a multiple of 8.
        start: index in `data` to begin at, a multiple of 8.

    Returns:
        The index in `data`, or the size of `data` if there is none.
    """
    cdef Borrowed octets = Borrowed(data)
    cdef int64_t found
    if octets.size < FRAME_HEADER_SIZE:
        return octets.size
    with nogil:
        found = _candidate(octets.p, octets.size, pos, start)
    return found


cdef class UnitScan:
    """Rebuilds the units of a range of offsets of one partition from the frames of the log.

    Attributes:
        topic_id, partition: the partition.
        first, stop: the range of offsets, `stop` excluded.
        reached: units below this offset are known. The scan may end when it equals `stop`.
    """

    def __cinit__(
        self, *, int topic_id, int partition, int64_t first, int64_t stop, bint is_unordered=False
    ):
        """Start with no units known.

        Args:
            topic_id, partition: the partition.
            first, stop: the range of offsets, 0 <= first < stop, `stop` excluded.
            is_unordered: there may be carried records among these. Feed the whole log; of two
                frames with the same offsets the later one counts.
        """
        assert 0 <= first < stop
        self.topic_id = topic_id
        self.partition = partition
        self.first = self.reached = first
        self.stop = stop
        self.is_unordered = is_unordered
        extend_zero(&self.units, (stop - first) * UNIT_SIZE)

    def __dealloc__(self):
        release(&self.units)

    def feed(self, data, int64_t pos):
        """Process the whole frames in `data`.

        Args:
            data: bytes of one segment, beginning at a frame boundary.
            pos: their log position.

        Returns:
            The log position after the last frame processed. It is `pos` if the first frame is
            damaged or extends beyond `data`. A blank frame needs only its header in `data`.
        """
        cdef Borrowed octets = Borrowed(data)
        cdef int64_t end
        if octets.size == 0:
            return pos
        with nogil:
            end = self._walk(octets.p, octets.size, pos)
        return end

    cdef int64_t _walk(self, const uint8_t* data, int64_t size, int64_t pos) noexcept nogil:
        cdef FrameHeader h
        cdef int64_t at = 0
        while at + FRAME_HEADER_SIZE <= size and self.reached < self.stop:
            if data[at + AT_KIND] == KIND_BLANK:
                # Check only the header: `data` may lack the space that the frame fills.
                decode_header(data + at, &h)
                h.tables_size = h.visible_size = h.held_size = 0
                if (
                    load_u16(data + at) != FRAME_MAGIC or h.position != pos + at
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
        if not has_records(h.kind) or not h.visible_size:
            return
        if h.topic_id != self.topic_id or h.partition != self.partition:
            return
        if self.is_unordered:
            self._put(h)
            return
        if h.kind == KIND_CARRIED_RECORDS:
            return  # of offsets before the range
        self._fill(h.base_offset, h.position, -h.size, 0)
        self._fill(h.base_offset + h.last_delta + 1, h.position, h.size, h.tags)

    cdef void _put(self, const FrameHeader* h) noexcept nogil:
        """Write the units of a frame, in place of those of an earlier frame."""
        cdef int64_t offset = max(h.base_offset, self.first)
        cdef int64_t stop = min(h.base_offset + h.last_delta + 1, self.stop)
        cdef uint8_t* p = self.units.data + (offset - self.first) * UNIT_SIZE
        while offset < stop:
            store_u64(p + UNIT_AT_POSITION, h.position)
            store_u32(p + UNIT_AT_SIZE, h.size)
            store_u64(p + UNIT_AT_TAGS_CODE, h.tags)
            p += UNIT_SIZE
            offset += 1

    cdef void _fill(
        self, int64_t stop, int64_t pos, int32_t size, int64_t tags_code
    ) noexcept nogil:
        """Write one unit for each offset from `reached` to before `stop`."""
        cdef uint8_t* p = self.units.data + (self.reached - self.first) * UNIT_SIZE
        stop = min(stop, self.stop)
        while self.reached < stop:
            store_u64(p + UNIT_AT_POSITION, pos)
            store_u32(p + UNIT_AT_SIZE, size)
            store_u64(p + UNIT_AT_TAGS_CODE, tags_code)
            p += UNIT_SIZE
            self.reached += 1

    def finish(self):
        """Return the units of the whole range. Offsets that no frame accounts for are lost."""
        cdef uint8_t* p = self.units.data
        cdef int64_t i
        if not self.is_unordered:
            self._fill(self.stop, 0, UNIT_LOST, 0)
        else:
            for i in range(self.stop - self.first):
                if load_i32(p + i * UNIT_SIZE + UNIT_AT_SIZE) == 0:
                    store_u32(p + i * UNIT_SIZE + UNIT_AT_SIZE, UNIT_LOST)
        return PyBytes_FromStringAndSize(<const char*>self.units.data, self.units.size)
