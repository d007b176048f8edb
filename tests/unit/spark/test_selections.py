"""Filters of Spark become selections that keep every row which the filters keep."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from compat.spark import needs

if (missing := needs.find_missing_library()) is not None:
    pytest.skip(missing, allow_module_level=True)

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from compat.spark.filters import INSTANTS, selection_of
from compat.tables.schema import TABLES
from compat.tables.selection import Selection

TOPIC, PARTITION, TIME = ("topic",), ("partition",), ("timestamp",)


def at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (EqualTo(TOPIC, "a"), Selection(topics=frozenset("a"))),
        (EqualNullSafe(TOPIC, "a"), Selection(topics=frozenset("a"))),
        (EqualNullSafe(TOPIC, None), Selection()),
        (In(TOPIC, ("a", None, "b")), Selection(topics=frozenset("ab"))),
        (In(TOPIC, (None,)), Selection()),
        (LessThan(TOPIC, "a"), Selection()),
        (Not(EqualTo(TOPIC, "a")), Selection()),
        (IsNotNull(TOPIC), Selection()),
        (EqualTo(("headers", "topic"), "a"), Selection()),
        (EqualTo(PARTITION, 3), Selection(partition=3)),
        (In(PARTITION, (3, 4)), Selection()),
        (GreaterThan(PARTITION, 3), Selection()),
        (GreaterThan(TIME, at(1000)), Selection(timestamps=(2, None))),
        (GreaterThan(TIME, at(1001)), Selection(timestamps=(2, None))),
        (GreaterThanOrEqual(TIME, at(1000)), Selection(timestamps=(1, None))),
        (GreaterThanOrEqual(TIME, at(1001)), Selection(timestamps=(2, None))),
        (LessThan(TIME, at(1000)), Selection(timestamps=(None, 1))),
        (LessThan(TIME, at(1001)), Selection(timestamps=(None, 2))),
        (LessThanOrEqual(TIME, at(1000)), Selection(timestamps=(None, 2))),
        (LessThanOrEqual(TIME, at(1999)), Selection(timestamps=(None, 2))),
        (EqualTo(TIME, at(-1000)), Selection(timestamps=(-1, 0))),
        (In(TIME, (at(5000), at(2000))), Selection(timestamps=(2, 6))),
    ],
)
def test_a_filter_selects(found: Any, expected: Selection) -> None:
    assert selection_of("messages", [found]) == expected


def test_filters_select_what_all_of_them_select() -> None:
    filters = [
        EqualTo(TOPIC, "a"),
        In(TOPIC, ("a", "b")),
        GreaterThanOrEqual(TIME, at(1000)),
        LessThan(TIME, at(9000)),
        EqualTo(PARTITION, 1),
    ]
    assert selection_of("messages", filters) == Selection(
        topics=frozenset("a"), timestamps=(1, 9), partition=1
    )
    assert selection_of("messages", [EqualTo(PARTITION, 1), EqualTo(PARTITION, 2)]).topics == set()


def test_the_same_column_selects_by_what_it_is_in_its_table() -> None:
    due = LessThan(("due_at",), at(1000))
    assert selection_of("timers", [due]) == Selection(due=(None, 1))
    assert selection_of("messages", [due]) == Selection()
    accepted = LessThan(("accepted_at",), at(1000))
    assert selection_of("timers", [accepted]) == Selection(stored=(None, 1))
    assert selection_of("deliveries", [accepted]) == Selection()


def test_every_table_says_which_instants_select() -> None:
    assert set(INSTANTS) == set(TABLES)
    for table, columns in INSTANTS.items():
        assert set(columns) <= set(TABLES[table].names)
