"""Parsers for the values of `x-delay`, `x-deliver-at` and `x-delay-level` in a record.

Each function takes the value of a header (`n` = -1: null) and returns a DelayError. It stores its
result only on DELAY_OK. A result other than a level is at most 2**61 - 1, so that a receive time
can be added without overflow; larger values are DELAY_TOO_FAR. An `x-delay` without a delay is one
of two numbers below 0. `describe` turns an error into a message. Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    DELAY_VALUE_SIZE_MAX = 64
    DELAY_NOW = -1              # an `x-delay` that is negative
    NO_DELAY = -2               # one that is null

cdef enum DelayError:
    DELAY_OK = 0
    DELAY_NULL = 1              # of `x-deliver-at`
    DELAY_EMPTY = 2
    DELAY_TOO_LONG = 3
    DELAY_NOT_TEXT = 4          # neither printable ASCII nor a number
    DELAY_NEGATIVE = 5
    DELAY_SIGN = 6
    DELAY_SPACE = 7
    DELAY_FRACTION = 8          # a fraction of another unit than seconds
    DELAY_MALFORMED = 9         # not a form that this header allows
    DELAY_UNIT = 10
    DELAY_UNITS_MIXED = 11
    DELAY_CALENDAR_UNIT = 12    # months or years
    DELAY_DURATION = 13         # begins like an ISO 8601 duration but is not one
    DELAY_TOO_FAR = 14
    DELAY_SECONDS = 15          # an epoch value below 100,000,000,000
    DELAY_INSTANT = 16          # begins like RFC 3339 but is not
    DELAY_NO_OFFSET = 17
    DELAY_NO_SUCH_DATE = 18
    DELAY_NO_SUCH_TIME = 19
    DELAY_NO_SUCH_OFFSET = 20
    DELAY_BEFORE_EPOCH = 21
    DELAY_MICROSECONDS = 22     # an epoch value above 10**14
    DELAY_NANOSECONDS = 23      # above 10**17

cdef int parse_delay(const uint8_t* p, Py_ssize_t n, int64_t* ms) noexcept nogil
cdef int parse_deliver_at(const uint8_t* p, Py_ssize_t n, int64_t* epoch_ms) noexcept nogil
cdef int parse_level(const uint8_t* p, Py_ssize_t n, int64_t* level) noexcept nogil
