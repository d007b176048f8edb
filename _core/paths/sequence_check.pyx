"""Whether a batch of an idempotent producer is the next one, a retry, or out of order.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t

from _core.bytes.batch cimport Batch
from _core.bytes.kafka_errors cimport *
from _core.paths.produce_answer cimport Outcome
from _core.queue.partition cimport (
    SEQUENCE_DUPLICATE, SEQUENCE_NEW, SEQUENCE_NEXT, SEQUENCE_OLD_EPOCH, Partition,
)
from _core.queue.producer_state cimport Sequenced


cdef str check_producer(
    Partition partition, const Batch* b, Outcome* o, bint* duplicate, object admit_producer,
    bint is_again
):
    """Check the sequence of a batch as received; return a message for an error.

    Sets the error of the outcome, 0 if there is none. Sets `duplicate` and the original outcome if
    the batch is a retry. `admit_producer` is that of `ProducePath`, which was called before for
    this batch if `is_again`.
    """
    cdef Sequenced known
    cdef int32_t last
    cdef int verdict
    cdef str message = None
    duplicate[0] = False
    o.error = NONE
    if b.producer_id < 0:
        return None
    if b.base_sequence < 0 or b.producer_epoch < 0:
        o.error = INVALID_RECORD
        return "an idempotent batch needs a producer epoch and a sequence number"
    last = <int32_t>((<int64_t>b.base_sequence + b.last_delta) & 0x7FFFFFFF)
    verdict = partition.check_sequence(
        b.producer_id, b.producer_epoch, b.base_sequence, last, &known
    )
    if verdict == SEQUENCE_NEXT:
        return None
    if verdict == SEQUENCE_NEW:
        # The error is one after which clients send the batch again, as it is.
        if admit_producer is not None:
            message = admit_producer(partition.handle, b.producer_id, b.base_sequence, is_again)
        if message is not None:
            o.error = KAFKA_STORAGE_ERROR
        return message
    if verdict == SEQUENCE_DUPLICATE:
        duplicate[0] = True
        o.base_offset = known.answer
        if partition.topic.log_append_time:
            o.log_append_time = known.store_time_ms
        o.end_pos = known.end_pos
        return None
    if verdict == SEQUENCE_OLD_EPOCH:
        o.error = INVALID_PRODUCER_EPOCH
        return f"producer {b.producer_id} has a newer epoch than {b.producer_epoch}"
    o.error = OUT_OF_ORDER_SEQUENCE_NUMBER
    return f"sequence {b.base_sequence} of producer {b.producer_id} is out of order"
