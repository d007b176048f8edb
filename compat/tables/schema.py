"""The tables and their columns, as Arrow schemas. Layer 4."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from appliance.errors import ConfigError

INSTANT: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_PLACE: Final = (_required("topic", pa.string()), _required("partition", pa.int32()))

TABLES: Final[dict[str, pa.Schema]] = {
    "messages": pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            *_PLACE,
            _required("offset", pa.int64()),
            _required("timestamp", INSTANT),
            _required("timestampType", pa.int32()),
            _required("headers", HEADERS),
            pa.field("due_at", INSTANT),
            pa.field("accepted_at", INSTANT),
            _required("store_timestamp", INSTANT),
            _required("delay_state", pa.string()),
            _required("position", pa.int64()),
        ]
    ),
    "timers": pa.schema(
        [
            *_PLACE,
            _required("position", pa.int64()),
            _required("index", pa.int32()),
            pa.field("id", pa.binary()),
            _required("level", pa.int32()),
            _required("due_at", INSTANT),
            _required("accepted_at", INSTANT),
            _required("delay_state", pa.string()),
            pa.field("completed_at", INSTANT),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            _required("timestamp", INSTANT),
            _required("headers", HEADERS),
            pa.field("cron", pa.string()),
            pa.field("zone", pa.string()),
            pa.field("missed", pa.string()),
        ]
    ),
    "deliveries": pa.schema(
        [
            *_PLACE,
            _required("offset", pa.int64()),
            pa.field("key", pa.binary()),
            pa.field("id", pa.binary()),
            pa.field("due_at", INSTANT),
            pa.field("accepted_at", INSTANT),
            _required("delivered_at", INSTANT),
            pa.field("lateness_ms", pa.int64()),
            _required("position", pa.int64()),
            _required("accept_position", pa.int64()),
            _required("index", pa.int32()),
        ]
    ),
    "queues": pa.schema(
        [
            *_PLACE,
            _required("offset", pa.int64()),
            _required("position", pa.int64()),
            _required("size", pa.int32()),
            _required("tags_code", pa.int64()),
            _required("store_timestamp", INSTANT),
        ]
    ),
    "groups": pa.schema(
        [
            _required("group", pa.string()),
            *_PLACE,
            _required("offset", pa.int64()),
            _required("end_offset", pa.int64()),
            _required("lag", pa.int64()),
            pa.field("metadata", pa.string()),
            _required("committed_at", INSTANT),
        ]
    ),
    "frames": pa.schema(
        [
            _required("position", pa.int64()),
            _required("size", pa.int64()),
            _required("kind", pa.string()),
            _required("epoch", pa.int64()),
            pa.field("topic", pa.string()),
            _required("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("last_offset", pa.int64()),
            _required("record_count", pa.int64()),
            _required("timer_count", pa.int64()),
            _required("cancel_count", pa.int64()),
            _required("flushed", pa.int64()),
            pa.field("store_timestamp", INSTANT),
            pa.field("min_timestamp", INSTANT),
            pa.field("max_timestamp", INSTANT),
            pa.field("min_due_at", INSTANT),
            pa.field("max_due_at", INSTANT),
            pa.field("producer_id", pa.int64()),
        ]
    ),
}
"""The columns of each table, in order. Those of `messages` begin as in Spark's Kafka source."""

TABLE_NAMES: Final = tuple(TABLES)


def schema_of(table: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of a table.

    Args:
        table: its name.
        columns: the columns asked for, in their order; None for all.

    Raises:
        ConfigError: there is no such table or column.
    """
    if table not in TABLES:
        raise ConfigError(f"there is no table {table!r}: use one of {', '.join(TABLES)}")
    schema = TABLES[table]
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown or not columns:
        wrong = ", ".join(map(repr, unknown)) or "an empty list"
        raise ConfigError(
            f"table {table} has no column {wrong}: its columns are {', '.join(schema.names)}"
        )
    if len(set(columns)) != len(columns):
        raise ConfigError(f"a column is named twice: {', '.join(columns)}")
    return pa.schema([schema.field(name) for name in columns])
