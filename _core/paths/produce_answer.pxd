from libc.stdint cimport int16_t, int32_t, int64_t

from _core.bytes.buffer cimport Buf
from _core.queue.partition cimport Partition

cdef enum:
    OUTCOME_AT_ERROR = 4      # after the index of the partition

# The outcome of one partition's batch.
cdef struct Outcome:
    int16_t error
    int64_t base_offset
    int64_t log_append_time
    int64_t end_pos           # the response waits until the log is durable up to here
    int32_t fault_record      # index of the refused record, -1 = the batch as a whole
    bint waits                # there is no outcome yet: a thread must do `ProducePath.work` first

cdef int put_outcome(
    Buf* out, int version, int32_t index, const Outcome* o, Partition p, str message
) except -1
