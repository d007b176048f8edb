"""Rows of frames by their headers alone: the tables `frames` and `queues`. Layer 0: no I/O."""

from libc.stdint cimport INT64_MIN, int64_t, uint8_t

from _core.bytes.layout cimport *
from _core.log.frames cimport FrameHeader, has_records, is_run
from _core.tables.columns cimport null_i64, put_i64, repeat_i32, repeat_i64, repeat_octets
from _core.tables.row_scan cimport *


cdef class FrameRows(RowScan):
    """One row for each frame of any kind."""

    cdef tuple kinds
    cdef bint takes_others

    def __cinit__(self, *, tuple kinds=(), bint takes_others=True, **kwargs):
        """Start at the first range. The other arguments are those of `RowScan`."""
        self.kinds = kinds
        self.takes_others = takes_others

    cdef bint _takes_place(self, const FrameHeader* h) except -1:
        if RowScan._takes_place(self, h):
            return True
        self.topic.size = -1
        return self.takes_others and (self.partition < 0 or h.partition == self.partition)

    cdef bint _takes(self, const FrameHeader* h) except -1:
        return holds(&self.stored, h.store_time_ms)

    cdef int _add(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef bytes name
        self._make_room(1, 0)
        if is_wanted(self, COLUMN_KIND):
            name = self.kinds[h.kind] if h.kind < len(self.kinds) else str(h.kind).encode()
            repeat_octets(
                &self.columns[COLUMN_KIND], <const uint8_t*><const char*>name, len(name), 1
            )
        self._put_place(h, 1)
        if is_wanted(self, COLUMN_STORE_TIMESTAMP):
            put_instant(self,
                COLUMN_STORE_TIMESTAMP, INT64_MIN if h.kind == KIND_BLANK else h.store_time_ms
            )
        self._put_number(COLUMN_SIZE, h.size)
        self._put_number(COLUMN_EPOCH, h.epoch)
        self._put_number(COLUMN_FLUSHED, h.flushed)
        self._put_number(COLUMN_OFFSET, h.base_offset if h.visible_size else INT64_MIN)
        self._put_number(
            COLUMN_LAST_OFFSET, h.base_offset + h.last_delta if h.visible_size else INT64_MIN
        )
        self._put_number(COLUMN_RECORD_COUNT, h.record_count)
        self._put_number(COLUMN_TIMER_COUNT, h.timer_count)
        self._put_number(COLUMN_CANCEL_COUNT, h.cancel_count)
        self._put_number(COLUMN_PRODUCER_ID, h.producer_id if h.producer_id >= 0 else INT64_MIN)
        self._put_bounds(h)
        self.rows += 1
        return 0

    cdef int _put_number(self, int column, int64_t number) except -1:
        """Put a number if it is wanted; INT64_MIN is null."""
        if not is_wanted(self, column):
            return 0
        if number == INT64_MIN:
            null_i64(&self.columns[column])
        else:
            put_i64(&self.columns[column], number)
        return 0

    cdef int _put_bounds(self, const FrameHeader* h) except -1:
        cdef bint is_known = h.record_count > 0 and h.min_timestamp != INT64_MIN
        if is_wanted(self, COLUMN_MIN_TIMESTAMP):
            put_instant(self, COLUMN_MIN_TIMESTAMP, h.min_timestamp if is_known else INT64_MIN)
        if is_wanted(self, COLUMN_MAX_TIMESTAMP):
            put_instant(self,
                COLUMN_MAX_TIMESTAMP, h.max_timestamp if h.record_count else INT64_MIN
            )
        if is_wanted(self, COLUMN_MIN_DUE_AT):
            put_instant(self, COLUMN_MIN_DUE_AT, h.min_due_ms if h.min_due_ms >= 0 else INT64_MIN)
        if is_wanted(self, COLUMN_MAX_DUE_AT):
            put_instant(self, COLUMN_MAX_DUE_AT, h.max_due_ms if h.max_due_ms >= 0 else INT64_MIN)
        return 0


cdef class QueueRows(RowScan):
    """The units of the ConsumeQueues, as the log says that they are: one for each visible offset.

    Frames whose offsets have no units of their own have no rows.
    """

    cdef bint _takes(self, const FrameHeader* h) except -1:
        return (
            has_records(h.kind) and h.visible_size > 0
            and not is_run(h) and h.base_offset + h.last_delta >= self.start_offset
            and holds(&self.stored, h.store_time_ms)
        )

    cdef int _add(self, const FrameHeader* h, const uint8_t* p) except -1:
        cdef int64_t first = max(h.base_offset, self.start_offset), offset
        cdef int64_t count = h.base_offset + h.last_delta + 1 - first
        self._make_room(count, 0)
        self._put_place(h, count)
        self._put_stored(h, count)
        if is_wanted(self, COLUMN_OFFSET):
            for offset in range(first, first + count):
                put_i64(&self.columns[COLUMN_OFFSET], offset)
        if is_wanted(self, COLUMN_SIZE):
            repeat_i32(&self.columns[COLUMN_SIZE], h.size, count)
        if is_wanted(self, COLUMN_TAGS_CODE):
            repeat_i64(&self.columns[COLUMN_TAGS_CODE], h.tags, count)
        self.rows += count
        return 0
