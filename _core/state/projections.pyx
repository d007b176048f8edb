"""Projections: the state that follows from the log - topics, offsets, producers, timers and ids.

    LogWriter: a frame just appended   --+--> apply --> partitions, due queue, id index, memtable
    LogScan: a frame replayed at start --'

One function, `apply`, applies both appended and replayed frames, so that the two cannot differ. It
reads the header and the tables of a frame, never its records.

Layer 0: no I/O, no clock. All times come from the frames.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memset

from _core.timers.due_queue cimport DueQueue, Timer
from _core.log.frames cimport (
    FrameHeader, completed_due, completed_names, has_due, is_run, is_timer_carry, timer_entries,
)
from _core.timers.id_index cimport (
    CANCELLED, DELIVERED, PENDING, IdIndex, NamedTimer, NameSlot, partition_of,
)
from _core.timers.cancelled_timers cimport CancelledTimers
from _core.timers.moved_frames cimport MovedFrames
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64, load_u32
from _core.queue.partition cimport Partition, Topic
from _core.queue.producer_state cimport ProducerTable, Sequenced
from _core.queue.unit_blocks cimport UnitBlocks
from _core.state.level_queues cimport LevelQueues
from _core.state.producer_capture cimport ProducerCapture
from _core.state.visible_marks cimport VisibleMark, VisibleMarks

_UNIT_BLOCKS_MAX_BYTES = 16 << 20  # units of about 800,000 older records that consumers read


cdef class Projections:
    """The state that follows from the log.

    Attributes:
        due: pending timers, by due time and arrival.
        ids: user ids of timers.
        levels: the delay levels: how many timers of each were accepted, and are pending.
        moved: where carried timers are now.
        topics_by_name, topics_by_id, topics_by_uuid: live topics; the last by the 16 bytes of the
            UUID.
        blocks: ConsumeQueue units that were read from files.
        partitions: every partition by its handle, an in-process number that timers refer to; None
            if it is deleted.
        accepted_records, timers_accepted, ...: totals since the start of the replay.
        held_bytes: total of what accepted timers took in the log.
        id_key: key of the hash of the id index.
        completed_twice: number of timers that a frame completed although they were completed
            before. It happens when damaged bytes have become readable again.
        applied_pos: log position of the control frame that is being replayed.
        first_known_pos: timers accepted below this log position are unknown unless they were
            carried: their frames were freed before the replay began.
        producers: the idempotent producers of all partitions, by their last batches.
        captured: these as they were when a checkpoint began.
        producer_id_seen: highest producer id of any batch, -1 for none.
        memtable: records each change of timers and ids for the next checkpoint; None if changes are
            not recorded.
        id_source: its `recall(key)` puts what the runs say of an id into the index.
    """

    def __cinit__(self, *, bytes id_key not None):
        """Start empty.

        Args:
            id_key: 16 random bytes, the key of the hash of the id index.
        """
        self.due = DueQueue()
        self.ids = IdIndex(id_key)
        self.levels = LevelQueues()
        self.moved = MovedFrames()
        self.marks = VisibleMarks()
        self.producers = ProducerTable()
        self.captured = ProducerCapture()
        self.id_key = id_key
        self.topics_by_name, self.topics_by_id, self.topics_by_uuid = {}, {}, {}
        self.partitions = []
        self.lost_ranges, self.dropped = [], set()
        self.producer_id_seen = -1
        self.blocks = UnitBlocks(size_max=_UNIT_BLOCKS_MAX_BYTES)

    # Topics

    def add_topic(self, Topic topic not None, list offsets not None):
        """Add a topic, or add the missing partitions of a known one. Start offsets only increase.

        Args:
            topic: the topic, which takes over its name and id.
            offsets: (start offset, next offset, highest timestamp) of each partition, by index.
        """
        cdef Partition partition
        self.found = None
        self.topics_by_name[topic.name_bytes] = topic
        self.topics_by_id[topic.topic_id] = topic
        self.topics_by_uuid[topic.uuid.bytes] = topic
        for index, (start, following, running_max) in enumerate(offsets):
            if index < len(topic.partitions):
                partition = <Partition>topic.partitions[index]
                partition.raise_start(start)
                partition.confirm(self.applied_pos, following, running_max)
                continue
            partition = Partition(
                topic, index, len(self.partitions), start, start, self.producers
            )
            if start < following:
                # Their frames are freed or lost. What was carried comes later in the log.
                partition.add_lost(following)
                partition.visible_offset = following
            partition.blocks = self.blocks
            partition.running_max = running_max
            partition.confirmed_pos = self.applied_pos
            topic.partitions.append(partition)
            self.partitions.append(partition)

    def remove_topic(self, Topic topic not None):
        """Remove a topic with its offsets, ids and timers; the timers are never delivered."""
        cdef Partition partition
        topic.mark_deleted()
        self.found = None
        for partition in topic.partitions:
            self.due.forget_partition(partition.handle)
            self.levels.forget(partition.handle)
            self.producers.forget_partition(partition.handle)
            self.partitions[partition.handle] = None
            self.partitions_removed += 1
        self.ids.forget_topic(topic.topic_id)
        del self.topics_by_name[topic.name_bytes]
        del self.topics_by_id[topic.topic_id]
        del self.topics_by_uuid[topic.uuid.bytes]

    cdef Topic find_topic(self, const uint8_t* name, Py_ssize_t size):
        cdef Topic topic = self.found
        # Most requests name the same topic as the one before.
        if topic is not None and len(topic.name_bytes) == size:
            if memcmp(<const char*>topic.name_bytes, name, size) == 0:
                return topic
        topic = self.topics_by_name.get((<const char*>name)[:size])
        if topic is not None:
            self.found = topic
        return topic

    # Carried records

    def note_carried(self, int64_t pos):
        """Note that no carried record lies below log position `pos`. O(partitions)."""
        cdef Partition partition
        for partition in self.partitions:
            if partition is not None and partition.carried.count:
                partition.carried.raise_places(pos)

    cdef int _apply_carried_records(
        self, Partition partition, const FrameHeader* h
    ) except -1:
        """Map the offsets of carried records to this frame. They count as known already."""
        cdef int64_t end = h.base_offset + h.last_delta + 1
        cdef int64_t lost
        if end <= partition.start_offset:
            return 0
        if end > partition.next_offset:
            # Damage took the frames that the records come from, and all after these.
            partition.add_lost(end)
            partition.running_max = max(partition.running_max, h.running_max)
            self.marks.add(h.position + h.size, end, partition.handle)
        lost = partition.runs.lost_between(h.base_offset, end)
        if not partition.carry_units(h.base_offset, end, h.position, h.size, h.tags, is_run(h)):
            return 0
        if lost > 0:
            partition.kept_bytes += FRAME_HEADER_SIZE + h.visible_size
        return 0

    # Checkpoints

    @property
    def totals(self):
        """The totals, in the order of `restore_totals`."""
        return (
            self.accepted_records, self.accepted_frames, self.timers_accepted,
            self.timers_cancelled, self.timers_replaced, self.timers_delivered, self.held_bytes,
        )

    def restore_totals(self, totals not None):
        """Continue counting from these totals."""
        (
            self.accepted_records, self.accepted_frames, self.timers_accepted,
            self.timers_cancelled, self.timers_replaced, self.timers_delivered, self.held_bytes,
        ) = totals

    def set_id_key(self, bytes key not None):
        """Set the hash key that was in use when the ids were saved.

        Raises:
            ValueError: the index already has ids.
        """
        if self.ids.count:
            raise ValueError("cannot change the hash key: the id index is not empty")
        forget_pos = self.ids.forget_pos
        self.ids = IdIndex(key)
        self.ids.forget_below(forget_pos)
        self.id_key = key

    cdef bint find_id(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, NamedTimer* out
    ) except -1:
        """As `IdIndex.find`, but reads a run if that must be."""
        if self.ids.find(topic_id, name, size, out):
            return True
        if self.ids.is_certain(topic_id, name, size):
            return False
        self.id_source.recall(self.ids.key_bytes(topic_id, name, size))
        return self.ids.find(topic_id, name, size, out)

    cdef int _note_id(self) except -1:
        """Record the id that has just been put or completed for the next checkpoint."""
        cdef const NameSlot* slot = self.ids.touched
        cdef Partition partition
        if self.memtable is not None:
            partition = <Partition>self.partitions[partition_of(slot)]
            self.memtable.name(slot, partition.index)
        return 0

    # Visibility

    def advance_visible(self, int64_t pos):
        """Make the records below log position `pos` visible, so that they may be fetched.

        Returns:
            The partitions with new visible records and parked fetches.
        """
        cdef Partition partition
        cdef const VisibleMark* mark
        woken = {}  # a dict, for its order: many partitions may wake at once
        self.visible_pos = pos
        while True:
            mark = self.marks.first_until(pos)
            if mark == NULL:
                break
            partition = <Partition>self.partitions[mark.handle]
            if partition is not None:
                # It may be past the mark already if records were deleted.
                partition.visible_offset = max(partition.visible_offset, mark.next_offset)
                if partition.waiters or partition.topic.waiters:
                    woken[partition] = True
            self.marks.drop_first()
        return list(woken)

    # Frames

    def set_lost_ranges(self, list ranges not None):
        """Set the damaged ranges of the log, (from, to). Timers accepted there are unknown."""
        self.lost_ranges = ranges

    cdef bint _is_lost(self, int64_t pos):
        for start, end in self.lost_ranges:
            if start <= pos < end:
                return True
        return False

    cdef bint _is_gone(self, int64_t accept_pos, int32_t index):
        """Whether damage, or the freeing of its frame, removed the timer or kept it out."""
        return not self._is_known(accept_pos) or (
            bool(self.dropped) and (accept_pos, index) in self.dropped
        )

    cdef bint _is_known(self, int64_t accept_pos):
        """Whether the accept frame, or a carry frame in its place, was applied."""
        if self.moved.holds(accept_pos):
            return True
        return accept_pos >= self.first_known_pos and not (
            self.lost_ranges and self._is_lost(accept_pos)
        )

    cdef int apply(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        if is_timer_carry(h):
            return self._apply_carried_timers(partition, h, p)
        if h.kind == KIND_CARRIED_RECORDS:
            return self._apply_carried_records(partition, h)
        partition.log_bytes += h.size
        if h.kind == KIND_ACCEPT:
            self.accepted_frames += 1
            self.accepted_records += h.record_count
            if h.visible_size:
                self._apply_records(partition, h)
            if h.producer_id >= 0 and h.first_sequence >= 0:
                self._apply_producer(partition, h)
            if h.timer_count or h.cancel_count:
                self._apply_timers(partition, h, p)
        elif h.kind == KIND_DELIVER:
            self._apply_records(partition, h)
            self._apply_completed(partition, h, p, live)
        else:
            assert h.kind == KIND_CANCEL
            self._apply_completed(partition, h, p, live)
        return 0

    cdef int _apply_records(self, Partition partition, const FrameHeader* h) except -1:
        cdef int64_t end = h.base_offset + h.last_delta + 1
        # After damage the frame's base offset may be ahead; the offsets before it stay unused.
        assert h.base_offset >= partition.next_offset  # I4
        if h.base_offset > partition.next_offset:
            partition.add_run(h.base_offset, h.position, -h.size, 0)
        if is_run(h):
            partition.add_run(end, h.position, h.size, h.tags)
        else:
            partition.add_units(end - h.base_offset, h.position, h.size, h.tags)
        partition.kept_bytes += FRAME_HEADER_SIZE + h.visible_size
        partition.running_max = h.running_max
        partition.confirmed_pos = h.position
        self.marks.add(h.position + h.size, partition.next_offset, partition.handle)
        return 0

    cdef int _apply_producer(self, Partition partition, const FrameHeader* h) except -1:
        cdef Sequenced batch
        cdef int64_t received = ((<int64_t>h.last_sequence - h.first_sequence) & 0x7FFFFFFF) + 1
        if partition.captured_in != self.captured.serial:
            self.captured.note(partition)
        self.producer_id_seen = max(self.producer_id_seen, h.producer_id)
        batch.first = h.first_sequence
        batch.last = h.last_sequence
        batch.answer = h.base_offset if h.record_count == received else -1
        batch.end_pos = h.position + h.size
        batch.store_time_ms = h.store_time_ms
        return partition.note_sequence(h.producer_id, h.producer_epoch, &batch)

    cdef int _apply_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Apply the schedules, replacements and cancels of a batch in the order of its records."""
        cdef const uint8_t* timer = p + FRAME_HEADER_SIZE
        cdef const uint8_t* cancel = timer + <int64_t>h.timer_count * TIMER_ENTRY_SIZE
        cdef int32_t timers = h.timer_count, cancels = h.cancel_count, hidden = 0
        self.held_bytes += h.held_size + <int64_t>h.timer_count * TIMER_ENTRY_SIZE
        self.timers_accepted += h.timer_count
        while timers or cancels:
            if timers and (
                not cancels or load_i32(timer + TIMER_AT_INDEX) < load_i32(cancel + CANCEL_AT_INDEX)
            ):
                self._apply_timer(partition, h, p, timer)
                timer += TIMER_ENTRY_SIZE
                timers -= 1
                hidden += 1
            else:
                self.at_once_offset = h.base_offset + load_i32(cancel + CANCEL_AT_INDEX) - hidden
                hidden += cancel[CANCEL_AT_KIND] == CANCEL_BY_HEADER
                self._apply_cancellation(partition, h, p, cancel)
                cancel += CANCEL_ENTRY_SIZE
                cancels -= 1
        return 0

    cdef int _cancel_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1:
        """Cancel the pending timer with that id. Returns 1 if there was one, else 0."""
        cdef NamedTimer known
        if not self.find_id(topic_id, name, size, &known) or known.state != PENDING:
            return 0
        if self.memtable is not None:
            self.memtable.complete(known.position, known.record_index, known.due_ms)
        self._note_settled(known.position, known.record_index)
        if self.dropped and (known.position, known.record_index) in self.dropped:
            return 1  # not in the queue now, but a later start finds it there
        self.due.cancel(known.position, known.record_index, known.partition, known.due_ms)
        self.levels.complete(known.partition, known.level)
        if self.canceller is not None:
            self.canceller.credit(known.due_ms, known.recurs)
        return 1

    cdef int _apply_timer(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef Timer timer
        cdef Partition target
        cdef int size = entry[TIMER_AT_ID_SIZE]
        cdef const uint8_t* name = p + load_u32(entry + TIMER_AT_ID_POS)
        if size and self._cancel_pending(h.topic_id, name, size, h.store_time_ms):
            self.timers_replaced += 1
            partition.topic.timers_replaced += 1
        target = self._target_of(partition, entry)
        if target is None:
            return 0
        target.topic.timers_accepted += 1
        return self._push_accepted(target, h, p, entry, &timer)

    cdef int _push_accepted(
        self, Partition target, const FrameHeader* h, const uint8_t* p, const uint8_t* entry,
        Timer* timer,
    ) except -1:
        self._make_pending(target, h, p, entry, timer)
        if self.memtable is not None:
            self.memtable.push(
                timer, target.topic.topic_id, target.index, entry[TIMER_AT_LEVEL],
                load_i64(entry + TIMER_AT_LEVEL_OFFSET), timer.position,
            )
        return 0

    cdef Partition _target_of(self, Partition home, const uint8_t* entry):
        """The partition that a timer is delivered to.

        None if its topic is deleted, or if damage took the frames that declare it.
        """
        cdef int32_t topic_id = load_i32(entry + TIMER_AT_TARGET_TOPIC)
        cdef int32_t index = load_i32(entry + TIMER_AT_TARGET_PARTITION)
        cdef Topic topic = home.topic
        if topic_id == 0:
            return home
        if topic_id != topic.topic_id:
            topic = <Topic>self.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return None
        return <Partition>topic.partitions[index]

    cdef int _make_pending(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry,
        Timer* timer,
    ) except -1:
        """Let deliveries and look-ups find the timer of an entry; writes it to `timer`.

        `partition` is the one that it is delivered to.
        """
        cdef NamedTimer named
        cdef int size = entry[TIMER_AT_ID_SIZE]
        timer.due_ms = load_i64(entry + TIMER_AT_DUE)
        timer.position = load_i64(entry + TIMER_AT_ACCEPT_POS)
        timer.record_index = load_i32(entry + TIMER_AT_INDEX)
        timer.partition = partition.handle
        if size:
            named.position = timer.position
            named.record_index = timer.record_index
            named.partition = timer.partition
            named.due_ms = timer.due_ms
            named.completed_pos = 0
            named.state = PENDING
            named.level = entry[TIMER_AT_LEVEL]
            named.recurs = entry[TIMER_AT_KIND] == DUE_RECURRING
            self.ids.put(h.topic_id, p + load_u32(entry + TIMER_AT_ID_POS), size, &named)
            self._note_id()
        self.levels.note(entry[TIMER_AT_LEVEL], load_i64(entry + TIMER_AT_LEVEL_OFFSET))
        self.levels.push(timer.partition, entry[TIMER_AT_LEVEL])
        return self.due.push(timer)

    # Carried timers

    def begin_settled(self):
        """Note from now on which timers are completed, so that a carry leaves them out."""
        self.settled = CancelledTimers()

    def end_settled(self):
        """Forget what was noted since `begin_settled`."""
        self.settled = None

    cdef int _note_settled(self, int64_t accept_pos, int32_t index) except -1:
        return 0 if self.settled is None else self.settled.cancel(accept_pos, index)

    cdef int _apply_carried_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1:
        """Apply a carry frame: its timers are there now. Timers of freed frames become pending."""
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef Timer timer
        cdef int64_t accept_pos, known_pos = -1
        cdef int32_t i
        cdef bint is_known = True
        cdef Partition target
        for i in range(h.timer_count):
            accept_pos = load_i64(entry + TIMER_AT_ACCEPT_POS)
            if accept_pos != known_pos:
                known_pos = accept_pos
                is_known = self._is_known(accept_pos)
                self.moved.put(accept_pos, h.position)
            target = self._target_of(partition, entry)
            if target is None:
                entry += TIMER_ENTRY_SIZE
                continue
            if not is_known:
                # Its accept frame was freed before the replay began.
                self._make_pending(target, h, p, entry, &timer)
            if self.memtable is not None:
                self.memtable.push_carried(
                    entry, target.topic.topic_id, target.index, h.position
                )
            entry += TIMER_ENTRY_SIZE
        return 0

    cdef int _apply_cancellation(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef NamedTimer known
        cdef int size = entry[CANCEL_AT_ID_SIZE]
        cdef const uint8_t* name = p + load_u32(entry + CANCEL_AT_ID_POS)
        cdef bint pending = self._cancel_pending(h.topic_id, name, size, h.store_time_ms)
        if entry[CANCEL_AT_KIND] == CANCEL_BY_HEADER:
            if not pending:
                return 0  # too late or unknown, which is not an error
            self.ids.find(h.topic_id, name, size, &known)
            known.state = CANCELLED
            self.timers_cancelled += 1
            partition.topic.timers_cancelled += 1
        else:
            memset(&known, 0, sizeof(known))
            known.position = self.at_once_offset
            known.partition = partition.handle
            known.due_ms = load_i64(entry + CANCEL_AT_DUE)
            known.state = DELIVERED
            self.timers_replaced += pending
            partition.topic.timers_replaced += pending
        known.completed_pos = h.position + h.size
        self.ids.put(h.topic_id, name, size, &known)
        return self._note_id()

    cdef int _apply_completed(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1:
        """Complete the timers of a deliver or cancel frame: they are no longer pending."""
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef const uint8_t* name = completed_names(h, p)
        cdef int state = DELIVERED if h.kind == KIND_DELIVER else CANCELLED
        cdef NamedTimer done
        cdef int64_t accept_pos
        cdef int32_t i, index
        cdef int size
        for i in range(h.timer_count):
            accept_pos = load_i64(entry + COMPLETED_AT_ACCEPT_POS)
            assert accept_pos < h.position or not live  # I6
            index = load_i32(entry + COMPLETED_AT_INDEX)
            size = entry[COMPLETED_AT_ID_SIZE]
            assert not (live and self.due.cancelled.holds(accept_pos, index))  # I6
            # Timers delivered live are already popped; cancelled ones are still in the queue.
            if live and state == DELIVERED:
                self._complete_level(partition, entry)
            elif not self._is_gone(accept_pos, index):
                self._complete_queued(partition, entry, live)
            if self.memtable is not None:
                self.memtable.complete(accept_pos, index, completed_due(entry))
            self._note_settled(accept_pos, index)
            if size:
                done = NamedTimer(
                    accept_pos, index, partition.handle, completed_due(entry),
                    h.position + h.size, state, 0, False,
                )
                if done.due_ms < 0 and not self.ids.is_certain(h.topic_id, name, size):
                    self.id_source.recall(self.ids.key_bytes(h.topic_id, name, size))
                if self.ids.complete(h.topic_id, name, size, &done, h.base_offset + i):
                    self._note_id()
            name += size
            entry += COMPLETED_ENTRY_SIZE
        entry = timer_entries(h, p)
        for i in range(h.cancel_count):
            self._set_anew(partition, h, p, entry)
            entry += TIMER_ENTRY_SIZE
        if state == DELIVERED:
            self.timers_delivered += h.timer_count
            partition.topic.timers_delivered += h.timer_count
        else:
            self.timers_cancelled += h.timer_count
            partition.topic.timers_cancelled += h.timer_count
        return 0

    cdef int _complete_queued(self, Partition partition, const uint8_t* entry, bint live) except -1:
        """Take a timer out of the due queue that a frame has completed."""
        cdef bint was_pending = False
        if self.due.pending_of(partition.handle) > 0:
            was_pending = self.due.cancel(
                load_i64(entry + COMPLETED_AT_ACCEPT_POS), load_i32(entry + COMPLETED_AT_INDEX),
                partition.handle, completed_due(entry),
            )
            if was_pending:
                self._complete_level(partition, entry)
        else:
            self.completed_twice += 1
        assert was_pending or not live  # I6
        return 0

    cdef void _complete_level(self, Partition partition, const uint8_t* entry) noexcept:
        if has_due(entry):
            self.levels.complete(partition.handle, entry[COMPLETED_AT_LEVEL])
        else:
            self.levels.lose()

    cdef int _set_anew(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1:
        cdef Timer timer
        cdef const uint8_t* name = p + load_u32(entry + TIMER_AT_ID_POS)
        # Another one is pending only if damage took the frame that completed it.
        if self._cancel_pending(h.topic_id, name, entry[TIMER_AT_ID_SIZE], h.store_time_ms):
            self.timers_replaced += 1
            partition.topic.timers_replaced += 1
        self.held_bytes += load_u32(entry + TIMER_AT_RECORD_SIZE) + TIMER_ENTRY_SIZE
        self.timers_accepted += 1
        partition.topic.timers_accepted += 1
        return self._push_accepted(partition, h, p, entry, &timer)
