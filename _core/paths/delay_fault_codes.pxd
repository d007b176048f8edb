"""What can be wrong with a produced batch. Header only. Layer 0."""

cdef enum SplitFault:
    SPLIT_OK = 0
    SPLIT_RECORD_NOT_WHOLE
    SPLIT_OFFSET_DELTA
    SPLIT_TRAILING_BYTES
    SPLIT_RECORD_TOO_LARGE
    SPLIT_TOO_MANY_HEADERS
    SPLIT_HEADERS_TOO_LARGE
    SPLIT_DELAY_VALUE
    SPLIT_DELAY_TOO_LONG
    SPLIT_CONTRADICTION
    SPLIT_CANCEL_CONTRADICTION
    SPLIT_ID_SIZE
    SPLIT_TIMESTAMP
    SPLIT_NEAR_MISS
    SPLIT_NO_REQUEST
    SPLIT_RETRY_GROUP
    SPLIT_RETRY_CONTRADICTION
    SPLIT_HEADERS_OFF         # the topic ignores delay headers, and what it asks must not get lost
    SPLIT_CRON                # `Recurrences` says what
    SPLIT_CRON_ID
    SPLIT_CRON_ALONE
    SPLIT_CRON_CONTRADICTION
    SPLIT_REPLY_TOPIC
    SPLIT_REPLY_ALONE
    SPLIT_REPLY_CONTRADICTION
    # From here on the batch as a whole is at fault: a producer may send it in parts.
    SPLIT_TOO_MANY_DELAYED
    SPLIT_TOO_MANY_GROUPS
    SPLIT_TOO_MANY_SCHEDULES
    SPLIT_TOO_MANY_REPLY_TOPICS
