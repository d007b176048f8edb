"""Encodes timers that are set anew, for the frame that completes the ones before.

They are the next occurrences of recurring timers, or timers that get another due time.

A timer that is set anew is a timer of its own, with an id of its own, in the frame that completes
the one before it. So a crash keeps both or neither, and to a carry, a run or a look-up it is a
timer like any other. The frame holds the record again. It differs in `x-due-at` alone.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from _core.bytes.batch cimport (
    Batch, Slice, begin_batch, finish_batch, next_header, write_record,
)
from _core.bytes.buffer cimport append, extend_zero, release, shrink
from _core.bytes.layout cimport *
from _core.bytes.octets cimport (
    Cursor, cursor_of, load_u16, load_u32, store_u16, store_u32, store_u64, take, take_varint,
)
from _core.paths.delay_names cimport HEADER_DUE_AT, header_of
from _core.paths.due_records cimport Due, Following
from _core.paths.rewriter cimport DIGITS_MAX, decimal

cdef enum:
    KEEP_BYTES = 1 << 20


cdef const uint8_t* _due_value(const Due* due, int* count) noexcept nogil:
    """The value of `x-due-at` in a record, and the number of its digits; NULL if it has none."""
    cdef Cursor c = cursor_of(due.tail, due.tail_size)
    cdef const uint8_t* found = NULL
    cdef Slice key, value
    cdef int64_t i
    for i in range(2):    # key and value of the record
        take(&c, max(take_varint(&c), 0))
    for i in range(take_varint(&c)):
        if not next_header(&c, &key, &value):
            return NULL
        if header_of(&key) == HEADER_DUE_AT and 0 < value.size <= DIGITS_MAX:
            found = value.data
            count[0] = <int>value.size
    return found


cdef class SetAnew:
    """The timers that one frame sets anew. It has no Python API.

    Attributes:
        count: how many they are.
    """

    def __dealloc__(self):
        release(&self.entries)
        release(&self.names)
        release(&self.held)
        release(&self.tail)

    cdef void begin(self) noexcept nogil:
        shrink(&self.entries, KEEP_BYTES)
        shrink(&self.names, KEEP_BYTES)
        shrink(&self.held, KEEP_BYTES)
        shrink(&self.tail, KEEP_BYTES)
        self.count = 0

    cdef int add(self, const Due* due, int32_t index) except -1:
        cdef const Following* following = &due.following
        cdef Py_ssize_t start
        cdef uint8_t* e
        if self.count == 0:
            begin_batch(&self.held)
            self.base_timestamp = due.timestamp
            self.max_timestamp = self.max_due_ms = -1
        start = self.held.size
        self._write_next(due)
        e = extend_zero(&self.entries, TIMER_ENTRY_SIZE)
        store_u32(e + TIMER_AT_INDEX, index)
        e[TIMER_AT_KIND] = DUE_RECURRING if due.rule_size else DUE_RESOLVED
        e[TIMER_AT_ID_SIZE] = <uint8_t>due.name_size
        store_u64(e + TIMER_AT_DUE, following.due_ms)
        store_u64(e + TIMER_AT_LEVEL_OFFSET, <uint64_t>-1)
        store_u32(e + TIMER_AT_RECORD_POS, start)
        store_u32(e + TIMER_AT_RECORD_SIZE, self.held.size - start)
        store_u32(e + TIMER_AT_TARGET_PARTITION, <uint32_t>-1)
        store_u32(e + TIMER_AT_ID_POS, self.names.size)
        append(&self.names, due.name, due.name_size)
        if due.rule_size:
            store_u32(e + TIMER_AT_OCCURRENCE, due.occurrence + 1)
            store_u32(e + TIMER_AT_RULE_POS, self.names.size)
            store_u16(e + TIMER_AT_RULE_SIZE, due.rule_size)
            append(&self.names, due.rule, due.rule_size)
            store_u64(self.names.data + self.names.size - due.rule_size + RULE_AT_AFTER,
                      following.after_ms)
        self.max_timestamp = max(self.max_timestamp, due.timestamp)
        self.max_due_ms = max(self.max_due_ms, following.due_ms)
        self.count += 1
        return 0

    cdef int _write_next(self, const Due* due) except -1:
        """Write the record again, with the next instant in `x-due-at`."""
        cdef uint8_t digits[DIGITS_MAX]
        cdef int count = decimal(due.following.due_ms, digits + DIGITS_MAX)
        cdef int count_before = 0
        cdef const uint8_t* value = _due_value(due, &count_before)
        cdef uint8_t size = 2 * count    # a varint: it is less than 64
        if value == NULL:
            raise AssertionError("a held record has no x-due-at")
        self.tail.size = 0
        append(&self.tail, due.tail, value - 1 - due.tail)
        append(&self.tail, &size, 1)
        append(&self.tail, digits + DIGITS_MAX - count, count)
        value += count_before
        append(&self.tail, value, due.tail + due.tail_size - value)
        return write_record(
            &self.held, due.attributes, due.timestamp - self.base_timestamp, self.count,
            self.tail.data, self.tail.size,
        )

    cdef int finish(self, int32_t epoch) except -1:
        cdef Batch b
        if self.count == 0:
            return 0
        memset(&b, 0, sizeof(b))
        b.base_timestamp = self.base_timestamp
        b.max_timestamp = self.max_timestamp
        b.count = self.count
        b.last_delta = self.count - 1
        b.leader_epoch = epoch
        b.producer_id = b.producer_epoch = b.base_sequence = -1
        finish_batch(&self.held, 0, &b)
        return 0

    cdef void place(
        self, uint8_t* entries, int64_t frame_pos, int64_t names_pos, int64_t held_pos
    ) noexcept nogil:
        cdef uint8_t* e = entries
        cdef int32_t i
        for i in range(self.count):
            store_u64(e + TIMER_AT_ACCEPT_POS, frame_pos)
            store_u32(e + TIMER_AT_RECORD_POS, load_u32(e + TIMER_AT_RECORD_POS) + held_pos)
            if e[TIMER_AT_ID_SIZE]:
                store_u32(e + TIMER_AT_ID_POS, load_u32(e + TIMER_AT_ID_POS) + names_pos)
            else:
                store_u32(e + TIMER_AT_ID_POS, 0)
            if load_u16(e + TIMER_AT_RULE_SIZE):
                store_u32(e + TIMER_AT_RULE_POS, load_u32(e + TIMER_AT_RULE_POS) + names_pos)
            e += TIMER_ENTRY_SIZE
