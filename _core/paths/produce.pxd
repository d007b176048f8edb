from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Batch
from _core.paths.answer cimport Patience, TimedOut
from _core.paths.batch_work cimport BatchWork
from _core.bytes.buffer cimport Buf
from _core.paths.delay_notices cimport DelayNotices
from _core.paths.delay_split cimport BatchSplitter
from _core.log.frames cimport FrameHeader
from _core.log.tail cimport FrameBody
from _core.paths.produce_answer cimport Outcome
from _core.paths.replies cimport Replies
from _core.paths.retry_rules cimport RetryRules
from _core.paths.timer_quota cimport TimerQuota
from _core.state.writer cimport LogWriter
from _core.bytes.octets cimport Cursor
from _core.queue.partition cimport Partition, Topic

cdef enum ProduceResult:
    PRODUCE_ANSWERED = 0
    PRODUCE_SILENT = 1        # acks=0, and all batches were accepted
    PRODUCE_CLOSE = 2         # acks=0, and a batch was refused: close the connection as Kafka does
    PRODUCE_MALFORMED = 3
    PRODUCE_TOO_LARGE = 4     # too many topics and partitions to be answered
    PRODUCE_UNFINISHED = 5    # the turn's work is done, or a thread must do the work of `work`:
                              # call again with the same request

# How far a request is processed; zeros before it begins.
cdef struct Progress:
    int64_t at                # of the next topic or partition, from the begin of the body; 0: none
    int64_t topic_at          # of the name of the current topic
    int64_t topics_left       # with the current one
    int64_t partitions_left   # of the current topic
    bint in_topic             # the next item is one of these partitions, or the topic's end
    int64_t unpacked_left     # of what the whole request may unpack to
    int64_t base_ms           # receive time in the first turn, rounded up
    int64_t accepted_ms       # the same in whole ms
    int64_t end_pos           # of the batches that the slave of a sync pair must have
    int64_t local_pos         # of those that are acknowledged without it
    bint failed

cdef class ProducePath:
    cdef readonly LogWriter writer
    cdef readonly BatchSplitter splitter
    cdef object decompress
    cdef frozenset closed_topics
    cdef readonly TimerQuota quota
    cdef readonly RetryRules retry_rules
    cdef readonly Replies replies
    cdef int64_t item_count_max
    cdef int64_t record_count_max
    cdef int64_t delayed_size_max
    cdef int64_t unpacked_batch_max
    cdef int64_t unpacked_size_max
    cdef int64_t unpacked_left          # of the current request
    cdef int64_t serial                 # of the current request
    cdef readonly int64_t work_bytes
    cdef public int64_t amplified_bytes
    cdef public bint defers_packed
    cdef readonly int64_t batches
    cdef readonly dict refused          # batches by Kafka error code
    cdef readonly DelayNotices delays
    cdef public object admit_producer
    cdef public str missing_replica
    cdef public bint is_slave
    cdef public str missing_lease
    cdef int64_t round_base_ms          # receive time of what arrived last, rounded up
    cdef int64_t base_ms                # that of the current request
    cdef int64_t accepted_ms            # the same in whole ms
    cdef BatchWork work                 # of the current batch, if a thread must do or has done it
    cdef public int64_t requests
    cdef readonly int64_t received_bytes
    cdef str message
    cdef bint transactional
    cdef int32_t timeout_ms    # of the last request
    cdef int handle(
        self, Cursor* c, int version, int64_t now_ms, Buf* out, Buf* marks, Progress* progress,
        int64_t work_max
    ) except -1
    cdef int _topics(
        self, Cursor* c, int version, int acks, int64_t now_ms, Buf* out, Buf* marks,
        Progress* progress, int64_t work_max
    ) except -1
    cdef int64_t _done(self) noexcept
    cdef int64_t begin(self, int64_t now_ns) noexcept
    cdef int set_late_errors(self, Patience* patience) noexcept
    cdef int count_late(self, const Patience* patience, const TimedOut* found) except -1
    cdef int count_refused(self, int error, int64_t count) except -1
    cdef bytes _unpack(self, int codec, const uint8_t* records, int64_t size, Outcome* o)
    cdef int _refuse_packed(self, object error, Outcome* o) except -1
    cdef int _finish(
        self, Partition partition, const Batch* b, const uint8_t* data, int64_t size,
        int64_t now_ms, int fault, Outcome* o
    ) except -1
    cdef int _finish_work(
        self, Partition partition, const Batch* b, const uint8_t* data, int64_t size,
        int64_t now_ms, Outcome* o
    ) except -1
    cdef int _partition(
        self, Cursor* c, int version, Topic topic, str closed_name, int acks, int64_t now_ms,
        Buf* out, Buf* marks, Progress* progress
    ) except -1
    cdef int _accept(
        self, Partition partition, int version, const uint8_t* data, int64_t size, int64_t now_ms,
        Outcome* o
    ) except -1
    cdef int _accept_verbatim(
        self, Partition partition, const Batch* b, const uint8_t* data, int64_t size,
        int64_t now_ms, Outcome* o
    ) except -1
    cdef int _accept_split(
        self, Partition partition, const Batch* b, int64_t now_ms, Outcome* o
    ) except -1
    cdef bint _prepare(
        self, Topic topic, list others, int64_t size, int room, int64_t now_ms, Outcome* o
    ) except -1
    cdef int _refuse_split(self, Partition partition, Outcome* o) except -1
    cdef int _append(
        self, Partition partition, const Batch* b, FrameHeader* h, const FrameBody* body,
        int64_t now_ms, Outcome* o
    ) except -1
