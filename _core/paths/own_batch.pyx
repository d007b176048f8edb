"""Accepts a record that the broker itself sends, as if a producer had sent it.

It is a batch of its own and goes the way of every produced batch: its delay headers are read, its
timer replaces the one of the same id, and it is appended as one frame, whole or not at all.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from _core.bytes.batch cimport Batch, begin_batch, finish_batch, write_record
from _core.bytes.borrowed cimport Borrowed
from _core.bytes.buffer cimport Buf, append, release
from _core.bytes.octets cimport store_varint
from _core.paths.produce cimport ProducePath
from _core.paths.produce_answer cimport Outcome
from _core.queue.partition cimport Partition

cdef enum:
    PRODUCE_VERSION = 9
    VARINT_SIZE_MAX = 10


def encode_own(key, value, headers not None, int64_t timestamp_ms):
    """Encode a record as a batch, as a producer without idempotence or compression sends it.

    Args:
        key, value: bytes, or None for null.
        headers: (name, value) of each; a value may be None.
        timestamp_ms: epoch ms, or -1 for none.
    """
    cdef Buf tail
    cdef Buf out
    cdef Batch b
    memset(&tail, 0, sizeof(tail))
    memset(&out, 0, sizeof(out))
    memset(&b, 0, sizeof(b))
    b.leader_epoch = b.producer_id = b.producer_epoch = b.base_sequence = -1
    b.base_timestamp = b.max_timestamp = timestamp_ms
    b.count = 1
    try:
        _put_octets(&tail, key)
        _put_octets(&tail, value)
        _put_varint(&tail, len(headers))
        for name, text in headers:
            _put_octets(&tail, name)
            _put_octets(&tail, text)
        begin_batch(&out)
        write_record(&out, 0, 0, 0, tail.data, tail.size)
        finish_batch(&out, 0, &b)
        return (<const char*>out.data)[:out.size]
    finally:
        release(&tail)
        release(&out)


cdef int _put_varint(Buf* out, int64_t number) except -1:
    cdef uint8_t octets[VARINT_SIZE_MAX]
    append(out, octets, store_varint(octets, number))
    return 0


cdef int _put_octets(Buf* out, object data) except -1:
    cdef Borrowed part
    if data is None:
        return _put_varint(out, -1)
    part = Borrowed(data)
    _put_varint(out, part.size)
    append(out, part.p, part.size)
    return 0


def accept_own(
    ProducePath path not None, Partition partition not None, batch, int64_t now_ns
):
    """Append a batch to a partition.

    Args:
        path: the produce path, between two requests.
        partition: it is not deleted.
        batch: what `encode_own` returned.
        now_ns: epoch ns.

    Returns:
        (error, message): a Kafka error code, 0 if the batch was appended, and what is wrong with
        it, None if the code says all.
    """
    cdef Outcome o
    cdef Borrowed octets = Borrowed(batch)
    cdef int64_t now_ms = path.begin(now_ns)
    memset(&o, 0, sizeof(o))
    o.base_offset = o.log_append_time = -1
    o.fault_record = -1
    path.message = None
    path.work = None
    path.base_ms = path.round_base_ms
    path.accepted_ms = now_ms
    path._accept(partition, PRODUCE_VERSION, octets.p, octets.size, now_ms, &o)
    # Whoever asked for it is answered: no client is to be named in the log.
    path.delays.take()
    return o.error, path.message
