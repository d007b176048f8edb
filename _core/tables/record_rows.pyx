"""Rows of records: the tables `messages`, `timers` and `deliveries`. Layer 0: no I/O."""

from itertools import accumulate

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from _core.bytes.batch cimport (
    ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, Batch, Record, Slice,
    decode_batch, next_record,
)
from _core.bytes.borrowed cimport Borrowed
from _core.bytes.layout cimport *
from _core.bytes.octets cimport Cursor, load_i32, load_i64, load_u16, load_u32
from _core.log.frames cimport (
    FrameHeader, completed_names, has_records, is_timer_carry, timer_entries, timers_held,
)
from _core.tables.delay_headers cimport DelayHeaders, accepted_ms_of
from _core.tables.columns cimport (
    ColumnData, make_room, note_nulls, note_valid, note_validity, null_i64, put_first_end, put_i32,
    put_i64, put_octets, repeat_i32, repeat_octets, replace_i64, room_i64s,
)
from _core.tables.row_scan cimport *
from _core.tables.timer_outcomes cimport (
    OUTCOME_DELETED, OUTCOME_DELIVERED, OUTCOME_IS_COPY, OUTCOME_PENDING, OUTCOME_SIZE,
)

cdef uint64_t RULE_COLUMNS = (
    <uint64_t>1 << COLUMN_CRON | <uint64_t>1 << COLUMN_ZONE | <uint64_t>1 << COLUMN_MISSED
)

cdef enum:
    RECORD_SIZE_MIN = 7
    ROWS_AT_ONCE = 64            # records that are decoded before their columns are filled

# What a row of `messages` has from its record.
cdef struct MessageRow:
    Slice key
    Slice value
    int64_t offset
    int64_t timestamp
    DelayHeaders delay

cdef Slice IMMEDIATE = Slice(<const uint8_t*>b"immediate", 9)
cdef Slice[5] STATE_NAMES = [
    Slice(<const uint8_t*>b"pending", 7), Slice(<const uint8_t*>b"delivered", 9),
    Slice(<const uint8_t*>b"cancelled", 9), Slice(<const uint8_t*>b"replaced", 8),
    Slice(<const uint8_t*>b"deleted", 7),
]


# Indexed by the rule's `missed`.
cdef Slice[4] MISSED_NAMES = [
    Slice(NULL, -1), Slice(<const uint8_t*>b"once", 4), Slice(<const uint8_t*>b"all", 3),
    Slice(<const uint8_t*>b"none", 4),
]


cdef inline bint _wants_headers(RowScan scan) noexcept nogil:
    return (
        is_wanted(scan, COLUMN_HEADERS) or is_wanted(scan, COLUMN_DUE_AT)
        or is_wanted(scan, COLUMN_ACCEPTED_AT)
    )


