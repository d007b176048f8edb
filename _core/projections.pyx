"""Everything that the log means: topics, offsets, producers, timers, ids.

One function applies a frame, `apply`, both to a frame that was appended a moment ago and to one
that is replayed from the disk at start, so that the two cannot differ. It reads the frame's header
and tables, never its records.

Layer 0: no I/O, no clock: the times are those in the frames.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from _core.buffer cimport Buf, release, reserve
from _core.delay_levels cimport Level
from _core.due_queue cimport DueQueue, Timer
from _core.frames cimport FrameHeader, is_run
from _core.id_index cimport (
    CANCELLED, DELIVERED, PENDING, STATE_BITS, IdIndex, NamedTimer, NameSlot,
)
from _core.layout cimport *
from _core.octets cimport load_i32, load_i64, load_u32, store_u32, store_u64
from _core.partition cimport Partition, Sequenced, Topic
from _core.unit_blocks cimport UnitBlocks

UNIT_BLOCKS_MAX_BYTES = 16 << 20  # units of some 800,000 older records that consumers read

cdef enum:
    PARTITION_ROW_SIZE = 40

STATES = {PENDING: "pending", CANCELLED: "cancelled", DELIVERED: "delivered"}


cdef class Projections:
    """The state that follows from the log.

    Attributes:
        due: pending timers, by due time and arrival.
        ids: users' timer ids.
        topics_by_name, topics_by_id, topics_by_uuid: live topics; the last one by 16 bytes.
        blocks: ConsumeQueue units that were read from files.
        partitions: every partition by its handle, an in-process number that timers carry; None when
            deleted.
        accepted_records, timers_accepted, ...: totals since the start of the replay.
        id_key: what keys the hash of the id index.
        settled_twice: timers that a frame settled and that were settled before: damage healed.
        applied_pos: log position of the control frame that is replayed now.
        producer_id_seen: highest producer id of any batch, -1 for none.
        deltas: is told each change of timers and ids for the next checkpoint; None: nobody asks.
    """

    def __cinit__(self, *, int level_count, bytes id_key not None, int64_t fired_id_memory_ms):
        """Begin empty.

        Args:
            level_count: number of delay levels.
            id_key: 16 random bytes that key the hash of the id index.
            fired_id_memory_ms: how long a fired or cancelled id is remembered, ms.
        """
        self.due = DueQueue(level_count)
        self.ids = IdIndex(id_key)
        self.id_key = id_key
        self.fired_id_memory_ms = fired_id_memory_ms
        self.topics_by_name, self.topics_by_id, self.topics_by_uuid = {}, {}, {}
        self.partitions = []
        self.lost_ranges, self.dropped = [], set()
        self.producer_id_seen = -1
        self.blocks = UnitBlocks(size_max=UNIT_BLOCKS_MAX_BYTES)

    def __dealloc__(self):
        free(self.marks)

    # Topics

    def add_topic(self, Topic topic not None, list offsets not None):
        """Add a topic, or the partitions that a known one lacks; start offsets only rise.

        Args:
            topic: the topic; it becomes the one with its name and id.
            offsets: (start offset, next offset, highest timestamp) of each partition, by index.
        """
        cdef Partition partition
        self.topics_by_name[topic.name_bytes] = topic
        self.topics_by_id[topic.topic_id] = topic
        self.topics_by_uuid[topic.uuid.bytes] = topic
        for index, (start, following, running_max) in enumerate(offsets):
            if index < len(topic.partitions):
                partition = <Partition>topic.partitions[index]
                partition.raise_start(start)
                partition.confirm(self.applied_pos, following, running_max)
                continue
            # What this frame is the first to tell of has no records in the log before it.
            partition = Partition(topic, index, len(self.partitions), following, following)
            partition.blocks = self.blocks
            partition.running_max = running_max
            partition.confirmed_pos = self.applied_pos
            topic.partitions.append(partition)
            self.partitions.append(partition)

    def remove_topic(self, Topic topic not None):
        """Forget a topic: its timers never fire, its ids are unknown, its offsets are gone."""
        cdef Partition partition
        topic.mark_deleted()
        for partition in topic.partitions:
            self.due.forget_partition(partition.handle)
            self.partitions[partition.handle] = None
        self.ids.forget_topic(topic.topic_id)
        del self.topics_by_name[topic.name_bytes]
        del self.topics_by_id[topic.topic_id]
        del self.topics_by_uuid[topic.uuid.bytes]

    # Checkpoints

    def partition_rows(self):
        """What a control file says of all partitions: docs/FORMAT.md, partition."""
        cdef Topic topic
        cdef Partition partition
        cdef uint8_t* p
        cdef Buf out
        out.data = NULL
        out.size = out.capacity = 0
        try:
            for topic in self.topics_by_id.values():
                for partition in topic.partitions:
                    p = reserve(&out, PARTITION_ROW_SIZE)
                    store_u32(p, topic.topic_id)
                    store_u32(p + 4, partition.index)
                    store_u64(p + 8, partition.start_offset)
                    store_u64(p + 16, partition.next_offset)
                    store_u64(p + 24, partition.running_max)
                    store_u64(p + 32, partition.log_bytes)
                    out.size += PARTITION_ROW_SIZE
            return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
        finally:
            release(&out)

    def begin_capture(self):
        """Begin to collect the producers of all partitions as they are now, in `captured`."""
        self.capture_serial += 1
        self.captured = []
        self.uncaptured = [
            partition for partition in self.partitions
            if partition is not None and (<Partition>partition).producers
        ]

    def capture(self, Partition partition not None):
        """Its producers are about to change: take them as they were."""
        if partition.captured_in == self.capture_serial:
            return
        partition.captured_in = self.capture_serial
        if partition.producers and self.uncaptured is not None:
            self.captured.append((partition.topic.topic_id, partition.encode_producers()))

    def capture_some(self, int count):
        """Go on with the next `count` partitions; True when all are done."""
        if self.uncaptured is None:
            return True
        while count and self.uncaptured:
            self.capture(<Partition>self.uncaptured.pop())
            count -= 1
        if self.uncaptured:
            return False
        self.uncaptured = None
        return True

    def take_captured(self):
        """What was collected, as (topic id, sequences of one partition); forgotten here."""
        captured, self.captured, self.uncaptured = self.captured, [], None
        return captured

    @property
    def totals(self):
        """The totals, in the order in which `restore_totals` takes them."""
        return (
            self.accepted_records, self.accepted_frames, self.timers_accepted,
            self.timers_cancelled, self.timers_replaced, self.timers_delivered,
        )

    def restore_totals(self, totals not None):
        """Go on counting from there."""
        (
            self.accepted_records, self.accepted_frames, self.timers_accepted,
            self.timers_cancelled, self.timers_replaced, self.timers_delivered,
        ) = totals

    # What a checkpoint tells

    def set_id_key(self, bytes key not None):
        """Take the key that ids were hashed with when they were saved.

        Raises:
            ValueError: there are ids already.
        """
        if self.ids.count:
            raise ValueError("ids were hashed already")
        self.ids = IdIndex(key)
        self.id_key = key

    def level_states(self):
        """Of each level from 1 on: next offset, and due, position and index of the last timer.

        It is what push decides by; due is -1 before the first timer.
        """
        cdef Level* level
        cdef int i
        states = []
        for i in range(1, self.due.level_count + 1):
            level = &self.due.levels.levels[i]
            states.append((
                level.next_offset, level.last.due_ms, level.last.phys_offset,
                level.last.record_index,
            ))
        return tuple(states)

    def restore_level_states(self, states not None):
        """Go on with the levels as `level_states` told them, after the timers were pushed.

        Raises:
            ValueError: there is another number of levels.
        """
        cdef int64_t next_offset, due_ms, pos
        cdef int32_t index
        cdef int i
        if len(states) != self.due.level_count:
            raise ValueError(f"{len(states)} levels; there are {self.due.level_count}")
        for i, (next_offset, due_ms, pos, index) in enumerate(states, start=1):
            self.due.levels.use_up(i, next_offset)
            self.due.levels.levels[i].last = Timer(due_ms, pos, index, 0)

    cdef int _note_id(self) except -1:
        """The id that was put or settled a moment ago is another one for the next checkpoint."""
        cdef const NameSlot* slot = self.ids.touched
        cdef Partition partition
        if self.deltas is not None:
            partition = <Partition>self.partitions[slot.partition_state >> STATE_BITS]
            self.deltas.name(slot, partition.index)
        return 0

    # Visibility

    cdef int _add_mark(self, int64_t end_pos, int64_t next_offset, int32_t handle) except -1:
        cdef VisibleMark* grown
        cdef Py_ssize_t i, capacity
        if self.mark_count == self.mark_capacity:
            capacity = self.mark_capacity * 2 if self.mark_capacity else 256
            grown = <VisibleMark*>malloc(capacity * sizeof(VisibleMark))
            if grown == NULL:
                raise MemoryError("no memory for the list of records that wait to become visible")
            for i in range(self.mark_count):
                grown[i] = self.marks[(self.mark_head + i) % self.mark_capacity]
            free(self.marks)
            self.marks = grown
            self.mark_head = 0
            self.mark_capacity = capacity
        i = (self.mark_head + self.mark_count) % self.mark_capacity
        self.marks[i] = VisibleMark(end_pos, next_offset, handle)
        self.mark_count += 1
        return 0

    def advance_visible(self, int64_t pos):
        """The log is visible up to `pos`: let the records below it be fetched.

        Returns:
            The partitions that have more to fetch and somebody waiting for it.
        """
        cdef Partition partition
        cdef VisibleMark* mark
        woken = {}  # a dict, for its order: many partitions may wake at once
        while self.mark_count:
            mark = &self.marks[self.mark_head]
            if mark.end_pos > pos:
                break
            partition = <Partition>self.partitions[mark.handle]
            if partition is not None:
                # Records that were deleted are behind it already.
                partition.visible_offset = max(partition.visible_offset, mark.next_offset)
                if partition.waiters:
                    woken[partition] = True
            self.mark_head = (self.mark_head + 1) % self.mark_capacity
            self.mark_count -= 1
        return list(woken)

    # Frames

    def set_lost_ranges(self, list ranges not None):
        """Damaged parts of the log, as (from, to): timers accepted there are not known."""
        self.lost_ranges = ranges

    cdef bint _is_lost(self, int64_t pos):
        for start, end in self.lost_ranges:
            if start <= pos < end:
                return True
        return False

    cdef bint _is_gone(self, int64_t accept_pos, int32_t index):
        """Damage took the timer out of the due queue, or kept it from getting there."""
        if self.lost_ranges and self._is_lost(accept_pos):
            return True
        return bool(self.dropped) and (accept_pos, index) in self.dropped

    cdef int apply(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        partition.log_bytes += h.size
        if h.kind == KIND_ACCEPT:
            self.accepted_frames += 1
            self.accepted_records += h.record_count
            if h.visible_size:
                self._apply_records(partition, h)
            if h.producer_id >= 0:
                self._apply_producer(partition, h)
            if h.timer_count or h.cancel_count:
                self._apply_timers(partition, h, p)
        elif h.kind == KIND_DELIVER:
            self._apply_records(partition, h)
            self._apply_settled(partition, h, p, live)
        else:
            assert h.kind == KIND_CANCEL
            self._apply_settled(partition, h, p, live)
        return 0

    cdef int _apply_records(self, Partition partition, const FrameHeader* h) except -1:
        cdef int64_t end = h.base_offset + h.last_delta + 1
        # After damage the frame's own offset is ahead: the offsets between stay unused.
        assert h.base_offset >= partition.next_offset
        if h.base_offset > partition.next_offset:
            partition.add_run(h.base_offset, h.phys_offset, -h.size, 0)
        if is_run(h):
            partition.add_run(end, h.phys_offset, h.size, h.tags)
        else:
            partition.add_units(end - h.base_offset, h.phys_offset, h.size, h.tags)
        partition.running_max = h.running_max
        partition.confirmed_pos = h.phys_offset
        self._add_mark(h.phys_offset + h.size, partition.next_offset, partition.handle)
        return 0

    cdef int _apply_producer(self, Partition partition, const FrameHeader* h) except -1:
        cdef Sequenced batch
        cdef int64_t received = ((<int64_t>h.last_sequence - h.first_sequence) & 0x7FFFFFFF) + 1
        if partition.captured_in != self.capture_serial:
            self.capture(partition)
        self.producer_id_seen = max(self.producer_id_seen, h.producer_id)
        batch.first = h.first_sequence
        batch.last = h.last_sequence
        batch.answer = h.base_offset if h.record_count == received else -1
        batch.end_pos = h.phys_offset + h.size
        batch.store_time_ms = h.store_time_ms
        return partition.note_sequence(h.producer_id, h.producer_epoch, &batch, h.store_time_ms)

    cdef int _apply_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Schedules, replaces and cancels of a batch, in the order of its records."""
        cdef const uint8_t* timer = p + FRAME_HEADER_SIZE
        cdef const uint8_t* cancel = timer + <int64_t>h.timer_count * TIMER_ENTRY_SIZE
        cdef int32_t timers = h.timer_count, cancels = h.cancel_count
        while timers or cancels:
            if timers and (
                not cancels or load_i32(timer + TIMER_AT_INDEX) < load_i32(cancel + CANCEL_AT_INDEX)
            ):
                self._apply_timer(partition, h, p, timer)
                timer += TIMER_ENTRY_SIZE
                timers -= 1
            else:
                self._apply_withdrawal(partition, h, p, cancel)
                cancel += CANCEL_ENTRY_SIZE
                cancels -= 1
        return 0

    cdef int _withdraw_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1:
        """Cancel the pending timer of that id; 1 if there was one."""
        cdef NamedTimer known
        if not self.ids.find(topic_id, name, size, now_ms, &known) or known.state != PENDING:
            return 0
        if self.deltas is not None:
            self.deltas.settle(known.phys_offset, known.record_index)
        if self.dropped and (known.phys_offset, known.record_index) in self.dropped:
            return 1  # no longer in the queue; a start that reads this finds it there
        self.due.cancel(known.phys_offset, known.record_index, known.partition)
        return 1

    cdef int _apply_timer(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef Timer timer
        cdef NamedTimer named
        cdef int size = entry[TIMER_AT_ID_SIZE]
        cdef int level = entry[TIMER_AT_LEVEL]
        cdef const uint8_t* name = p + load_u32(entry + TIMER_AT_ID_POS)
        timer.due_ms = load_i64(entry + TIMER_AT_DUE)
        timer.phys_offset = load_i64(entry + TIMER_AT_ACCEPT_POS)
        timer.record_index = load_i32(entry + TIMER_AT_INDEX)
        timer.partition = partition.handle
        if size:
            if self._withdraw_pending(h.topic_id, name, size, h.store_time_ms):
                self.timers_replaced += 1
            named.phys_offset = timer.phys_offset
            named.record_index = timer.record_index
            named.partition = timer.partition
            named.due_ms = timer.due_ms
            named.forget_at_ms = 0
            named.state = PENDING
            self.ids.put(h.topic_id, name, size, &named)
            self._note_id()
        if level > self.due.level_count:
            level = 0  # written when more levels were configured
        self.due.push(&timer, level, load_i64(entry + TIMER_AT_LEVEL_OFFSET))
        if self.deltas is not None:
            self.deltas.push(
                &timer, h.topic_id, partition.index, entry[TIMER_AT_LEVEL],
                load_i64(entry + TIMER_AT_LEVEL_OFFSET),
            )
        self.timers_accepted += 1
        return 0

    cdef int _apply_withdrawal(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef NamedTimer known
        cdef int size = entry[CANCEL_AT_ID_SIZE]
        cdef const uint8_t* name = p + load_u32(entry + CANCEL_AT_ID_POS)
        cdef bint pending = self._withdraw_pending(h.topic_id, name, size, h.store_time_ms)
        if entry[CANCEL_AT_KIND] == WITHDRAW_CANCEL:
            if not pending:
                return 0  # too late, or it names nothing: no error
            self.ids.find(h.topic_id, name, size, h.store_time_ms, &known)
            known.state = CANCELLED
            self.timers_cancelled += 1
        else:
            memset(&known, 0, sizeof(known))
            known.phys_offset = h.phys_offset
            known.record_index = load_i32(entry + CANCEL_AT_INDEX)
            known.partition = partition.handle
            known.due_ms = load_i64(entry + CANCEL_AT_DUE)
            known.state = DELIVERED
            self.timers_replaced += pending
        known.forget_at_ms = h.store_time_ms + self.fired_id_memory_ms
        self.ids.put(h.topic_id, name, size, &known)
        return self._note_id()

    cdef int _apply_settled(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        """Timers that a deliver or cancel frame settles: they are no longer pending."""
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef const uint8_t* name = entry + <int64_t>h.timer_count * SETTLED_ENTRY_SIZE
        cdef int state = DELIVERED if h.kind == KIND_DELIVER else CANCELLED
        cdef int64_t accept_pos
        cdef int32_t i, index
        cdef int size
        for i in range(h.timer_count):
            accept_pos = load_i64(entry + SETTLED_AT_ACCEPT_POS)
            index = load_i32(entry + SETTLED_AT_INDEX)
            size = entry[SETTLED_AT_ID_SIZE]
            # What is delivered live was popped just now; what is cancelled waits in the queue.
            if (not live or state == CANCELLED) and not self._is_gone(accept_pos, index):
                if self.due.pending_of(partition.handle) > 0:
                    self.due.cancel(accept_pos, index, partition.handle)
                else:
                    self.settled_twice += 1
            if self.deltas is not None:
                self.deltas.settle(accept_pos, index)
            if size and self.ids.settle(
                h.topic_id, name, size, accept_pos, index, state,
                h.store_time_ms + self.fired_id_memory_ms,
            ):
                self._note_id()
            name += size
            entry += SETTLED_ENTRY_SIZE
        if state == DELIVERED:
            self.timers_delivered += h.timer_count
        else:
            self.timers_cancelled += h.timer_count
        return 0

    def timer_state(self, Topic topic not None, bytes user_id not None, int64_t now_ms):
        """What became of the timer with that id.

        Args:
            topic: its topic.
            user_id: 1 to 255 bytes.
            now_ms: epoch ms; ids settled longer than a day ago are forgotten.

        Returns:
            (state, due in epoch ms, partition), or None if the id is unknown. The state is
            "pending", "cancelled" or "delivered".
        """
        cdef NamedTimer known
        cdef Partition partition
        if not self.ids.find(
            topic.topic_id, <const uint8_t*><const char*>user_id, len(user_id), now_ms, &known
        ):
            return None
        partition = <Partition>self.partitions[known.partition]
        if partition is None:
            return None
        return STATES[known.state], known.due_ms, partition.index
