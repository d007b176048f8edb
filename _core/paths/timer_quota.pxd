from libc.stdint cimport int64_t, uint64_t

from _core.bytes.batch cimport Batch
from _core.paths.delay_notices cimport DelayNotices
from _core.paths.delay_split cimport BatchSplitter
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.due_charges cimport DueCharges

cdef class TimerQuota:
    cdef Projections projections
    cdef readonly int64_t count_max
    cdef readonly int64_t second_max
    cdef public int64_t unsaved_max_bytes
    cdef public str refusal
    cdef public str address          # of the client whose requests are handled
    cdef public object await_again
    cdef uint64_t lots
    cdef int64_t replies_waiting     # for their delivery, at most
    cdef dict accounts               # DueCharges by address
    # Returns None if the timers of a batch, and its replies to some topics, may become pending, or
    # why not; then it is noted.
    cdef str check(
        self, Partition partition, const Batch* b, BatchSplitter s, list reply_topics,
        int64_t now_ms, DelayNotices delays
    )
    # Notes that a client sends a batch again, which was refused for now.
    cdef int expect_again(self, Partition partition, const Batch* b) except -1
    # Charges the timers of a batch that is appended now, and credits those that it cancels.
    cdef int charge(self, BatchSplitter s, int64_t now_ms) except -1
    cdef bint _exceeds_topic(self, Topic topic, int64_t added) except -1
    cdef int64_t _pending_of(self, Topic topic) except -1
    cdef str _check_timers(
        self, Partition partition, const Batch* b, BatchSplitter s, int64_t now_ms,
        DelayNotices delays
    )
    cdef str _check_replies(
        self, Partition partition, const Batch* b, list topics, int64_t count, int64_t now_ms,
        DelayNotices delays
    )
    cdef str _check_topics(self, Partition partition, BatchSplitter s)
    cdef str _check_seconds(self, BatchSplitter s)
    cdef bint _is_near_limit(self, BatchSplitter s) noexcept nogil
    cdef int64_t _unsaved_bytes(self) except -1
    cdef bint _loses(self, int64_t count, int64_t limit) noexcept nogil
    cdef str _refuse(
        self, Partition partition, const Batch* b, int reason, str message, DelayNotices delays
    )
    cdef int64_t _new_count(self, Partition partition, BatchSplitter s) noexcept nogil
    cdef int64_t _own_count(self, int64_t now_ms, int64_t pending) except -1
    cdef int _forget_some(self, int64_t now_ms) except -1
