"""Accepts a batch that the broker itself makes, as if a producer had sent it.

The batch goes the way of every produced batch: its delay headers are read, its timers replace those
of the same ids, and it is appended as one frame, whole or not at all.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from _core.paths.produce cimport ProducePath
from _core.paths.produce_answer cimport Outcome
from _core.queue.partition cimport Partition

cdef enum:
    PRODUCE_VERSION = 9


def accept_own(
    ProducePath path not None, Partition partition not None, const uint8_t[::1] batch not None,
    int64_t now_ns
):
    """Append a batch to a partition.

    Args:
        path: the produce path, between two requests.
        partition: it is not deleted.
        batch: a record batch of format 2, not compressed, without a producer id.
        now_ns: epoch ns.

    Returns:
        (error, message): a Kafka error code, 0 if the batch was appended, and what is wrong with
        it, None if the code says all.
    """
    cdef Outcome o
    cdef int64_t now_ms = path.begin(now_ns)
    memset(&o, 0, sizeof(o))
    o.base_offset = o.log_append_time = -1
    o.fault_record = -1
    path.message = None
    path.work = None
    path.base_ms = path.round_base_ms
    path.accepted_ms = now_ms
    path._accept(partition, PRODUCE_VERSION, &batch[0], batch.shape[0], now_ms, &o)
    # Whoever asked for it is answered: no client is to be named in the log.
    path.delays.take()
    return o.error, path.message
