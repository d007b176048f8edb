from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Record
from _core.bytes.buffer cimport Buf
from _core.paths.delay_ask cimport DelayAsk
from _core.queue.partition cimport Topic

cdef enum:
    ADDED_MAX = 64            # a name of 13 bytes, 20 digits, a name of 8 bytes, three sizes
    ORIGIN_MAX = 288          # a topic of 249 characters, two numbers and two slashes
    DIGITS_MAX = 20           # of an int64

# Writes a number in decimal so that it ends before `end`; returns how many digits.
# REQUIRES: value >= 0, DIGITS_MAX bytes before `end`.
cdef int decimal(int64_t value, uint8_t* end) noexcept nogil

cdef class Rewriter:
    # What each record of the batch gains: `x-accepted-at`, and the name of `x-due-at`.
    cdef uint8_t added[ADDED_MAX]
    cdef int added_size
    cdef int32_t partition
    cdef uint8_t origin[ORIGIN_MAX]   # `x-origin` of records that come without one
    cdef int origin_size              # 0: not written yet
    # Starts a batch that was received at `accepted_ms` in partition `partition` of a topic.
    cdef void begin(self, int64_t accepted_ms, int32_t partition) noexcept nogil
    # Writes a record without its request headers, with the headers that the broker adds.
    cdef int write(
        self, Buf* out, Record* r, int64_t offset_delta, const DelayAsk* ask, Topic topic
    ) except -1 nogil
    cdef uint8_t* _keep_headers(self, Record* r, const DelayAsk* ask, uint8_t* p) noexcept nogil
    cdef int _write_origin(self, Topic topic) except -1 nogil
    cdef Py_ssize_t _retry_size(self, const DelayAsk* ask, int attempt_size) noexcept nogil
    cdef uint8_t* _put_retry(
        self, uint8_t* p, const DelayAsk* ask, const uint8_t* attempt, int attempt_size
    ) noexcept nogil
