"""The table of docs/SPARK.md: the columns of each table of a data directory."""

from typing import Final

import pyarrow as pa

from compat.tables.schema import HEADERS, TABLES

TABLE_MEANINGS: Final[dict[str, str]] = {
    "messages": "the records that a consumer can see, in the order of the log",
    "timers": "the delayed records that were accepted, with what became of each",
    "deliveries": "the delayed records that became visible, and how late",
    "queues": "the units of the ConsumeQueues: where each offset is in the log",
    "groups": "the committed offsets of consumer groups, and their lag",
    "frames": "what the log consists of, by the heads of its frames",
}

_COMMON: Final[dict[str, str]] = {
    "topic": "its topic",
    "partition": "its partition",
    "offset": "its offset",
    "position": "log position of its frame",
    "key": "key of the record",
    "value": "value of the record",
    "headers": "its headers, in their order",
    "timestamp": "timestamp of the record",
    "due_at": "when it was or is due; null if it was not delayed",
    "accepted_at": "when the broker accepted it; null if it was not delayed",
    "store_timestamp": "when its frame was appended",
    "id": "the name that its producer gave it (`x-deliver-id`)",
    "index": "its place in the batch that its producer sent",
}

_OWN: Final[dict[str, dict[str, str]]] = {
    "messages": {
        "timestampType": "0 set by the producer, 1 by the broker (LogAppendTime)",
        "delay_state": "`immediate` or `delivered`",
    },
    "timers": {
        "position": "log position of the frame that accepted it",
        "level": "its fixed delay (`x-delay-level`), 0 for none",
        "due_at": "when it was or is due",
        "accepted_at": "when the broker accepted it",
        "delay_state": "`pending`, `delivered`, `cancelled` or `replaced`",
        "completed_at": "when it was delivered, cancelled or replaced; null while it is pending",
        "cron": "the expression by which it recurs (`x-cron`); null if it does not",
        "zone": "the zone of that (`x-cron-zone`)",
        "missed": "what becomes of missed instants: `once`, `all` or `none`",
    },
    "deliveries": {
        "delivered_at": "when it became visible",
        "lateness_ms": "`delivered_at` less `due_at`",
        "position": "log position of the frame that delivered it",
        "accept_position": "`position` of its row in `timers`",
    },
    "queues": {"size": "bytes of the frame", "tags_code": "hash of its tags"},
    "groups": {
        "group": "the consumer group",
        "offset": "the committed offset",
        "end_offset": "the next offset of the partition",
        "lag": "records between the two that still exist",
        "metadata": "what the consumer committed with it",
        "committed_at": "when",
    },
    "frames": {
        "position": "log position",
        "size": "bytes",
        "kind": "as in FORMAT.md",
        "epoch": "epoch of the broker's start that appended it",
        "topic": "its topic; null for none, and for a topic that does not exist any more",
        "partition": "its partition, -1 for none",
        "offset": "offset of its first visible record",
        "last_offset": "offset of its last visible record",
        "record_count": "visible records",
        "timer_count": "timers that it accepts or completes",
        "cancel_count": "cancellations",
        "flushed": "log position up to which the log was flushed when it was appended",
        "store_timestamp": "when it was appended; null for a blank",
        "min_timestamp": "lowest timestamp; null for none, and if a compressed batch hides it",
        "max_timestamp": "highest timestamp",
        "min_due_at": "lowest due time of its timers",
        "max_due_at": "highest due time of its timers",
        "producer_id": "the idempotent producer",
    },
}


def column_tables() -> str:
    """Return docs/SPARK.md's table: one row for each column of each table."""
    rows = [("table", "column", "type", "null", "meaning")]
    for table, schema in TABLES.items():
        rows.append((f"**`{table}`**", "", "", "", TABLE_MEANINGS[table]))
        for field in schema:
            meaning = {**_COMMON, **_OWN[table]}[field.name]
            is_null = "yes" if field.nullable else ""
            rows.append(("", f"`{field.name}`", type_name(field.type), is_null, meaning))
    head, *body = rows
    lines = (head, ["---"] * len(head), *body)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def type_name(kind: pa.DataType) -> str:
    """Return how Spark calls a type."""
    if kind == HEADERS:
        return "array of (key string, value binary)"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {pa.int32(): "int", pa.int64(): "long"}.get(kind, str(kind))
