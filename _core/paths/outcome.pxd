"""The outcome of one batch of a Produce request, and its part of the response.

Layer 0: no I/O.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.bytes.kafka_wire cimport put_array, put_i8, put_i16, put_i32, put_i64, put_string

cdef enum:
    OUTCOME_AT_ERROR = 4      # after the index of the partition
    OUTCOME_FLEXIBLE = 9      # the first version with the flexible encoding

# The outcome of one partition's batch.
cdef struct Outcome:
    int16_t error
    int64_t base_offset
    int64_t log_append_time
    int64_t end_pos           # the response waits until the log is durable up to here
    int32_t fault_record      # index of the refused record, -1 = the batch as a whole
    bint waits                # there is no outcome yet: a thread must do `ProducePath.work` first


cdef inline int write_outcome(
    Buf* out, int version, int32_t index, const Outcome* o, int64_t start_offset, str message
) except -1:
    """Write the response for the batch of partition `index`.

    `start_offset` is that of the partition, -1 if there is none; `message` may be None.
    """
    cdef bint flexible = version >= OUTCOME_FLEXIBLE
    cdef bytes text
    put_i32(out, index)
    put_i16(out, o.error)
    put_i64(out, -1 if o.error else o.base_offset)
    put_i64(out, o.log_append_time)
    if version >= 5:
        put_i64(out, start_offset)
    if version >= 8:
        text = None if message is None else message.encode()
        if o.fault_record >= 0:
            put_array(out, flexible, 1)
            put_i32(out, o.fault_record)
            put_string(out, flexible, <const uint8_t*><const char*>text, len(text))
            if flexible:
                put_i8(out, 0)
        else:
            put_array(out, flexible, 0)
        if text is None:
            put_string(out, flexible, NULL, -1)
        else:
            put_string(out, flexible, <const uint8_t*><const char*>text, len(text))
    if flexible:
        put_i8(out, 0)
    return 0
