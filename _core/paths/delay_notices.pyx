"""What became of delay requests that are not met: counts, and notices for the operator's log.

Layer 0: no I/O, no clock.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t

from _core.paths.delay_faults cimport describe_fault
from _core.paths.delay_reasons cimport REASON_COUNT, reason_of
from _core.paths.delay_reasons import REASONS as _REASONS
from _core.paths.delay_split cimport BatchSplitter, Fault
from _core.queue.partition cimport Partition

# By QuotaReason.
QUOTA_REASONS = ("full", "address", "topic", "second", "stopped", "unsaved")

# Kept until somebody takes them.
NOTICES_MAX = 32


cdef class DelayNotice:
    """One batch with such a request.

    Attributes:
        client_id: the client's name for itself, None if it sent none.
        topic, partition: where the record was sent.
        record: index of the first such record in its batch, -1 if it is the batch as a whole.
        offset: offset of that record if it was delivered at once, -1 if the batch was refused.
        count: number of such records that were delivered at once, 0 if the batch was refused.
        reason: one of `delay_reasons.REASONS`, or of QUOTA_REASONS if there are too many timers.
        message: what is wrong, as the client is told.
    """


cdef class DelayNotices:
    """Counts since the start, and the newest notices.

    Attributes:
        notices: at most NOTICES_MAX.
    """

    def __cinit__(self):
        self.notices = []

    @property
    def refused(self):
        """Number of batches refused because of a delay request, by reason."""
        counts = {_REASONS[i]: self.refused_counts[i] for i in range(<int>REASON_COUNT)}
        for i in range(<int>QUOTA_COUNT):
            counts[QUOTA_REASONS[i]] = self.quota_counts[i]
        return counts

    @property
    def passed(self):
        """Number of records delivered at once whatever their delay request says, by reason."""
        return {_REASONS[i]: self.passed_counts[i] for i in range(<int>REASON_COUNT)}

    def take(self):
        """Return the notices, and forget them."""
        notices, self.notices = self.notices, []
        return notices

    cdef int refuse(self, Partition partition, const Fault* fault, str message) except -1:
        cdef int reason = reason_of(fault.code, fault.detail, fault.header)
        if reason < 0:
            return 0
        self.refused_counts[reason] += 1
        if len(self.notices) < NOTICES_MAX:
            self._notice(partition, fault.record, _REASONS[reason], message)
        return 0

    cdef int refuse_timers(self, Partition partition, int reason, str message) except -1:
        self.quota_counts[reason] += 1
        if len(self.notices) < NOTICES_MAX:
            self._notice(partition, -1, QUOTA_REASONS[reason], message)
        return 0

    cdef int let_pass(self, Partition partition, BatchSplitter splitter) except -1:
        cdef Fault* fault = &splitter.passed_fault
        cdef DelayNotice notice
        cdef int i
        for i in range(REASON_COUNT):
            self.passed_counts[i] += splitter.passed[i]
        if splitter.passed_count and len(self.notices) < NOTICES_MAX:
            reason = _REASONS[reason_of(fault.code, fault.detail, fault.header)]
            notice = self._notice(partition, fault.record, reason, describe_fault(fault, splitter))
            notice.offset = partition.next_offset + splitter.passed_index
            notice.count = splitter.passed_count
        return 0

    cdef DelayNotice _notice(self, Partition partition, int32_t record, str reason, str message):
        cdef DelayNotice notice = DelayNotice()
        notice.topic = partition.topic.name
        notice.partition = partition.index
        notice.record = record
        notice.offset = -1
        notice.reason = reason
        notice.message = message
        if self.client_id.size >= 0:
            notice.client_id = PyBytes_FromStringAndSize(
                <const char*>self.client_id.data, self.client_id.size
            )
        self.notices.append(notice)
        return notice
