"""The reasons for which delay requests are refused, as metrics and log lines name them.

Layer 0: no I/O, no clock.
"""

from _core.paths.delay_fault_codes cimport *
from _core.paths.delay_names cimport HEADER_REPLY, HEADER_RETRY
from _core.paths.delay_text cimport (
    DELAY_MICROSECONDS, DELAY_NANOSECONDS, DELAY_SECONDS, DELAY_TOO_FAR,
)

# Indexed by DelayReason.
REASONS = (
    "value", "unit", "too_far", "contradiction", "id", "near_miss", "missing", "retry", "cron",
    "reply",
)


cdef int reason_of(int fault, int detail, int header) noexcept nogil:
    if fault == SPLIT_DELAY_VALUE:
        if detail == DELAY_TOO_FAR:
            return REASON_TOO_FAR
        if detail in (DELAY_SECONDS, DELAY_MICROSECONDS, DELAY_NANOSECONDS):
            return REASON_UNIT
        return REASON_VALUE
    if fault == SPLIT_DELAY_TOO_LONG:
        return REASON_TOO_FAR
    if fault in (
        SPLIT_CONTRADICTION, SPLIT_CANCEL_CONTRADICTION, SPLIT_RETRY_CONTRADICTION,
        SPLIT_CRON_CONTRADICTION, SPLIT_REPLY_CONTRADICTION,
    ):
        return REASON_CONTRADICTION
    if fault == SPLIT_ID_SIZE:
        return REASON_ID
    if fault == SPLIT_NEAR_MISS:
        return REASON_NEAR_MISS
    if fault == SPLIT_NO_REQUEST:
        return REASON_MISSING
    if fault == SPLIT_HEADERS_OFF:
        if header == HEADER_RETRY:
            return REASON_RETRY
        return REASON_REPLY if header == HEADER_REPLY else REASON_CRON
    if fault in (SPLIT_RETRY_GROUP, SPLIT_TOO_MANY_GROUPS):
        return REASON_RETRY
    if fault in (SPLIT_CRON, SPLIT_CRON_ID, SPLIT_CRON_ALONE, SPLIT_TOO_MANY_SCHEDULES):
        return REASON_CRON
    if fault in (SPLIT_REPLY_TOPIC, SPLIT_REPLY_ALONE, SPLIT_TOO_MANY_REPLY_TOPICS):
        return REASON_REPLY
    return REASON_NONE
