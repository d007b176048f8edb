"""Kafka's RecordBatch, version 2: iterate over one, build one.

 baseOffset i64 | batchLength i32 | partitionLeaderEpoch i32 | magic i8 | crc u32
 | attributes i16 | lastOffsetDelta i32 | baseTimestamp i64 | maxTimestamp i64
 | producerId i64 | producerEpoch i16 | baseSequence i32 | count i32 | records

 record: length varint | attributes i8 | timestampDelta varint | offsetDelta varint
         | key | value | headers
 key, value: length varint (-1 = null), bytes
 headers: count varint, then key (length, bytes) and value of each

The CRC is CRC32C and covers everything from `attributes` to the end. The base offset and the leader
epoch can therefore be set without computing it again. Source: the message format chapter of Apache
Kafka's documentation. Layer 0: no I/O.
"""

from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from _core.bytes.borrowed cimport Borrowed
from _core.bytes.buffer cimport Buf, append, extend_zero, reserve
from _core.bytes.crc32c cimport extend
from _core.bytes.layout cimport *
from _core.bytes.octets cimport (
    Cursor, cursor_of, load_i16, load_i32, load_i64, load_u32, store_u16, store_u32, store_u64,
    store_varint, take, take_i8, take_varint, varint_size,
)

cdef enum:
    # Three varints and the attributes; and what `store_varint` requires at the end of a tail.
    RECORD_HEAD_MAX = 48
    SHORT_VARINT_MAX = 4
    # Four short varints and the attributes.
    SHORT_HEAD_MAX = 17


cdef void decode_batch(const uint8_t* p, Batch* b) noexcept nogil:
    """REQUIRES: BATCH_HEADER_SIZE bytes at `p`."""
    b.base_offset = load_i64(p + BATCH_AT_BASE_OFFSET)
    b.length = load_i32(p + BATCH_AT_LENGTH)
    b.leader_epoch = load_i32(p + BATCH_AT_LEADER_EPOCH)
    b.magic = p[BATCH_AT_MAGIC]
    b.crc = load_u32(p + BATCH_AT_CRC)
    b.attributes = load_i16(p + BATCH_AT_ATTRIBUTES)
    b.last_delta = load_i32(p + BATCH_AT_LAST_DELTA)
    b.base_timestamp = load_i64(p + BATCH_AT_BASE_TIMESTAMP)
    b.max_timestamp = load_i64(p + BATCH_AT_MAX_TIMESTAMP)
    b.producer_id = load_i64(p + BATCH_AT_PRODUCER_ID)
    b.producer_epoch = load_i16(p + BATCH_AT_PRODUCER_EPOCH)
    b.base_sequence = load_i32(p + BATCH_AT_BASE_SEQUENCE)
    b.count = load_i32(p + BATCH_AT_COUNT)


cdef inline void _take_nullable(Cursor* c, Slice* found) noexcept nogil:
    found.size = take_varint(c)
    if found.size < -1:
        c.failed = True
    found.data = take(c, found.size) if found.size > 0 else c.p


cdef inline const uint8_t* _short_varint(const uint8_t* p, int64_t* value) noexcept nogil:
    """Read a varint of at most SHORT_VARINT_MAX bytes; return NULL if it is longer.

    REQUIRES: as many bytes at `p`.
    """
    cdef uint32_t raw = p[0]
    if raw < 0x80:
        p += 1
    elif p[1] < 0x80:
        raw = (raw & 0x7F) | <uint32_t>p[1] << 7
        p += 2
    elif p[2] < 0x80:
        raw = (raw & 0x7F) | <uint32_t>(p[1] & 0x7F) << 7 | <uint32_t>p[2] << 14
        p += 3
    elif p[3] < 0x80:
        raw = (raw & 0x7F) | <uint32_t>(p[1] & 0x7F) << 7 | <uint32_t>(p[2] & 0x7F) << 14 | (
            <uint32_t>p[3] << 21
        )
        p += 4
    else:
        return NULL
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return p


