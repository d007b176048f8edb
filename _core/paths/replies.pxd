from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Batch
from _core.bytes.buffer cimport Buf
from _core.paths.delay_split cimport BatchSplitter
from _core.paths.retry_rules cimport RetryRules
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.id_index cimport NamedTimer

cdef enum ReplyOutcome:
    REPLY_NONE = -1           # a plain schedule
    REPLY_CANCELLED = 0
    REPLY_REPLACED
    REPLY_TOO_LATE
    REPLY_UNKNOWN
    REPLY_OUTCOMES

cdef class Replies:
    cdef Projections projections
    cdef RetryRules rules             # None: no topic can be made, and none is asked for
    cdef list targets                 # the topic of each name of the batch
    cdef list topics                  # other topics that the batch needs, those of retries too
    cdef dict changed                 # what the batch makes of its ids so far: NamedTimer by id
    cdef int64_t made[REPLY_OUTCOMES] # of the current batch
    cdef int64_t counts[REPLY_OUTCOMES]
    cdef int32_t count                # replies of the current batch
    cdef Buf body                     # key, value and headers of a reply
    # Finds the topics, and makes those that do not exist. Returns why that failed, or None; then
    # `rules` says whether that may change. REQUIRES: Retries.find_targets
    cdef str find_topics(self, BatchSplitter s, Partition home)
    # Adds the replies of a batch to its timers, and finishes its held batch. It is appended next.
    # REQUIRES: find_topics
    cdef int decide(
        self, BatchSplitter s, const Batch* b, Partition home, int64_t now_ms
    ) except -1
    # Counts the replies of the batch, which is appended.
    cdef void count_made(self) noexcept
    cdef Topic _topic(self, bytes name, Partition home)
    cdef bint _find(
        self, int32_t topic_id, bytes name, NamedTimer* known
    ) except -1
    cdef int _reply(
        self, BatchSplitter s, const Batch* b, Partition home, int topic, bytes name, int outcome,
        const NamedTimer* known, int64_t now_ms
    ) except -1
    cdef int _write(
        self, BatchSplitter s, const Batch* b, Partition home, Topic topic, bytes name,
        bytes value, int64_t now_ms
    ) except -1
