"""What is wrong with a record, as the client is told.

Layer 0: no I/O, no clock.
"""

from _core.paths.delay_names cimport (
    HEADER_CANCEL, HEADER_DELAY, HEADER_DELIVER_AT, HEADER_ID, name_of, right_header_of,
)
from _core.paths.delay_fault_codes cimport (
    SPLIT_CRON, SPLIT_CRON_ALONE, SPLIT_CRON_CONTRADICTION, SPLIT_CRON_ID,
    SPLIT_TOO_MANY_SCHEDULES,
    SPLIT_CANCEL_CONTRADICTION, SPLIT_CONTRADICTION, SPLIT_DELAY_TOO_LONG, SPLIT_DELAY_VALUE,
    SPLIT_HEADERS_OFF, SPLIT_HEADERS_TOO_LARGE, SPLIT_ID_SIZE, SPLIT_NEAR_MISS, SPLIT_NO_REQUEST,
    SPLIT_OFFSET_DELTA, SPLIT_RECORD_NOT_WHOLE, SPLIT_RECORD_TOO_LARGE, SPLIT_RETRY_CONTRADICTION,
    SPLIT_REPLY_ALONE, SPLIT_REPLY_CONTRADICTION, SPLIT_REPLY_TOPIC,
    SPLIT_RETRY_GROUP, SPLIT_TIMESTAMP, SPLIT_TOO_MANY_DELAYED,
    SPLIT_TOO_MANY_GROUPS, SPLIT_TOO_MANY_HEADERS, SPLIT_TOO_MANY_REPLY_TOPICS,
    SPLIT_TRAILING_BYTES,
)
from _core.paths.delay_split cimport ID_SIZE_MAX, TIMESTAMP_BITS, BatchSplitter, Fault
from _core.paths.recurrences cimport SCHEDULES_MAX
from _core.paths.reply_asks cimport REPLY_TOPICS_MAX
from _core.paths.retries cimport GROUPS_MAX
from _core.paths.delay_text import describe as describe_value

_RIGHT_FORMS = {
    HEADER_DELAY: "x-delay, with milliseconds (1500) or a unit (30s)",
    HEADER_DELIVER_AT: (
        "x-deliver-at, with epoch milliseconds (1767225600000) or RFC 3339 (2026-01-01T00:00:00Z)"
    ),
    HEADER_ID: "x-deliver-id, with 1 to 255 bytes",
    HEADER_CANCEL: "x-deliver-cancel, with the id of the record to cancel",
}


cdef dict _recurrence_faults():
    """The messages about `x-cron`."""
    return {
        SPLIT_CRON_ID: "x-cron needs x-deliver-id, by which it is replaced and cancelled",
        SPLIT_CRON_ALONE: "x-cron-zone and x-cron-missed go with x-cron",
        SPLIT_CRON_CONTRADICTION: (
            "x-cron cannot be combined with x-delay, x-deliver-at, x-delay-level, "
            "x-deliver-cancel or x-retry-group"
        ),
        SPLIT_TOO_MANY_SCHEDULES: (
            f"the batch has more than {<int>SCHEDULES_MAX} different schedules in x-cron: send one "
            "batch for each"
        ),
    }


cdef dict _reply_faults():
    """The messages about `x-deliver-reply`."""
    return {
        SPLIT_REPLY_TOPIC: (
            "x-deliver-reply must be the name of a topic, 1 to 249 characters of "
            "a-z A-Z 0-9 . _ -, and not of an internal one"
        ),
        SPLIT_REPLY_ALONE: (
            "x-deliver-reply needs x-deliver-cancel or x-deliver-id: it says what became of that id"
        ),
        SPLIT_REPLY_CONTRADICTION: "x-deliver-reply cannot be combined with x-retry-group",
        SPLIT_TOO_MANY_REPLY_TOPICS: (
            f"the batch has more than {<int>REPLY_TOPICS_MAX} different topics in x-deliver-reply: "
            "send one batch for each topic"
        ),
    }


cdef str describe_fault(const Fault* fault, BatchSplitter splitter):
    """The message for the client about a fault of the last inspect or split of a splitter."""
    cdef int header = fault.header
    name = (<bytes>name_of(header)).decode()
    if fault.code == SPLIT_DELAY_VALUE:
        value = None
        if fault.value.size >= 0:
            value = (<const char*>fault.value.data)[:fault.value.size]
        return describe_value(fault.detail, name, value)
    if fault.code == SPLIT_CRON:
        return splitter.recurrences.message
    if fault.code == SPLIT_NEAR_MISS:
        return f"{name} is no delay header: use {_RIGHT_FORMS[right_header_of(header)]}"
    return {
        SPLIT_RECORD_NOT_WHOLE: "the record is malformed: its lengths do not add up",
        SPLIT_OFFSET_DELTA: "the offset deltas of a batch must be 0, 1, 2, ...",
        SPLIT_TRAILING_BYTES: "bytes follow the last record of the batch",
        SPLIT_RECORD_TOO_LARGE: (
            f"the record has {fault.size} bytes; "
            f"limits.record_size_max_bytes is {splitter.record_size_max}"
        ),
        SPLIT_TOO_MANY_HEADERS: (
            f"the record has {fault.size} headers; "
            f"limits.header_count_max is {splitter.header_count_max}"
        ),
        SPLIT_HEADERS_TOO_LARGE: (
            f"the record's headers have {fault.size} bytes; "
            f"limits.header_size_max_bytes is {splitter.header_size_max}"
        ),
        SPLIT_DELAY_TOO_LONG: (
            f"{name}: due more than delay.max.ms = {fault.size} ms after receipt"
        ),
        SPLIT_CONTRADICTION: "use only one of x-delay, x-deliver-at and x-delay-level",
        SPLIT_CANCEL_CONTRADICTION: (
            "x-deliver-cancel cannot be combined with "
            "x-delay, x-deliver-at, x-delay-level or x-deliver-id"
        ),
        SPLIT_TIMESTAMP: f"the timestamp of the record has more than {TIMESTAMP_BITS} bits",
        SPLIT_ID_SIZE: f"{name} must have 1 to {ID_SIZE_MAX} bytes, not {max(fault.size, 0)}",
        SPLIT_TOO_MANY_DELAYED: (
            f"the batch has more than limits.delayed_count_max = {splitter.delayed_count_max} "
            "records that are delayed, cancel or have an id: send smaller batches"
        ),
        SPLIT_NO_REQUEST: (
            "the topic has delay.required=true, and the record has no delay: set x-delay, "
            "x-deliver-at or x-delay-level; x-delay: 0 delivers it at once"
        ),
        SPLIT_RETRY_GROUP: (
            "x-retry-group must be the name of a consumer group, 1 to 243 characters of "
            "a-z A-Z 0-9 . _ -, because its topics are named after it"
        ),
        SPLIT_RETRY_CONTRADICTION: (
            "x-retry-group cannot be combined with x-deliver-id or x-deliver-cancel"
        ),
        SPLIT_HEADERS_OFF: (
            f"{name} has no effect in a topic with delay.headers=off: set it to on"
        ),
        SPLIT_TOO_MANY_GROUPS: (
            f"the batch has more than {<int>GROUPS_MAX} different groups in x-retry-group: send "
            "one batch for each group"
        ),
        **_recurrence_faults(),
        **_reply_faults(),
    }[fault.code]
