from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from _core.bytes.buffer cimport Buf
from _core.bytes.octets cimport Cursor

cdef struct Batch:
    int64_t base_offset
    int32_t length
    int32_t leader_epoch
    int magic
    uint32_t crc
    int attributes
    int32_t last_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t count

cdef enum:
    ATTRIBUTE_CODEC = 0x07
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20

cdef struct Slice:
    const uint8_t* data
    int64_t size              # -1 = null

cdef struct Record:
    const uint8_t* start      # at the length prefix
    const uint8_t* end
    int attributes
    int64_t timestamp_delta
    int64_t offset_delta
    const uint8_t* tail       # key, value and headers, up to `end`
    const uint8_t* headers    # the header count
    int64_t header_count
    Slice key
    Slice value

cdef void decode_batch(const uint8_t* p, Batch* b) noexcept nogil
# Advances over one record, headers included but not parsed. Returns False and fails the cursor if
# the record is malformed.
cdef bint next_record(Cursor* c, Record* r) noexcept nogil
# Advances over one header of a record. Returns False and fails the cursor if it is malformed.
cdef bint next_header(Cursor* c, Slice* key, Slice* value) noexcept nogil

# To build a batch: begin, write records, finish. A start is an offset into the buffer, because the
# buffer may move.
cdef Py_ssize_t begin_batch(Buf* out) except -1 nogil
# Writes a record up to its tail, and returns where its `tail_size` bytes go: the caller writes all
# of them before anything else is written.
cdef uint8_t* open_record(
    Buf* out, int attributes, int64_t timestamp_delta, int64_t offset_delta, Py_ssize_t tail_size
) except NULL nogil
cdef int write_record(
    Buf* out, int attributes, int64_t timestamp_delta, int64_t offset_delta, const uint8_t* tail,
    Py_ssize_t tail_size
) except -1 nogil
cdef void finish_batch(Buf* out, Py_ssize_t start, Batch* b) noexcept nogil
