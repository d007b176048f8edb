"""Deliver due timers: gather their records from the log, and append them as real batches.

A chunk of due timers comes out of the due queue in order (due millisecond, then arrival), is
grouped by partition, and each group becomes deliver frames: the visible batch *and* the ids of the
timers that it fulfils, in one atomic append. So after any crash a timer is pending or delivered,
never both, never neither.

The records were rewritten when they were accepted, so a delivery copies key, value and headers as
they are. Delivered batches carry producer id, epoch and sequence -1.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from _core.batch cimport (
    ATTRIBUTE_LOG_APPEND_TIME, Batch, Record, begin_batch, finish_batch, next_record, write_record,
)
from _core.buffer cimport Buf, append, extend_zero, release, shrink
from _core.due_queue cimport Timer
from _core.frames cimport FrameHeader, blank_header, frame_size
from _core.layout cimport *
from _core.log_tail cimport FrameBody
from _core.log_view cimport LogView
from _core.log_writer cimport LogWriter
from _core.octets cimport Cursor, cursor_of, load_i32, load_i64, load_u32, store_u32, store_u64
from _core.partition cimport Partition, Topic
from _core.tags cimport note_tag, seal_tags, tag_of_tail

cdef enum:
    KEEP_BYTES = 4 << 20
    # Timers of one deliver frame, so that its table stays small beside its batch.
    RUN_MAX = 16384

LATENESS_BOUNDS_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000, 60000)
cdef int64_t* LATENESS_LIMITS = [0, 1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000, 60000]


cdef class DeliverPath:
    """Delivers chunks of due timers.

    Attributes:
        cold: after `deliver` answered -1: positions of frames to be read by a thread first.
        disk_full: the last `deliver` stopped because there was no room; what was not delivered is
            due still.
        damaged_timers: timers whose record could not be read: never delivered, but reported.
    """

    def __cinit__(
        self, LogWriter writer not None, LogView view not None, *, Py_ssize_t chunk_max,
        int64_t batch_size_max
    ):
        """Join the parts.

        Args:
            writer: appends frames.
            view: reads held records.
            chunk_max: most timers of one call.
            batch_size_max: a delivered batch is closed when it has reached this many bytes.
        """
        self.writer = writer
        self.view = view
        self.chunk_max = chunk_max
        self.batch_size_max = batch_size_max
        self.cold = []
        self.timers = <Timer*>malloc(chunk_max * sizeof(Timer))
        self.found = <Due*>malloc(chunk_max * sizeof(Due))
        if self.timers == NULL or self.found == NULL:
            raise MemoryError(f"no memory for chunks of {chunk_max} timers")

    def __dealloc__(self):
        free(self.timers)
        free(self.found)
        free(self.group_of)
        release(&self.batch)
        release(&self.tables)
        release(&self.names)

    def deliver(self, int64_t now_ms, Py_ssize_t limit):
        """Append the records of timers that are due.

        Args:
            now_ms: epoch ms; nothing due later is touched.
            limit: most timers, at most `chunk_max`.

        Returns:
            How many were delivered; -1 if frames must be read first (see `cold`), nothing has
            happened then.
        """
        cdef Py_ssize_t count
        cdef int32_t first
        cdef Partition partition
        self.disk_full = False
        self.delivered = 0
        count = self.writer.projections.due.pop_due(now_ms, self.timers, min(limit, self.chunk_max))
        if count == 0:
            return 0
        count = self._locate_all(count)
        if count <= 0:
            return count
        for first in self._group(count):
            partition = <Partition>self.writer.projections.partitions[self.timers[first].partition]
            while first >= 0:
                if self.disk_full:
                    self.writer.projections.due.unpop(&self.timers[first], 1)
                    first = self.found[first].next
                else:
                    first = self._deliver_run(partition, first, now_ms)
        return self.delivered

    cdef Py_ssize_t _locate_all(self, Py_ssize_t count) except -2:
        """Find every record; how many were found, or -1 and all put back if one is cold."""
        cdef Py_ssize_t i, kept = 0
        cdef int result
        self.cold = []
        self.blocks = []
        self.view.user += 1
        self.user = self.view.user
        for i in range(count):
            result = self._locate(&self.timers[i], &self.found[kept])
            if result == LOCATE_COLD:
                self.cold.append(self.timers[i].phys_offset)
            elif result == LOCATE_DAMAGED:
                self.damaged_timers += 1
                self.writer.projections.dropped.add(
                    (self.timers[i].phys_offset, self.timers[i].record_index)
                )
                continue
            self.timers[kept] = self.timers[i]
            kept += 1
        if self.cold:
            self.writer.projections.due.unpop(self.timers, kept)
            return -1
        return kept

    cdef int _locate(self, const Timer* timer, Due* due) except -1:
        """Find a timer's record through its accept frame. A LocateResult."""
        cdef int64_t pos = timer.phys_offset
        cdef const uint8_t* frame
        cdef const uint8_t* entry
        cdef int32_t low = 0, high, middle, frame_size = 0
        cdef int64_t held_pos, record_pos, record_size
        cdef Cursor c
        cdef Record r
        if self.view.is_damaged(pos):
            return LOCATE_DAMAGED
        frame = self.view.frame_at(pos, &frame_size)
        if frame == NULL:
            return LOCATE_COLD
        self.view.block.note_user(self.user, self.blocks)
        high = load_i32(frame + AT_TIMER_COUNT)
        while low < high:
            middle = (low + high) // 2
            entry = frame + FRAME_HEADER_SIZE + <int64_t>middle * TIMER_ENTRY_SIZE
            if load_i32(entry + TIMER_AT_INDEX) < timer.record_index:
                low = middle + 1
            else:
                high = middle
        if low >= load_i32(frame + AT_TIMER_COUNT):
            return LOCATE_DAMAGED
        entry = frame + FRAME_HEADER_SIZE + <int64_t>low * TIMER_ENTRY_SIZE
        if load_i32(entry + TIMER_AT_INDEX) != timer.record_index:
            return LOCATE_DAMAGED
        held_pos = (
            <int64_t>FRAME_HEADER_SIZE + load_i32(frame + AT_TABLES_SIZE)
            + load_i32(frame + AT_VISIBLE_SIZE)
        )
        record_pos = load_u32(entry + TIMER_AT_RECORD_POS)
        record_size = load_u32(entry + TIMER_AT_RECORD_SIZE)
        c = cursor_of(frame + record_pos, record_size)
        if not next_record(&c, &r):
            return LOCATE_DAMAGED
        due.tail = r.tail
        due.tail_size = r.end - r.tail
        due.attributes = r.attributes
        due.timestamp = r.timestamp_delta + load_i64(frame + held_pos + BATCH_AT_BASE_TIMESTAMP)
        due.name_size = entry[TIMER_AT_ID_SIZE]
        due.name = frame + load_u32(entry + TIMER_AT_ID_POS)
        return LOCATED

    cdef list _group(self, Py_ssize_t count):
        """Link the timers of each partition; the first of each, in order of due time."""
        cdef Py_ssize_t handles = len(self.writer.projections.partitions), i
        cdef int32_t* grown
        cdef int32_t handle, last
        if handles > self.group_capacity:
            grown = <int32_t*>realloc(self.group_of, handles * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError("no memory for the groups of a delivery")
            self.group_of = grown
            for i in range(self.group_capacity, handles):
                grown[i] = -1
            self.group_capacity = handles
        firsts = []
        for i in range(count):
            handle = self.timers[i].partition
            last = self.group_of[handle]
            if last < 0:
                firsts.append(i)
            else:
                self.found[last].next = <int32_t>i
            self.found[i].next = -1
            self.group_of[handle] = <int32_t>i
        for i in range(count):
            self.group_of[self.timers[i].partition] = -1
        return firsts

    cdef int32_t _gather_run(
        self, Topic topic, int32_t first, int64_t now_ms, Batch* b, FrameHeader* h
    ) except -2:
        """Records and table of one deliver frame, from `first` on; the first timer left, or -1.

        Sets what follows from the records: count and timestamps of `b`, times of `h`.
        """
        cdef Due* due
        cdef int64_t timestamp
        cdef int32_t i = first
        cdef uint8_t* entry
        shrink(&self.batch, KEEP_BYTES)
        shrink(&self.tables, KEEP_BYTES)
        shrink(&self.names, KEEP_BYTES)
        begin_batch(&self.batch)
        memset(&self.tags, 0, sizeof(self.tags))
        b.max_timestamp = -1
        while i >= 0 and b.count < RUN_MAX:
            if b.count and self.batch.size >= self.batch_size_max:
                break
            due = &self.found[i]
            timestamp = due.timestamp
            if topic.log_append_time:
                timestamp = now_ms
            elif topic.due_timestamp:
                timestamp = self.timers[i].due_ms
            if b.count == 0:
                b.base_timestamp = h.min_timestamp = timestamp
                h.min_deliver_ms = self.timers[i].due_ms
            h.min_timestamp = min(h.min_timestamp, timestamp)
            b.max_timestamp = max(b.max_timestamp, timestamp)
            h.max_deliver_ms = self.timers[i].due_ms
            write_record(
                &self.batch, due.attributes, timestamp - b.base_timestamp, b.count,
                due.tail, due.tail_size,
            )
            note_tag(&self.tags, tag_of_tail(due.tail, due.tail_size))
            entry = extend_zero(&self.tables, SETTLED_ENTRY_SIZE)
            store_u64(entry + SETTLED_AT_ACCEPT_POS, self.timers[i].phys_offset)
            store_u32(entry + SETTLED_AT_INDEX, self.timers[i].record_index)
            entry[SETTLED_AT_ID_SIZE] = <uint8_t>due.name_size
            append(&self.names, due.name, due.name_size)
            b.count += 1
            i = due.next
        append(&self.tables, self.names.data, self.names.size)
        extend_zero(&self.tables, -self.tables.size & (FRAME_ALIGNMENT - 1))
        return i

    cdef int32_t _deliver_run(self, Partition partition, int32_t first, int64_t now_ms) except -2:
        """One deliver frame for timers from `first` on; the first timer behind them, or -1."""
        cdef Topic topic = partition.topic
        cdef FrameHeader h
        cdef FrameBody body
        cdef Batch b
        cdef int64_t size
        cdef int32_t i
        memset(&b, 0, sizeof(b))
        memset(&body, 0, sizeof(body))
        blank_header(&h, KIND_DELIVER)
        i = self._gather_run(topic, first, now_ms, &b, &h)
        size = frame_size(self.tables.size, self.batch.size, 0)
        if not self.writer.prepare(topic, size, True, now_ms):
            self.disk_full = True
            return first
        b.base_offset = partition.next_offset
        b.leader_epoch = self.writer.tail.epoch
        b.attributes = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
        b.last_delta = b.count - 1
        b.producer_id = -1
        b.producer_epoch = -1
        b.base_sequence = -1
        finish_batch(&self.batch, 0, &b)
        h.store_time_ms = now_ms
        h.base_offset = partition.next_offset
        h.record_count = b.count
        h.last_delta = b.last_delta
        h.tags = seal_tags(&self.tags, b.count, &h.flags)
        h.timer_count = b.count
        h.max_timestamp = b.max_timestamp
        h.running_max = max(partition.running_max, b.max_timestamp)
        body.tables = self.tables.data
        body.tables_size = <int32_t>self.tables.size
        body.visible = self.batch.data
        body.visible_size = <int32_t>self.batch.size
        body.visible_patch = self.batch.data
        body.visible_patch_size = BATCH_HEADER_SIZE
        self.writer.append(partition, &h, &body)
        self.delivered += b.count
        self.frames += 1
        while first != i:
            self._note_lateness(now_ms - self.timers[first].due_ms)
            first = self.found[first].next
        return i

    cdef void _note_lateness(self, int64_t late_ms) noexcept nogil:
        cdef int i = 0
        while i < LATENESS_BOUNDS and late_ms > LATENESS_LIMITS[i]:
            i += 1
        self.lateness_counts[i] += 1
        self.lateness_sum_ms += late_ms

    @property
    def lateness(self):
        """Timers delivered by lateness: a count for each of LATENESS_BOUNDS_MS and one above."""
        return [self.lateness_counts[i] for i in range(LATENESS_BOUNDS + 1)]