cdef inline bint _next_short(Cursor* c, Record* r) noexcept nogil:
    """Do as `next_record` for a record like most: its varints are short, and more bytes follow.

    It compares with the end of the block once for several varints. Of any other record, well-formed
    or not, it leaves the cursor where it is, and returns False.
    """
    cdef const uint8_t* p = c.p
    cdef const uint8_t* end
    cdef int64_t length, size
    if c.failed or c.end - p < SHORT_HEAD_MAX:
        return False
    r.start = p
    p = _short_varint(p, &length)
    if p == NULL or length < 0 or length > c.end - p:
        return False
    end = p + length
    r.attributes = <int8_t>p[0]
    p = _short_varint(p + 1, &r.timestamp_delta)
    if p == NULL:
        return False
    p = _short_varint(p, &r.offset_delta)
    if p == NULL:
        return False
    r.tail = p
    p = _short_varint(p, &size)
    if p == NULL or size < -1 or max(size, 0) > end - p:
        return False
    r.key.size, r.key.data = size, p
    p += max(size, 0)
    if c.end - p < SHORT_VARINT_MAX:
        return False
    p = _short_varint(p, &size)
    if p == NULL or size < -1 or max(size, 0) >= end - p:
        return False
    r.value.size, r.value.data = size, p
    p += max(size, 0)
    r.headers, r.end = p, end
    if p[0] == 0:
        r.header_count = 0
        if p + 1 != end:
            return False
    else:
        if c.end - p < SHORT_VARINT_MAX:
            return False
        p = _short_varint(p, &r.header_count)
        # A header takes at least two bytes, so a larger count is false.
        if p == NULL or p > end or not 0 < r.header_count <= (end - p) // 2:
            return False
    c.p = end
    return True


cdef bint next_record(Cursor* c, Record* r) noexcept nogil:
    cdef Cursor inner
    cdef int64_t length
    if _next_short(c, r):
        return True
    r.start = c.p
    length = take_varint(c)
    inner.p = take(c, length)
    if inner.p == NULL:
        return False
    inner.end = r.end = c.p
    inner.failed = False
    r.attributes = take_i8(&inner)
    r.timestamp_delta = take_varint(&inner)
    r.offset_delta = take_varint(&inner)
    r.tail = inner.p
    _take_nullable(&inner, &r.key)
    _take_nullable(&inner, &r.value)
    r.headers = inner.p
    r.header_count = take_varint(&inner)
    # A header takes at least two bytes, so a larger count is false.
    if inner.failed or r.header_count < 0 or r.header_count > (inner.end - inner.p) // 2:
        c.failed = True
        return False
    if r.header_count == 0 and inner.p != inner.end:
        c.failed = True
    return not c.failed


cdef bint next_header(Cursor* c, Slice* key, Slice* value) noexcept nogil:
    key.size = take_varint(c)
    if key.size < 0:
        c.failed = True
        return False
    key.data = take(c, key.size)
    _take_nullable(c, value)
    return not c.failed


cdef Py_ssize_t begin_batch(Buf* out) except -1 nogil:
    cdef Py_ssize_t start = out.size
    extend_zero(out, BATCH_HEADER_SIZE)
    return start


cdef uint8_t* open_record(
    Buf* out, int attributes, int64_t timestamp_delta, int64_t offset_delta, Py_ssize_t tail_size
) except NULL nogil:
    cdef int64_t length = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + tail_size
    cdef uint8_t* p = reserve(out, RECORD_HEAD_MAX + tail_size)
    cdef uint8_t* start = p
    p += store_varint(p, length)
    p[0] = <uint8_t>attributes
    p += 1
    p += store_varint(p, timestamp_delta)
    p += store_varint(p, offset_delta)
    out.size += (p - start) + tail_size
    return p


cdef int write_record(
    Buf* out, int attributes, int64_t timestamp_delta, int64_t offset_delta, const uint8_t* tail,
    Py_ssize_t tail_size
) except -1 nogil:
    memcpy(
        open_record(out, attributes, timestamp_delta, offset_delta, tail_size), tail, tail_size
    )
    return 0


