"""The names of the delay headers, and of what looks like one of them.

| kind       | a record that carries one                                       |
|------------|-----------------------------------------------------------------|
| request    | asks for a delay, a retry, a reply or a recurrence, or has an id |
| retry      | says more about a retry; beside no retry it is the user's own   |
| stamp      | was delivered before; the broker's own stamps replace it        |
| near miss  | is refused with the right name: its producer wants a delay,     |
|            | or to cancel one                                                |

The list of near misses is closed. Other names are the user's own, RabbitMQ's `x-delivery-count`
among them. Layer 0: no I/O, no clock.
"""

from libc.stdint cimport uint8_t

from _core.bytes.batch cimport Slice

# Indexed by the number of a header.
cdef const char** NAMES = [
    b"x-delay", b"x-deliver-at", b"x-delay-level", b"x-deliver-id", b"x-deliver-cancel",
    b"x-retry-group", b"x-deliver-reply", b"x-cron", b"x-cron-zone", b"x-cron-missed",
    b"x-retry-attempt", b"x-origin", b"x-retry-reason",
    b"x-accepted-at", b"x-due-at", b"x-due-id",
    b"x-delay-ms", b"x-delay-s", b"x-delay-sec", b"x-delay-seconds", b"x-delay-millis", b"x_delay",
    b"x-deliver-after", b"x-delay-until", b"x-delayed-until", b"x-deliver-on", b"x-deliver-time",
    b"x-delivery-at", b"x-delivery-time", b"x-delay-at",
    b"x-delay-id",
    b"x-delay-cancel", b"x-delivery-cancel",
]
cdef int* NAME_SIZES = [
    7, 12, 13, 12, 16,
    13, 15, 6, 11, 13,
    15, 8, 14,
    13, 8, 8,
    10, 9, 11, 15, 14, 7,
    15, 13, 15, 12, 14,
    13, 15, 10,
    10,
    14, 17,
]
# The first near misses of `x-deliver-at` and so on; those before them are of `x-delay`.
cdef enum:
    FIRST_INSTANT = 23
    FIRST_ID = 30
    FIRST_CANCEL = 31

_KINDS = (
    (HEADER_REQUESTS, "request"), (HEADER_VALUES, "retry"), (HEADER_NEAR_MISSES, "stamp"),
)


cdef bint _is_name(const uint8_t* text, const char* name, int size) noexcept nogil:
    cdef int i
    cdef uint8_t byte
    for i in range(size):
        byte = text[i]
        if c"A" <= byte <= c"Z":
            byte |= 0x20
        if byte != <uint8_t>name[i]:
            return False
    return True


cdef int header_of(const Slice* key) noexcept nogil:
    cdef int i
    if not may_be_delay_header(key) or key.size > NAME_SIZE_MAX:
        return HEADER_NONE
    for i in range(HEADER_NAMES):
        if NAME_SIZES[i] == key.size and _is_name(key.data, NAMES[i], NAME_SIZES[i]):
            return i
    return HEADER_NONE


cdef const char* name_of(int header) noexcept nogil:
    """REQUIRES: the number of a header."""
    return NAMES[header]


cdef int name_size_of(int header) noexcept nogil:
    """REQUIRES: the number of a header."""
    return NAME_SIZES[header]


cdef int right_header_of(int near_miss) noexcept nogil:
    if near_miss < FIRST_INSTANT:
        return HEADER_DELAY
    if near_miss < FIRST_ID:
        return HEADER_DELIVER_AT
    return HEADER_ID if near_miss < FIRST_CANCEL else HEADER_CANCEL


def names():
    """Return each name with its kind: request, retry, stamp, or the name that it misses."""
    cdef int i
    found = {}
    for i in range(HEADER_NAMES):
        kind = None
        for end, of_range in reversed(_KINDS):
            if i < end:
                kind = of_range
        found[NAMES[i].decode()] = kind or NAMES[right_header_of(i)].decode()
    return found
