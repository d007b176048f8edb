"""The checks of a batch that Kafka makes before it reads records.

Layer 0: no I/O.
"""

from libc.stdint cimport int16_t, int64_t, uint8_t

from _core.bytes.batch cimport (
    ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, Batch,
    decode_batch,
)
from _core.bytes.crc32c cimport extend
from _core.bytes.kafka_errors cimport *
from _core.bytes.layout cimport *
from _core.queue.partition cimport Topic

cdef enum:
    CODEC_ZSTD = 4
    ZSTD_VERSION_MIN = 7


cdef str check_batch(
    Topic topic, int version, const uint8_t* data, int64_t size, int64_t record_count_max, Batch* b,
    int16_t* error
):
    """Check a batch of a Produce request.

    Args:
        topic: for which it is.
        version: of the request.
        data, size: the batch.
        record_count_max: records at most.
        b: receives its header.
        error: receives Kafka's error code, NONE if nothing is wrong.

    Returns:
        What is wrong, or None.
    """
    if size < BATCH_HEADER_SIZE:
        error[0] = INVALID_RECORD
        return f"a record batch has at least {BATCH_HEADER_SIZE} bytes, got {max(size, 0)}"
    decode_batch(data, b)
    if size > topic.batch_size_max:
        error[0] = MESSAGE_TOO_LARGE
        return f"the batch has {size} bytes; max.message.bytes is {topic.batch_size_max}"
    if b.magic != 2:
        error[0] = INVALID_RECORD if b.magic < 2 else CORRUPT_MESSAGE
        return f"message format {b.magic} is not supported, only 2 (Kafka 0.11 and later)"
    if b.length != size - 12:
        # Clients retry a corrupt batch, but not an invalid one.
        error[0] = CORRUPT_MESSAGE if b.length < BATCH_HEADER_SIZE - 12 else INVALID_RECORD
        return (
            f"the first batch declares {<int64_t>b.length + 12} bytes, got {size}: "
            "exactly one record batch is expected per partition"
        )
    if b.crc != extend(0, data + BATCH_CRC_START, size - BATCH_CRC_START):
        error[0] = CORRUPT_MESSAGE
        return "the CRC of the batch does not match its content"
    if b.count <= 0 or b.last_delta != b.count - 1:
        error[0] = INVALID_RECORD
        return f"invalid record count {b.count} for last offset delta {b.last_delta}"
    if b.count > record_count_max:
        error[0] = MESSAGE_TOO_LARGE  # Java's producer sends it again in parts
        return (
            f"the batch has {b.count} records; limits.record_count_max is {record_count_max}: "
            "send smaller batches"
        )
    if b.count > RECORDS_PER_BYTE_MAX * size:
        error[0] = INVALID_RECORD
        return f"{b.count} records in {size} bytes: the maximum is 64 per byte"
    if b.attributes & ATTRIBUTE_TRANSACTIONAL:
        error[0] = INVALID_RECORD
        return "transactions are not supported yet"
    if b.attributes & ATTRIBUTE_CONTROL:
        error[0] = INVALID_RECORD
        return "clients cannot write control batches"
    if b.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        error[0] = INVALID_TIMESTAMP
        return "a producer cannot set the timestamp type LogAppendTime"
    if (b.attributes & ATTRIBUTE_CODEC) > CODEC_ZSTD:
        error[0] = UNSUPPORTED_COMPRESSION_TYPE
        return f"compression type {b.attributes & ATTRIBUTE_CODEC} is unknown"
    if (b.attributes & ATTRIBUTE_CODEC) == CODEC_ZSTD and version < ZSTD_VERSION_MIN:
        error[0] = UNSUPPORTED_COMPRESSION_TYPE
        return "zstd needs Produce version 7"
    error[0] = NONE
    return None
