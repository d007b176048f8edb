"""Splits a produced batch by its delay headers.

    inspect --+-- no delay headers: the batch is stored verbatim
              '-- split --> visible batch + held batch + timer and cancel tables = one accept frame

Pass one (`inspect`) checks that every record is well-formed and within the limits, and looks for
delay headers. Most batches have none. For the others, pass two (`split`) writes the parts of an
accept frame. They are in one frame so that a crash keeps either all of them or none. A record whose
request cannot be met refuses the batch or, by a setting of the topic, is visible at once.

The contract is docs/DELAY.md. A record that is held or due at once loses its request headers and
gains `x-accepted-at`, `x-due-at` and, if it has an id, `x-due-id`. It is rewritten only once, here,
so that a delivery merely copies it.

A retried record (`x-retry-group`) is a timer that points to another topic. The record says how many
attempts it had; `RetryRules` says when the next one is due.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from _core.bytes.batch cimport (
    ATTRIBUTE_CODEC, ATTRIBUTE_LOG_APPEND_TIME, Batch, Record, Slice, begin_batch, finish_batch,
    next_header, next_record, write_record,
)
from _core.bytes.buffer cimport Buf, append, extend_zero, release, shrink
from _core.paths.delay_names cimport (
    HEADER_ATTEMPT, HEADER_CANCEL, HEADER_CRON, HEADER_CRON_MISSED, HEADER_CRON_ZONE,
    HEADER_DELAY, HEADER_DELIVER_AT, HEADER_ID, HEADER_LEVEL, HEADER_NEAR_MISSES, HEADER_NONE,
    HEADER_REPLY, HEADER_REQUESTS, HEADER_RETRY, HEADER_VALUES, header_of, may_be_delay_header,
)
from _core.paths.delay_fault_codes cimport *
from _core.paths.delay_reasons cimport reason_of
from _core.paths.delay_text cimport (
    DELAY_NOW, DELAY_OK, NO_DELAY, parse_delay, parse_deliver_at, parse_level,
)
from _core.bytes.layout cimport *
from _core.bytes.octets cimport (
    Cursor, cursor_of, left, load_u16, load_u32, load_u64, store_u16, store_u32, store_u64,
    take_varint,
)
from _core.paths.recurrences cimport Recurrences
from _core.paths.reply_asks cimport ReplyAsks
from _core.paths.retries cimport Retries, retry_mark
from _core.paths.retry_rules cimport RetryRules
from _core.paths.rewriter cimport Rewriter
from _core.queue.partition cimport Topic
from _core.state.level_queues cimport LEVELS_MAX
from _core.bytes.tags cimport is_tags, note_tag, tag_code, tag_of_tail

cdef enum:
    # Of each buffer, between two batches: more than the largest batch that clients send by default.
    KEEP_BYTES = 2 << 20


cdef inline bint _is_timestamp(int64_t value) noexcept nogil:
    return -(<int64_t>1 << TIMESTAMP_BITS) < value < <int64_t>1 << TIMESTAMP_BITS


cdef class BatchSplitter:
    """The scratch space and limits of a broker. It handles one batch at a time."""

    def __cinit__(
        self, list level_ms not None, *, int64_t record_size_max, int64_t header_count_max,
        int64_t header_size_max, int64_t delayed_count_max, RetryRules retry_rules=None,
        instant_rules=None
    ):
        """Set the levels and limits.

        Args:
            level_ms: delay of each level in ms, ascending, 1 .. 255 of them.
            record_size_max: largest record, bytes uncompressed.
            header_count_max: maximum number of headers per record.
            header_size_max: maximum size of all headers of a record, bytes.
            delayed_count_max: maximum number of timers and cancels of a batch.
            retry_rules: say when a record is retried; without them none can be.
            instant_rules: compute the instants of records that recur; without them none can.
        """
        assert 1 <= len(level_ms) <= LEVELS_MAX
        for i, delay in enumerate(level_ms):
            self.level_ms[i] = delay
        self.level_count = len(level_ms)
        self.record_size_max = record_size_max
        self.header_count_max = header_count_max
        self.header_size_max = header_size_max
        self.delayed_count_max = delayed_count_max
        self.rewriter = Rewriter()
        self.retries = Retries(retry_rules)
        self.recurrences = Recurrences(instant_rules)
        self.reply_asks = ReplyAsks(retry_rules is not None)

    def __dealloc__(self):
        release(&self.visible)
        release(&self.held)
        release(&self.tables)
        release(&self.timers)
        release(&self.cancels)
        release(&self.ids)

    cdef BatchSplitter copy(self):
        """Return another one with the same limits."""
        cdef BatchSplitter made = BatchSplitter(
            [self.level_ms[i] for i in range(self.level_count)],
            record_size_max=self.record_size_max,
            header_count_max=self.header_count_max,
            header_size_max=self.header_size_max,
            delayed_count_max=self.delayed_count_max,
            retry_rules=self.retries.rules,
            instant_rules=self.recurrences.rules,
        )
        made.reply_asks.closed_topics = self.reply_asks.closed_topics
        return made

    cdef int _fault(self, int code, int32_t record, int header, int detail) noexcept nogil:
        self.fault.code = code
        self.fault.record = record
        self.fault.header = header
        self.fault.detail = detail
        return code

    cdef void _note_timestamp(self, int64_t timestamp) noexcept nogil:
        if timestamp < self.min_timestamp:
            self.min_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    cdef int inspect(
        self, const Batch* b, const uint8_t* records, int64_t size, int look
    ) noexcept nogil:
        cdef Cursor c = cursor_of(records, size)
        cdef Record r
        cdef int32_t i
        cdef int fault
        self.has_delay_headers = look == LOOK_EVERY
        self.recurrences.begin()
        self.min_timestamp = INT64_MAX
        self.max_timestamp = -1
        memset(&self.tags, 0, sizeof(self.tags))
        for i in range(b.count):
            if not next_record(&c, &r):
                return self._fault(SPLIT_RECORD_NOT_WHOLE, i, 0, 0)
            if r.offset_delta != i:
                return self._fault(SPLIT_OFFSET_DELTA, i, 0, 0)
            if r.end - r.start > self.record_size_max:
                self.fault.size = r.end - r.start
                return self._fault(SPLIT_RECORD_TOO_LARGE, i, 0, 0)
            if not _is_timestamp(b.base_timestamp) or not _is_timestamp(r.timestamp_delta):
                return self._fault(SPLIT_TIMESTAMP, i, 0, 0)
            self._note_timestamp(b.base_timestamp + r.timestamp_delta)
            if r.header_count:
                fault = self._check_headers(&r, i, look)
                if fault != SPLIT_OK:
                    return fault
        if left(&c):
            return self._fault(SPLIT_TRAILING_BYTES, b.count - 1, 0, 0)
        return SPLIT_OK

    cdef int _check_headers(self, Record* r, int32_t i, int look) noexcept nogil:
        cdef Cursor c = cursor_of(r.headers, r.end - r.headers)
        cdef Slice key, value
        cdef int64_t k, tag = 0
        cdef int name
        if r.header_count > self.header_count_max:
            self.fault.size = r.header_count
            return self._fault(SPLIT_TOO_MANY_HEADERS, i, 0, 0)
        if r.end - r.headers > self.header_size_max:
            self.fault.size = r.end - r.headers
            return self._fault(SPLIT_HEADERS_TOO_LARGE, i, 0, 0)
        take_varint(&c)
        for k in range(r.header_count):
            if not next_header(&c, &key, &value):
                return self._fault(SPLIT_RECORD_NOT_WHOLE, i, 0, 0)
            if not self.has_delay_headers and may_be_delay_header(&key):
                name = header_of(&key)
                if look == LOOK_REQUESTS:
                    self.has_delay_headers = (
                        HEADER_NONE < name < HEADER_REQUESTS or name >= HEADER_NEAR_MISSES
                    )
                elif HEADER_RETRY <= name <= HEADER_REPLY or (
                    look == LOOK_OFF and HEADER_CRON <= name <= HEADER_CRON_MISSED
                ):
                    return self._fault(SPLIT_HEADERS_OFF, i, name, 0)
            if is_tags(&key):
                tag = tag_code(&value)
        if left(&c):
            return self._fault(SPLIT_RECORD_NOT_WHOLE, i, 0, 0)
        note_tag(&self.tags, tag)
        return SPLIT_OK

    cdef int _read_ask(
        self, Record* r, int32_t i, int64_t now_ms, int64_t base_ms, int64_t delay_max_ms,
        bint only_retry, DelayAsk* ask
    ) except -1 nogil:
        """Read the delay parameters of record `i`. The last header of each name counts.

        `only_retry`: read only what it says of a retry.
        """
        cdef Cursor c = cursor_of(r.headers, r.end - r.headers)
        cdef Slice key, value
        cdef const uint8_t* start
        cdef int64_t k, own_count = 0, own_bytes = 0
        cdef int name, fault
        memset(ask, 0, sizeof(DelayAsk))
        ask.due_ms = -1
        take_varint(&c)
        for k in range(r.header_count):
            start = c.p
            next_header(&c, &key, &value)
            name = header_of(&key)
            if name == HEADER_NONE:
                ask.kept_count += 1
                ask.kept_bytes += c.p - start
            elif name < HEADER_VALUES:
                ask.present[name] = True
                ask.value[name] = value
                if name >= HEADER_REQUESTS:
                    own_count += 1
                    own_bytes += c.p - start
            elif only_retry:
                continue
            elif name >= HEADER_NEAR_MISSES:
                return self._fault(SPLIT_NEAR_MISS, i, name, 0)
        if not only_retry:
            fault = self._resolve_due(ask, i, now_ms, base_ms, delay_max_ms)
            if fault != SPLIT_OK:
                return fault
        if ask.present[HEADER_RETRY]:
            return self._resolve_retry(ask, i, now_ms, base_ms)
        ask.kept_count += own_count
        ask.kept_bytes += own_bytes
        return SPLIT_OK

    cdef int _resolve_due(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t base_ms, int64_t delay_max_ms
    ) except -1 nogil:
        cdef int64_t value = 0
        cdef int error, header, asked = 0
        for header in range(HEADER_LEVEL + 1):
            if not ask.present[header]:
                continue
            if header == HEADER_DELIVER_AT:
                error = parse_deliver_at(ask.value[header].data, ask.value[header].size, &value)
                ask.due_ms = value
                value -= now_ms
            else:
                error = self._read_delay(ask, header, &ask.level, &value)
                if error == DELAY_OK and value < 0:
                    ask.asks_now |= value == DELAY_NOW
                    continue
                # What has no delay is due now, not with the next millisecond.
                ask.due_ms = base_ms + value if value else now_ms
            if error != DELAY_OK:
                self.fault.value = ask.value[header]
                return self._fault(SPLIT_DELAY_VALUE, i, header, error)
            asked += 1
            if asked > 1:
                return self._fault(SPLIT_CONTRADICTION, i, header, 0)
            if value > delay_max_ms:
                self.fault.size = delay_max_ms
                return self._fault(SPLIT_DELAY_TOO_LONG, i, header, 0)
        for header in range(HEADER_ID, HEADER_CANCEL + 1):
            if ask.present[header] and not 1 <= ask.value[header].size <= ID_SIZE_MAX:
                self.fault.size = ask.value[header].size
                return self._fault(SPLIT_ID_SIZE, i, header, 0)
        if ask.present[HEADER_CANCEL] and (asked or ask.present[HEADER_ID]):
            return self._fault(SPLIT_CANCEL_CONTRADICTION, i, HEADER_CANCEL, 0)
        if ask.present[HEADER_REPLY] and self._check_reply(ask, i) != SPLIT_OK:
            return self.fault.code
        return self._resolve_recurrence(ask, i, now_ms, delay_max_ms, asked > 0)

    cdef int _resolve_recurrence(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t delay_max_ms, bint is_delayed
    ) except -1 nogil:
        """Resolve the first instant of a record that recurs."""
        cdef int error
        if not ask.present[HEADER_CRON]:
            if ask.present[HEADER_CRON_ZONE] or ask.present[HEADER_CRON_MISSED]:
                return self._fault(SPLIT_CRON_ALONE, i, HEADER_CRON, 0)
            return SPLIT_OK
        if is_delayed or ask.present[HEADER_CANCEL] or ask.present[HEADER_RETRY]:
            return self._fault(SPLIT_CRON_CONTRADICTION, i, HEADER_CRON, 0)
        if not ask.present[HEADER_ID]:
            return self._fault(SPLIT_CRON_ID, i, HEADER_CRON, 0)
        error = self.recurrences.resolve(ask, now_ms)
        if error != SPLIT_OK:
            return self._fault(error, i, HEADER_CRON, 0)
        if ask.due_ms - now_ms > delay_max_ms:
            self.fault.size = delay_max_ms
            return self._fault(SPLIT_DELAY_TOO_LONG, i, HEADER_CRON, 0)
        return SPLIT_OK

    cdef int _check_reply(self, const DelayAsk* ask, int32_t i) noexcept nogil:
        if ask.present[HEADER_RETRY]:
            return self._fault(SPLIT_REPLY_CONTRADICTION, i, HEADER_REPLY, 0)
        if not ask.present[HEADER_ID] and not ask.present[HEADER_CANCEL]:
            return self._fault(SPLIT_REPLY_ALONE, i, HEADER_REPLY, 0)
        return SPLIT_OK

    # Retries

    cdef int _resolve_retry(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t base_ms
    ) except -1 nogil:
        """Count the attempt, and resolve its due time unless the record itself asks for one."""
        cdef int64_t before = 0
        cdef int error
        ask.present[HEADER_CRON] = False    # without effect where `delay.invalid` lets it pass
        if ask.present[HEADER_ID] or ask.present[HEADER_CANCEL]:
            return self._fault(SPLIT_RETRY_CONTRADICTION, i, HEADER_RETRY, 0)
        if ask.present[HEADER_ATTEMPT]:
            error = parse_level(
                ask.value[HEADER_ATTEMPT].data, ask.value[HEADER_ATTEMPT].size, &before
            )
            if error != DELAY_OK:
                self.fault.value = ask.value[HEADER_ATTEMPT]
                return self._fault(SPLIT_DELAY_VALUE, i, HEADER_ATTEMPT, error)
        error = self.retries.resolve(&ask.value[HEADER_RETRY], before, ask)
        if error != SPLIT_OK:
            return self._fault(error, i, HEADER_RETRY, 0)
        if ask.is_dead:
            ask.due_ms = now_ms
        elif ask.due_ms < 0:
            ask.due_ms = base_ms + ask.retry_delay_ms
        else:
            ask.due_ms = max(ask.due_ms, now_ms)
        return SPLIT_OK

    cdef int _insist(
        self, DelayAsk* ask, int32_t i, Topic topic, int64_t base_ms
    ) noexcept nogil:
        """Give a record without a request what its topic says."""
        if ask.due_ms >= 0 or ask.asks_now or ask.present[HEADER_CANCEL]:
            return SPLIT_OK
        if topic.delay_default_ms >= 0:
            ask.due_ms = base_ms + min(topic.delay_default_ms, topic.delay_max_ms)
        elif topic.requires_delay:
            return self._fault(SPLIT_NO_REQUEST, i, HEADER_DELAY, 0)
        return SPLIT_OK

    cdef int _read_delay(
        self, const DelayAsk* ask, int header, int* level, int64_t* delay_ms
    ) noexcept nogil:
        """Read `x-delay` or `x-delay-level`; below 0 if it asks for none. Returns a DelayError."""
        cdef const Slice* text = &ask.value[header]
        cdef int64_t number = 0
        cdef int error
        if header == HEADER_DELAY:
            return parse_delay(text.data, text.size, delay_ms)
        error = parse_level(text.data, text.size, &number)
        delay_ms[0] = NO_DELAY
        if error == DELAY_OK and number:
            level[0] = <int>number if number < self.level_count else self.level_count
            delay_ms[0] = self.level_ms[level[0] - 1]
        return error

    cdef int _add_timer(
        self, Record* r, int32_t i, DelayAsk* ask, Topic topic
    ) except -1 nogil:
        cdef Py_ssize_t start = self.held.size
        cdef int64_t level_offset = -1
        cdef uint8_t* e
        self.rewriter.write(&self.held, r, self.timer_count, ask, topic)
        if ask.level:
            level_offset = self.level_used[ask.level]  # `assemble` adds where the level is
            self.level_used[ask.level] += 1
        e = extend_zero(&self.timers, TIMER_ENTRY_SIZE)
        store_u32(e + TIMER_AT_INDEX, i)
        e[TIMER_AT_LEVEL] = <uint8_t>ask.level
        e[TIMER_AT_KIND] = DUE_RESOLVED
        store_u64(e + TIMER_AT_DUE, ask.due_ms)
        store_u64(e + TIMER_AT_LEVEL_OFFSET, level_offset)
        store_u32(e + TIMER_AT_TARGET_PARTITION, <uint32_t>-1)
        if ask.present[HEADER_RETRY]:
            store_u32(e + TIMER_AT_TARGET_TOPIC, retry_mark(ask))
        store_u32(e + TIMER_AT_RECORD_POS, <uint32_t>start)
        store_u32(e + TIMER_AT_RECORD_SIZE, <uint32_t>(self.held.size - start))
        if ask.present[HEADER_ID]:
            e[TIMER_AT_ID_SIZE] = <uint8_t>ask.value[HEADER_ID].size
            store_u32(e + TIMER_AT_ID_POS, <uint32_t>self.ids.size)
            append(&self.ids, ask.value[HEADER_ID].data, ask.value[HEADER_ID].size)
        if ask.present[HEADER_CRON]:
            e[TIMER_AT_KIND] = DUE_RECURRING
            store_u32(e + TIMER_AT_RULE_POS, <uint32_t>self.ids.size)
            store_u16(e + TIMER_AT_RULE_SIZE, self.recurrences.append_rule(ask, &self.ids))
        self.timer_count += 1
        if self.min_due < 0 or ask.due_ms < self.min_due:
            self.min_due = ask.due_ms
        if ask.due_ms > self.max_due:
            self.max_due = ask.due_ms
        return 0

    cdef int _add_cancellation(
        self, int32_t i, int kind, const Slice* name, int64_t due_ms
    ) except -1 nogil:
        cdef uint8_t* e = extend_zero(&self.cancels, CANCEL_ENTRY_SIZE)
        store_u32(e + CANCEL_AT_INDEX, i)
        e[CANCEL_AT_KIND] = <uint8_t>kind
        e[CANCEL_AT_ID_SIZE] = <uint8_t>name.size
        store_u64(e + CANCEL_AT_DUE, due_ms)
        store_u32(e + CANCEL_AT_ID_POS, <uint32_t>self.ids.size)
        append(&self.ids, name.data, name.size)
        self.cancel_count += 1
        return 0

    cdef void _reset(self) noexcept nogil:
        shrink(&self.visible, KEEP_BYTES)
        shrink(&self.held, KEEP_BYTES)
        shrink(&self.tables, KEEP_BYTES)
        shrink(&self.timers, KEEP_BYTES)
        shrink(&self.cancels, KEEP_BYTES)
        shrink(&self.ids, KEEP_BYTES)
        memset(self.level_used, 0, sizeof(self.level_used))
        memset(&self.tags, 0, sizeof(self.tags))
        memset(self.passed, 0, sizeof(self.passed))
        self.passed_count = 0
        self.retries.count = 0
        self.reply_asks.reset()
        self.visible_count = self.timer_count = self.cancel_count = 0
        self.min_due = self.max_due = -1
        self.min_timestamp = INT64_MAX
        self.max_timestamp = -1

    cdef void _let_pass(self) noexcept nogil:
        """Note the fault of the next visible record, which is to pass."""
        if self.passed_count == 0:
            self.passed_fault = self.fault
            self.passed_index = self.visible_count
        self.passed_count += 1
        self.passed[reason_of(self.fault.code, self.fault.detail, self.fault.header)] += 1

    cdef int _finish_visible(self, Record* r, const Batch* b) except -1 nogil:
        self.visible_count += 1
        note_tag(&self.tags, tag_of_tail(r.tail, r.end - r.tail))
        self._note_timestamp(b.base_timestamp + r.timestamp_delta)
        return 0

    cdef int _add_unchanged(self, Record* r, const Batch* b) except -1 nogil:
        write_record(
            &self.visible, r.attributes, r.timestamp_delta, self.visible_count, r.tail,
            r.end - r.tail,
        )
        return self._finish_visible(r, b)

    cdef int _add_visible(
        self, Record* r, int32_t i, DelayAsk* ask, const Batch* b, int64_t now_ms, Topic topic
    ) except -1 nogil:
        """Add a record that is due or has no delay, but an id."""
        if ask.due_ms < 0:
            ask.due_ms = now_ms
        if ask.present[HEADER_ID]:
            self._add_cancellation(i, CANCEL_BY_DELIVERY, &ask.value[HEADER_ID], ask.due_ms)
        if topic.due_timestamp:
            r.timestamp_delta = ask.due_ms - b.base_timestamp
        self.rewriter.write(&self.visible, r, self.visible_count, ask, topic)
        return self._finish_visible(r, b)

    cdef int split(
        self, const Batch* b, const uint8_t* records, int64_t size, Topic topic,
        int32_t partition, int64_t now_ms, int64_t base_ms
    ) except -1 nogil:
        """Returns SPLIT_OK or a SplitFault. REQUIRES: `inspect` returned SPLIT_OK."""
        cdef Cursor c = cursor_of(records, size)
        cdef Batch built = b[0]
        cdef Record r
        cdef DelayAsk ask
        cdef Fault found
        cdef int32_t i
        cdef int fault
        self._reset()
        self.rewriter.begin(now_ms, partition)
        begin_batch(&self.visible)
        begin_batch(&self.held)
        for i in range(b.count):
            next_record(&c, &r)
            fault = self._read_ask(&r, i, now_ms, base_ms, topic.delay_max_ms, False, &ask)
            if SPLIT_OK < fault < SPLIT_TOO_MANY_DELAYED and topic.passes_invalid_delays:
                found = self.fault
                fault = self._read_ask(&r, i, now_ms, base_ms, topic.delay_max_ms, True, &ask)
                # Who asks for a reply waits for it.
                if ask.present[HEADER_REPLY]:
                    self.fault = found
                    return found.code
                # A retry that is visible at once reaches every group, again and again.
                if not ask.present[HEADER_RETRY]:
                    self.fault = found
                    self._let_pass()
                    self._add_unchanged(&r, b)
                    continue
            if fault != SPLIT_OK:
                return fault
            fault = self._insist(&ask, i, topic, base_ms)
            if fault != SPLIT_OK:
                return fault
            if ask.present[HEADER_REPLY]:
                fault = self.reply_asks.note(i, &ask.value[HEADER_REPLY])
                if fault != SPLIT_OK:
                    return self._fault(fault, i, HEADER_REPLY, 0)
            if ask.present[HEADER_CANCEL]:
                self._add_cancellation(i, CANCEL_BY_HEADER, &ask.value[HEADER_CANCEL], 0)
            elif ask.due_ms > now_ms or ask.present[HEADER_RETRY]:
                self._add_timer(&r, i, &ask, topic)
            elif ask.due_ms < 0 and not ask.present[HEADER_ID]:
                # No delay is requested, only level 0 or the like.
                self._add_unchanged(&r, b)
            else:
                self._add_visible(&r, i, &ask, b, now_ms, topic)
            if self.timer_count + self.cancel_count > self.delayed_count_max:
                return self._fault(SPLIT_TOO_MANY_DELAYED, -1, 0, 0)
        if topic.log_append_time and self.visible_count:
            self.min_timestamp = self.max_timestamp = now_ms
        built.attributes &= ~ATTRIBUTE_CODEC
        if self.reply_asks.count:
            pass  # `Replies.decide` finishes the held batch
        elif self.timer_count:
            built.count = self.timer_count
            built.last_delta = self.timer_count - 1
            built.base_offset = 0
            finish_batch(&self.held, 0, &built)
        else:
            self.held.size = 0
        if self.visible_count == 0:
            self.visible.size = 0
            self.min_timestamp = INT64_MIN
        return SPLIT_OK

    cdef int32_t tables_size(self) noexcept nogil:
        """Size of the tables of the frame in bytes, a multiple of 8."""
        cdef Py_ssize_t size = self.timers.size + self.cancels.size + self.ids.size
        return <int32_t>((size + FRAME_ALIGNMENT - 1) & ~<Py_ssize_t>(FRAME_ALIGNMENT - 1))

    cdef int assemble(
        self, const Batch* b, int64_t frame_pos, int64_t base_offset, int32_t epoch,
        bint log_append_time, const int64_t* level_next
    ) except -1 nogil:
        """Complete the output of `split` with what follows from the place of the frame."""
        cdef Batch built = b[0]
        cdef int64_t ids_pos = FRAME_HEADER_SIZE + self.timers.size + self.cancels.size
        cdef int64_t held_pos = FRAME_HEADER_SIZE + self.tables_size() + self.visible.size
        cdef uint8_t* e = self.timers.data
        cdef int32_t i
        for i in range(self.timer_count):
            store_u64(e + TIMER_AT_ACCEPT_POS, frame_pos)
            if e[TIMER_AT_LEVEL]:
                store_u64(
                    e + TIMER_AT_LEVEL_OFFSET,
                    load_u64(e + TIMER_AT_LEVEL_OFFSET) + level_next[e[TIMER_AT_LEVEL]],
                )
            store_u32(
                e + TIMER_AT_RECORD_POS, <uint32_t>(load_u32(e + TIMER_AT_RECORD_POS) + held_pos)
            )
            if e[TIMER_AT_ID_SIZE]:
                store_u32(e + TIMER_AT_ID_POS, <uint32_t>(load_u32(e + TIMER_AT_ID_POS) + ids_pos))
            if load_u16(e + TIMER_AT_RULE_SIZE):
                store_u32(
                    e + TIMER_AT_RULE_POS, <uint32_t>(load_u32(e + TIMER_AT_RULE_POS) + ids_pos)
                )
            e += TIMER_ENTRY_SIZE
        e = self.cancels.data
        for i in range(self.cancel_count):
            store_u32(e + CANCEL_AT_ID_POS, <uint32_t>(load_u32(e + CANCEL_AT_ID_POS) + ids_pos))
            e += CANCEL_ENTRY_SIZE
        self.tables.size = 0
        append(&self.tables, self.timers.data, self.timers.size)
        append(&self.tables, self.cancels.data, self.cancels.size)
        append(&self.tables, self.ids.data, self.ids.size)
        extend_zero(&self.tables, self.tables_size() - self.tables.size)
        if self.visible_count:
            built.attributes &= ~ATTRIBUTE_CODEC
            if log_append_time:
                built.attributes |= ATTRIBUTE_LOG_APPEND_TIME
            built.base_offset = base_offset
            built.leader_epoch = epoch
            built.count = self.visible_count
            built.last_delta = self.visible_count - 1
            built.max_timestamp = self.max_timestamp
            finish_batch(&self.visible, 0, &built)
        return 0
