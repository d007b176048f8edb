# Why a delay request cannot be met; `REASONS` has the texts.
cdef enum DelayReason:
    REASON_NONE = -1          # the fault is no matter of delay headers
    REASON_VALUE = 0
    REASON_UNIT
    REASON_TOO_FAR
    REASON_CONTRADICTION
    REASON_ID
    REASON_NEAR_MISS
    REASON_MISSING
    REASON_RETRY
    REASON_CRON
    REASON_REPLY
    REASON_COUNT

# The DelayReason of a SplitFault with a DelayError and a header.
cdef int reason_of(int fault, int detail, int header) noexcept nogil
