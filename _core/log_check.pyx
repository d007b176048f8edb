"""Replays a log as a start does, and tells more: what is true of every frame that latermq writes.

A frame whose CRCs are right can still contradict another: its offsets were used before, or it
delivers a timer that is not pending. A start takes such a frame for what it says, or stops at an
assertion; here each is named, and what would break the projections is not applied.

What was lost to damage explains much: from the first damaged part on, only what damage cannot
explain is a fault.

Layer 0: no I/O.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from _core.frames cimport FrameHeader
from _core.id_index cimport NamedTimer
from _core.layout cimport *
from _core.log_scan cimport LogScan
from _core.octets cimport load_i32, load_i64
from _core.partition cimport Partition, Topic
from _core.projections cimport Projections
from _core.withdrawn_timers cimport WithdrawnTimers

cdef enum:
    FAULTS_KEPT = 10_000         # until they are taken; more are only counted


cdef inline const uint8_t* settled_entry(const uint8_t* frame, int32_t i) noexcept nogil:
    return frame + FRAME_HEADER_SIZE + <int64_t>i * SETTLED_ENTRY_SIZE


cdef class CheckedProjections(Projections):
    """Projections that know which timers are pending, and report what they cannot apply.

    Attributes:
        fault_count: faults of whole frames so far.
    """

    def __cinit__(self, *args, **kwargs):
        """Begin empty; the arguments are those of `Projections`."""
        self.faults = []
        self.waiting = WithdrawnTimers()

    def is_pending(self, int64_t accept_pos, int32_t index):
        """Whether the timer of that id is pending, if its topic was not deleted."""
        return self.waiting.holds(accept_pos, index)

    cdef int fault(self, int64_t pos, str expected, str found) except -1:
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append((pos, expected, found))
        return 0

    cdef int _apply_timer(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef int64_t accept_pos = load_i64(entry + TIMER_AT_ACCEPT_POS)
        cdef int64_t level_offset = load_i64(entry + TIMER_AT_LEVEL_OFFSET)
        cdef int32_t index = load_i32(entry + TIMER_AT_INDEX)
        cdef int64_t at = h.phys_offset + (entry - p)
        if accept_pos != h.phys_offset:
            return self.fault(
                at, f"the accept position {h.phys_offset} of its own frame", f"{accept_pos}"
            )
        if level_offset < -1:
            return self.fault(
                at + TIMER_AT_LEVEL_OFFSET, "a level offset, or -1", f"{level_offset}"
            )
        if not self.waiting.cancel(accept_pos, index):
            return self.fault(
                at + TIMER_AT_INDEX, "one timer for each record", f"a second one of record {index}"
            )
        return Projections._apply_timer(self, partition, h, p, entry)

    cdef int _withdraw_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1:
        cdef NamedTimer known
        cdef bint found = self.ids.find(topic_id, name, size, now_ms, &known)
        cdef int withdrawn = Projections._withdraw_pending(self, topic_id, name, size, now_ms)
        if withdrawn and found:
            self.waiting._discard(known.phys_offset, known.record_index)
        return withdrawn

    cdef int _apply_settled(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        """A frame that settles what is not pending is a fault, and settles nothing here."""
        cdef int64_t pending = self.due.pending_of(partition.handle)
        cdef int64_t accept_pos
        cdef int32_t i, index
        for i in range(h.timer_count):
            accept_pos = load_i64(settled_entry(p, i) + SETTLED_AT_ACCEPT_POS)
            index = load_i32(settled_entry(p, i) + SETTLED_AT_INDEX)
            if self._is_gone(accept_pos, index):
                continue
            if pending > 0 and self.waiting._discard(accept_pos, index):
                pending -= 1
                continue
            verb = "delivers" if h.kind == KIND_DELIVER else "cancels"
            return self.fault(
                h.phys_offset + (settled_entry(p, i) - p),
                "a timer that is pending in its partition",
                f"it {verb} record {index} of the frame at {accept_pos}, which is not",
            )
        return Projections._apply_settled(self, partition, h, p, live)


cdef class LogCheck(LogScan):
    """One pass over the log that tells what contradicts it; see `LogScan` for its arguments.

    Attributes:
        keeps_positions: remember where frames are until `take_positions`.
    """

    def __cinit__(self, CheckedProjections projections not None, *args, **kwargs):
        """Begin at the first segment; the arguments are those of `LogScan`."""
        self.checked = projections
        self.declared = set()
        self.positions = []
        self.declared_base = -1
        self.last_epoch = -1

    def take_faults(self):
        """What was found since the last call: (log position, expected, found) of each."""
        found = self.checked.faults
        self.checked.faults = []
        return found

    def take_positions(self):
        """Log positions of the frames since the last call, if they are kept."""
        found = self.positions
        self.positions = []
        return found

    cdef bint _has_damage_here(self):
        """Something before this place in the same segment is damaged."""
        return bool(self.damage) and self.damage[len(self.damage) - 1][1] > self.base

    cdef int _apply(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef Topic topic
        if self.keeps_positions:
            self.positions.append(h.phys_offset)
        if self.declared_base != self.base:
            self.declared_base = self.base
            self.declared.clear()
        self._check_order(h)
        if h.kind == KIND_TOPIC:
            self.declared.add(h.topic_id)
        if h.kind == KIND_ACCEPT or h.kind == KIND_DELIVER or h.kind == KIND_CANCEL:
            if h.topic_id not in self.declared and not self._has_damage_here():
                self.checked.fault(
                    h.phys_offset + AT_TOPIC_ID,
                    "the topic frame of its topic before it in the segment",
                    f"none of topic id {h.topic_id}",
                )
            topic = <Topic>self.projections.topics_by_id.get(h.topic_id)
            if topic is not None and 0 <= h.partition < len(topic.partitions):
                if not self._check_records(<Partition>topic.partitions[h.partition], h, p):
                    return 0
        return LogScan._apply(self, h, p)

    cdef int _check_order(self, const FrameHeader* h) except -1:
        """What only moves forward along the log."""
        if h.flushed < self.last_mark:
            self.checked.fault(
                h.phys_offset + AT_FLUSHED,
                f"a flushed mark of {self.last_mark} or more, as before it", f"{h.flushed}",
            )
        self.last_mark = max(self.last_mark, h.flushed)
        if self.last_epoch >= 0 and h.epoch > self.last_epoch and h.kind != KIND_EPOCH:
            if not self.damage:
                self.checked.fault(
                    h.phys_offset + AT_EPOCH,
                    f"epoch {self.last_epoch}, or an epoch frame before a later one",
                    f"epoch {h.epoch}",
                )
        self.last_epoch = h.epoch
        return 0

    cdef bint _check_records(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Whether the projections can take the frame up."""
        cdef int64_t gap = h.base_offset - partition.next_offset
        if h.kind == KIND_ACCEPT and h.timer_count:
            self._check_deliver_times(h, p)
        if h.visible_size == 0 and h.record_count == 0 and h.kind != KIND_DELIVER:
            return True
        place = f"of {partition.topic.name}/{partition.index}"
        if h.visible_size == 0 or h.record_count > <int64_t>h.last_delta + 1 or (
            h.record_count == 0 and h.kind == KIND_DELIVER
        ):
            self.checked.fault(
                h.phys_offset + AT_RECORD_COUNT, "a batch of visible records",
                f"{h.record_count} records in {h.visible_size} bytes",
            )
            return False
        # Of what damage took nobody knows how many records it were.
        if gap < 0 or (gap and not self.damage):
            self.checked.fault(
                h.phys_offset + AT_BASE_OFFSET,
                f"the next offset {place}, {partition.next_offset}", f"base offset {h.base_offset}",
            )
            if gap < 0:
                return False
        if h.running_max < max(partition.running_max, h.max_timestamp):
            self.checked.fault(
                h.phys_offset + AT_RUNNING_MAX,
                f"the highest timestamp {place}, "
                f"{max(partition.running_max, h.max_timestamp)} or more",
                f"{h.running_max}",
            )
        if load_i32(p + FRAME_HEADER_SIZE + h.tables_size + BATCH_AT_LEADER_EPOCH) != h.epoch:
            self.checked.fault(
                h.phys_offset + FRAME_HEADER_SIZE + h.tables_size + BATCH_AT_LEADER_EPOCH,
                f"the epoch {h.epoch} of its frame as leader epoch of the batch", "another one",
            )
        return True

    cdef int _check_deliver_times(self, const FrameHeader* h, const uint8_t* p) except -1:
        """The header's range of due times, by which a reader skips frames, is that of its table."""
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef int64_t low = INT64_MAX, high = -1, due
        cdef int32_t i
        for i in range(h.timer_count):
            due = load_i64(entry + TIMER_AT_DUE)
            low = min(low, due)
            high = max(high, due)
            entry += TIMER_ENTRY_SIZE
        if high < 0:
            low = -1
        if low != h.min_deliver_ms or high != h.max_deliver_ms:
            self.checked.fault(
                h.phys_offset + AT_MIN_DELIVER_TIME,
                f"the range of its due times, {low} to {high}",
                f"{h.min_deliver_ms} to {h.max_deliver_ms}",
            )
        return 0
