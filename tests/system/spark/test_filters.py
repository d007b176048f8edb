"""Filters leave parts of the log out, and never change what is found."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.harness.offline_scenario import export
from tests.support.oracles.tables_model import UsedBroker
from tests.system.spark.reading import in_order, load, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"

FILTERS = {
    "messages": [
        "topic = 'orders' and partition = 1",
        "topic in ('mails', 'nothing') or offset = 3",
        "topic = 'orders' and topic = 'mails'",
        "partition in (0, 2)",
        "timestamp >= {middle}",
        "timestamp between {middle} - interval 2 seconds and {middle}",
        "timestamp = {middle} or store_timestamp < {middle}",
        "store_timestamp > {middle} - interval 1 second and key is not null",
        "due_at < {middle}",
    ],
    "timers": [
        "due_at > {middle}",
        "accepted_at < {middle} and delay_state = 'pending'",
        "topic = 'mails' and due_at <= {middle}",
    ],
    "deliveries": ["delivered_at <= {middle}", "due_at >= {middle} and lateness_ms >= 0"],
    "queues": ["store_timestamp >= {middle} and partition = 0", "topic <=> 'mails'"],
    "frames": ["store_timestamp < {middle} and kind = 'accept'", "topic = 'mails'"],
    "groups": ["topic = 'orders' and lag > 0"],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a history of some minutes."""
    used = UsedBroker(random.Random(21))
    used.use(250)
    used.harness.broker.close()
    return export(used.harness.disk, tmp_path_factory.mktemp("filters"))


@pytest.mark.parametrize("table", FILTERS)
def test_filters_find_what_an_unpruned_table_has(
    spark: "SparkSession", root: Path, table: str
) -> None:
    (middle,) = load(spark, root).selectExpr("percentile_approx(timestamp, 0.5)").first() or ()
    instant = f"timestamp '{middle.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
    whole = load(spark, root, table).cache()
    try:
        for text in FILTERS[table]:
            condition = text.format(middle=instant)
            expected = in_order(rows(whole.where(condition)))
            # One is enough to show that Spark then neither gives filters nor refuses the reader.
            for is_on in ("true", "false")[: 2 if text == FILTERS[table][0] else 1]:
                spark.conf.set(PUSH_DOWN, is_on)
                df = load(spark, root, table, pushFilters="true")
                assert in_order(rows(df.where(condition))) == expected, (condition, is_on)
    finally:
        spark.conf.unset(PUSH_DOWN)
        whole.unpersist()


@pytest.fixture
def pushing(spark: "SparkSession") -> Iterator["SparkSession"]:
    """The session while Spark gives filters to Python sources."""
    spark.conf.set(PUSH_DOWN, "true")
    yield spark
    spark.conf.unset(PUSH_DOWN)


def test_a_filter_reads_less_of_the_log(pushing: "SparkSession", root: Path) -> None:
    options = {"splitBytes": "1", "columns": "timestamp"}
    (last,) = load(pushing, root, **options).selectExpr("max(timestamp)").first() or ()
    df = load(pushing, root, **options, pushFilters="true")
    late = df.where(df.timestamp > last - timedelta(milliseconds=1))
    assert late.count() >= 1
    assert load(pushing, root, **options).rdd.getNumPartitions() > 1
    assert late.rdd.getNumPartitions() == 1


def test_one_dataframe_may_be_filtered_in_many_ways(pushing: "SparkSession", root: Path) -> None:
    """Spark keeps the plan of the last filters, so they are taken on request alone."""
    df = load(pushing, root, columns="topic")
    orders, mails = df.where("topic = 'orders'"), df.where("topic = 'mails'")
    counts = orders.count(), mails.count()
    assert min(counts) > 0
    assert orders.union(mails).count() == df.count() == sum(counts)


def test_instants_of_less_than_a_millisecond_are_exact(pushing: "SparkSession", root: Path) -> None:
    from pyspark.sql.functions import lit

    whole = load(pushing, root, columns="timestamp")
    (first,) = whole.selectExpr("min(timestamp)").first() or ()

    def count(sign: str, microseconds: int) -> int:
        df = load(pushing, root, columns="timestamp", pushFilters="true")
        instant = lit(first + timedelta(microseconds=microseconds))
        return int(df.where(getattr(df.timestamp, sign)(instant)).count())

    firsts = count("__eq__", 0)
    assert firsts > 0
    assert count("__lt__", 1) == count("__le__", 0) == count("__le__", 999) == firsts
    assert count("__eq__", 1) == count("__lt__", 0) == 0
    assert count("__ge__", 1) == count("__gt__", 0) == whole.count() - firsts


@pytest.mark.parametrize("form", ["ms", "text"])
def test_options_select_exactly(spark: "SparkSession", root: Path, form: str) -> None:
    def shown(epoch_ms: int) -> str:
        instant = datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return str(epoch_ms) if form == "ms" else instant

    messages, timers = rows(load(spark, root)), rows(load(spark, root, "timers"))
    times = sorted(row["timestamp"] for row in messages)
    begin, end = times[len(times) // 4], times[len(times) // 2]
    found = load(
        spark, root, topics="mails, nothing", startTimestamp=shown(begin), endTimestamp=shown(end)
    )
    assert rows(found) == [
        row for row in messages if row["topic"] == "mails" and begin <= row["timestamp"] < end
    ]
    found = load(spark, root, "timers", dueBetween=f"{shown(begin)},{shown(end)}")
    assert rows(found) == [row for row in timers if begin <= row["due_at"] < end]
    found = load(spark, root, "timers", endTimestamp=shown(begin))
    assert rows(found) == [row for row in timers if row["accepted_at"] < begin]
