"""The carry path: copies pending timers from the head of the log to its end, before it is freed.

    rows of the timers + blocks of their frames -> group by partition -> carry frames

A carry frame has the timer table and the held records, like an accept frame. The ids of the timers
stay what they are. All timers of one accept frame that are carried together stand in one carry
frame, so that one place is known for all of them. Its partition is that of the accept frame, also
if some of them point to other topics; once that topic is deleted, it is one of theirs.

A timer that was completed since the rows were read is left out.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from _core.bytes.batch cimport Batch, begin_batch, finish_batch, write_record
from _core.bytes.buffer cimport append, extend_zero, release, shrink
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64, load_u16, load_u32, store_u32
from _core.log.frames cimport FrameHeader, blank_header, frame_size
from _core.log.tail cimport ROOM_CONTROL, FrameBody
from _core.log.view cimport Block
from _core.paths.due_records cimport Due, find_entry, read_held
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.state.writer cimport LogWriter

cdef enum:
    KEEP_BYTES = 4 << 20
    # Maximum timers of a carry frame, unless one accept frame had more.
    RUN_MAX = 16384
    DISK_FULL = -2


cdef class TimerCarry:
    """Appends pending timers again.

    Attributes:
        carried_timers: timers carried since the start.
        carried_bytes: bytes of carry frames appended since the start.
    """

    def __cinit__(self, LogWriter writer not None, *, int64_t batch_size_max):
        """Append through `writer`.

        Args:
            writer: its projections note the timers that are completed meanwhile.
            batch_size_max: bytes of records and tables of a carry frame, unless the timers of one
                accept frame take more.
        """
        self.writer = writer
        self.batch_size_max = batch_size_max

    def __dealloc__(self):
        free(self.found)
        free(self.group_of)
        release(&self.batch)
        release(&self.tables)
        release(&self.names)

    def carry(self, bytes rows not None, list blocks not None, int64_t now_ms):
        """Append carry frames for timers.

        Args:
            rows: pending timers, as a merge of all runs returns them: all of each accept frame that
                are carried.
            blocks: the frames that hold them, ascending.
            now_ms: epoch ms.

        Returns:
            True; False if the disk is full, and only some of them are appended.
        """
        cdef Py_ssize_t count = len(rows) // RUN_TIMER_SIZE
        cdef int32_t first
        cdef Partition partition
        self._reserve(count)
        for partition, first in self._gather(
            <const uint8_t*><const char*>rows, count, blocks
        ):
            while first >= 0:
                first = self._append_run(partition, first, now_ms)
            if first == DISK_FULL:
                return False
        return True

    cdef int _reserve(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t handles = len(self.writer.projections.partitions), i
        cdef Carried* found
        cdef int32_t* grown
        if count > self.found_capacity:
            found = <Carried*>realloc(self.found, count * sizeof(Carried))
            if found == NULL:
                raise MemoryError("cannot allocate the timers of a carry")
            self.found = found
            self.found_capacity = count
        if handles > self.group_capacity:
            grown = <int32_t*>realloc(self.group_of, handles * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError("cannot allocate the groups of a carry")
            for i in range(self.group_capacity, handles):
                grown[i] = -1
            self.group_of = grown
            self.group_capacity = handles
        return 0

    cdef Partition _partition_of(self, const uint8_t* row, Topic topic):
        cdef int32_t index = load_i32(row + RUN_TIMER_AT_PARTITION)
        if topic is None or index >= len(topic.partitions):
            return None
        return <Partition>topic.partitions[index]

    cdef Partition _home_of(self, const uint8_t* frame, Partition target):
        """The partition of a frame that holds a timer; that of the timer if it is deleted."""
        cdef Topic topic = <Topic>self.writer.projections.topics_by_id.get(
            load_i32(frame + AT_TOPIC_ID)
        )
        return target if topic is None else <Partition>topic.partitions[
            load_i32(frame + AT_PARTITION)
        ]

    cdef list _other_topics(self, int32_t first, int32_t end):
        """The topics that timers of one frame point to."""
        cdef int32_t i = first, topic_id
        cdef dict found = {}
        while i != end:
            topic_id = load_i32(self.found[i].entry + TIMER_AT_TARGET_TOPIC)
            if topic_id and topic_id not in found:
                found[topic_id] = self.writer.projections.topics_by_id[topic_id]
            i = self.found[i].due.next
        return list(found.values())

    cdef bint _is_over(self, const uint8_t* row) except -1:
        """Whether a timer was completed since the row was read, or can never be delivered."""
        cdef Projections projections = self.writer.projections
        cdef int64_t accept_pos = load_i64(row + RUN_TIMER_AT_ACCEPT_POS)
        cdef int32_t index = load_i32(row + RUN_TIMER_AT_INDEX)
        if projections.settled is not None and projections.settled.holds(accept_pos, index):
            return True
        return bool(projections.dropped) and (accept_pos, index) in projections.dropped

    cdef const uint8_t* _frame_in(self, list blocks, int64_t pos) except? NULL:
        """The frame at a log position, in the blocks from the one that was found last."""
        cdef Py_ssize_t i, count = len(blocks)
        cdef const uint8_t* frame
        cdef int32_t size
        for i in range(count):
            frame = (<Block>blocks[self.block_index]).frame_at(pos, &size)
            if frame != NULL:
                return frame
            self.block_index = self.block_index + 1 if self.block_index + 1 < count else 0
        raise AssertionError(f"no block has the frame at {pos}")

    cdef list _gather(self, const uint8_t* rows, Py_ssize_t count, list blocks):
        """Find the timers and link those of each partition.

        Returns:
            (partition, index of its first timer) of each.
        """
        cdef int64_t pos, frame_pos = -1, accept_pos = -1
        cdef int32_t topic_id = 0, last, i
        cdef const uint8_t* row
        cdef const uint8_t* frame = NULL
        cdef Carried* timer
        cdef Topic topic = None
        cdef Partition partition = None, target
        self.block_index = 0
        firsts = []
        for i in range(count):
            row = rows + <int64_t>i * RUN_TIMER_SIZE
            if load_i32(row + RUN_TIMER_AT_TOPIC_ID) != topic_id:
                topic_id = load_i32(row + RUN_TIMER_AT_TOPIC_ID)
                topic = <Topic>self.writer.projections.topics_by_id.get(topic_id)
            target = self._partition_of(row, topic)
            if target is None or self._is_over(row):
                continue
            pos = load_i64(row + RUN_TIMER_AT_BODY_POS)
            if pos != frame_pos:
                frame = self._frame_in(blocks, pos)
                frame_pos = pos
            if load_i64(row + RUN_TIMER_AT_ACCEPT_POS) != accept_pos:
                accept_pos = load_i64(row + RUN_TIMER_AT_ACCEPT_POS)
                partition = self._home_of(frame, target)
            timer = &self.found[i]
            timer.entry = find_entry(
                frame, load_i64(row + RUN_TIMER_AT_ACCEPT_POS), load_i32(row + RUN_TIMER_AT_INDEX)
            )
            # A frame that lacks the timer contradicts the runs: nothing can ever be delivered.
            if timer.entry == NULL or not read_held(frame, timer.entry, &timer.due):
                continue
            timer.due.next = -1
            last = self.group_of[partition.handle]
            if last < 0:
                firsts.append((partition, i))
            else:
                self.found[last].due.next = i
            self.group_of[partition.handle] = i
        for partition, _ in firsts:
            self.group_of[partition.handle] = -1
        return firsts

    cdef int32_t _run_end(
        self, int32_t first, bint is_lone, int64_t* tables_size
    ) noexcept nogil:
        """The first timer that is not in the carry frame that begins with `first`; -1: none.

        The frame has all timers of an accept frame or none; of no other one if `is_lone`. Sets the
        size of its tables.
        """
        cdef int64_t size = 0, tables = 0, whole_tables = 0, accept_pos = -1, pos, more
        cdef int32_t i = first, end = first, count = 0
        while i >= 0:
            pos = load_i64(self.found[i].entry + TIMER_AT_ACCEPT_POS)
            if pos != accept_pos:
                accept_pos = pos
                end = i
                whole_tables = tables
            more = (
                TIMER_ENTRY_SIZE + self.found[i].due.name_size + self.found[i].due.rule_size
            )
            size += more + load_u32(self.found[i].entry + TIMER_AT_RECORD_SIZE)
            if end != first and (size > self.batch_size_max or count == RUN_MAX or is_lone):
                break
            tables += more
            count += 1
            i = self.found[i].due.next
        if i < 0:
            end = -1
            whole_tables = tables
        tables_size[0] = (
            (whole_tables + FRAME_ALIGNMENT - 1) & ~<int64_t>(FRAME_ALIGNMENT - 1)
        )
        return end

    cdef int _encode(
        self, int32_t first, int32_t end, int64_t tables_size, FrameHeader* h
    ) except -1:
        """Encode the tables and the held batch of one frame; sets its count and due times."""
        cdef Py_ssize_t start
        cdef int64_t names_at = 0, due_ms
        cdef int32_t i = first
        cdef uint8_t* entry
        cdef Due* due
        cdef Batch b
        memset(&b, 0, sizeof(b))
        shrink(&self.batch, KEEP_BYTES)
        shrink(&self.tables, KEEP_BYTES)
        shrink(&self.names, KEEP_BYTES)
        begin_batch(&self.batch)
        b.base_timestamp = self.found[first].due.timestamp
        b.max_timestamp = -1
        while i != end:
            due = &self.found[i].due
            start = self.batch.size
            write_record(
                &self.batch, due.attributes, due.timestamp - b.base_timestamp, b.count,
                due.tail, due.tail_size,
            )
            entry = extend_zero(&self.tables, TIMER_ENTRY_SIZE)
            memcpy(entry, self.found[i].entry, TIMER_ENTRY_SIZE)
            store_u32(entry + TIMER_AT_RECORD_POS, FRAME_HEADER_SIZE + tables_size + start)
            store_u32(entry + TIMER_AT_RECORD_SIZE, self.batch.size - start)
            # For now from the start of the names; `h.timer_count` says where these begin.
            store_u32(entry + TIMER_AT_ID_POS, names_at)
            append(&self.names, due.name, due.name_size)
            names_at += due.name_size
            store_u32(entry + TIMER_AT_RULE_POS, names_at)
            append(&self.names, due.rule, due.rule_size)
            names_at += due.rule_size
            due_ms = load_i64(entry + TIMER_AT_DUE)
            h.min_due_ms = due_ms if b.count == 0 else min(h.min_due_ms, due_ms)
            h.max_due_ms = max(h.max_due_ms, due_ms)
            b.max_timestamp = max(b.max_timestamp, due.timestamp)
            b.count += 1
            i = due.next
        h.timer_count = b.count
        self._place_names()
        append(&self.tables, self.names.data, self.names.size)
        extend_zero(&self.tables, -self.tables.size & (FRAME_ALIGNMENT - 1))
        assert self.tables.size == tables_size
        b.last_delta = b.count - 1
        b.leader_epoch = self.writer.tail.epoch
        b.producer_id = b.producer_epoch = b.base_sequence = -1
        finish_batch(&self.batch, 0, &b)
        return 0

    cdef void _place_names(self) noexcept nogil:
        """Make the places of ids relative to the frame: they follow the entries."""
        cdef int64_t names_start = FRAME_HEADER_SIZE + self.tables.size
        cdef Py_ssize_t at = 0
        cdef uint8_t* entry
        while at < self.tables.size:
            entry = self.tables.data + at
            store_u32(
                entry + TIMER_AT_ID_POS,
                load_u32(entry + TIMER_AT_ID_POS) + names_start if entry[TIMER_AT_ID_SIZE] else 0,
            )
            store_u32(
                entry + TIMER_AT_RULE_POS,
                load_u32(entry + TIMER_AT_RULE_POS) + names_start
                if load_u16(entry + TIMER_AT_RULE_SIZE) else 0,
            )
            at += TIMER_ENTRY_SIZE

    cdef int32_t _append_run(self, Partition partition, int32_t first, int64_t now_ms) except -3:
        """Append one carry frame for timers from `first` on; return the next timer, -1, or
        DISK_FULL.
        """
        cdef FrameHeader h
        cdef FrameBody body
        cdef int64_t tables_size = 0, size = 0
        cdef int32_t end = -1
        cdef bint has_room = False
        cdef int is_lone
        memset(&body, 0, sizeof(body))
        for is_lone in range(2):
            end = self._run_end(first, is_lone, &tables_size)
            blank_header(&h, KIND_CARRY)
            self._encode(first, end, tables_size, &h)
            size = frame_size(tables_size, 0, self.batch.size)
            others = self._other_topics(first, end)
            has_room = not others or self.writer.fits(partition.topic, others, size)
            if has_room:
                break
            # The declarations of so many topics do not fit into a segment: with fewer timers.
        if not has_room or not self.writer.prepare_all(
            partition.topic, others, size, ROOM_CONTROL, now_ms
        ):
            return DISK_FULL
        h.store_time_ms = now_ms
        body.tables = self.tables.data
        body.tables_size = <int32_t>self.tables.size
        body.held = self.batch.data
        body.held_size = <int32_t>self.batch.size
        self.writer.append(partition, &h, &body)
        self.carried_timers += h.timer_count
        self.carried_bytes += h.size
        return end