cdef void finish_batch(Buf* out, Py_ssize_t start, Batch* b) noexcept nogil:
    """Write the header of the batch that began at `start`. Sets `b.length` and `b.crc`."""
    cdef uint8_t* p = out.data + start
    cdef Py_ssize_t size = out.size - start
    b.length = <int32_t>(size - 12)
    store_u64(p + BATCH_AT_BASE_OFFSET, b.base_offset)
    store_u32(p + BATCH_AT_LENGTH, b.length)
    store_u32(p + BATCH_AT_LEADER_EPOCH, b.leader_epoch)
    p[BATCH_AT_MAGIC] = 2
    store_u16(p + BATCH_AT_ATTRIBUTES, b.attributes)
    store_u32(p + BATCH_AT_LAST_DELTA, b.last_delta)
    store_u64(p + BATCH_AT_BASE_TIMESTAMP, b.base_timestamp)
    store_u64(p + BATCH_AT_MAX_TIMESTAMP, b.max_timestamp)
    store_u64(p + BATCH_AT_PRODUCER_ID, b.producer_id)
    store_u16(p + BATCH_AT_PRODUCER_EPOCH, b.producer_epoch)
    store_u32(p + BATCH_AT_BASE_SEQUENCE, b.base_sequence)
    store_u32(p + BATCH_AT_COUNT, b.count)
    b.crc = extend(0, p + BATCH_CRC_START, size - BATCH_CRC_START)
    store_u32(p + BATCH_AT_CRC, b.crc)


def batch_header(data):
    """Decode the header of the batch at the start of `data` into a dict, without checks.

    Raises:
        ValueError: fewer than 61 bytes.
    """
    cdef Borrowed octets = Borrowed(data)
    cdef Batch b
    if octets.size < BATCH_HEADER_SIZE:
        raise ValueError(f"a batch header has {BATCH_HEADER_SIZE} bytes, got {octets.size}")
    decode_batch(octets.p, &b)
    return b


def find_timestamp(
    records, int64_t count, *, int64_t base_offset, int64_t base_timestamp, int64_t start,
    int64_t least
):
    """Find the first record from an offset on whose timestamp is not below a time.

    Args:
        records: the bytes after a batch header, uncompressed.
        count: records expected, 0 or more.
        base_offset, base_timestamp: those of the batch.
        start: records with lower offsets are passed over.
        least: epoch ms.

    Returns:
        (offset, timestamp), or None if there is none.

    Raises:
        ValueError: a record is truncated or malformed.
    """
    cdef int64_t offset = -1, timestamp = 0
    _find_timestamp(
        records, count, base_offset, base_timestamp, start, least, True, &offset, &timestamp
    )
    return None if offset < 0 else (offset, timestamp)


def highest_timestamp(
    records, int64_t count, *, int64_t base_offset, int64_t base_timestamp, int64_t start
):
    """The highest timestamp of the records from an offset on, -1 if there is none.

    Arguments and errors are those of `find_timestamp`.
    """
    cdef int64_t offset = -1, timestamp = -1
    _find_timestamp(
        records, count, base_offset, base_timestamp, start, 0, False, &offset, &timestamp
    )
    return timestamp


cdef int _find_timestamp(
    records, int64_t count, int64_t base_offset, int64_t base_timestamp, int64_t start,
    int64_t least, bint is_first_wanted, int64_t* offset, int64_t* timestamp
) except -1:
    """Find a record from the offset `start` on whose timestamp is not below `least`.

    It is the first one or the one with the highest timestamp. If there is none, `offset` and
    `timestamp` stay as they are. Other arguments and errors are those of `find_timestamp`.
    """
    cdef Borrowed octets = Borrowed(records)
    cdef Cursor c
    cdef Record r
    cdef int64_t i = 0, found
    cdef bint is_whole = True
    if count == 0:
        return 0
    if octets.size == 0:
        raise ValueError(f"expected {count} records, got no bytes")
    c = cursor_of(octets.p, octets.size)
    with nogil:
        for i in range(count):
            is_whole = next_record(&c, &r)
            if not is_whole:
                break
            found = base_timestamp + r.timestamp_delta
            if base_offset + r.offset_delta < start or found < least:
                continue
            offset[0], timestamp[0] = base_offset + r.offset_delta, found
            if is_first_wanted:
                break
            least = found
    if not is_whole:
        raise ValueError(f"record {i} of {count} is malformed")
    return 0
