"""Plans a scan: one pass over the heads of all frames, never over their records.

It is the replay of a start (`LogScan`), with two differences. It reads only what the CRC of a frame
covers, which leaves out the bodies of batches. And it notes for each part of the log what its
frames hold, so that a query can leave parts out, and for each timer what became of it.

Layer 0: no I/O.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memset

from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64
from _core.log.frames cimport (
    FRAME_BAD_SIZE, FRAME_OK, FrameHeader, check_head, head_size, is_timer_carry,
    original_pos, timers_held,
)
from _core.log.window cimport LogWindow
from _core.queue.partition cimport Partition, Topic
from _core.state.check cimport CheckedProjections, completed_entry
from _core.state.scan cimport LogScan
from _core.tables.copies cimport Copies
from _core.tables.timer_outcomes cimport (
    OUTCOME_CANCELLED, OUTCOME_DELIVERED, OUTCOME_REPLACED, TimerOutcomes,
)
from _core.timers.id_index cimport NamedTimer

cdef enum:
    HEAD_SPAN_BYTES = 1 << 16        # of one read: most of a large batch is passed over
    ZONE_BYTES = 1 << 22


cdef inline int32_t target_topic(const FrameHeader* h, const uint8_t* entry) noexcept nogil:
    """Id of the topic that a timer is delivered to."""
    cdef int32_t topic_id = load_i32(entry + TIMER_AT_TARGET_TOPIC)
    return topic_id if topic_id else h.topic_id


cdef class HistoryProjections(CheckedProjections):
    """Projections that also know what became of the timers that are no longer pending.

    Attributes:
        outcomes: all timers so far.
        records: the carried records so far.
        deleted: (name, start offsets of its partitions) of each deleted topic, by topic id.
    """

    def __cinit__(self, *args, **kwargs):
        """Start empty. The arguments are those of `Projections`."""
        self.outcomes = TimerOutcomes()
        self.records = Copies()
        self.starts = {}
        self.deleted = {}

    def add_topic(self, Topic topic not None, list offsets not None):
        """As `Projections.add_topic`; note the start offsets that are declared."""
        cdef Partition partition
        CheckedProjections.add_topic(self, topic, offsets)
        for partition, (start, _, _) in zip(topic.partitions, offsets):
            self.starts[partition.handle] = max(start, self.starts.get(partition.handle, 0))

    def remove_topic(self, Topic topic not None):
        """Remove a topic; note that its pending timers are deleted with it."""
        cdef Partition partition
        starts = [partition.start_offset for partition in topic.partitions]
        self.deleted[topic.topic_id] = topic.name_bytes, starts
        self.outcomes.forget_topic(topic.topic_id, self.now_ms)
        CheckedProjections.remove_topic(self, topic)

    cdef int apply(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef int64_t origin
        cdef int32_t i
        if h.kind == KIND_CARRIED_RECORDS:
            origin = original_pos(p)
            is_there = origin >= self.first_known_pos and not self._is_lost(origin)
            self.records.add(h.position, origin, 0, h.position, origin if is_there else -1)
            # Where the log begins, a partition seems to begin with the offset that is next then.
            start = max(self.starts.get(partition.handle, 0), h.base_offset)
            partition.start_offset = min(partition.start_offset, start)
        elif is_timer_carry(h):
            self.cancel_state = OUTCOME_REPLACED
            for i in range(h.timer_count):
                self.outcomes.add_copy(
                    h.position, load_i64(entry + TIMER_AT_ACCEPT_POS),
                    load_i32(entry + TIMER_AT_INDEX), target_topic(h, entry),
                )
                entry += TIMER_ENTRY_SIZE
        return CheckedProjections.apply(self, partition, h, p, live)

    cdef int _apply_timer(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        self.cancel_state = OUTCOME_REPLACED
        if h.kind == KIND_ACCEPT:
            self.outcomes.add(
                h.position, load_i32(entry + TIMER_AT_INDEX), target_topic(h, entry)
            )
        return CheckedProjections._apply_timer(self, partition, h, p, entry)

    cdef int _apply_cancellation(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef bint by_header = entry[CANCEL_AT_KIND] == CANCEL_BY_HEADER
        self.cancel_state = OUTCOME_CANCELLED if by_header else OUTCOME_REPLACED
        return CheckedProjections._apply_cancellation(self, partition, h, p, entry)

    cdef int _cancel_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1:
        cdef NamedTimer known
        cdef bint is_known = self.ids.find(topic_id, name, size, &known)
        cdef int cancelled = CheckedProjections._cancel_pending(self, topic_id, name, size, now_ms)
        if cancelled and is_known:
            self.outcomes.complete(known.position, known.record_index, self.cancel_state, now_ms)
        return cancelled

    cdef int _apply_completed(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        cdef int state = OUTCOME_DELIVERED if h.kind == KIND_DELIVER else OUTCOME_CANCELLED
        cdef int32_t i
        for i in range(h.timer_count):
            self.outcomes.complete(
                load_i64(completed_entry(p, i) + COMPLETED_AT_ACCEPT_POS),
                load_i32(completed_entry(p, i) + COMPLETED_AT_INDEX), state, h.store_time_ms,
            )
        return CheckedProjections._apply_completed(self, partition, h, p, live)

    cdef int _set_anew(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        self.cancel_state = OUTCOME_REPLACED
        self.outcomes.add(h.position, load_i32(entry + TIMER_AT_INDEX), h.topic_id)
        return CheckedProjections._set_anew(self, partition, h, p, entry)


cdef class PlanScan(LogScan):
    """One pass over the heads of a log.

    Attributes:
        zone_size: bytes of the log that share a zone, at least.
    """

    def __cinit__(self, *args, **kwargs):
        """Start at the first segment, or inside it. The arguments are those of `LogScan`."""
        self.zone_size = ZONE_BYTES
        self.zones = []
        self.zone_topics = set()
        self.window = LogWindow(self.window.read, HEAD_SPAN_BYTES)
        self._begin_zone(-1)

    def extend(self, list segments not None, *, int64_t known_flushed=-1, int64_t watermark=-1):
        """Go on with a log that has grown since the last step.

        Args:
            segments: as for `LogScan`; the segment at `pos` and all after it.
            known_flushed, watermark: as for `LogScan`, of now. Older ones would make a torn tail
                of damage, and zeros of frames.

        Returns:
            False if that is impossible, because the log begins or ends elsewhere than expected.
            Then plan from the start.
        """
        cdef Py_ssize_t i
        cdef int64_t base, size
        if self.tail_fault is not None or self.newer_version:
            return False
        for i in range(len(segments)):
            base, size = segments[i]
            if base <= self.pos <= base + size:
                self.segments = segments
                self.window = LogWindow(self.window.read, HEAD_SPAN_BYTES)
                self.ranges = {}
                self.known_flushed = max(self.known_flushed, known_flushed)
                self.watermark = watermark
                self._enter(i)
                self.done = False
                return True
        return False

    def take_zones(self):
        """Close the current zone, and return the zones since the last call.

        Returns:
            (from, to, topic ids, store times, timestamps, due times, records, timers, delivered,
            frames) of each; times as (lowest, highest) in epoch ms, the lowest above the highest if
            there are none.
        """
        self._close_zone()
        taken = self.zones
        self.zones = []
        return taken

    def _begin_zone(self, int64_t pos):
        memset(&self.zone, 0, sizeof(Zone))
        self.zone.start = self.zone.end = pos
        self.zone.min_stored = self.zone.min_timestamp = self.zone.min_due = INT64_MAX
        self.zone.max_stored = self.zone.max_timestamp = self.zone.max_due = INT64_MIN
        self.zone_topics = set()
        self.last_topic = -1

    cdef int _close_zone(self) except -1:
        cdef Zone* z = &self.zone
        if z.frames:
            self.zones.append((
                z.start, z.end, frozenset(self.zone_topics), (z.min_stored, z.max_stored),
                (z.min_timestamp, z.max_timestamp), (z.min_due, z.max_due), z.records, z.timers,
                z.delivered, z.frames,
            ))
        self._begin_zone(-1)
        return 0

    cdef int _check_at(self, int64_t pos, int64_t base, int64_t end, FrameHeader* h) except -1:
        """Check the head of a frame. All of it is read only if something is wrong with the head."""
        cdef LogWindow window = self.window
        cdef int fault
        if end - pos < FRAME_HEADER_SIZE:
            return LogScan._check_at(self, pos, base, end, h)
        window.hold(pos, FRAME_HEADER_SIZE, base, end)
        fault = check_head(window.data + (pos - window.start), window.end - pos, end - pos, pos, h)
        if fault == FRAME_BAD_SIZE and 0 < h.size <= end - pos and (
            FRAME_HEADER_SIZE < head_size(h) <= end - pos
        ):
            window.hold(pos, head_size(h), base, end)
            fault = check_head(
                window.data + (pos - window.start), window.end - pos, end - pos, pos, h
            )
        if fault == FRAME_OK and not window.unreadable:
            return fault
        return LogScan._check_at(self, pos, base, end, h)

    cdef int _apply(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef Zone* z = &self.zone
        cdef Py_ssize_t damaged = len(self.damage)
        (<HistoryProjections?>self.projections).now_ms = h.store_time_ms
        LogScan._apply(self, h, p)
        if len(self.damage) > damaged:
            self._close_zone()      # the frame does not count: no zone holds it
            return 0
        if z.end != h.position or z.end - z.start >= self.zone_size or z.end == self.base:
            self._close_zone()
            z.start = h.position
        z.end = h.position + h.size
        z.frames += 1
        if h.kind == KIND_BLANK:
            return 0
        z.min_stored = min(z.min_stored, h.store_time_ms)
        z.max_stored = max(z.max_stored, h.store_time_ms)
        if h.topic_id != self.last_topic:
            self.zone_topics.add(h.topic_id)
            self.last_topic = h.topic_id
        if h.record_count:
            z.records += h.record_count
            z.min_timestamp = min(z.min_timestamp, h.min_timestamp)
            z.max_timestamp = max(z.max_timestamp, h.max_timestamp)
        if h.kind == KIND_DELIVER:
            z.delivered += h.timer_count
        if timers_held(h):
            if h.kind == KIND_CARRY:
                z.min_stored = 0    # only the records say when their timers were accepted
            z.timers += timers_held(h)
            z.min_due = min(z.min_due, h.min_due_ms)
            z.max_due = max(z.max_due, h.max_due_ms)
        return 0
