"""Encodes the next occurrences of recurring timers, for the frame that completes the ones before.

The next occurrence is a timer of its own, with an id of its own, in the frame that completes the
occurrence before it. So a crash keeps both or neither, and to a carry, a run or a look-up it is a
timer like any other. The frame holds the record again. It differs in `x-due-at` alone.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from _core.bytes.batch cimport Batch, begin_batch, finish_batch, write_record
from _core.bytes.buffer cimport append, extend_zero, release, shrink
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_u16, load_u32, store_u16, store_u32, store_u64, varint_size
from _core.paths.delay_names cimport HEADER_DUE_AT, HEADER_DUE_ID, name_of, name_size_of
from _core.paths.due_records cimport Due, Following

cdef enum:
    KEEP_BYTES = 1 << 20
    DIGITS = 13               # of an instant in ms, from 2001 to 2286


cdef bint _set_due_at(uint8_t* end, Py_ssize_t size, int id_size, int64_t due_ms) noexcept nogil:
    """Write an instant over that of `x-due-at` in a record that ends at `end`.

    `x-due-id` is its last header, after `x-due-at`. Returns False if that is not so.
    """
    cdef int name_size = name_size_of(HEADER_DUE_AT)
    cdef Py_ssize_t id_header = (
        1 + name_size_of(HEADER_DUE_ID) + varint_size(id_size) + id_size
    )
    cdef uint8_t* digits = end - id_header - DIGITS
    cdef const char* name = name_of(HEADER_DUE_AT)
    cdef uint64_t left_over = <uint64_t>due_ms
    cdef int i
    if size < id_header + DIGITS + 2 + name_size:
        return False
    for i in range(name_size):
        if (digits - 1 - name_size)[i] != <uint8_t>name[i]:
            return False
    for i in range(DIGITS):
        digits[DIGITS - 1 - i] = <uint8_t>(48 + left_over % 10)
        left_over //= 10
    return left_over == 0


cdef class SetAnew:
    """The timers that one frame sets anew. It has no Python API.

    Attributes:
        count: how many they are.
    """

    def __dealloc__(self):
        release(&self.entries)
        release(&self.names)
        release(&self.held)

    cdef void begin(self) noexcept nogil:
        shrink(&self.entries, KEEP_BYTES)
        shrink(&self.names, KEEP_BYTES)
        shrink(&self.held, KEEP_BYTES)
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
        write_record(
            &self.held, due.attributes, due.timestamp - self.base_timestamp, self.count, due.tail,
            due.tail_size,
        )
        if not _set_due_at(
            self.held.data + self.held.size, due.tail_size, due.name_size, following.due_ms
        ):
            raise AssertionError("a recurring record does not end with x-due-at and x-due-id")
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
