"""The answer to one batch of a Produce request. Layer 0: no I/O."""

from libc.stdint cimport int32_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.bytes.kafka_wire cimport put_array, put_i8, put_i16, put_i32, put_i64, put_string
from _core.queue.partition cimport Partition

cdef enum:
    FIRST_FLEXIBLE = 9


cdef int put_outcome(
    Buf* out, int version, int32_t index, const Outcome* o, Partition p, str message
) except -1:
    """Write what became of one batch; `p` is None if there is no such partition."""
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef bytes text
    put_i32(out, index)
    put_i16(out, o.error)
    put_i64(out, -1 if o.error else o.base_offset)
    put_i64(out, o.log_append_time)
    if version >= 5:
        put_i64(out, -1 if p is None else p.start_offset)
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
