from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from _core.bytes.batch cimport Record, Slice
from _core.bytes.borrowed cimport Borrowed
from _core.bytes.octets cimport Cursor
from _core.log.frames cimport FrameHeader
from _core.log.window cimport LogWindow
from _core.tables.delay_headers cimport DelayHeaders
from _core.tables.columns cimport ColumnData, Spares, null_i64, put_i64, put_octets

# The columns of all tables; COLUMN_NAMES has their names in this order.
cdef enum:
    COLUMN_KEY = 0
    COLUMN_VALUE
    COLUMN_TOPIC
    COLUMN_PARTITION
    COLUMN_OFFSET
    COLUMN_TIMESTAMP
    COLUMN_TIMESTAMP_TYPE
    COLUMN_HEADERS
    COLUMN_DUE_AT
    COLUMN_ACCEPTED_AT
    COLUMN_STORE_TIMESTAMP
    COLUMN_DELAY_STATE
    COLUMN_POSITION
    COLUMN_INDEX
    COLUMN_ID
    COLUMN_LEVEL
    COLUMN_COMPLETED_AT
    COLUMN_DELIVERED_AT
    COLUMN_LATENESS_MS
    COLUMN_ACCEPT_POSITION
    COLUMN_SIZE
    COLUMN_TAGS_CODE
    COLUMN_KIND
    COLUMN_EPOCH
    COLUMN_LAST_OFFSET
    COLUMN_RECORD_COUNT
    COLUMN_TIMER_COUNT
    COLUMN_CANCEL_COUNT
    COLUMN_FLUSHED
    COLUMN_MIN_TIMESTAMP
    COLUMN_MAX_TIMESTAMP
    COLUMN_MIN_DUE_AT
    COLUMN_MAX_DUE_AT
    COLUMN_PRODUCER_ID
    COLUMN_CRON
    COLUMN_ZONE
    COLUMN_MISSED
    COLUMN_COUNT
    # The children of COLUMN_HEADERS stand behind the others.
    HEADER_KEY = COLUMN_COUNT
    HEADER_VALUE
    COLUMN_ROOM

# A range of instants in epoch ms: from <= instant < to.
cdef struct Span:
    int64_t start
    int64_t end

cdef inline bint holds(const Span* span, int64_t instant) noexcept nogil:
    return span.start <= instant < span.end


# Whether some instant from `low` to `high` may be in the span.
cdef inline bint overlaps(const Span* span, int64_t low, int64_t high) noexcept nogil:
    return low < span.end and span.start <= high


# An instant as Arrow has it, in microseconds.
cdef inline int64_t in_us(int64_t epoch_ms) noexcept nogil:
    return max(min(epoch_ms, INT64_MAX // 1000), -(INT64_MAX // 1000)) * 1000


cdef class RowScan:
    cdef LogWindow window
    cdef object read
    cdef object decompress
    cdef list ranges                  # (from, to, segment base, segment end), not begun yet
    cdef dict topics                  # topic id -> (name, start offsets)
    cdef readonly int64_t pos
    cdef int64_t end
    cdef int64_t base
    cdef int64_t limit
    cdef bint verifies
    cdef uint32_t salt
    cdef uint64_t wanted              # a bit for each column
    cdef list names
    cdef Span timestamps
    cdef Span stored
    cdef Span due
    cdef int32_t partition            # -1 = all
    cdef Borrowed left_out            # i64: positions of frames without rows, ascending
    cdef int64_t left_out_passed      # how many of them
    cdef bytes topic_name             # of the current frame
    cdef Slice topic                  # the same
    cdef int64_t start_offset         # of its partition
    cdef int64_t rows
    cdef readonly list faults         # (log position, fault), until they are taken
    cdef ColumnData columns[COLUMN_ROOM]
    cdef Spares spares                # by column
    cdef tuple _take(self, int column)
    cdef bint _enters(self) except -1
    cdef bint _takes_place(self, const FrameHeader* h) except -1
    cdef bint _takes(self, const FrameHeader* h) except -1
    cdef bint _needs_bodies(self) noexcept nogil
    cdef bint _needs_body_of(self, const FrameHeader* h) noexcept nogil
    cdef bint _is_left_out(self, int64_t pos) noexcept nogil
    cdef int _add(self, const FrameHeader* h, const uint8_t* p) except -1
    cdef int _skipped(self, const FrameHeader* h) except -1
    cdef int _check_head(self, int64_t pos, FrameHeader* h) except -1
    cdef int64_t _behind_fault(self) except -1
    cdef int64_t _range_end(self) except -1
    cdef object _section(self, const FrameHeader* h, const uint8_t* batch, int codec, Cursor* c)
    cdef int _put_place(self, const FrameHeader* h, int64_t count) except -1 nogil
    cdef int _put_stored(self, const FrameHeader* h, int64_t count) except -1 nogil
    cdef int _put_headers(self, const Record* r, DelayHeaders* found) except -1 nogil
    cdef int _make_room(self, int64_t rows, int64_t octets) except -1 nogil
    cdef int64_t _size_held(self) noexcept nogil


cdef inline bint is_wanted(RowScan scan, int column) noexcept nogil:
    return (scan.wanted >> column) & 1


cdef inline void put_text(RowScan scan, int column, const Slice* text) noexcept nogil:
    put_octets(&scan.columns[column], text.data, text.size)


# Puts an instant; INT64_MIN is null.
cdef inline void put_instant(RowScan scan, int column, int64_t epoch_ms) noexcept nogil:
    if epoch_ms == INT64_MIN:
        null_i64(&scan.columns[column])
    else:
        put_i64(&scan.columns[column], in_us(epoch_ms))
