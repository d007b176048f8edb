"""Recovery scan: replays the log at startup, and distinguishes damage from a torn tail.

It checks every frame and applies the whole ones to the projections. Invalid bytes are classified by
the highest flushed mark of all valid frames:

 invalid bytes below that mark      damage: reported, and the frames after them are kept
 invalid bytes above that mark      a torn tail: the log ends at the first invalid frame

Each frame holds the flushed position at the time it was appended. A valid frame after invalid bytes
therefore shows whether those bytes had been durable. The epoch never decreases along the log; a
frame with a lower epoch is a leftover from before a cut.

The file of a segment may have been one of an earlier, freed segment. After its last frame then
follow old bytes: whole frames that hold a lower position, which are never taken for frames of this
segment, and before the first of them the rest of one that is overwritten in part. Neither counts as
garbage. The writer ends each write to such a file with zeros; without them the frame after the end
is torn, and the bytes up to the first old frame count.

Bytes that the disk cannot read are invalid too, and their fault says that they cannot be read.

Layer 0: no I/O. The log is read through a `LogWindow`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from _core.log.frames cimport (
    FRAME_BAD_SIZE, FRAME_NEWER_VERSION, FRAME_NO_MAGIC, FRAME_OK, FrameHeader, check_frame,
    decode_header, frame_size, is_of_partition, is_read, timer_entries, timers_held,
)
from _core.log.frames import FAULTS
from _core.bytes.layout cimport *
from _core.log.window cimport LogWindow
from _core.bytes.octets cimport load_i32, load_i64, load_u16, load_u32
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections

EPOCH_FELL = "frame of an earlier epoch"
_MISPLACED_HEAD = "a head that is not the first frame of its segment"
_OTHER_SALT = "frame of another log"
_OFFSETS_REUSED = "frame of offsets that were assigned before"
_JUDGED = "declared lost by an earlier start"


cdef enum:
    UNREADABLE = 100             # in addition to the faults of `check_frame`


cdef int64_t _next_magic(
    const uint8_t* data, int64_t at, int64_t stop, int64_t* last
) noexcept nogil:
    """Index of the first word from `at` to before `stop` that may begin a frame, or -1.

    Sets `last` to the end of the last word before it that is not zero. REQUIRES: `at` is aligned,
    and 7 bytes after `stop` may be read.
    """
    cdef uint64_t word
    while at < stop:
        memcpy(&word, data + at, 8)
        if word:
            if load_u16(data + at) == FRAME_MAGIC:
                return at
            last[0] = at + FRAME_ALIGNMENT
        at += FRAME_ALIGNMENT
    return -1


cdef int64_t _size_looked_at(const uint8_t* p, int64_t rest, int64_t pos) noexcept nogil:
    """How many bytes of a frame `check_frame` reads: only the header if that is invalid.

    REQUIRES: FRAME_HEADER_SIZE bytes at `p`, which is log position `pos`. The segment ends `rest`
    bytes after `p`.
    """
    cdef FrameHeader h
    cdef int64_t size
    if load_u16(p + AT_MAGIC) != FRAME_MAGIC:
        return FRAME_HEADER_SIZE
    decode_header(p, &h)
    if h.position != pos or h.size < FRAME_HEADER_SIZE or h.size > rest:
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
        frames: number of valid frames so far.
        last_pos, last_crc: log position and CRC of the last valid frame; -1 and 0 before it.
        lost_ranges: (from, to) of the damaged ranges; adjacent ranges are merged.
        damage: (from, to, fault) of each damaged range.
        tail_fault: when done, the fault at `pos`; None at the end of a segment.
        garbage_end: when done, the approximate end of the bytes after `pos` that are neither zero
            nor left from an earlier segment in the same file. At most `pos` if there are none.
        unknown: topics with frames but no topic frame, or with frames of a partition that is not
            declared: topic id -> highest partition. Their frames count as lost.
        salt: salt of the frames, 0 if there are none.
        has_leftovers: valid frames follow the end of the log; they must not reappear.
        newer_version: the log holds frames of a newer latermq; this version must not open it.
    """

    def __cinit__(
        self, Projections projections not None, list segments not None, read not None,
        control not None, *, int64_t start=-1, int32_t epoch=0, lost=(), int64_t known_flushed=-1,
        int64_t watermark=-1, written=None, verdicts=(), topics=None, uint32_t salt=0,
        int64_t own_from=0
    ):
        """Start at the first segment, or inside it.

        Args:
            projections: the state that frames are applied to.
            segments: (base position, size) of each segment, ascending. The first contains `start`.
            read: function that reads the log, see `LogWindow`.
            control: function (kind, topic id, payload, epoch) that applies control frames.
            start: log position to begin at; -1 for the beginning of the first segment.
            epoch: epoch of the frame before `start`.
            lost: (from, to) of the ranges before `start` that are known to be damaged.
            known_flushed: a log position known to have been flushed, -1 for none.
            watermark: the allocation watermark, a log position after which no frame was ever
                written, -1 if unknown. The zeros after it prepare a segment and are not read.
            written: function of a log position that returns the ranges from there to the end of its
                segment that may hold written bytes, as (from, to) positions. Ranges that were
                allocated but never written are then not read. None if that is unknown.
            verdicts: (from, to) of the ranges that an earlier start declared lost, ascending. They
                are skipped even if they can be read now.
            topics: topic id -> payload of a topic frame, for topics whose topic frame was lost;
                removed when used. The payload is None for a topic that was deleted later; its
                frames are ignored.
            salt: salt of every frame of the log, 0 if unknown; the first frame then sets it. Bytes
                of a client that look like a frame have another salt.
            own_from: the flushed marks of frames below this log position refer to the disk of
                another node, and count for nothing here.
        """
        self.projections = projections
        self.segments = segments
        self.window = LogWindow(read)
        self.control = control
        self.known_flushed = known_flushed
        self.watermark = watermark
        self.written = written
        self.ranges = {}
        self.damage = []
        self.salt = salt
        self.own_from = own_from
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
        """(from, to, why) of each range that the disk could not read so far, ascending."""
        return list(self.window.unreadable)

    def take_unreadable(self):
        """Return (from, to, why) of each range found unreadable since the last call."""
        return self.window.take_unreadable()

    def step(self, int64_t budget):
        """Process about `budget` bytes.

        Returns:
            True once the end of the log is found.
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
            elif h.epoch < self.epoch:  # I5
                self._at_fault(EPOCH_FELL)
            elif not self._is_own(&h):
                self._at_fault(_OTHER_SALT)
            elif h.kind == KIND_HEAD and self.pos != self.base:
                self._at_fault(_MISPLACED_HEAD)
            else:
                p = self.window.data + (self.pos - self.window.start)
                self.epoch = h.epoch
                self.salt = h.salt
                self.frames += 1
                self.last_pos = h.position
                self.last_crc = load_u32(p + AT_CRC)
                self._apply(&h, p)
                self.pos += h.size
        return self.done

    cdef bint _is_own(self, const FrameHeader* h) noexcept nogil:
        """Whether a frame has the salt of this log, or that salt is unknown."""
        return self.salt == 0 or h.salt == self.salt

    cdef int _pass_over(self, int64_t start, int64_t end) except -1:
        """Skip a range that was declared lost; it stays lost even if it can be read again."""
        if end <= self.pos:
            return 0
        self._add_damage(max(start, self.pos), end, _JUDGED)
        while end > self.base + self.size and self.segment + 1 < len(self.segments):
            self._enter(self.segment + 1)
        self.pos = end
        if end > self.base + self.size:
            self.pos = self.base + self.size
        elif end < self.base:
            self.pos = self.base
        return 0

    cdef int64_t _behind_verdicts(self, int64_t pos):
        """`pos`, or the end of the range around it that was declared lost."""
        for start, end in self.verdicts:
            if start <= pos < end:
                return end
        return pos

    cdef int _check_at(
        self, int64_t pos, int64_t base, int64_t end, FrameHeader* h
    ) except -1:
        """Check the frame at `pos`, in a segment from `base` to `end`.

        Returns:
            The result of `check_frame`; the window then holds the bytes checked. UNREADABLE, with
            the reason in `why_unreadable`, if bytes that the check needs cannot be read.
        """
        return self._check_as(pos, pos, base, end, h)

    cdef int _check_as(
        self, int64_t pos, int64_t named, int64_t base, int64_t end, FrameHeader* h
    ) except -1:
        """Check the frame at `pos` as `_check_at` does, if it says that it stands at `named`."""
        cdef LogWindow window = self.window
        cdef int64_t size
        cdef int fault
        if end - pos < FRAME_HEADER_SIZE:
            return FRAME_NO_MAGIC
        window.hold(pos, FRAME_HEADER_SIZE, base, end)
        with nogil:
            fault = check_frame(
                window.data + (pos - window.start), window.end - pos, named, h, True
            )
        if fault == FRAME_BAD_SIZE and window.end < end:
            # The window may hold only a part of the frame. A blank frame needs only its header.
            size = _size_looked_at(window.data + (pos - window.start), end - pos, named)
            window.hold(pos, size, base, end)
            with nogil:
                fault = check_frame(window.data + (pos - window.start), end - pos, named, h, True)
        if window.unreadable and fault != FRAME_NEWER_VERSION:
            size = _size_looked_at(window.data + (pos - window.start), end - pos, named)
            found = window.unreadable_in(pos, pos + size)
            if found is not None:
                self.why_unreadable = f"cannot be read: {found[2]}"
                return UNREADABLE
        return fault

    cdef int64_t _old_end(self, int64_t pos, int64_t base, int64_t end) except -1:
        """The end of the frame at `pos` if an earlier segment in the same file had it, else 0.

        REQUIRES: the window holds its header, or the segment ends before that.
        """
        cdef FrameHeader h
        if self.salt == 0 or end - pos < FRAME_HEADER_SIZE:
            return 0
        decode_header(self.window.data + (pos - self.window.start), &h)
        if not 0 <= h.position < base or not self._is_own(&h):
            return 0
        return pos + h.size if self._check_as(pos, h.position, base, end, &h) == FRAME_OK else 0

    cdef int _at_fault(self, str fault) except -1:
        """Handle invalid bytes at `pos`: skip them if they are damage, else end the log here."""
        cdef FrameHeader h
        cdef int64_t start = self.pos, mark
        cdef Py_ssize_t segment = self.segment
        if self._seek_valid(&h):
            if not self.has_looked_ahead:
                # This finds all marks that later faults need, so once is enough.
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
        """Add a damaged range. Timers accepted there are unknown, so that frames which complete
        them find nothing.
        """
        self.damage.append((start, end, fault))
        if self.lost_ranges:
            last = self.lost_ranges[len(self.lost_ranges) - 1]
            if last[1] == start:
                start = last[0]
                self.lost_ranges.pop()
        self.lost_ranges.append((start, end))
        return 0

    cdef bint _seek_valid(self, FrameHeader* h) except -1:
        """Move to the next valid frame after `pos` of this epoch or a later one."""
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
        """Extend `garbage_end` if the word at `pos` is not zero or cannot be read."""
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

        They are determined once, at the first fault, for all segments from there on. Reading a
        segment brings pages into memory, which would count as written later.
        """
        # A watermark below a valid frame belongs to another log and is ignored.
        limit = self.watermark if self.watermark >= self.pos else INT64_MAX
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
        """Log position of the first valid frame of a segment at or after `pos`, or -1.

        A frame of a newer version counts as valid; otherwise the log would be cut before it.
        """
        cdef LogWindow window = self.window
        cdef int64_t base, size, found, stop, behind, last
        cdef int64_t first = pos, known = self.garbage_end, old_end = 0
        cdef int fault
        base, size = self.segments[segment]
        for begin, end in self._written_in(segment):
            pos = max(pos, base + (<int64_t>begin & ~<int64_t>(FRAME_ALIGNMENT - 1)))
            # A frame begins only where its header fits.
            stop = min(base + <int64_t>end, base + size - FRAME_HEADER_SIZE + 1)
            while pos < stop:
                window.hold(pos, FRAME_HEADER_SIZE, base, base + size)
                behind = min(stop, window.end - FRAME_ALIGNMENT + 1)
                last = -1
                with nogil:
                    found = _next_magic(
                        window.data, pos - window.start, behind - window.start, &last
                    )
                if last >= 0 and window.start + last > old_end:
                    self.garbage_end = max(self.garbage_end, window.start + last)
                if found < 0:
                    pos += (behind - pos + FRAME_ALIGNMENT - 1) & ~<int64_t>(FRAME_ALIGNMENT - 1)
                    continue
                pos = window.start + found
                fault = self._check_at(pos, base, base + size, h)
                if fault == FRAME_OK or fault == FRAME_NEWER_VERSION:
                    self.garbage_end = max(self.garbage_end, pos + FRAME_ALIGNMENT)
                    return pos
                if pos >= old_end:
                    behind = self._old_end(pos, base, base + size)
                    if behind == 0:
                        self.garbage_end = max(self.garbage_end, pos + FRAME_ALIGNMENT)
                    elif old_end == 0 and self._is_zero(first, base, base + size):
                        # The log ends at `first`: before `pos` is the rest of a frame like it.
                        self.garbage_end = known
                    old_end = max(old_end, behind)
                pos += FRAME_ALIGNMENT
        return -1

    cdef bint _is_zero(self, int64_t pos, int64_t base, int64_t end) except -1:
        """Whether the word at `pos` is zero."""
        if pos + FRAME_ALIGNMENT > end:
            return False
        self.window.hold(pos, FRAME_ALIGNMENT, base, end)
        return load_i64(self.window.data + (pos - self.window.start)) == 0

    cdef int64_t _highest_mark(self, Py_ssize_t segment, int64_t pos) except -2:
        """Highest flushed mark of all valid frames from `pos` on. Reads the rest of the log."""
        cdef FrameHeader h
        cdef int64_t mark = -1
        for i in range(segment, len(self.segments)):
            if i > segment:
                pos = self.segments[i][0]
            while True:
                pos = self._find_valid(i, pos, &h)
                if pos < 0:
                    break
                is_later = h.epoch >= self.epoch and pos >= self.own_from
                if is_later and self._is_own(&h) and h.flushed > mark:
                    mark = h.flushed
                if h.kind != KIND_BLANK:
                    self.garbage_end = max(self.garbage_end, pos + h.size)
                pos += h.size
        return mark

    cdef int _apply(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef Topic topic
        if h.kind == KIND_BLANK or not is_read(h.kind):
            return 0  # an optional frame of an unknown kind is ignored
        if is_of_partition(h):
            topic = self._topic_of(h)
            if topic is None:
                return 0
            if timers_held(h):
                self._declare_targets(h, p)
            if h.kind == KIND_CARRIED_RECORDS:
                # Its offsets are assigned: the records only change their place.
                return self.projections.apply(<Partition>topic.partitions[h.partition], h, p, False)
            if h.visible_size and h.base_offset < topic.partitions[h.partition].next_offset:
                # Either a later verdict frame declares it lost and its offsets were assigned again,
                # or the reason is unknown. In both cases it must not be served.
                self._add_damage(h.position, h.position + h.size, _OFFSETS_REUSED)
                return 0
            return self.projections.apply(<Partition>topic.partitions[h.partition], h, p, False)
        payload = PyBytes_FromStringAndSize(<const char*>p + FRAME_HEADER_SIZE, h.tables_size)
        self.projections.applied_pos = h.position
        self.control(h.kind, h.topic_id, payload, h.epoch)
        return 0

    cdef Topic _topic_of(self, const FrameHeader* h):
        """The topic of a frame; None if the topic was deleted later or is unknown."""
        cdef Topic topic = <Topic>self.projections.topics_by_id.get(h.topic_id)
        if topic is not None and 0 <= h.partition < len(topic.partitions):
            return topic
        if h.topic_id in self.topics:
            return self._topic_of(h) if self._declare(h.topic_id, h) else None
        # Its topic frame is in a damaged range: the topic of these records is unknown.
        self._add_damage(h.position, h.position + h.size, "frame of an unknown topic")
        self.unknown[h.topic_id] = max(h.partition, self.unknown.get(h.topic_id, 0))
        return None

    cdef bint _declare(self, int32_t topic_id, const FrameHeader* h) except -1:
        """Apply the lost topic frame of a topic; False if it was deleted later."""
        payload = self.topics[topic_id]
        if payload is None:
            return False
        del self.topics[topic_id]
        self.projections.applied_pos = h.position
        self.control(KIND_TOPIC, topic_id, payload, h.epoch)
        return True

    cdef int _declare_targets(self, const FrameHeader* h, const uint8_t* p) except -1:
        """Apply the lost topic frames of topics that timers of a frame point to, or note them."""
        cdef const uint8_t* entry = timer_entries(h, p)
        cdef int32_t i, topic_id, index
        for i in range(timers_held(h)):
            topic_id = load_i32(entry + TIMER_AT_TARGET_TOPIC)
            if topic_id and topic_id not in self.projections.topics_by_id:
                if topic_id in self.topics:
                    self._declare(topic_id, h)
                else:
                    index = load_i32(entry + TIMER_AT_TARGET_PARTITION)
                    self.unknown[topic_id] = max(index, self.unknown.get(topic_id, 0))
            entry += TIMER_ENTRY_SIZE
        return 0
