"""The tables of the pipeline: names, columns and paths. Layer 5.

    OUT/messages/topic=T/date=D/*.parquet     facts: one row for each record, timer, completion
    OUT/hourly/topic=T/date=D/part.parquet    aggregates: one row for each hour
    OUT/_latermq/                             what the job itself needs; readers of Parquet skip it

Topic and date are in the path alone. A date is a day in UTC.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from compat.tables.schema import INSTANT, schema_of

STATE_DIR: Final = "_latermq"
PART: Final = "part.parquet"
"""The one file of a partition of an aggregate; a rename replaces it."""

NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark takes for null in a path, and a topic may be called: written as %5F_HIVE..."""

Partition = tuple[str, str]
"""Topic and date."""


def _without_topic(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != "topic"])


TIMER_COLUMNS: Final = (
    *("topic", "partition", "position", "index", "id", "level", "due_at", "accepted_at"),
    *("delay_state", "completed_at"),
)
"""The columns that are read of the table `timers` of the log; none needs a record."""

_ACCEPTED: Final = _without_topic(schema_of("timers", TIMER_COLUMNS[:-2]))

FACTS: Final[dict[str, pa.Schema]] = {
    "messages": pa.schema(
        [*_without_topic(schema_of("messages")), pa.field("size", pa.int64(), nullable=False)]
    ),
    "accepted": _ACCEPTED,
    "completed": pa.schema(
        [
            *_ACCEPTED,
            pa.field("delay_state", pa.string(), nullable=False),
            pa.field("completed_at", INSTANT, nullable=False),
            pa.field("lateness_ms", pa.int64()),
        ]
    ),
}
"""Columns of each table of facts. They are only added to."""

DATED_BY: Final[dict[str, str]] = {
    "messages": "store_timestamp",
    "accepted": "accepted_at",
    "completed": "completed_at",
}
"""The column of a fact that says in which partition it is."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an aggregate: docs/PIPELINE.md has the same table."""

    name: str
    meaning: str


AGGREGATES: Final[dict[str, tuple[Column, ...]]] = {
    "hourly": (
        Column("hour", "the hour in which it happened, by the broker's clock"),
        Column("messages", "records that became visible"),
        Column("bytes", "bytes of their keys and values"),
        Column("accepted", "timers accepted"),
        Column("delivered", "timers delivered"),
        Column("cancelled", "timers cancelled"),
        Column("replaced", "timers replaced by another of the same id"),
        Column("deleted", "pending timers that were deleted with their topic"),
        Column("backlog", "timers pending at the end of the hour, or now if it is not over"),
    ),
    "lateness": (
        Column("hour", "the hour in which the timers were due"),
        Column("delivered", "how many of them are delivered"),
        Column("p50_ms", "half of those were delivered at most so late"),
        Column("p90_ms", "the same for 90 %"),
        Column("p99_ms", "the same for 99 %"),
        Column("max_ms", "the latest"),
    ),
    "outcomes": (
        Column("hour", "the hour in which the timers were accepted"),
        Column("accepted", "how many"),
        Column("delivered", "how many of them are delivered"),
        Column("cancelled", "cancelled"),
        Column("replaced", "replaced"),
        Column("deleted", "deleted with their topic"),
        Column("pending", "still pending"),
    ),
    "due": (
        Column("hour", "the hour in which the timers are due"),
        Column("pending", "timers that are pending now"),
    ),
}
"""Columns of each aggregate, without topic and date. All but `hour` are 64-bit integers."""

CORRECTED: Final = ("hourly", "lateness", "outcomes")
"""The aggregates of which only the partitions that changed are computed again."""


def aggregate_schema(table: str) -> pa.Schema:
    """Return the columns of an aggregate in its files."""
    names = [column.name for column in AGGREGATES[table]]
    kinds = [INSTANT, *[pa.int64()] * (len(names) - 1)]
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in zip(names, kinds, strict=True)]
    )


def directory_of(table: str, partition: Partition) -> str:
    """Return the path of a partition in the output directory.

    The names of topics have letters, digits, dots, underscores and hyphens only, so that one name
    alone needs an escape.
    """
    topic, date = partition
    if topic == NULL_NAME:
        topic = topic.replace("_", "%5F", 1)
    return f"{table}/topic={topic}/date={date}"


@dataclass(frozen=True, slots=True)
class Span:
    """The first and the last date of some rows."""

    first: str
    last: str

    @classmethod
    def of(cls, dates: Collection[str]) -> "Span | None":
        """Return the span of some dates, None if there are none."""
        return cls(min(dates), max(dates)) if dates else None

    @classmethod
    def around(cls, spans: "Iterable[Span | None]") -> "Span | None":
        """Return the span that holds all spans."""
        return cls.of([date for span in spans if span for date in (span.first, span.last)])

    def holds(self, dates: Iterable[str]) -> bool:
        """Return whether some date is between them."""
        return any(self.first <= date <= self.last for date in dates)
