from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Batch, Record, Slice
from _core.bytes.buffer cimport Buf
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.delay_reasons cimport REASON_COUNT
from _core.paths.recurrences cimport Recurrences
from _core.paths.reply_asks cimport ReplyAsks
from _core.paths.retries cimport Retries
from _core.paths.rewriter cimport Rewriter
from _core.queue.partition cimport Topic
from _core.state.level_queues cimport LEVELS_MAX
from _core.bytes.tags cimport TagSum

# What `inspect` does about the names of headers.
cdef enum LookFor:
    LOOK_RETRIES = 0          # a retry or a reply is a fault
    LOOK_REQUESTS             # finds out whether there are delay headers
    LOOK_OFF                  # a record that recurs is a fault, as is a retry or a reply
    LOOK_EVERY                # each record is one with delay headers: the topic insists on a delay

cdef enum:
    ID_SIZE_MAX = 255
    # Maximum bits of a base timestamp and of a delta, so that no sum or difference can overflow.
    TIMESTAMP_BITS = 61

# What is wrong with a record, for the message about it.
cdef struct Fault:
    int code                  # SplitFault
    int32_t record            # index in its batch
    int header
    int detail                # a DelayError
    int64_t size              # what is too large, or the limit
    Slice value               # of the header

cdef class BatchSplitter:
    cdef int64_t level_ms[LEVELS_MAX]
    cdef int level_count
    cdef int64_t record_size_max
    cdef int64_t header_count_max
    cdef int64_t header_size_max
    cdef int64_t delayed_count_max
    cdef Rewriter rewriter
    cdef Retries retries              # of the last split
    cdef Recurrences recurrences
    cdef ReplyAsks reply_asks         # of the last split
    # The outcome of the last inspect or split.
    cdef bint has_delay_headers
    cdef int64_t min_timestamp
    cdef int64_t max_timestamp
    cdef TagSum tags          # of all records, or after split of the visible ones
    cdef Fault fault
    # Records that `split` lets pass although their request cannot be met: how many, by reason; and
    # the first of them with its index in the visible batch.
    cdef int32_t passed[REASON_COUNT]
    cdef int32_t passed_count
    cdef int32_t passed_index
    cdef Fault passed_fault
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
    cdef int32_t level_used[LEVELS_MAX + 1]
    # Pass one: checks every record, and finds whether any has a delay header.
    cdef int inspect(
        self, const Batch* b, const uint8_t* records, int64_t size, int look
    ) noexcept nogil
    # Pass two: writes the visible batch, the held batch and the tables of the frame. Delays count
    # from `base_ms`, the receive time rounded up; `now_ms` is that in whole ms.
    cdef int split(
        self, const Batch* b, const uint8_t* records, int64_t size, Topic topic,
        int32_t partition, int64_t now_ms, int64_t base_ms
    ) except -1 nogil
    cdef BatchSplitter copy(self)
    cdef int32_t tables_size(self) noexcept nogil
    cdef int assemble(
        self, const Batch* b, int64_t frame_pos, int64_t base_offset, int32_t epoch,
        bint log_append_time, const int64_t* level_next
    ) except -1 nogil
    cdef int _fault(self, int code, int32_t record, int header, int detail) noexcept nogil
    cdef int _check_headers(self, Record* r, int32_t i, int look) noexcept nogil
    cdef int _read_ask(
        self, Record* r, int32_t i, int64_t now_ms, int64_t base_ms, int64_t delay_max_ms,
        bint only_retry, DelayAsk* ask
    ) except -1 nogil
    cdef int _resolve_due(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t base_ms, int64_t delay_max_ms
    ) except -1 nogil
    cdef int _resolve_recurrence(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t delay_max_ms, bint is_delayed
    ) except -1 nogil
    cdef int _resolve_retry(
        self, DelayAsk* ask, int32_t i, int64_t now_ms, int64_t base_ms
    ) except -1 nogil
    cdef int _check_reply(self, const DelayAsk* ask, int32_t i) noexcept nogil
    cdef int _insist(
        self, DelayAsk* ask, int32_t i, Topic topic, int64_t base_ms
    ) noexcept nogil
    cdef int _read_delay(self, const DelayAsk* ask, int header, int* level, int64_t* delay_ms) \
        noexcept nogil
    cdef void _let_pass(self) noexcept nogil
    cdef int _add_visible(
        self, Record* r, int32_t i, DelayAsk* ask, const Batch* b, int64_t now_ms, Topic topic
    ) except -1 nogil
    cdef int _add_unchanged(self, Record* r, const Batch* b) except -1 nogil
    cdef int _finish_visible(self, Record* r, const Batch* b) except -1 nogil
    cdef int _add_timer(
        self, Record* r, int32_t i, DelayAsk* ask, Topic topic
    ) except -1 nogil
    cdef int _add_cancellation(
        self, int32_t i, int kind, const Slice* name, int64_t due_ms
    ) except -1 nogil
    cdef void _note_timestamp(self, int64_t timestamp) noexcept nogil
    cdef void _reset(self) noexcept nogil
