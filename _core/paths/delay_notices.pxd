from libc.stdint cimport int32_t, int64_t

from _core.bytes.batch cimport Slice
from _core.paths.delay_reasons cimport REASON_COUNT
from _core.paths.delay_split cimport BatchSplitter, Fault
from _core.queue.partition cimport Partition

# Why the quota of pending timers refuses a batch; `QUOTA_REASONS` has the texts.
cdef enum QuotaReason:
    QUOTA_FULL = 0            # of all
    QUOTA_ADDRESS             # of one address
    QUOTA_TOPIC               # of one topic
    QUOTA_SECOND              # due in one second
    QUOTA_STOPPED             # all are refused
    QUOTA_UNSAVED             # of changes that no checkpoint has
    QUOTA_COUNT

cdef class DelayNotice:
    cdef readonly bytes client_id
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t record
    cdef readonly int64_t offset
    cdef readonly int32_t count
    cdef readonly str reason
    cdef readonly str message

cdef class DelayNotices:
    cdef readonly list notices
    cdef int64_t refused_counts[REASON_COUNT]
    cdef int64_t quota_counts[QUOTA_COUNT]
    cdef int64_t passed_counts[REASON_COUNT]
    cdef Slice client_id      # of the current request
    # Note that a batch is refused, if a delay request is the reason.
    cdef int refuse(self, Partition partition, const Fault* fault, str message) except -1
    # Note that the quota of pending timers refuses a batch, for a QuotaReason.
    cdef int refuse_timers(self, Partition partition, int reason, str message) except -1
    # Note the records that the last split let pass; the batch begins at the next offset.
    cdef int let_pass(self, Partition partition, BatchSplitter splitter) except -1
    cdef DelayNotice _notice(self, Partition partition, int32_t record, str reason, str message)
