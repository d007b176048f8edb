"""Consistency check: replays a log like a start, and verifies every invariant between its frames.

A frame whose CRCs match can still contradict another frame: it reuses offsets, or it delivers a
timer that is not pending. A start applies such a frame as it is, or stops at an assertion. The
check reports it, and does not apply it if that would break the projections.

Damage explains many contradictions. After the first damaged range, the check reports only what
damage cannot explain.

Layer 0: no I/O.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from _core.log.frames cimport (
    FrameHeader, completes, is_of_partition, timer_entries, timers_held,
)
from _core.timers.id_index cimport NamedTimer
from _core.bytes.layout cimport *
from _core.state.scan cimport LogScan
from _core.bytes.octets cimport load_i32, load_i64, load_u32
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.cancelled_timers cimport CancelledTimers

cdef enum:
    FAULTS_KEPT = 10_000         # kept until they are taken; further ones are only counted


cdef class CheckedProjections(Projections):
    """Projections that know which timers are pending, and report frames that they cannot apply.

    Attributes:
        fault_count: number of faults of whole frames so far.
    """

    def __cinit__(self, *args, **kwargs):
        """Start empty. The arguments are those of `Projections`."""
        self.faults = []
        self.waiting = CancelledTimers()
        # Only the ids of pending timers matter to later frames.
        self.ids.forget_below(INT64_MAX)

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
        cdef int64_t at = h.position + (entry - p)
        if accept_pos != h.position:
            return self.fault(
                at, f"the accept position {h.position} of its own frame", f"{accept_pos}"
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

    cdef int _apply_carried_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Report a frame that carries a timer which is not pending, and do not apply it."""
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef int64_t accept_pos, before_pos = -1
        cdef int32_t i, index, before_index = -1
        cdef bint is_pending
        for i in range(h.timer_count):
            accept_pos = load_i64(entry + TIMER_AT_ACCEPT_POS)
            index = load_i32(entry + TIMER_AT_INDEX)
            if accept_pos < before_pos or (accept_pos == before_pos and index <= before_index):
                return self.fault(
                    h.position + (entry - p), "timers in the order of their ids",
                    f"record {index} of {accept_pos} after record {before_index} of {before_pos}",
                )
            before_pos, before_index = accept_pos, index
            if self._is_known(accept_pos):
                is_pending = self.waiting.holds(accept_pos, index)
            else:
                is_pending = self.waiting.cancel(accept_pos, index)
            if not is_pending:
                return self.fault(
                    h.position + (entry - p), "a timer that is pending",
                    f"it carries record {index} of the frame at {accept_pos}, which is not pending",
                )
            entry += TIMER_ENTRY_SIZE
        return Projections._apply_carried_timers(self, partition, h, p)

    cdef int _cancel_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1:
        cdef NamedTimer known
        cdef bint found = self.ids.find(topic_id, name, size, &known)
        cdef int cancelled = Projections._cancel_pending(self, topic_id, name, size, now_ms)
        if cancelled and found:
            self.waiting._discard(known.position, known.record_index)
        return cancelled

    cdef int _apply_completed(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        """Report a frame that completes a timer which is not pending, and do not apply it."""
        cdef int64_t pending = self.due.pending_of(partition.handle)
        cdef int64_t accept_pos
        cdef int32_t i, index
        for i in range(h.timer_count):
            accept_pos = load_i64(completed_entry(p, i) + COMPLETED_AT_ACCEPT_POS)
            index = load_i32(completed_entry(p, i) + COMPLETED_AT_INDEX)
            if self._is_gone(accept_pos, index):
                continue
            if pending > 0 and self.waiting._discard(accept_pos, index):
                pending -= 1
                continue
            verb = "delivers" if h.kind == KIND_DELIVER else "cancels"
            return self.fault(
                h.position + (completed_entry(p, i) - p),
                "a timer that is pending in its partition",
                f"it {verb} record {index} of the frame at {accept_pos}, which is not pending",
            )
        return Projections._apply_completed(self, partition, h, p, live)

    cdef int _set_anew(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef int64_t accept_pos = load_i64(entry + TIMER_AT_ACCEPT_POS)
        cdef int32_t index = load_i32(entry + TIMER_AT_INDEX)
        if accept_pos != h.position:
            return self.fault(
                h.position + (entry - p), f"the accept position {h.position} of its own frame",
                f"{accept_pos}",
            )
        if not self.waiting.cancel(accept_pos, index):
            return self.fault(
                h.position + (entry - p) + TIMER_AT_INDEX, "one timer for each record",
                f"a second one of record {index}",
            )
        return Projections._set_anew(self, partition, h, p, entry)


cdef class LogCheck(LogScan):
    """One pass over the log that reports contradictions between frames.

    Attributes:
        keeps_positions: whether to record the positions of frames for `take_positions`.
    """

    def __cinit__(self, CheckedProjections projections not None, *args, **kwargs):
        """Start at the first segment. The arguments are those of `LogScan`."""
        self.checked = projections
        self.declared = set()
        self.positions = []
        self.declared_base = -1
        self.last_epoch = -1

    def take_faults(self):
        """Return the faults since the last call: (log position, expected, found) of each."""
        found = self.checked.faults
        self.checked.faults = []
        return found

    def take_positions(self):
        """Return the log positions of the frames since the last call, if they are recorded."""
        found = self.positions
        self.positions = []
        return found

    cdef bint _has_damage_here(self):
        """Whether the current segment is damaged before this position."""
        return bool(self.damage) and self.damage[len(self.damage) - 1][1] > self.base

    cdef int _apply(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef Topic topic
        if self.keeps_positions:
            self.positions.append(h.position)
        if self.declared_base != self.base:
            self.declared_base = self.base
            self.declared.clear()
        self._check_order(h)
        if h.kind == KIND_TOPIC:
            self.declared.add(h.topic_id)
        if is_of_partition(h):
            if h.topic_id not in self.declared and not self._has_damage_here():
                self.checked.fault(
                    h.position + AT_TOPIC_ID,
                    "a topic frame of its topic earlier in the segment",
                    f"none of topic id {h.topic_id}",
                )
            topic = <Topic>self.projections.topics_by_id.get(h.topic_id)
            if topic is not None and 0 <= h.partition < len(topic.partitions):
                if not self._check_records(<Partition>topic.partitions[h.partition], h, p):
                    return 0
        return LogScan._apply(self, h, p)

    cdef int _check_order(self, const FrameHeader* h) except -1:
        """Check the fields that never decrease along the log."""
        if h.flushed < self.last_mark:
            self.checked.fault(
                h.position + AT_FLUSHED,
                f"a flushed mark of at least {self.last_mark}, as before it", f"{h.flushed}",
            )
        self.last_mark = max(self.last_mark, h.flushed)
        if h.kind == KIND_BLANK or h.kind == KIND_HEAD:
            return 0  # the epoch frame may come next
        if self.last_epoch >= 0 and h.epoch > self.last_epoch and h.kind != KIND_EPOCH:
            if not self.damage:
                self.checked.fault(
                    h.position + AT_EPOCH,
                    f"epoch {self.last_epoch}, or an epoch frame before a later one",
                    f"epoch {h.epoch}",
                )
        self.last_epoch = h.epoch
        return 0

    cdef bint _check_records(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Check a frame with records; False if the projections cannot apply it."""
        cdef int64_t gap = h.base_offset - partition.next_offset
        if h.kind == KIND_CARRIED_RECORDS:
            return self._check_carried(partition, h, p)
        if timers_held(h):
            self._check_held(h, p)
            self._check_deliver_times(h, p)
            self._check_targets(h, p)
        if h.visible_size == 0 and h.record_count == 0 and h.kind != KIND_DELIVER:
            return True
        place = f"of {partition.topic.name}/{partition.index}"
        if h.visible_size == 0 or h.record_count > <int64_t>h.last_delta + 1 or (
            h.record_count == 0 and h.kind == KIND_DELIVER
        ):
            self.checked.fault(
                h.position + AT_RECORD_COUNT, "a batch of visible records",
                f"{h.record_count} records in {h.visible_size} bytes",
            )
            return False
        # The number of records lost to damage is unknown, so a gap after damage is not a fault.
        if gap < 0 or (gap and not self.damage):
            self.checked.fault(
                h.position + AT_BASE_OFFSET,
                f"the next offset {place}, {partition.next_offset}", f"base offset {h.base_offset}",
            )
            if gap < 0:
                return False
        if h.running_max < max(partition.running_max, h.max_timestamp):
            self.checked.fault(
                h.position + AT_RUNNING_MAX,
                f"the highest timestamp {place}, "
                f"{max(partition.running_max, h.max_timestamp)} or more",
                f"{h.running_max}",
            )
        if load_i32(p + FRAME_HEADER_SIZE + h.tables_size + BATCH_AT_LEADER_EPOCH) != h.epoch:
            self.checked.fault(
                h.position + FRAME_HEADER_SIZE + h.tables_size + BATCH_AT_LEADER_EPOCH,
                f"the epoch {h.epoch} of its frame as leader epoch of the batch", "another one",
            )
        return True

    cdef bint _check_carried(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Check a frame of carried records; False if its offsets were never assigned."""
        cdef int64_t end = h.base_offset + h.last_delta + 1
        cdef const uint8_t* batch = p + FRAME_HEADER_SIZE + h.tables_size
        place = f"of {partition.topic.name}/{partition.index}"
        if h.record_count > end - h.base_offset:
            self.checked.fault(
                h.position + AT_RECORD_COUNT, f"at most {end - h.base_offset} records",
                f"{h.record_count}",
            )
        # Damage may have taken the frames that assigned them.
        if end > partition.next_offset and not self.damage:
            self.checked.fault(
                h.position + AT_BASE_OFFSET,
                f"offsets below the next one {place}, {partition.next_offset}",
                f"offsets up to {end - 1}",
            )
            return False
        if h.running_max > partition.running_max and not self.damage:
            self.checked.fault(
                h.position + AT_RUNNING_MAX,
                f"at most the highest timestamp {place}, {partition.running_max}",
                f"{h.running_max}",
            )
        if load_i32(batch + BATCH_AT_LEADER_EPOCH) > h.epoch:
            self.checked.fault(
                h.position + FRAME_HEADER_SIZE + h.tables_size + BATCH_AT_LEADER_EPOCH,
                f"a leader epoch of at most {h.epoch}, that of its frame", "a later one",
            )
        return True

    cdef int _check_targets(self, const FrameHeader* h, const uint8_t* p) except -1:
        """Check that the topics that timers point to are declared, as that of the frame."""
        cdef const uint8_t* entry = timer_entries(h, p)
        cdef int32_t i, topic_id
        for i in range(timers_held(h)):
            topic_id = load_i32(entry + TIMER_AT_TARGET_TOPIC)
            if topic_id and topic_id not in self.declared and not self._has_damage_here():
                self.checked.fault(
                    h.position + (entry - p) + TIMER_AT_TARGET_TOPIC,
                    "a topic frame of the target topic earlier in the segment",
                    f"none of topic id {topic_id}",
                )
            entry += TIMER_ENTRY_SIZE
        return 0

    cdef int _check_held(self, const FrameHeader* h, const uint8_t* p) except -1:
        """Check that the held batch has the records of the timer table, one after the other."""
        cdef const uint8_t* entry = timer_entries(h, p)
        cdef int64_t held = FRAME_HEADER_SIZE + <int64_t>h.tables_size + h.visible_size
        cdef int64_t at = held + BATCH_HEADER_SIZE
        cdef int32_t i
        if load_i32(p + held + BATCH_AT_COUNT) != timers_held(h):
            return self.checked.fault(
                h.position + held + BATCH_AT_COUNT,
                f"a record for each of {timers_held(h)} timers",
                f"{load_i32(p + held + BATCH_AT_COUNT)} records",
            )
        for i in range(timers_held(h)):
            if load_u32(entry + TIMER_AT_RECORD_POS) != at:
                return self.checked.fault(
                    h.position + (entry - p) + TIMER_AT_RECORD_POS,
                    f"the record of timer {i} at {at} of the frame",
                    f"{load_u32(entry + TIMER_AT_RECORD_POS)}",
                )
            at += load_u32(entry + TIMER_AT_RECORD_SIZE)
            entry += TIMER_ENTRY_SIZE
        if at != held + h.held_size:
            return self.checked.fault(
                h.position + AT_HELD_SIZE, f"held records up to {at} of the frame",
                f"{held + h.held_size}",
            )
        return 0

    cdef int _check_deliver_times(self, const FrameHeader* h, const uint8_t* p) except -1:
        """Check that the header's range of due times, by which readers skip frames, is that of its
        table.
        """
        cdef const uint8_t* entry = timer_entries(h, p)
        cdef int64_t low = INT64_MAX, high = -1, due
        cdef int32_t i
        for i in range(timers_held(h)):
            due = load_i64(entry + TIMER_AT_DUE)
            low = min(low, due)
            high = max(high, due)
            entry += TIMER_ENTRY_SIZE
        if high < 0:
            low = -1
        if completes(h):
            # The range is also that of the timers that it completes.
            low, high = min(low, h.min_due_ms), max(high, h.max_due_ms)
        if low != h.min_due_ms or high != h.max_due_ms:
            self.checked.fault(
                h.position + AT_MIN_DUE_TIME,
                f"the range of its due times, {low} to {high}",
                f"{h.min_due_ms} to {h.max_due_ms}",
            )
        return 0
