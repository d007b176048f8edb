from libc.stdint cimport int32_t, int64_t

from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections

cdef enum:
    SCHEDULE_MAX = 64         # delays of a schedule

cdef class RetryGroup:
    cdef readonly bytes name
    cdef int64_t delays_ms[SCHEDULE_MAX]
    cdef int32_t delay_count
    cdef readonly int64_t attempt_max
    # The delay before attempt `attempt`, which counts from 1 on.
    cdef int64_t delay_of(self, int64_t attempt) noexcept nogil

cdef class RetryRules:
    cdef Projections projections
    cdef tuple level_delays_ms
    cdef object make_topic
    cdef str why_not
    cdef bint may_come_later          # the reason may be gone when the batch is sent again
    cdef readonly int64_t retried    # since the start
    cdef readonly int64_t dead
    # What the group's retry topic says now, or the defaults; None if no topic can have its name.
    # May be called on any thread that holds the GIL.
    cdef RetryGroup find(self, bytes name)
    # The partition that a record of partition `home` goes to. Makes its topic if there is none. On
    # failure returns None and sets `why_not`.
    cdef Partition target(self, bytes name, bint is_dead, Partition home)
