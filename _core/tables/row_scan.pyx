"""Rows of a part of the log, gathered in columns: what all tables have in common.

A scan walks ranges of the log that consist of whole frames, as a `PlanScan` found them. It decides
by a frame's header whether the frame can have rows, and reads the rest of the frame only then. A
subclass for each table turns one frame into rows.

Layer 0: no I/O; the function `read` does the reading.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from _core.bytes.batch cimport Record, Slice, next_header
from _core.bytes.borrowed cimport Borrowed
from _core.bytes.layout cimport *
from _core.bytes.octets cimport Cursor, cursor_of, take_varint
from _core.log.frames cimport (
    FRAME_BAD_SIZE, FRAME_OK, FrameHeader, check_frame, check_head, head_size,
)
from _core.log import frames
from _core.log.window cimport LogWindow
from _core.tables.delay_headers cimport DelayHeaders, take_delay
from _core.tables.columns cimport (
    Spares, make_room, put_end, put_octets, release_column, repeat_i32, repeat_i64,
    repeat_octets, take_column,
)

COLUMN_NAMES = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    "due_at", "accepted_at", "store_timestamp", "delay_state", "position", "index", "id", "level",
    "completed_at", "delivered_at", "lateness_ms", "accept_position", "size", "tags_code", "kind",
    "epoch", "last_offset", "record_count", "timer_count", "cancel_count", "flushed",
    "min_timestamp", "max_timestamp", "min_due_at", "max_due_at", "producer_id", "cron", "zone",
    "missed",
)

cdef str OTHER_LOG = "frame of another log"

cdef enum:
    HEAD_SPAN_BYTES = 1 << 16    # bytes of one read where bodies are skipped
    BODY_SPAN_BYTES = 1 << 20


cdef uint64_t OCTETS_COLUMNS = (
    <uint64_t>1 << COLUMN_KEY | <uint64_t>1 << COLUMN_VALUE | <uint64_t>1 << COLUMN_ID
)


cdef class RowScan:
    """The rows of some ranges of the log. A subclass says of which table.

    Attributes:
        pos: log position reached.
        faults: (log position, fault) of each frame that was skipped, until `take_faults`. If its
            head is wrong, all up to the next whole head of the range was skipped as well.
    """

    def __cinit__(
        self, *, read not None, list ranges not None, dict topics not None, columns not None,
        decompress not None, bint verifies=True, uint32_t salt=0, timestamps=(None, None),
        stored=(None, None), due=(None, None), int32_t partition=-1, outcomes=None,
        tuple kinds=(), bint takes_others=True, bytes left_out not None=b""
    ):
        """Start at the first range.

        Args:
            read: function that reads the log, see `LogWindow`.
            ranges: (from, to, segment base, segment end) in log positions, ascending. Frames begin
                at `from` and end at `to`.
            topics: topic id -> (name as bytes, list of the start offsets of its partitions).
                Frames of other topics have no rows.
            columns: names of the columns wanted, of COLUMN_NAMES.
            decompress: function (codec, section) that unpacks records; they are read before the
                next call.
            verifies: check the CRC of batches. That of headers and tables is always checked.
            salt: salt of the frames.
            timestamps, stored, due: (from, to) in epoch ms, None for no bound: rows with another
                timestamp, store time, or due time may be left out.
            partition: rows of other partitions are left out; -1 for all.
            outcomes: for tables of timers, of each range, see `TimerRows`.
            kinds: for the table of frames, the name of each kind by its number, as bytes.
            takes_others: for the table of frames, whether those of other topics or of none have
                rows as well, without a name.
            left_out: log positions of frames that have no rows, an i64 each in the byte order of
                the machine, ascending.

        Raises:
            KeyError: a column has no such name.
        """
        self.ranges = list(ranges)
        self.topics = topics
        self.decompress = decompress
        self.verifies = verifies
        self.salt = salt
        self.partition = partition
        self.names = list(columns)
        self.faults = []
        self.spares = Spares()
        self.left_out = Borrowed(left_out)
        places = {name: place for place, name in enumerate(COLUMN_NAMES)}
        for name in self.names:
            self.wanted |= <uint64_t>1 << <int>places[name]
        self.timestamps = _span(timestamps)
        self.stored = _span(stored)
        self.due = _span(due)
        self.read = read

    def __dealloc__(self):
        cdef int i
        for i in range(COLUMN_ROOM):
            release_column(&self.columns[i])

    def take_faults(self):
        """Return (log position, fault) of each frame skipped since the last call."""
        found = self.faults
        self.faults = []
        return found

    def step(self, int64_t row_max, int64_t size_max):
        """Gather rows until one of the limits is reached; the last frame may exceed it.

        Args:
            row_max: rows.
            size_max: bytes.

        Returns:
            Column name -> (length, null count, validity or None, offsets or None, data). The
            tuple of `headers` has two more items: those of its names and of its values. None if
            there are no more rows.
        """
        for place in range(COLUMN_ROOM):
            self.spares.give(place, &self.columns[<int>place].data)
        while self._enters() and self.rows < row_max and self._size_held() < size_max:
            self._one_frame()
        if not self.rows:
            return None
        self.rows = 0
        taken = {}
        for name in self.names:
            place = COLUMN_NAMES.index(name)
            column = self._take(place)
            if place == COLUMN_HEADERS:
                column += (self._take(HEADER_KEY), self._take(HEADER_VALUE))
            taken[name] = column
        return taken

    def pass_segment(self):
        """Go on after the segment of `pos`, where `read` has raised an error.

        Rows of frames before `pos` are kept for the next `step`.
        """
        while self.ranges and self.ranges[0][2] == self.base:
            self.ranges.pop(0)
        self.pos = self._range_end()

    cdef tuple _take(self, int column):
        return take_column(&self.columns[column], self.spares, column)

    cdef bint _enters(self) except -1:
        """Go to the next range if this one is done; False if there is none."""
        if self.window is None:  # not in __cinit__, which sees the methods of this class alone
            span = BODY_SPAN_BYTES if self._needs_bodies() else HEAD_SPAN_BYTES
            self.window = LogWindow(self.read, span)
        while self.pos >= self.end:
            if not self.ranges:
                return False
            self.pos, self.end, self.base, self.limit = self.ranges.pop(0)
        return True

    def _one_frame(self):
        """Add the rows of the frame at `pos`, and pass over it."""
        cdef LogWindow window = self.window
        cdef FrameHeader h
        cdef const uint8_t* p
        cdef int fault = self._check_head(self.pos, &h)
        if fault != FRAME_OK or (self.salt and h.salt != self.salt):
            self.faults.append((self.pos, frames.FAULTS[fault] if fault != FRAME_OK else OTHER_LOG))
            self.pos = self._behind_fault()
            return
        p = window.data + (self.pos - window.start)
        if self._is_left_out(self.pos) or not self._takes_place(&h) or not self._takes(&h):
            self._skipped(&h)
        elif not self._needs_body_of(&h):
            self._add(&h, p)
        else:
            window.hold(self.pos, h.size, self.base, self.limit)
            p = window.data + (self.pos - window.start)
            if self.verifies:
                with nogil:
                    fault = check_frame(p, h.size, self.pos, &h, True)
            if fault == FRAME_OK:
                self._add(&h, p)
            else:
                self._skipped(&h)
                self.faults.append((self.pos, frames.FAULTS[fault]))
        self.pos += h.size

    cdef int _check_head(self, int64_t pos, FrameHeader* h) except -1:
        """Check the head at a log position, which the window holds afterwards; return the fault."""
        cdef LogWindow window = self.window
        cdef int fault
        window.hold(pos, FRAME_HEADER_SIZE, self.base, self.limit)
        fault = check_head(
            window.data + (pos - window.start), window.end - pos, self.limit - pos, pos, h
        )
        if fault == FRAME_BAD_SIZE and 0 < h.size <= self.limit - pos and (
            FRAME_HEADER_SIZE < head_size(h) <= self.limit - pos
        ):
            window.hold(pos, head_size(h), self.base, self.limit)
            fault = check_head(
                window.data + (pos - window.start), window.end - pos, self.limit - pos, pos, h
            )
        return fault

    cdef int64_t _size_held(self) noexcept nogil:
        """Bytes of the columns that grow with the records."""
        return (
            self.columns[COLUMN_KEY].data.size + self.columns[COLUMN_VALUE].data.size
            + self.columns[HEADER_VALUE].data.size
        )

    # What a frame is asked

    cdef bint _takes_place(self, const FrameHeader* h) except -1:
        """Whether the frame is of a topic and partition that are wanted. Notes them if so."""
        known = self.topics.get(h.topic_id)
        if known is None or (self.partition >= 0 and h.partition != self.partition):
            return False
        self.topic_name, starts = <tuple>known
        if not 0 <= h.partition < len(<list>starts):
            return False
        self.start_offset = (<list>starts)[h.partition]
        self.topic.data = <const uint8_t*><const char*>self.topic_name
        self.topic.size = len(self.topic_name)
        return True

    cdef bint _takes(self, const FrameHeader* h) except -1:
        """Whether the frame may have rows, by its header."""
        raise NotImplementedError

    cdef bint _needs_bodies(self) noexcept nogil:
        """Whether the rows need more of most frames than their header and tables."""
        return False

    cdef bint _needs_body_of(self, const FrameHeader* h) noexcept nogil:
        """Whether the rows of a frame need more of it than its header and tables."""
        return self._needs_bodies()

    cdef bint _is_left_out(self, int64_t pos) noexcept nogil:
        """Whether a frame has no rows, whatever it holds. REQUIRES: positions only grow."""
        cdef const int64_t* left_out = <const int64_t*>self.left_out.p
        while (self.left_out_passed + 1) * 8 <= self.left_out.size:
            if left_out[self.left_out_passed] >= pos:
                return left_out[self.left_out_passed] == pos
            self.left_out_passed += 1
        return False

    cdef int _add(self, const FrameHeader* h, const uint8_t* p) except -1:
        """Add the rows of a frame. If bodies are needed, all of it is readable at `p`."""
        raise NotImplementedError

    cdef int _skipped(self, const FrameHeader* h) except -1:
        """Note that a frame has no rows."""
        return 0

    cdef int64_t _behind_fault(self) except -1:
        """Return where to go on after `pos`, where no frame is although one should be.

        That is the next frame of the range, or its end. Without a salt, a record could hold bytes
        that pass for a frame: then it is the end.
        """
        cdef FrameHeader h
        cdef int64_t pos = self.pos + FRAME_ALIGNMENT
        while self.salt and pos + FRAME_HEADER_SIZE <= self.end:
            if self._check_head(pos, &h) == FRAME_OK and h.salt == self.salt:
                return pos
            pos += FRAME_ALIGNMENT
        return self.end

    cdef int64_t _range_end(self) except -1:
        """Return the end of the range before the next one; what is left of it is not read."""
        return self.end

    # Parts of a row

    cdef int _make_room(self, int64_t rows, int64_t octets) except -1 nogil:
        """Make room for rows whose octets of all columns have at most `octets` bytes."""
        cdef int i
        for i in range(COLUMN_COUNT):
            if is_wanted(self, i):
                make_room(
                    &self.columns[i], rows, octets if (OCTETS_COLUMNS >> i) & 1 else 0
                )
        return 0

    cdef object _section(self, const FrameHeader* h, const uint8_t* batch, int codec, Cursor* c):
        """Point `c` at the records of a visible batch. The object returned keeps them in memory.

        The size is that in the frame's header, which is checked even if batches are not.
        """
        cdef Borrowed unpacked
        cdef const uint8_t* records = batch + BATCH_HEADER_SIZE
        cdef Py_ssize_t size = h.visible_size - BATCH_HEADER_SIZE
        if codec == 0:
            c[0] = cursor_of(records, size)
            return None
        packed = PyMemoryView_FromMemory(<char*>records, size, PyBUF_READ)
        unpacked = Borrowed(self.decompress(codec, packed))
        c[0] = cursor_of(unpacked.p, unpacked.size)
        return unpacked

    cdef int _put_place(self, const FrameHeader* h, int64_t count) except -1 nogil:
        """Put the columns that say where the rows are, for as many rows of a frame."""
        if is_wanted(self, COLUMN_TOPIC):
            repeat_octets(&self.columns[COLUMN_TOPIC], self.topic.data, self.topic.size, count)
        if is_wanted(self, COLUMN_PARTITION):
            repeat_i32(&self.columns[COLUMN_PARTITION], h.partition, count)
        if is_wanted(self, COLUMN_POSITION):
            repeat_i64(&self.columns[COLUMN_POSITION], h.position, count)
        return 0

    cdef int _put_stored(self, const FrameHeader* h, int64_t count) except -1 nogil:
        if is_wanted(self, COLUMN_STORE_TIMESTAMP):
            repeat_i64(&self.columns[COLUMN_STORE_TIMESTAMP], in_us(h.store_time_ms), count)
        return 0

    cdef int _put_headers(self, const Record* r, DelayHeaders* found) except -1 nogil:
        """Read the headers of a record; put them if they are wanted. Raises ValueError."""
        cdef Cursor c = cursor_of(r.headers, r.end - r.headers)
        cdef Slice key, value
        cdef int64_t i
        cdef bint puts = is_wanted(self, COLUMN_HEADERS)
        found.due_ms = found.accepted_ms = -1
        if r.header_count == 0:
            if puts:
                put_end(&self.columns[COLUMN_HEADERS], self.columns[HEADER_KEY].length)
                self.columns[COLUMN_HEADERS].length += 1
            return 0
        take_varint(&c)
        for i in range(r.header_count):
            if not next_header(&c, &key, &value):
                with gil:
                    raise ValueError(f"header {i} of a record at {self.pos} is malformed")
            take_delay(found, &key, &value)
            if puts:
                make_room(&self.columns[HEADER_KEY], 1, key.size)
                make_room(&self.columns[HEADER_VALUE], 1, max(value.size, 0))
                put_octets(&self.columns[HEADER_KEY], key.data, key.size)
                put_octets(&self.columns[HEADER_VALUE], value.data, value.size)
        if puts:
            put_end(&self.columns[COLUMN_HEADERS], self.columns[HEADER_KEY].length)
            self.columns[COLUMN_HEADERS].length += 1
        return 0


cdef Span _span(bounds) except *:
    cdef Span span
    low, high = bounds
    span.start = INT64_MIN if low is None else low
    span.end = INT64_MAX if high is None else high
    return span
