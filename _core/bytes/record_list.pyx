"""The records of a batch as Python objects, for tools that display them. Layer 0: no I/O."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from _core.bytes.batch cimport Record, Slice, next_header, next_record
from _core.bytes.borrowed cimport Borrowed
from _core.bytes.octets cimport Cursor, cursor_of, left, take_varint


cdef _octets(const uint8_t* data, int64_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef list _headers(const Record* r):
    cdef Cursor c = cursor_of(r.headers, r.end - r.headers)
    cdef Slice key, value
    cdef int64_t i
    found = []
    take_varint(&c)
    for i in range(r.header_count):
        if not next_header(&c, &key, &value):
            raise ValueError("a record header is malformed")
        found.append((_octets(key.data, key.size), _octets(value.data, value.size)))
    return found


def records(section, int64_t count, wanted=None):
    """Decode the records of a batch.

    Args:
        section: the bytes after the batch header, decompressed.
        count: number of records.
        wanted: the numbers of those to return, from 0 on; None for all.

    Returns:
        (timestamp delta, offset delta, key, value, headers) of each record, in their order. Keys,
        values and headers are bytes, null is None, and headers are pairs of name and value.

    Raises:
        ValueError: `section` is not exactly `count` whole records.
    """
    cdef Borrowed octets = Borrowed(section)
    cdef Cursor c
    cdef Record record
    cdef int64_t i
    found = []
    if count == 0 and octets.size == 0:
        return found
    if count <= 0 or octets.size == 0:
        raise ValueError(f"{count} records in {octets.size} bytes")
    c = cursor_of(octets.p, octets.size)
    for i in range(count):
        if not next_record(&c, &record):
            raise ValueError(f"record {i} of {count} is malformed")
        if wanted is not None and i not in wanted:
            continue
        key = _octets(record.key.data, record.key.size)
        value = _octets(record.value.data, record.value.size)
        found.append(
            (record.timestamp_delta, record.offset_delta, key, value, _headers(&record))
        )
    if left(&c):
        raise ValueError(f"{left(&c)} bytes after the last of {count} records")
    return found
