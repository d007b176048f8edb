from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Batch, Record, Slice
from _core.bytes.buffer cimport Buf
from _core.state.projections cimport LEVELS_MAX
from _core.bytes.tags cimport TagSum

cdef enum SplitFault:
    SPLIT_OK = 0
    SPLIT_RECORD_NOT_WHOLE
    SPLIT_OFFSET_DELTA
    SPLIT_TRAILING_BYTES
    SPLIT_RECORD_TOO_LARGE
    SPLIT_TOO_MANY_HEADERS
    SPLIT_HEADERS_TOO_LARGE
    SPLIT_DELAY_VALUE
    SPLIT_DELAY_TOO_LONG
    SPLIT_CONTRADICTION
    SPLIT_CANCEL_CONTRADICTION
    SPLIT_ID_SIZE
    SPLIT_TIMESTAMP

cdef enum:
    HEADER_NONE = -1
    HEADER_DELAY = 0
    HEADER_DELIVER_AT
    HEADER_LEVEL
    HEADER_ID
    HEADER_CANCEL
    HEADER_REQUESTS           # clients set the headers above; the broker adds those below
    HEADER_ACCEPTED_AT = 5
    HEADER_DUE_AT
    HEADER_DUE_ID
    HEADER_NAMES

cdef enum:
    ADDED_MAX = 64            # a name of 13 bytes, 20 digits, a name of 8 bytes, three sizes

# The delay parameters of one record: the value of the last header of each name.
cdef struct DelayAsk:
    bint present[HEADER_NAMES]
    Slice value[HEADER_NAMES]
    int level                 # 0 = none
    int64_t due_ms            # -1 = no delay requested
    int64_t kept_count        # headers that are no delay headers
    int64_t kept_bytes

cdef class BatchSplitter:
    cdef int64_t level_ms[LEVELS_MAX]
    cdef int level_count
    cdef int64_t record_size_max
    cdef int64_t header_count_max
    cdef int64_t header_size_max
    # The outcome of the last inspect or split.
    cdef bint has_delay_headers
    cdef int64_t min_timestamp
    cdef int64_t max_timestamp
    cdef TagSum tags          # of all records, or after split of the visible ones
    cdef int32_t fault_record
    cdef int fault_header
    cdef int fault_detail
    cdef int64_t fault_size
    cdef Slice fault_value
    cdef int32_t visible_count
    cdef int32_t timer_count
    cdef int32_t cancel_count
    cdef int64_t min_due
    cdef int64_t max_due
    cdef Buf visible
    cdef Buf held
    cdef Buf tables
    cdef Buf timers
    cdef Buf cancels
    cdef Buf ids
    # What each rewritten record of the batch gains: `x-accepted-at`, and the name of `x-due-at`.
    cdef uint8_t added[ADDED_MAX]
    cdef int added_size
    cdef int32_t level_used[LEVELS_MAX + 1]
    # Pass one: checks every record, and finds whether any has a delay header.
    cdef int inspect(
        self, const Batch* b, const uint8_t* records, int64_t size, bint look_for_headers
    ) noexcept nogil
    # Pass two: writes the visible batch, the held batch and the tables of the frame.
    cdef int split(
        self, const Batch* b, const uint8_t* records, int64_t size, int64_t now_ms,
        int64_t delay_max_ms, bint log_append_time, bint due_timestamp, const int64_t* level_next
    ) except -1 nogil
    cdef int32_t tables_size(self) noexcept nogil
    cdef int assemble(
        self, const Batch* b, int64_t frame_pos, int64_t base_offset, int32_t epoch,
        bint log_append_time
    ) except -1 nogil
    cdef int _fault(self, int fault, int32_t record, int header, int detail) noexcept nogil
    cdef int _check_headers(self, Record* r, int32_t i, bint look) noexcept nogil
    cdef int _read_ask(
        self, Record* r, int32_t i, int64_t now_ms, int64_t delay_max_ms, DelayAsk* ask
    ) noexcept nogil
    cdef int _resolve_due(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t delay_max_ms
    ) noexcept nogil
    cdef int _write_rewritten(
        self, Buf* out, Record* r, int64_t offset_delta, const DelayAsk* ask
    ) except -1 nogil
    cdef uint8_t* _keep_headers(self, Record* r, uint8_t* p) noexcept nogil
    cdef void _begin_added(self, int64_t now_ms) noexcept nogil
    cdef int _add_timer(
        self, Record* r, int32_t i, DelayAsk* ask, int64_t now_ms, const int64_t* level_next
    ) except -1 nogil
    cdef int _add_cancellation(
        self, int32_t i, int kind, const Slice* name, int64_t due_ms
    ) except -1 nogil
    cdef void _note_timestamp(self, int64_t timestamp) noexcept nogil
    cdef void _reset(self) noexcept nogil