cdef inline int64_t _record_bound(const FrameHeader* h, const Cursor* c) noexcept nogil:
    """How many records there can be, whatever the header says."""
    return min(<int64_t>h.record_count, (c.end - c.p) // RECORD_SIZE_MIN + 1)


cdef inline int64_t _or_null(int64_t epoch_ms) noexcept nogil:
    """An instant whose -1 means none."""
    return INT64_MIN if epoch_ms < 0 else epoch_ms


cdef void _put_texts(ColumnData* c, const Slice* text, int count) noexcept nogil:
    """Put the key or the value of as many `MessageRow`s, of which `text` is the first."""
    cdef uint8_t* data = c.data.data
    cdef int64_t end = c.data.size
    cdef int32_t* ends
    cdef int nulls = 0, i
    cdef const uint8_t* at = <const uint8_t*>text
    put_first_end(c)
    ends = <int32_t*>(c.offsets.data + c.offsets.size)
    for i in range(count):
        text = <const Slice*>(at + i * sizeof(MessageRow))
        if text.size > 0:
            memcpy(data + end, text.data, text.size)
            end += text.size
        nulls += text.size < 0
        ends[i] = <int32_t>end
    c.data.size = end
    c.offsets.size += 4 * count
    if nulls == 0:
        note_valid(c, count)
        return
    for i in range(count):
        note_validity(c, (<const Slice*>(at + i * sizeof(MessageRow))).size >= 0)


cdef void _put_instants(ColumnData* c, const int64_t* epoch_ms, int count) noexcept nogil:
    """Put an instant of as many `MessageRow`s, of which `epoch_ms` is the first; -1 is null."""
    cdef int64_t* data = <int64_t*>(c.data.data + c.data.size)
    cdef int nulls = 0, i
    cdef const uint8_t* at = <const uint8_t*>epoch_ms
    cdef int64_t value
    for i in range(count):
        value = (<const int64_t*>(at + i * sizeof(MessageRow)))[0]
        data[i] = 0 if value < 0 else in_us(value)
        nulls += value < 0
    c.data.size += 8 * count
    if nulls == 0:
        note_valid(c, count)
    elif nulls == count:
        note_nulls(c, count)
    else:
        for i in range(count):
            note_validity(c, (<const int64_t*>(at + i * sizeof(MessageRow)))[0] >= 0)


cdef class RecordRows(RowScan):
    """What the tables of records share: one row for each record of a batch."""

    cdef int _malformed(self) except -1:
        raise ValueError(f"a record of the frame at {self.pos} is malformed")

    cdef int _put_record(
        self, const Batch* b, const Record* r, bint reads_headers, DelayHeaders* delay
    ) except -1 nogil:
        """Put the columns that come from a record itself."""
        if is_wanted(self, COLUMN_KEY):
            put_text(self, COLUMN_KEY, &r.key)
        if is_wanted(self, COLUMN_VALUE):
            put_text(self, COLUMN_VALUE, &r.value)
        if is_wanted(self, COLUMN_TIMESTAMP):
            put_instant(self, COLUMN_TIMESTAMP, _timestamp(b, r))
        return self._put_headers(r, delay) if reads_headers else 0

    cdef int _put_type(self, const Batch* b, int64_t count) except -1 nogil:
        """Put the type of the timestamps: 0 given by the producer, 1 by the broker."""
        if is_wanted(self, COLUMN_TIMESTAMP_TYPE):
            repeat_i32(
                &self.columns[COLUMN_TIMESTAMP_TYPE],
                1 if b.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0, count,
            )
        return 0


cdef inline int64_t _timestamp(const Batch* b, const Record* r) noexcept nogil:
    if b.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return b.max_timestamp
    return b.base_timestamp + r.timestamp_delta


cdef class VisibleRows(RecordRows):
    """What the tables of visible records share: one batch of each frame, possibly compressed."""

    cdef bint _needs_bodies(self) noexcept nogil:
        return True

    cdef int _add(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef const uint8_t* batch = p + FRAME_HEADER_SIZE + h.tables_size
        cdef Batch b
        cdef Cursor c
        decode_batch(batch, &b)
        if b.attributes & ATTRIBUTE_CONTROL:
            return 0
        unpacked = self._section(h, batch, b.attributes & ATTRIBUTE_CODEC, &c)
        with nogil:
            self._make_room(_record_bound(h, &c), c.end - c.p + h.tables_size)
            self._add_visible(h, p, &b, &c)
        return 0

    cdef int _add_visible(
        self, const FrameHeader* h, const uint8_t* p, const Batch* b, Cursor* c
    ) except -1 nogil:
        """Add the rows of a batch, whose records are at `c`; there is room for them."""
        return 0


cdef class MessageRows(VisibleRows):
    """The visible records, in the order of the log."""

    cdef bint _takes(self, const FrameHeader* h) except -1:
        if h.record_count == 0 or not has_records(h.kind):
            return False
        if h.base_offset + h.last_delta < self.start_offset or not holds(
            &self.stored, h.store_time_ms
        ):
            return False
        if h.min_timestamp == INT64_MIN:    # not known: the batch is compressed
            return True
        return overlaps(&self.timestamps, h.min_timestamp, h.max_timestamp)

    cdef int _add_visible(
        self, const FrameHeader* h, const uint8_t* p, const Batch* b, Cursor* c
    ) except -1 nogil:
        cdef bint reads_headers = _wants_headers(self)
        cdef MessageRow[ROWS_AT_ONCE] rows
        cdef Record r
        cdef int32_t i
        cdef int64_t offset, count = 0
        cdef int waiting = 0
        if h.kind == KIND_CARRIED_RECORDS and is_wanted(self, COLUMN_DELAY_STATE):
            reads_headers = True
        for i in range(h.record_count):
            if not next_record(c, &r):
                with gil:
                    self._malformed()
            offset = h.base_offset + r.offset_delta
            if offset < self.start_offset or not holds(&self.timestamps, _timestamp(b, &r)):
                continue
            rows[waiting].key, rows[waiting].value = r.key, r.value
            rows[waiting].offset, rows[waiting].timestamp = offset, _timestamp(b, &r)
            if reads_headers:
                self._put_headers(&r, &rows[waiting].delay)
            waiting += 1
            if waiting == ROWS_AT_ONCE:
                self._put_rows(h, rows, waiting)
                count += waiting
                waiting = 0
        self._put_rows(h, rows, waiting)
        return self._add_frame(h, b, count + waiting)

    cdef int _put_rows(
        self, const FrameHeader* h, const MessageRow* rows, int count
    ) except -1 nogil:
        """Put the columns that come from records themselves, one column after another.

        What is kept of a column stays in registers then.
        """
        cdef int64_t* data
        cdef int i
        if is_wanted(self, COLUMN_KEY):
            _put_texts(&self.columns[COLUMN_KEY], &rows.key, count)
        if is_wanted(self, COLUMN_VALUE):
            _put_texts(&self.columns[COLUMN_VALUE], &rows.value, count)
        if is_wanted(self, COLUMN_TIMESTAMP):
            data = room_i64s(&self.columns[COLUMN_TIMESTAMP], count)
            for i in range(count):
                data[i] = in_us(rows[i].timestamp)
        if is_wanted(self, COLUMN_OFFSET):
            data = room_i64s(&self.columns[COLUMN_OFFSET], count)
            for i in range(count):
                data[i] = rows[i].offset
        if is_wanted(self, COLUMN_DUE_AT):
            _put_instants(&self.columns[COLUMN_DUE_AT], &rows.delay.due_ms, count)
        if is_wanted(self, COLUMN_ACCEPTED_AT):
            _put_instants(&self.columns[COLUMN_ACCEPTED_AT], &rows.delay.accepted_ms, count)
        if h.kind == KIND_CARRIED_RECORDS and is_wanted(self, COLUMN_DELAY_STATE):
            for i in range(count):
                self._put_state(_state_of(h, &rows[i].delay), 1)
        return 0

    cdef int _put_state(self, const Slice* state, int64_t count) except -1 nogil:
        if is_wanted(self, COLUMN_DELAY_STATE):
            repeat_octets(&self.columns[COLUMN_DELAY_STATE], state.data, state.size, count)
        return 0

    cdef int _add_frame(
        self, const FrameHeader* h, const Batch* b, int64_t count
    ) except -1 nogil:
        """Add what all records of a frame share."""
        self._put_place(h, count)
        self._put_stored(h, count)
        self._put_type(b, count)
        if h.kind == KIND_DELIVER:
            self._put_state(&STATE_NAMES[OUTCOME_DELIVERED], count)
        elif h.kind == KIND_ACCEPT:
            self._put_state(&IMMEDIATE, count)
        self.rows += count
        return 0


cdef inline const Slice* _state_of(const FrameHeader* h, const DelayHeaders* delay) noexcept nogil:
    """The state of a carried record, whose frame does not say whether it was delivered.

    One that was has the headers of a delay that is over; one that was due at once had none.
    """
    if 0 <= delay.accepted_ms < delay.due_ms <= h.store_time_ms:
        return &STATE_NAMES[OUTCOME_DELIVERED]
    return &IMMEDIATE


cdef class DeliveryRows(VisibleRows):
    """What was delivered: one row for each record of a deliver frame."""

    cdef bint _takes(self, const FrameHeader* h) except -1:
        return h.kind == KIND_DELIVER and holds(&self.stored, h.store_time_ms)

    cdef int _add_visible(
        self, const FrameHeader* h, const uint8_t* p, const Batch* b, Cursor* c
    ) except -1 nogil:
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef Slice name
        cdef DelayHeaders delay
        cdef Record r
        cdef int32_t i
        name.data = completed_names(h, p)
        for i in range(min(h.timer_count, h.record_count)):
            if not next_record(c, &r):
                with gil:
                    self._malformed()
            name.size = entry[COMPLETED_AT_ID_SIZE]
            self._put_headers(&r, &delay)
            if delay.due_ms < 0 or holds(&self.due, delay.due_ms):
                self._add_one(h, b, &r, entry, &name, &delay)
            name.data += name.size
            entry += COMPLETED_ENTRY_SIZE
        return 0

    cdef int _add_one(
        self, const FrameHeader* h, const Batch* b, const Record* r, const uint8_t* entry,
        Slice* name, const DelayHeaders* delay
    ) except -1 nogil:
        self._put_place(h, 1)
        if is_wanted(self, COLUMN_OFFSET):
            put_i64(&self.columns[COLUMN_OFFSET], h.base_offset + r.offset_delta)
        if is_wanted(self, COLUMN_KEY):
            put_text(self, COLUMN_KEY, &r.key)
        if is_wanted(self, COLUMN_ID):
            put_octets(&self.columns[COLUMN_ID], name.data, name.size if name.size else -1)
        if is_wanted(self, COLUMN_DUE_AT):
            put_instant(self, COLUMN_DUE_AT, _or_null(delay.due_ms))
        if is_wanted(self, COLUMN_ACCEPTED_AT):
            put_instant(self, COLUMN_ACCEPTED_AT, _or_null(delay.accepted_ms))
        if is_wanted(self, COLUMN_DELIVERED_AT):
            put_instant(self, COLUMN_DELIVERED_AT, h.store_time_ms)
        if is_wanted(self, COLUMN_LATENESS_MS):
            if delay.due_ms < 0:
                null_i64(&self.columns[COLUMN_LATENESS_MS])
            else:
                put_i64(&self.columns[COLUMN_LATENESS_MS], h.store_time_ms - delay.due_ms)
        if is_wanted(self, COLUMN_ACCEPT_POSITION):
            put_i64(
                &self.columns[COLUMN_ACCEPT_POSITION], load_i64(entry + COMPLETED_AT_ACCEPT_POS)
            )
        if is_wanted(self, COLUMN_INDEX):
            put_i32(&self.columns[COLUMN_INDEX], load_i32(entry + COMPLETED_AT_INDEX))
        self.rows += 1
        return 0


cdef class TimerRows(RecordRows):
    """The timers that were accepted, with what became of them.

    Carry frames have rows for timers whose accept frame has none. Only the records there say when
    they were accepted.

    `outcomes` has, for each range, OUTCOME_SIZE bytes for each of its timers in their order: the
    state, and the instant at which it began in the byte order of the machine
    (`TimerOutcomes.between`).
    """

    cdef Borrowed outcomes
    cdef int64_t timers              # timers of the ranges passed so far
    cdef list ends                   # timers up to the end of each range

    def __cinit__(self, *, outcomes=(), **kwargs):
        """Start at the first range. The other arguments are those of `RowScan`."""
        self.outcomes = Borrowed(b"".join(outcomes))
        self.ends = list(accumulate(len(each) // OUTCOME_SIZE for each in outcomes))
        if len(self.ends) != len(self.ranges):
            raise ValueError(f"outcomes of {len(self.ends)} ranges for {len(self.ranges)}")

    cdef bint _takes(self, const FrameHeader* h) except -1:
        if not is_timer_carry(h) and not holds(&self.stored, h.store_time_ms):
            return False
        return timers_held(h) > 0 and overlaps(&self.due, h.min_due_ms, h.max_due_ms)

    cdef bint _needs_bodies(self) noexcept nogil:
        return (
            is_wanted(self, COLUMN_KEY) or is_wanted(self, COLUMN_VALUE)
            or is_wanted(self, COLUMN_HEADERS) or is_wanted(self, COLUMN_TIMESTAMP)
        )

    cdef bint _needs_body_of(self, const FrameHeader* h) noexcept nogil:
        return self._needs_bodies() or (h.kind == KIND_CARRY and self._asks_when_accepted())

    cdef bint _asks_when_accepted(self) noexcept nogil:
        return (
            is_wanted(self, COLUMN_ACCEPTED_AT)
            or self.stored.start != INT64_MIN or self.stored.end != INT64_MAX
        )

    cdef int _skipped(self, const FrameHeader* h) except -1:
        self.timers += timers_held(h)
        return 0

    cdef int64_t _behind_fault(self) except -1:
        # Which outcomes belong to later frames of the range is not known any more.
        return self._range_end()

    cdef int64_t _range_end(self) except -1:
        self.timers = self.ends[len(self.ends) - len(self.ranges) - 1]
        return self.end

    cdef int _add(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef int64_t first = self.timers
        self.timers += timers_held(h)
        if self.timers * OUTCOME_SIZE > self.outcomes.size:
            raise ValueError(f"{self.outcomes.size} bytes of outcomes for {self.timers} timers")
        with nogil:
            self._make_room(timers_held(h), <int64_t>h.held_size + h.tables_size)
            self._add_timers(h, p, self.outcomes.p + first * OUTCOME_SIZE)
        return 0

    cdef int _add_timers(
        self, const FrameHeader* h, const uint8_t* p, const uint8_t* outcome
    ) except -1 nogil:
        cdef const uint8_t* entry = timer_entries(h, p)
        cdef const uint8_t* held = p + FRAME_HEADER_SIZE + h.tables_size + h.visible_size
        cdef bint reads_records = self._needs_body_of(h)
        cdef DelayHeaders delay
        cdef int64_t accepted_ms = h.store_time_ms
        cdef Batch b
        cdef Record r
        cdef Cursor c
        cdef int32_t i
        memset(&b, 0, sizeof(Batch))
        if reads_records:
            decode_batch(held, &b)
            c.p = held + BATCH_HEADER_SIZE
            c.end = held + h.held_size
            c.failed = False
        for i in range(timers_held(h)):
            if reads_records and not next_record(&c, &r):
                with gil:
                    self._malformed()
            if outcome[0] & OUTCOME_IS_COPY == 0 and holds(
                &self.due, load_i64(entry + TIMER_AT_DUE)
            ):
                if reads_records and h.kind == KIND_CARRY:
                    accepted_ms = accepted_ms_of(&r)
                    if accepted_ms < 0:
                        accepted_ms = h.store_time_ms
                if h.kind != KIND_CARRY or holds(&self.stored, accepted_ms):
                    if reads_records:
                        self._put_record(&b, &r, True, &delay)
                    self._add_one(h, p, entry, outcome, accepted_ms)
            entry += TIMER_ENTRY_SIZE
            outcome += OUTCOME_SIZE
        return 0

    cdef int _add_one(
        self, const FrameHeader* h, const uint8_t* p, const uint8_t* entry, const uint8_t* outcome,
        int64_t accepted_ms
    ) except -1 nogil:
        cdef int64_t since
        cdef int size = entry[TIMER_AT_ID_SIZE]
        cdef const Slice* state
        self._put_place(h, 1)
        if h.kind == KIND_CARRY and is_wanted(self, COLUMN_POSITION):
            replace_i64(&self.columns[COLUMN_POSITION], load_i64(entry + TIMER_AT_ACCEPT_POS))
        if is_wanted(self, COLUMN_INDEX):
            put_i32(&self.columns[COLUMN_INDEX], load_i32(entry + TIMER_AT_INDEX))
        if is_wanted(self, COLUMN_ID):
            make_room(&self.columns[COLUMN_ID], 1, size)
            put_octets(
                &self.columns[COLUMN_ID], p + load_u32(entry + TIMER_AT_ID_POS),
                size if size else -1,
            )
        if is_wanted(self, COLUMN_LEVEL):
            put_i32(&self.columns[COLUMN_LEVEL], entry[TIMER_AT_LEVEL])
        if is_wanted(self, COLUMN_DUE_AT):
            put_instant(self, COLUMN_DUE_AT, load_i64(entry + TIMER_AT_DUE))
        if is_wanted(self, COLUMN_ACCEPTED_AT):
            put_instant(self, COLUMN_ACCEPTED_AT, accepted_ms)
        if is_wanted(self, COLUMN_DELAY_STATE):
            state = &STATE_NAMES[min(outcome[0], <uint8_t>OUTCOME_DELETED)]
            repeat_octets(&self.columns[COLUMN_DELAY_STATE], state.data, state.size, 1)
        if is_wanted(self, COLUMN_COMPLETED_AT):
            memcpy(&since, outcome + 1, 8)
            put_instant(self,
                COLUMN_COMPLETED_AT, INT64_MIN if outcome[0] == OUTCOME_PENDING else since
            )
        if self.wanted & RULE_COLUMNS:
            self._put_rule(
                p + load_u32(entry + TIMER_AT_RULE_POS), load_u16(entry + TIMER_AT_RULE_SIZE)
            )
        self.rows += 1
        return 0

    cdef int _put_rule(self, const uint8_t* rule, int size) except -1 nogil:
        """Put the columns of the rule by which a timer recurs; `size` is 0 if it does not."""
        cdef Slice text
        cdef int column
        for column in range(COLUMN_CRON, COLUMN_MISSED + 1):
            if not is_wanted(self, column):
                continue
            text = Slice(NULL, -1)
            if size and column == COLUMN_MISSED:
                text = MISSED_NAMES[min(rule[RULE_AT_MISSED], 3)]
            elif size:
                text.data = rule + RULE_HEAD_SIZE
                text.size = rule[RULE_AT_EXPRESSION_SIZE]
                if column == COLUMN_ZONE:
                    text.data += text.size
                    text.size = rule[RULE_AT_ZONE_SIZE]
            make_room(&self.columns[column], 1, max(text.size, 0))
            put_octets(&self.columns[column], text.data, text.size)
        return 0
