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
    SPLIT_NOT_BUILT
    SPLIT_NEAR_MISS
    SPLIT_NO_REQUEST
    SPLIT_RETRY_GROUP
    SPLIT_RETRY_CONTRADICTION
    SPLIT_RETRY_OFF           # the topic ignores delay headers, and a retry must not get lost
    SPLIT_TOO_MANY_DELAYED    # the batch as a whole
    SPLIT_TOO_MANY_GROUPS
    SPLIT_REPLY_TOPIC
    SPLIT_REPLY_ALONE
    SPLIT_REPLY_CONTRADICTION
    SPLIT_REPLY_OFF           # the topic ignores delay headers, and a reply must not get lost
    SPLIT_TOO_MANY_REPLY_TOPICS
