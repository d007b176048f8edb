"""Writes a record as it will be delivered: without its request headers, with those of the broker.

    x-accepted-at, x-due-at                       always
    x-due-id                                      if it has an id
    x-retry-attempt, x-origin, x-retry-reason     if it is retried

All of them replace those that came with the record. The origin is where the record was delivered
first. A consumer that says so sets `x-origin`, which then stays as it is. Without it the broker
knows the topic and the partition to which the record came back, and writes offset -1.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from _core.bytes.batch cimport Record, Slice, next_header, open_record
from _core.bytes.buffer cimport Buf
from _core.bytes.octets cimport Cursor, cursor_of, store_varint, take_varint, varint_size
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.delay_names cimport (
    HEADER_ACCEPTED_AT, HEADER_ATTEMPT, HEADER_DUE_AT, HEADER_DUE_ID, HEADER_ID, HEADER_NONE,
    HEADER_ORIGIN, HEADER_REASON, HEADER_REQUESTS, HEADER_RETRY, HEADER_VALUES, header_of, name_of,
    name_size_of,
)
from _core.queue.partition cimport Topic

cdef const char* _NO_OFFSET = b"/-1"


cdef int decimal(int64_t value, uint8_t* end) noexcept nogil:
    cdef uint64_t left_over = <uint64_t>value
    cdef uint8_t* p = end
    while True:
        p -= 1
        p[0] = <uint8_t>(48 + left_over % 10)
        left_over //= 10
        if left_over == 0:
            return <int>(end - p)


cdef inline uint8_t* _put_text(uint8_t* p, const void* text, Py_ssize_t size) noexcept nogil:
    """Write a text after its size; return where it ends."""
    p += store_varint(p, size)
    memcpy(p, text, size)
    return p + size


cdef inline uint8_t* _put_name(uint8_t* p, int header) noexcept nogil:
    return _put_text(p, name_of(header), name_size_of(header))


cdef inline Py_ssize_t _header_size(int header, Py_ssize_t value_size) noexcept nogil:
    """Size of a header whose name is shorter than 64 bytes."""
    return 1 + name_size_of(header) + varint_size(value_size) + value_size


cdef class Rewriter:
    """Rewrites the records of one batch after the other. It has no Python API."""

    cdef void begin(self, int64_t accepted_ms, int32_t partition) noexcept nogil:
        cdef uint8_t digits[DIGITS_MAX]
        cdef int count = decimal(accepted_ms, digits + DIGITS_MAX)
        cdef uint8_t* p = _put_name(self.added, HEADER_ACCEPTED_AT)
        p = _put_text(p, digits + DIGITS_MAX - count, count)
        p = _put_name(p, HEADER_DUE_AT)
        self.added_size = <int>(p - self.added)
        self.partition = partition
        self.origin_size = 0

    cdef int write(
        self, Buf* out, Record* r, int64_t offset_delta, const DelayAsk* ask, Topic topic
    ) except -1 nogil:
        cdef uint8_t digits[DIGITS_MAX]
        cdef uint8_t attempt[DIGITS_MAX]
        cdef int due_size = decimal(ask.due_ms, digits + DIGITS_MAX)
        cdef int attempt_size = decimal(ask.attempt, attempt + DIGITS_MAX)
        cdef int64_t count = ask.kept_count + 2 + ask.present[HEADER_ID]
        cdef Py_ssize_t body_size = r.headers - r.tail
        cdef Py_ssize_t id_size = ask.value[HEADER_ID].size
        cdef Py_ssize_t size = body_size + ask.kept_bytes
        cdef uint8_t* p
        cdef uint8_t* end
        if ask.present[HEADER_RETRY]:
            if ask.value[HEADER_ORIGIN].size <= 0 and self.origin_size == 0:
                self._write_origin(topic)
            count += 2 + ask.present[HEADER_REASON]
            size += self._retry_size(ask, attempt_size)
        if ask.present[HEADER_ID]:
            size += _header_size(HEADER_DUE_ID, id_size)
        size += varint_size(count) + self.added_size + 1 + due_size
        p = open_record(out, r.attributes, r.timestamp_delta, offset_delta, size)
        end = p + size
        memcpy(p, r.tail, body_size)
        p += body_size
        p += store_varint(p, count)
        if ask.kept_count:
            p = self._keep_headers(r, ask, p)
        memcpy(p, self.added, self.added_size)
        p = _put_text(p + self.added_size, digits + DIGITS_MAX - due_size, due_size)
        if ask.present[HEADER_ID]:
            p = _put_name(p, HEADER_DUE_ID)
            p = _put_text(p, ask.value[HEADER_ID].data, id_size)
        if ask.present[HEADER_RETRY]:
            p = self._put_retry(p, ask, attempt + DIGITS_MAX - attempt_size, attempt_size)
        assert p == end
        return 0

    cdef uint8_t* _keep_headers(self, Record* r, const DelayAsk* ask, uint8_t* p) noexcept nogil:
        """Write the headers that stay with the record; return where they end."""
        cdef Cursor c = cursor_of(r.headers, r.end - r.headers)
        cdef Slice key, value
        cdef const uint8_t* start
        cdef int64_t k
        cdef int name
        take_varint(&c)
        for k in range(r.header_count):
            start = c.p
            next_header(&c, &key, &value)
            name = header_of(&key)
            if name == HEADER_NONE or (
                HEADER_REQUESTS <= name < HEADER_VALUES and not ask.present[HEADER_RETRY]
            ):
                memcpy(p, start, c.p - start)
                p += c.p - start
        return p

    # Retries

    cdef int _write_origin(self, Topic topic) except -1 nogil:
        cdef uint8_t digits[DIGITS_MAX]
        cdef int count = decimal(self.partition, digits + DIGITS_MAX)
        cdef uint8_t* p = self.origin
        with gil:
            memcpy(p, <const char*>topic.name_bytes, len(topic.name_bytes))
            p += len(topic.name_bytes)
        p[0] = c"/"
        memcpy(p + 1, digits + DIGITS_MAX - count, count)
        p += 1 + count
        memcpy(p, _NO_OFFSET, 3)
        self.origin_size = <int>(p + 3 - self.origin)
        return 0

    cdef Py_ssize_t _retry_size(self, const DelayAsk* ask, int attempt_size) noexcept nogil:
        cdef Py_ssize_t origin_size = ask.value[HEADER_ORIGIN].size
        cdef Py_ssize_t size = _header_size(HEADER_ATTEMPT, attempt_size)
        size += _header_size(HEADER_ORIGIN, origin_size if origin_size > 0 else self.origin_size)
        if ask.present[HEADER_REASON]:
            size += _header_size(HEADER_REASON, max(ask.value[HEADER_REASON].size, 0))
        return size

    cdef uint8_t* _put_retry(
        self, uint8_t* p, const DelayAsk* ask, const uint8_t* attempt, int attempt_size
    ) noexcept nogil:
        p = _put_text(_put_name(p, HEADER_ATTEMPT), attempt, attempt_size)
        p = _put_name(p, HEADER_ORIGIN)
        if ask.value[HEADER_ORIGIN].size > 0:
            p = _put_text(p, ask.value[HEADER_ORIGIN].data, ask.value[HEADER_ORIGIN].size)
        else:
            p = _put_text(p, self.origin, self.origin_size)
        if ask.present[HEADER_REASON]:
            p = _put_name(p, HEADER_REASON)
            p = _put_text(
                p, ask.value[HEADER_REASON].data, max(ask.value[HEADER_REASON].size, 0)
            )
        return p
