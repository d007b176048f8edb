"""Encodes the next occurrences of recurring timers, for the frame that completes the ones before.

The next occurrence is a timer of its own, with an id of its own, in the frame that completes the
occurrence before it. So a crash keeps both or neither, and to a carry, a run or a look-up it is a
timer like any other. The frame holds the record again. It differs in `x-due-at` alone.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from _core.bytes.batch cimport Batch, begin_batch, finish_batch, write_record
from _core.bytes.buffer cimport append, extend_zero, release, shrink
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_u16, load_u32, store_u16, store_u32, store_u64, varint_size
from _core.paths.delay_names cimport HEADER_DUE_AT, HEADER_DUE_ID, name_of, name_size_of
from _core.paths.due_records cimport Due, Following
from _core.paths.rewriter cimport DIGITS_MAX, decimal

cdef enum:
    KEEP_BYTES = 1 << 20


cdef int _due_digits(const Due* due, const uint8_t* end) noexcept nogil:
    """Number of digits of `x-due-at`, whose value ends before `end`; 0 if it is not there."""
    cdef int name_size = name_size_of(HEADER_DUE_AT)
    cdef const char* name = name_of(HEADER_DUE_AT)
    cdef int count
    for count in range(1, min(<int>DIGITS_MAX, <int>(end - due.tail) - 2 - name_size) + 1):
        if (end - count - 1)[0] == 2 * count and (
            memcmp(end - count - 1 - name_size, name, name_size) == 0
        ):
            return count
    return 0


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
        e[TIMER_AT_KIND] = DUE_RECURRING
        e[TIMER_AT_ID_SIZE] = <uint8_t>due.name_size
        store_u64(e + TIMER_AT_DUE, following.due_ms)
        store_u64(e + TIMER_AT_LEVEL_OFFSET, <uint64_t>-1)
        store_u32(e + TIMER_AT_RECORD_POS, start)
        store_u32(e + TIMER_AT_RECORD_SIZE, self.held.size - start)
        store_u32(e + TIMER_AT_OCCURRENCE, due.occurrence + 1)
        store_u32(e + TIMER_AT_TARGET_PARTITION, <uint32_t>-1)
        store_u32(e + TIMER_AT_ID_POS, self.names.size)
        append(&self.names, due.name, due.name_size)
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
        """Write the record again, with the next instant in `x-due-at`.

        `x-due-id` is its last header, after `x-due-at`.
        """
        cdef uint8_t digits[DIGITS_MAX]
        cdef int count = decimal(due.following.due_ms, digits + DIGITS_MAX)
        cdef const uint8_t* end = due.tail + due.tail_size - (
            1 + name_size_of(HEADER_DUE_ID) + varint_size(due.name_size) + due.name_size
        )
        cdef int count_before = _due_digits(due, end)
        cdef uint8_t size = 2 * count
        if count_before == 0:
            raise AssertionError("a recurring record does not end with x-due-at and x-due-id")
        self.tail.size = 0
        append(&self.tail, due.tail, end - count_before - 1 - due.tail)
        append(&self.tail, &size, 1)
        append(&self.tail, digits + DIGITS_MAX - count, count)
        append(&self.tail, end, due.tail + due.tail_size - end)
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
            store_u32(e + TIMER_AT_ID_POS, load_u32(e + TIMER_AT_ID_POS) + names_pos)
            store_u32(e + TIMER_AT_RULE_POS, load_u32(e + TIMER_AT_RULE_POS) + names_pos)
            e += TIMER_ENTRY_SIZE
