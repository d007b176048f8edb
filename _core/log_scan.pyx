"""Replays the log at start: checks every frame, tells damage from a torn tail, applies the whole.

 invalid bytes below the highest      damage: reported, and what follows is kept
 flushed mark of any valid frame
 invalid bytes above it               a torn tail: the log ends at the first invalid frame

A frame carries the flushed position of the moment when it was appended, so a valid frame behind
invalid bytes tells whether those bytes had once been safe on the disk. An epoch never falls along
the log; a frame that breaks this rule is left over from before a cut.

Bytes that the disk cannot read are invalid like others; the fault says that they cannot be read.

Layer 0: no I/O; the log is read through a `LogWindow`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from _core.frames cimport (
    FRAME_BAD_SIZE, FRAME_NEWER_VERSION, FRAME_NO_MAGIC, FRAME_OK, FrameHeader, check_frame,
    decode_header, frame_size, is_read,
)
from _core.frames import FAULTS
from _core.layout cimport *
from _core.log_window cimport LogWindow
from _core.octets cimport load_i64, load_u16, load_u32
from _core.partition cimport Partition, Topic
from _core.projections cimport Projections

EPOCH_FELL = "frame of an earlier epoch"
MISPLACED_HEAD = "a head that is not the first frame of its segment"
OTHER_SALT = "frame of another log"
OFFSETS_GIVEN = "frame of offsets that were given before"
JUDGED = "an earlier start judged it lost"


cdef enum:
    UNREADABLE = 100             # beside the faults of `check_frame`


cdef int64_t _next_magic(
    const uint8_t* data, int64_t at, int64_t stop, int64_t* last
) noexcept nogil:
    """Offset of the first word from `at` to before `stop` with which a frame may begin, or -1.

    `last` is set behind the last word passed that is not zero. REQUIRES: `at` is aligned, and 7
    bytes behind `stop` may be read.
    """
    cdef uint64_t word
    while at < stop:
        memcpy(&word, data + at, 8)
        if word:
            last[0] = at + FRAME_ALIGNMENT
            if load_u16(data + at) == FRAME_MAGIC:
                return at
        at += FRAME_ALIGNMENT
    return -1


cdef int64_t _size_looked_at(const uint8_t* p, int64_t rest, int64_t pos) noexcept nogil:
    """How many bytes of a frame `check_frame` looks at: its header alone if that is wrong.

    REQUIRES: FRAME_HEADER_SIZE bytes at `p`, which lies at log position `pos`, and no more than
    `rest`.
    """
    cdef FrameHeader h
    cdef int64_t size
    if load_u16(p + AT_MAGIC) != FRAME_MAGIC:
        return FRAME_HEADER_SIZE
    decode_header(p, &h)
    if h.phys_offset != pos or h.size < FRAME_HEADER_SIZE or h.size > rest:
        return FRAME_HEADER_SIZE
    if h.tables_size < 0 or h.visible_size < 0 or h.held_size < 0:
        return FRAME_HEADER_SIZE
    size = frame_size(h.tables_size, h.visible_size, h.held_size)
    return size if size <= h.size else FRAME_HEADER_SIZE


cdef class LogScan:
    """One pass over the log.

    Attributes:
        pos: log position reached; when done, the end of the log.
        epoch: epoch of the last frame.
        frames: valid frames so far.
        last_pos, last_crc: log position of the last valid frame and its CRC; -1 and 0 before it.
        lost_ranges: (from, to) of what is damaged, parts that touch as one.
        damage: (from, to, fault) of each damaged part.
        tail_fault: when done, what was wrong at `pos`; None at a segment's very end.
        garbage_end: when done, about where bytes that are not zero end; at most `pos` if nothing
            but zeros follows.
        unknown: topics whose frames were met and of which nothing was told, or not of so many
            partitions: topic id -> highest partition. What was met of them counts as lost.
        salt: of the frames, 0 if none was met.
        has_leftovers: valid frames lie behind the end of the log; they must not come back.
        newer_version: a newer latermq wrote what this one does not know: it must not be opened.
    """

    def __cinit__(
        self, Projections projections not None, list segments not None, read not None,
        control not None, *, int64_t start=-1, int32_t epoch=0, lost=(), int64_t known_flushed=-1,
        int64_t reach=-1, written=None, verdicts=(), topics=None, uint32_t salt=0
    ):
        """Begin at the first segment, or in it.

        Args:
            projections: what the frames are applied to.
            segments: (base position, size) of each segment, ascending. The first one has `start`.
            read: function that reads the log, see `LogWindow`.
            control: function (kind, topic id, payload, epoch) for frames of control state.
            start: log position to begin at; -1 for the beginning of the first segment.
            epoch: of the frame before it.
            lost: (from, to) of what was known to be damaged before it.
            known_flushed: a log position known to have been flushed, -1 if none is.
            reach: a log position behind which no frame was ever written, -1 if none is known. What
                lies there are zeros that prepare a segment; they are not read.
            written: function of a log position -> the ranges from there to the end of its segment
                that may hold written bytes, as (from, to) positions; None if that is not known.
                What was allocated and never written is not read then.
            verdicts: (from, to) of what an earlier start judged lost, ascending: it is passed over,
                whatever can be read there now.
            topics: topic id -> payload of a topic frame, for topics whose own was lost; None for
                one that was deleted later, whose frames say nothing. Taken out when it is used.
            salt: that every frame of the log has; 0 for unknown: the first frame tells. Bytes of a
                client that look like a frame have another one.
        """
        self.projections = projections
        self.segments = segments
        self.window = LogWindow(read)
        self.control = control
        self.known_flushed = known_flushed
        self.reach = reach
        self.written = written
        self.ranges = {}
        self.damage = []
        self.salt = salt
        self.verdicts = [each for each in verdicts if each[1] > max(start, 0)]
        self.topics = {} if topics is None else topics
        self.unknown = {}
        self.lost_ranges = list(lost)
        projections.set_lost_ranges(self.lost_ranges)
        self.epoch = epoch
        self.pos = max(start, 0)
        self.last_pos = -1
        if segments:
            self._enter(0)
            self.pos = self.base if start < 0 else start
            assert self.base <= self.pos <= self.base + self.size
        else:
            self.done = True

    cdef int _enter(self, Py_ssize_t segment) except -1:
        self.segment = segment
        self.base, self.size = self.segments[segment]
        return 0

    @property
    def unreadable(self):
        """(from, to, why) of what the disk could not read so far, ascending."""
        return list(self.window.unreadable)

    def take_unreadable(self):
        """(from, to, why) of what turned out to be unreadable since the last call."""
        return self.window.take_unreadable()

    def step(self, int64_t budget):
        """Go on for about `budget` bytes.

        Returns:
            True when the end of the log is found.
        """
        cdef FrameHeader h
        cdef int64_t stop = self.pos + budget
        cdef const uint8_t* p
        cdef int fault
        while not self.done and self.pos < stop:
            if self.verdicts and self.verdicts[0][0] <= self.pos:
                judged = self.verdicts.pop(0)
                self._pass_over(judged[0], judged[1])
                continue
            if self.pos == self.base + self.size:
                if self.segment + 1 == len(self.segments):
                    self.done = True
                elif self.segments[self.segment + 1][0] == self.pos:
                    self._enter(self.segment + 1)
                else:
                    self._at_fault("a segment is missing")
                continue
            fault = self._check_at(self.pos, self.base, self.base + self.size, &h)
            if fault == FRAME_NEWER_VERSION:
                self.newer_version = self.done = True
                self.tail_fault = FAULTS[fault]
            elif fault == UNREADABLE:
                self._at_fault(self.why_unreadable)
            elif fault != FRAME_OK:
                self._at_fault(FAULTS[fault])
            elif h.epoch < self.epoch:
                self._at_fault(EPOCH_FELL)
            elif not self._is_own(&h):
                self._at_fault(OTHER_SALT)
            elif h.kind == KIND_HEAD and self.pos != self.base:
                self._at_fault(MISPLACED_HEAD)
            else:
                p = self.window.data + (self.pos - self.window.start)
                self.epoch = h.epoch
                self.salt = h.salt
                self.frames += 1
                self.last_pos = h.phys_offset
                self.last_crc = load_u32(p + AT_CRC)
                self._apply(&h, p)
                self.pos += h.size
        return self.done

    cdef bint _is_own(self, const FrameHeader* h) noexcept nogil:
        """Whether a frame has the salt of this log, as far as that is known."""
        return self.salt == 0 or h.salt == self.salt

    cdef int _pass_over(self, int64_t start, int64_t end) except -1:
        """What was judged lost stays so, also when it can be read again."""
        if end <= self.pos:
            return 0
        self._add_damage(max(start, self.pos), end, JUDGED)
        while end > self.base + self.size and self.segment + 1 < len(self.segments):
            self._enter(self.segment + 1)
        self.pos = end
        if end > self.base + self.size:
            self.pos = self.base + self.size
        elif end < self.base:
            self.pos = self.base
        return 0

    cdef int64_t _behind_verdicts(self, int64_t pos):
        """`pos`, or the end of what was judged lost around it."""
        for start, end in self.verdicts:
            if start <= pos < end:
                return end
        return pos

    cdef int _check_at(
        self, int64_t pos, int64_t base, int64_t end, FrameHeader* h
    ) except -1:
        """What is wrong with the frame at `pos`, in a segment from `base` to `end`.

        Returns:
            What `check_frame` does; UNREADABLE, with the reason in `why_unreadable`, if bytes that
            would have to be looked at cannot be read. What is looked at is held then.
        """
        cdef LogWindow window = self.window
        cdef int64_t size
        cdef int fault
        if end - pos < FRAME_HEADER_SIZE:
            return FRAME_NO_MAGIC
        window.hold(pos, FRAME_HEADER_SIZE, base, end)
        with nogil:
            fault = check_frame(
                window.data + (pos - window.start), window.end - pos, pos, h, True
            )
        if fault == FRAME_BAD_SIZE and window.end < end:
            # Maybe it is only not all held; of a blank frame no more than the header ever is.
            size = _size_looked_at(window.data + (pos - window.start), end - pos, pos)
            window.hold(pos, size, base, end)
            with nogil:
                fault = check_frame(window.data + (pos - window.start), end - pos, pos, h, True)
        if window.unreadable and fault != FRAME_NEWER_VERSION:
            size = _size_looked_at(window.data + (pos - window.start), end - pos, pos)
            found = window.unreadable_in(pos, pos + size)
            if found is not None:
                self.why_unreadable = f"cannot be read: {found[2]}"
                return UNREADABLE
        return fault

    cdef int _at_fault(self, str fault) except -1:
        """Invalid bytes at `pos`: jump over them if they are damage, else the log ends here."""
        cdef FrameHeader h
        cdef int64_t start = self.pos, mark
        cdef Py_ssize_t segment = self.segment
        if self._seek_valid(&h):
            if not self.has_looked_ahead:
                # Marks that matter to later faults are among these, so once is enough.
                self.has_looked_ahead = True
                mark = self._highest_mark(self.segment, self.pos)
                self.known_flushed = max(self.known_flushed, mark)
            if start < self.known_flushed:
                self._add_damage(start, self.pos, fault)
                return 0
            self.has_leftovers = True
        elif start < self.known_flushed:
            self.damage.append((start, self.known_flushed, fault))
        self._enter(segment)
        self.pos = start
        self.tail_fault = fault
        self.done = True
        return 0

    cdef int _add_damage(self, int64_t start, int64_t end, str fault) except -1:
        """What was accepted there is not known, so a frame that settles it finds nothing."""
        self.damage.append((start, end, fault))
        if self.lost_ranges:
            last = self.lost_ranges[len(self.lost_ranges) - 1]
            if last[1] == start:
                start = last[0]
                self.lost_ranges.pop()
        self.lost_ranges.append((start, end))
        return 0

    cdef bint _seek_valid(self, FrameHeader* h) except -1:
        """Move to the next valid frame of this epoch or a later one behind `pos`."""
        cdef int64_t pos = self.pos + FRAME_ALIGNMENT, behind
        self._note_garbage()
        while True:
            pos = self._find_valid(self.segment, pos, h)
            if pos >= 0:
                behind = self._behind_verdicts(pos)
                if behind > pos:
                    pos = behind
                    continue
                is_misplaced = h.kind == KIND_HEAD and pos != self.base
                if h.epoch >= self.epoch and self._is_own(h) and not is_misplaced:
                    self.pos = pos
                    return True
                pos += FRAME_ALIGNMENT
                continue
            if self.segment + 1 == len(self.segments):
                return False
            self._enter(self.segment + 1)
            pos = self.base

    cdef int _note_garbage(self) except -1:
        """Take note of what is at `pos` if that is not zero, or cannot be read."""
        cdef int64_t end = self.base + self.size
        if self.pos + FRAME_ALIGNMENT > end:
            return 0
        self.window.hold(self.pos, FRAME_ALIGNMENT, self.base, end)
        if load_i64(self.window.data + (self.pos - self.window.start)):
            self.garbage_end = max(self.garbage_end, self.pos + FRAME_ALIGNMENT)
        unreadable = self.window.unreadable_in(self.pos, self.pos + FRAME_ALIGNMENT)
        if unreadable is not None:
            self.garbage_end = max(self.garbage_end, unreadable[1])
        return 0

    cdef list _written_in(self, Py_ssize_t segment):
        """Ranges of a segment that may hold written bytes, as offsets in it.

        Asked for once, at the first fault and for all segments from there on: the look itself
        brings pages into memory that then count as written.
        """
        # A reach that was passed is none: it was said of another log.
        limit = self.reach if self.reach >= self.pos else INT64_MAX
        if not self.ranges:
            for i in range(segment, len(self.segments)):
                base, size = self.segments[i]
                start = self.pos if i == segment else base
                if start >= limit:
                    found = []
                elif self.written is None:
                    found = [(base, base + size)]
                else:
                    found = self.written(start)
                self.ranges[i] = [
                    (a - base, min(b, limit) - base) for a, b in found if a < limit
                ]
        return <list>self.ranges[segment]

    cdef int64_t _find_valid(self, Py_ssize_t segment, int64_t pos, FrameHeader* h) except -2:
        """Position in a segment of the first valid frame at or behind `pos`, or -1.

        One of a newer version counts: were it passed over, the log would be cut before it.
        """
        cdef LogWindow window = self.window
        cdef int64_t base, size, found, stop, behind, last
        cdef int fault
        base, size = self.segments[segment]
        for begin, end in self._written_in(segment):
            pos = max(pos, base + (<int64_t>begin & ~<int64_t>(FRAME_ALIGNMENT - 1)))
            # No frame begins where no header has room.
            stop = min(base + <int64_t>end, base + size - FRAME_HEADER_SIZE + 1)
            while pos < stop:
                window.hold(pos, FRAME_HEADER_SIZE, base, base + size)
                behind = min(stop, window.end - FRAME_ALIGNMENT + 1)
                last = -1
                with nogil:
                    found = _next_magic(
                        window.data, pos - window.start, behind - window.start, &last
                    )
                if last >= 0:
                    self.garbage_end = max(self.garbage_end, window.start + last)
                if found < 0:
                    pos += (behind - pos + FRAME_ALIGNMENT - 1) & ~<int64_t>(FRAME_ALIGNMENT - 1)
                    continue
                pos = window.start + found
                fault = self._check_at(pos, base, base + size, h)
                if fault == FRAME_OK or fault == FRAME_NEWER_VERSION:
                    return pos
                pos += FRAME_ALIGNMENT
        return -1

    cdef int64_t _highest_mark(self, Py_ssize_t segment, int64_t pos) except -2:
        """Highest flushed mark of all valid frames from `pos` on: reads the rest of the log."""
        cdef FrameHeader h
        cdef int64_t mark = -1
        for i in range(segment, len(self.segments)):
            if i > segment:
                pos = self.segments[i][0]
            while True:
                pos = self._find_valid(i, pos, &h)
                if pos < 0:
                    break
                if h.epoch >= self.epoch and self._is_own(&h) and h.flushed > mark:
                    mark = h.flushed
                pos += h.size
        return mark

    cdef int _apply(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef Topic topic
        if h.kind == KIND_BLANK or not is_read(h.kind):
            return 0  # an optional frame of a kind that is not known says nothing here
        if h.kind == KIND_ACCEPT or h.kind == KIND_DELIVER or h.kind == KIND_CANCEL:
            topic = self._topic_of(h)
            if topic is None:
                return 0
            if h.visible_size and h.base_offset < topic.partitions[h.partition].next_offset:
                # A verdict behind it tells that it was lost and its offsets went to others; or
                # nobody knows why, and it must not be served.
                self._add_damage(h.phys_offset, h.phys_offset + h.size, OFFSETS_GIVEN)
                return 0
            return self.projections.apply(<Partition>topic.partitions[h.partition], h, p, False)
        payload = PyBytes_FromStringAndSize(<const char*>p + FRAME_HEADER_SIZE, h.tables_size)
        self.projections.applied_pos = h.phys_offset
        self.control(h.kind, h.topic_id, payload, h.epoch)
        return 0

    cdef Topic _topic_of(self, const FrameHeader* h):
        """The topic of a frame; None if its frames say nothing or nobody knows it."""
        cdef Topic topic = <Topic>self.projections.topics_by_id.get(h.topic_id)
        if topic is not None and 0 <= h.partition < len(topic.partitions):
            return topic
        if h.topic_id in self.topics:
            payload = self.topics[h.topic_id]
            if payload is None:
                return None
            del self.topics[h.topic_id]
            self.projections.applied_pos = h.phys_offset
            self.control(KIND_TOPIC, h.topic_id, payload, h.epoch)
            return self._topic_of(h)
        # Its topic frame lies in a damaged part: the records cannot be told apart.
        self._add_damage(h.phys_offset, h.phys_offset + h.size, "frame of an unknown topic")
        self.unknown[h.topic_id] = max(h.partition, self.unknown.get(h.topic_id, 0))
        return None
