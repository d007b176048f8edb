"""Encodes and appends deliver frames: the records of due timers, and the timers they complete.

    run of due timers --+--> deliver frame:  visible batch, completed table
                        |                    recurring ones: their next occurrences, held
                        '--> cancel frame:   occurrences that are moved, and their next ones

A frame shows a record and completes its timer, in one atomic append. It sets a recurring timer anew
in the same append. So after any crash an occurrence is delivered and the next one is pending, or
neither.

Records were rewritten when they were accepted, so a delivery copies key, value and headers as they
are. Delivered batches have producer id, epoch and sequence -1.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from _core.bytes.batch cimport (
    ATTRIBUTE_LOG_APPEND_TIME, Batch, begin_batch, finish_batch, write_record,
)
from _core.bytes.buffer cimport append, extend_zero, release, shrink
from _core.bytes.layout cimport *
from _core.bytes.octets cimport store_u32, store_u64
from _core.bytes.tags cimport note_tag, seal_tags, tag_of_tail
from _core.log.frames cimport FrameHeader, blank_header, frame_size
from _core.log.tail cimport ROOM_DELIVERY, FrameBody
from _core.paths.due_records cimport (
    OCCURRENCE_FOLLOWED, OCCURRENCE_LAST, OCCURRENCE_MOVED, Due, Following,
)
from _core.paths.recurrences cimport Recurrences
from _core.paths.set_anew cimport SetAnew
from _core.queue.lateness cimport note_lateness
from _core.queue.partition cimport Partition, Topic
from _core.state.writer cimport LogWriter
from _core.timers.due_queue cimport Timer

cdef enum:
    KEEP_BYTES = 4 << 20
    # Maximum timers of a deliver frame, so that its table is small compared with its batch.
    RUN_MAX = 16384
    # What an occurrence that is moved takes in a cancel frame besides its record.
    MOVED_BYTES = 512
    ENDED_MAX = 32            # kept until somebody takes them


cdef inline int occurrence_of(const Due* due) noexcept nogil:
    return due.following.occurrence


cdef class DeliverFrames:
    """Appends frames for one chunk of due timers after the other. It has no Python API."""

    def __cinit__(self, LogWriter writer not None, rules, *, int64_t batch_size_max):
        """Connect the parts.

        Args:
            writer: appends frames.
            rules: computes the instants of recurring timers; None if it cannot.
            batch_size_max: a delivered batch ends once it has at least this many bytes.
        """
        self.writer = writer
        self.recurrences = Recurrences(rules)
        self.anew = SetAnew()
        self.batch_size_max = batch_size_max
        self.ended = []

    def __dealloc__(self):
        release(&self.batch)
        release(&self.tables)
        release(&self.names)
        release(&self.passed_over)

    cdef void begin(self) noexcept nogil:
        self.disk_full = False
        self.delivered = 0
        self.late_ms_max = 0
        self.recurrences.begin()

    cdef void begin_partition(self) noexcept nogil:
        self.is_overtaken = False
        self.anew_due_ms = INT64_MAX

    cdef int32_t deliver_run(
        self, Partition partition, const Timer* timers, const Due* found, int32_t first,
        int64_t now_ms
    ) except -2:
        cdef Batch b
        cdef FrameHeader h
        cdef int32_t i = first, end
        cdef const int32_t* moved
        cdef Py_ssize_t n = 0
        self.timers, self.found = timers, found
        memset(&b, 0, sizeof(b))
        blank_header(&h, KIND_DELIVER)
        end = self._gather(partition.topic, first, now_ms, &b, &h)
        if b.count and not self._append_delivery(partition, &b, &h, now_ms):
            self.disk_full = True
            return first
        moved = <const int32_t*>self.passed_over.data
        while i != end:
            if n < self.passed_over.size // <Py_ssize_t>sizeof(int32_t) and moved[n] == i:
                n += 1
            else:
                if not found[i].is_held:
                    self._note_lateness(partition.topic, now_ms - timers[i].due_ms)
                if found[i].rule_size and occurrence_of(&found[i]) == OCCURRENCE_LAST:
                    self._note_ended(partition.topic, &found[i])
            i = found[i].next
        if n:
            self._move(partition, now_ms)
        return end

    # The parts of a frame

    cdef int _begin_tables(self) except -1:
        shrink(&self.tables, KEEP_BYTES)
        shrink(&self.names, KEEP_BYTES)
        self.anew.begin()
        return 0

    cdef int _complete(self, int32_t i, int32_t topic_id) except -1:
        """Add the entry that completes a timer of the chunk."""
        cdef const Due* due = &self.found[i]
        cdef uint8_t* entry = extend_zero(&self.tables, COMPLETED_ENTRY_SIZE)
        store_u64(entry + COMPLETED_AT_ACCEPT_POS, self.timers[i].position)
        store_u32(entry + COMPLETED_AT_INDEX, self.timers[i].record_index)
        entry[COMPLETED_AT_ID_SIZE] = <uint8_t>due.name_size
        entry[COMPLETED_AT_OP] = COMPLETION_DUE_FINAL
        entry[COMPLETED_AT_LEVEL] = <uint8_t>due.level
        store_u64(entry + COMPLETED_AT_DUE, self.timers[i].due_ms)
        store_u32(entry + COMPLETED_AT_OCCURRENCE, due.occurrence)
        if due.topic_id != topic_id:
            store_u32(entry + COMPLETED_AT_ORIGIN_TOPIC, <uint32_t>due.topic_id)
        append(&self.names, due.name, due.name_size)
        return 0

    cdef int _set_anew(self, int32_t i, int32_t index) except -1:
        """Set a timer anew whose entry was added last; `index` is that of the entry."""
        cdef uint8_t* entry = self.tables.data + self.tables.size - COMPLETED_ENTRY_SIZE
        entry[COMPLETED_AT_OP] = COMPLETION_DUE_SET_ANEW
        self.anew_due_ms = min(self.anew_due_ms, self.found[i].following.due_ms)
        return self.anew.add(&self.found[i], index)

    cdef int _finish_tables(self) except -1:
        """Put the timers that are set anew, and the ids, after the completed table."""
        append(&self.tables, self.anew.entries.data, self.anew.entries.size)
        append(&self.tables, self.names.data, self.names.size)
        append(&self.tables, self.anew.names.data, self.anew.names.size)
        extend_zero(&self.tables, -self.tables.size & (FRAME_ALIGNMENT - 1))
        return self.anew.finish(self.writer.tail.epoch)

    cdef int _set_tables(self, FrameHeader* h, FrameBody* body) except -1:
        """Complete what follows from the place of the frame. REQUIRES: there is room for it."""
        cdef Py_ssize_t entries = <Py_ssize_t>h.timer_count * COMPLETED_ENTRY_SIZE
        cdef Py_ssize_t names = entries + self.anew.entries.size + self.names.size
        body.tables = self.tables.data
        body.tables_size = <int32_t>self.tables.size
        if self.anew.count:
            h.cancel_count = self.anew.count
            h.max_due_ms = max(h.max_due_ms, self.anew.max_due_ms)
            self.anew.place(
                self.tables.data + entries, self.writer.tail.pointers.wrote,
                FRAME_HEADER_SIZE + names,
                FRAME_HEADER_SIZE + self.tables.size + body.visible_size,
            )
            body.held = self.anew.held.data
            body.held_size = <int32_t>self.anew.held.size
        return 0

    # A deliver frame

    cdef int32_t _gather(
        self, Topic topic, int32_t first, int64_t now_ms, Batch* b, FrameHeader* h
    ) except -2:
        """Build the records and the tables of one deliver frame, from timer `first` on.

        Sets the count and timestamps of `b`, and the times of `h`. Returns the first timer left
        over, or -1.
        """
        cdef int32_t i = first
        cdef int64_t size, moved_bytes = 0, next_due_ms = INT64_MAX
        self._begin_tables()
        shrink(&self.batch, KEEP_BYTES)
        self.passed_over.size = 0
        self.is_overtaken = False
        begin_batch(&self.batch)
        memset(&self.tags, 0, sizeof(self.tags))
        b.max_timestamp = -1
        while i >= 0 and b.count < RUN_MAX and moved_bytes < self.batch_size_max:
            # A recurring record is in the frame twice. `Config` ensures that one fits.
            size = self.batch.size + self.anew.held.size
            if self.found[i].rule_size:
                size += 2 * self.found[i].tail_size
            if b.count and size >= self.batch_size_max:
                break
            self.is_overtaken = self.timers[i].due_ms > next_due_ms
            if self.is_overtaken:
                break
            if self.found[i].rule_size and occurrence_of(&self.found[i]) == OCCURRENCE_MOVED:
                append(&self.passed_over, &i, sizeof(i))
                moved_bytes += self.found[i].tail_size + MOVED_BYTES
                i = self.found[i].next
                continue
            self._add(topic, i, now_ms, b, h)
            if self.found[i].rule_size and occurrence_of(&self.found[i]) == OCCURRENCE_FOLLOWED:
                self._set_anew(i, b.count)
                next_due_ms = min(next_due_ms, self.found[i].following.due_ms)
            b.count += 1
            i = self.found[i].next
        if b.count:
            self._finish_tables()
        return i

    cdef int _add(
        self, Topic topic, int32_t i, int64_t now_ms, Batch* b, FrameHeader* h
    ) except -1:
        """Add a record to the visible batch, and its timer to the completed table."""
        cdef const Due* due = &self.found[i]
        cdef int64_t timestamp = due.timestamp
        if topic.log_append_time:
            timestamp = now_ms
        elif topic.due_timestamp:
            timestamp = self.timers[i].due_ms
        if b.count == 0:
            b.base_timestamp = h.min_timestamp = timestamp
            h.min_due_ms = self.timers[i].due_ms
        h.min_timestamp = min(h.min_timestamp, timestamp)
        b.max_timestamp = max(b.max_timestamp, timestamp)
        h.max_due_ms = self.timers[i].due_ms
        write_record(
            &self.batch, due.attributes, timestamp - b.base_timestamp, b.count, due.tail,
            due.tail_size,
        )
        note_tag(&self.tags, tag_of_tail(due.tail, due.tail_size))
        return self._complete(i, topic.topic_id)

    cdef bint _append_delivery(
        self, Partition partition, Batch* b, FrameHeader* h, int64_t now_ms
    ) except -1:
        """Append what was gathered. Returns False if the disk is full."""
        cdef Topic topic = partition.topic
        cdef FrameBody body
        cdef int64_t size = frame_size(self.tables.size, self.batch.size, self.anew.held.size)
        memset(&body, 0, sizeof(body))
        if not self.writer.prepare(topic, size, ROOM_DELIVERY, now_ms):
            return False
        b.base_offset = partition.next_offset
        b.leader_epoch = self.writer.tail.epoch
        b.attributes = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
        b.last_delta = b.count - 1
        b.producer_id = -1
        b.producer_epoch = -1
        b.base_sequence = -1
        finish_batch(&self.batch, 0, b)
        h.store_time_ms = now_ms
        h.base_offset = partition.next_offset
        h.record_count = b.count
        h.last_delta = b.last_delta
        h.tags = seal_tags(&self.tags, b.count, &h.flags)
        h.timer_count = b.count
        h.max_timestamp = b.max_timestamp
        h.running_max = max(partition.running_max, b.max_timestamp)
        body.visible = self.batch.data
        body.visible_size = <int32_t>self.batch.size
        body.visible_patch = self.batch.data
        body.visible_patch_size = BATCH_HEADER_SIZE
        self._set_tables(h, &body)
        self.writer.append(partition, h, &body)
        self.delivered += b.count
        self.frames += 1
        return True

    # A cancel frame

    cdef int _move(self, Partition partition, int64_t now_ms) except -1:
        """Set the timers that were passed over anew without a delivery, in one cancel frame.

        They are still due if the disk is full.
        """
        cdef const int32_t* moved = <const int32_t*>self.passed_over.data
        cdef int32_t count = <int32_t>(self.passed_over.size // <Py_ssize_t>sizeof(int32_t))
        cdef FrameHeader h
        cdef FrameBody body
        cdef int32_t n
        memset(&body, 0, sizeof(body))
        blank_header(&h, KIND_CANCEL)
        self._begin_tables()
        h.min_due_ms = self.timers[moved[0]].due_ms
        h.timer_count = count
        for n in range(count):
            # A cancel frame completes timers that are in the queue.
            self.writer.projections.due.unpop(&self.timers[moved[n]], 1)
            self._complete(moved[n], partition.topic.topic_id)
            self._set_anew(moved[n], n)
        self._finish_tables()
        self.disk_full = not self.writer.prepare(
            partition.topic, frame_size(self.tables.size, 0, self.anew.held.size), ROOM_DELIVERY,
            now_ms
        )
        if self.disk_full:
            return 0
        h.store_time_ms = now_ms
        self._set_tables(&h, &body)
        self.writer.append(partition, &h, &body)
        self.moved_count += count
        return 0

    # What is noted of deliveries

    cdef int _note_ended(self, Topic topic, const Due* due) except -1:
        if len(self.ended) < ENDED_MAX:
            self.ended.append((topic.name, (<const char*>due.name)[:due.name_size]))
        return 0

    cdef void _note_lateness(self, Topic topic, int64_t late_ms) noexcept:
        note_lateness(&self.late, late_ms)
        note_lateness(&topic.late, late_ms)
        self.late_ms_max = max(self.late_ms_max, late_ms)
