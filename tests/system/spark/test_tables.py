"""Each table has its schema, and its rows are what `latermq dump` shows of the same directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.offline_scenario import export
from tests.system.spark.reading import dump, error_of, load, octets, rows

pytest.importorskip("pyarrow")
from compat.tables.schema import TABLE_NAMES, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIVE_TOPICS = ("orders",)
"""Topics of the store that are not deleted."""

SPARK_TYPES = {
    "binary": "binary",
    "string": "string",
    "int32": "int",
    "int64": "bigint",
    "timestamp[us, tz=UTC]": "timestamp",
}
HEADERS = "array<struct<key:string,value:binary>>"


@pytest.mark.parametrize("table", TABLE_NAMES)
def test_a_table_has_exactly_its_columns(spark: "SparkSession", store: Path, table: str) -> None:
    fields = schema_of(table)
    wanted = [
        (field.name, SPARK_TYPES.get(str(field.type), HEADERS), field.nullable) for field in fields
    ]
    df = load(spark, store, table)
    found = [(each.name, each.dataType.simpleString(), each.nullable) for each in df.schema.fields]
    assert found == wanted
    assert df.collect(), "no row has shown that the schema is that of the rows"


def test_headers_are_never_null_but_their_values_may_be(spark: "SparkSession", store: Path) -> None:
    headers = load(spark, store).schema["headers"].dataType
    assert not headers.containsNull
    assert [(each.name, each.nullable) for each in headers.elementType] == [
        ("key", False),
        ("value", True),
    ]


def test_messages_are_the_records_of_a_dump(spark: "SparkSession", store: Path) -> None:
    expected = [
        {
            "topic": each["topic"],
            "partition": each["partition"],
            "offset": each["offset"],
            "timestamp": each["timestamp"],
            "key": octets(each["key"]),
            "value": octets(each["value"]),
            "headers": headers_of(each),
            "position": each["position"],
            "delay_state": "delivered" if each["kind"] == "deliver" else "immediate",
        }
        for each in dump(store, "records")
        if each["topic"] in LIVE_TOPICS
    ]
    assert len(expected) > 20
    columns = ",".join(expected[0])
    assert rows(load(spark, store, columns=columns)) == expected


def headers_of(shown: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": octets(value)} for key, value in shown.get("headers", [])]


def test_timers_are_those_of_a_dump_with_what_became_of_them(
    spark: "SparkSession", store: Path
) -> None:
    shown = [each for each in dump(store, "timers") if each["topic"] in LIVE_TOPICS]
    found = rows(load(spark, store, "timers"))
    assert [(row["position"], row["index"]) for row in found] == [
        (each["accept_position"], each["index"]) for each in shown
    ]
    for row, each in zip(found, shown, strict=True):
        assert (row["delay_state"] == "pending") == (each["state"] == "pending")
        assert (row["completed_at"] is None) == (each["state"] == "pending")
        assert row["due_at"] == each["due"]
        assert row["id"] == octets(each.get("id"))
        assert row["value"] == octets(each["value"])
        assert row["headers"] == headers_of(each)
    assert [row["delay_state"] for row in found] == [
        *("delivered", "cancelled", "pending", "cancelled")
    ]


def test_deliveries_are_the_timers_that_deliver_frames_complete(
    spark: "SparkSession", store: Path
) -> None:
    frames = dump(store, "frames", "--content", "--kind", "deliver")
    expected = [
        {
            "topic": frame["topic"],
            "partition": frame["partition"],
            "offset": record["offset"],
            "delivered_at": frame["stored_at"],
            "lateness_ms": frame["stored_at"] - int(dict(record["headers"])["x-due-at"]),
            "position": frame["position"],
            "accept_position": completed["accept_position"],
            "index": completed["index"],
            "id": octets(completed.get("id")),
        }
        for frame in frames
        if frame["topic"] in LIVE_TOPICS
        for record, completed in zip(frame["records"], frame["completed"], strict=True)
    ]
    assert expected
    assert rows(load(spark, store, "deliveries", columns=",".join(expected[0]))) == expected


def test_queues_are_the_units_of_the_files(spark: "SparkSession", store: Path) -> None:
    expected = [each for each in dump(store, "queues") if each["topic"] in LIVE_TOPICS]
    assert expected
    found = rows(load(spark, store, "queues", columns=",".join(expected[0])))
    assert sorted(found, key=lambda row: (row["partition"], row["offset"])) == expected


def test_frames_are_those_of_a_dump(spark: "SparkSession", store: Path) -> None:
    names = ("position", "size", "kind", "epoch", "flushed")
    expected = [{name: each[name] for name in names} for each in dump(store)]
    assert len(expected) > 40
    assert rows(load(spark, store, "frames", columns=",".join(names))) == expected


def test_groups_have_their_offsets_and_lag(spark: "SparkSession", store: Path) -> None:
    (found,) = rows(load(spark, store, "groups"))
    (ends,) = [
        each["next_offset"]
        for each in dump(store, "state")
        if each["type"] == "partition" and each["partition"] == 1
    ]
    committed_at = found.pop("committed_at")
    assert found == {
        "group": "billing",
        "topic": "orders",
        "partition": 1,
        "offset": 1,
        "end_offset": ends,
        "lag": ends - 1,
        "metadata": "at one",
    }
    assert committed_at == 1767225660000


@pytest.mark.parametrize("table", TABLE_NAMES)
def test_a_store_without_records_has_empty_tables(
    spark: "SparkSession", tmp_path: Path, table: str
) -> None:
    harness = BrokerHarness()
    harness.broker.close()
    df = load(spark, export(harness.disk, tmp_path), table)
    assert (df.count() > 0) == (table == "frames")


def test_columns_are_those_asked_for_in_that_order(spark: "SparkSession", store: Path) -> None:
    df = load(spark, store, columns="offset, topic")
    assert df.columns == ["offset", "topic"]
    assert df.first() == (0, "orders")


def test_a_schema_that_a_user_gives_selects_columns(spark: "SparkSession", store: Path) -> None:
    reader = spark.read.format("latermq")
    ddl = "offset long, headers array<struct<key:string,value:binary>>"
    df = reader.schema(ddl).load(str(store))
    assert df.columns == ["offset", "headers"]
    assert rows(df) == rows(load(spark, store, columns="offset,headers"))


def test_a_schema_that_does_not_fit_is_refused(spark: "SparkSession", store: Path) -> None:
    """Other misfits are in the unit tests; this one shows that Spark passes the error on."""
    df = spark.read.format("latermq").schema("offset int").load(str(store))
    assert "column offset of table messages is bigint, not int" in error_of(df.collect)


def test_a_table_is_named_in_sql(spark: "SparkSession", store: Path) -> None:
    spark.sql(
        "create or replace temporary view due using latermq "
        f"options (path '{store}', table 'timers', columns 'due_at,delay_state')"
    )
    assert spark.sql("select count(*) from due where delay_state = 'pending'").first() == (1,)


def test_a_wrong_option_is_named(spark: "SparkSession", store: Path) -> None:
    """Other options are in the unit tests; this one shows that Spark passes the error on."""
    assert "there is no table 'message': use one of messages, timers," in error_of(
        lambda: load(spark, store, "message")
    )


def test_what_is_no_data_directory_is_named(spark: "SparkSession", tmp_path: Path) -> None:
    assert "is not a latermq data directory: it has no commitlog/" in error_of(
        lambda: load(spark, tmp_path)
    )
    reader = spark.read.format("latermq")
    assert "give the data directory" in error_of(reader.load)
    assert "give one data directory" in error_of(lambda: reader.load([str(tmp_path)] * 2))


def test_a_snapshot_is_read_instead_of_the_path(
    spark: "SparkSession", store: Path, tmp_path: Path
) -> None:
    df = load(spark, tmp_path, snapshot=str(store))
    assert rows(df) == rows(load(spark, store))
