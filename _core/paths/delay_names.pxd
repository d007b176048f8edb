"""The names of the delay headers, and of what looks like one of them.

All match without regard to case. Layer 0: no I/O.
"""

from libc.stdint cimport uint8_t

from _core.bytes.batch cimport Slice

cdef enum:
    HEADER_NONE = -1
    HEADER_DELAY = 0
    HEADER_DELIVER_AT
    HEADER_LEVEL
    HEADER_ID
    HEADER_CANCEL
    HEADER_RETRY
    HEADER_REPLY
    HEADER_CRON
    HEADER_CRON_ZONE
    HEADER_CRON_MISSED
    HEADER_REQUESTS           # a record that carries one of the above asks for something
    HEADER_ATTEMPT = 10       # the next three count beside `x-retry-group` only
    HEADER_ORIGIN
    HEADER_REASON
    HEADER_VALUES             # the broker reads the values of those above
    HEADER_ACCEPTED_AT = 13   # the broker adds these
    HEADER_DUE_AT
    HEADER_DUE_ID
    HEADER_NEAR_MISSES        # those below are mistaken for one of the first five
    HEADER_NAMES = 33

cdef enum:
    NAME_SIZE_MIN = 6
    NAME_SIZE_MAX = 17


# Whether a name may be one of these. Most names are not, and this is all that they cost.
cdef inline bint may_be_delay_header(const Slice* key) noexcept nogil:
    return (
        key.size >= NAME_SIZE_MIN and (key.data[0] | 0x20) == c"x"
        and (key.data[1] == c"-" or key.data[1] == c"_")
    )


# Which of the headers this is, or HEADER_NONE.
cdef int header_of(const Slice* key) noexcept nogil
cdef const char* name_of(int header) noexcept nogil
cdef int name_size_of(int header) noexcept nogil
# The header that a near miss is mistaken for.
cdef int right_header_of(int near_miss) noexcept nogil
