"""Filters of Spark as a `Selection` of a table. Layer 5.

A selection may keep rows that a filter excludes, never the other way round: Spark applies every
filter again.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from compat.tables.selection import ANY, Bounds, Selection

INSTANTS: Final[dict[str, dict[str, str]]] = {
    "messages": {"timestamp": "timestamps", "store_timestamp": "stored"},
    "timers": {"accepted_at": "stored", "due_at": "due"},
    "deliveries": {"delivered_at": "stored", "due_at": "due"},
    "queues": {"store_timestamp": "stored"},
    "frames": {"store_timestamp": "stored"},
    "groups": {},
}
"""By table: columns of instants, and the bounds of a `Selection` that they narrow."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_MS: Final = 1000


def selection_of(table: str, filters: Iterable[Filter]) -> Selection:
    """Return what may satisfy all filters.

    Args:
        table: whose columns the filters name.
        filters: of any kind; those that select nothing here are passed over.
    """
    found = (_of_one(table, each) for each in filters)
    return reduce(Selection.narrowed, found, Selection())


def _of_one(table: str, each: Filter) -> Selection:
    values = _values(each)
    if values is None:
        return Selection()
    name = each.attribute[0] if len(each.attribute) == 1 else ""
    is_equality = isinstance(each, EqualTo | EqualNullSafe | In)
    if name == "topic" and is_equality and all(isinstance(value, str) for value in values):
        return Selection(topics=frozenset(values))
    if name == "partition" and is_equality and len(values) == 1 and isinstance(values[0], int):
        return Selection(partition=values[0])
    if not all(isinstance(value, datetime) for value in values):
        return Selection()
    match INSTANTS[table].get(name):
        case "timestamps":
            return Selection(timestamps=_bounds(each, values))
        case "stored":
            return Selection(stored=_bounds(each, values))
        case "due":
            return Selection(due=_bounds(each, values))
    return Selection()


def _values(each: Filter) -> Sequence[Any] | None:
    """Return the values that a filter compares with, without nulls; None if it has none."""
    match each:
        case In():
            values = [value for value in each.value if value is not None]
        case EqualTo() | EqualNullSafe() | GreaterThan() | GreaterThanOrEqual():
            values = [each.value]
        case LessThan() | LessThanOrEqual():
            values = [each.value]
        case _:
            return None
    return values if values and values[0] is not None else None


def _bounds(each: Filter, values: Sequence[datetime]) -> Bounds:
    low, high = _in_us(min(values)), _in_us(max(values))
    match each:
        case GreaterThan():
            return low // _US_PER_MS + 1, None
        case GreaterThanOrEqual():
            return -(-low // _US_PER_MS), None
        case LessThan():
            return None, -(-high // _US_PER_MS)
        case LessThanOrEqual():
            return None, high // _US_PER_MS + 1
        case EqualTo() | EqualNullSafe() | In():
            return -(-low // _US_PER_MS), high // _US_PER_MS + 1
        case _:
            return ANY


def _in_us(instant: datetime) -> int:
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
