"""Spark's own Kafka source and sink against the broker: batch, by time, delayed, as a stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.spark.reading import in_order, rows
from tests.system.spark.test_document import programs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "cast({} as array<struct<key:string,value:binary>>) as headers"


@pytest.fixture(scope="module")
def broker(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Kafka address of a broker; the tests are skipped without the connector."""
    try:
        find("spark_connector")
    except ClientMissingError as missing:
        pytest.skip(str(missing))
    process = ApplianceProcess(tmp_path_factory.mktemp("kafka") / "data")
    try:
        process.start()
        yield process.kafka
        process.stop()
    finally:
        process.close()


def write(df: "DataFrame", broker: str, topic: str) -> None:
    df.write.format("kafka").options(**{"kafka.bootstrap.servers": broker, "topic": topic}).save()


def read(spark: "SparkSession", broker: str, topic: str, **options: str) -> "DataFrame":
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker)
    reader = reader.options(subscribe=topic, includeHeaders="true", **options)
    return reader.load()


def numbers(spark: "SparkSession", begin: int, end: int) -> "DataFrame":
    """Records with a key, a value and a header."""
    return spark.range(begin, end, 1, 2).selectExpr(
        "cast(id as string) as key",
        "cast(concat('value ', id) as binary) as value",
        HEADERS.format("array(struct('number', cast(id as string)))"),
    )


def values(df: "DataFrame") -> list[bytes]:
    return sorted(row["value"] for row in rows(df.select("value")))


def expected(begin: int, end: int) -> list[bytes]:
    return sorted(b"value %d" % number for number in range(begin, end))


def test_a_batch_is_written_and_read(spark: "SparkSession", broker: str) -> None:
    write(numbers(spark, 0, 200), broker, "batch")
    df = read(spark, broker, "batch")
    assert values(df) == expected(0, 200)
    row = df.where("cast(key as string) = '17'").first()
    assert row is not None
    assert [(each["key"], bytes(each["value"])) for each in row["headers"]] == [("number", b"17")]


def test_reading_begins_at_an_instant(spark: "SparkSession", broker: str) -> None:
    write(numbers(spark, 0, 20), broker, "instant")
    (last,) = read(spark, broker, "instant").selectExpr("max(unix_millis(timestamp))").first() or ()
    write(numbers(spark, 20, 30), broker, "instant")
    # Else a partition without such a record is an error.
    options = {"startingTimestamp": str(last + 1), "startingOffsetsByTimestampStrategy": "latest"}
    assert values(read(spark, broker, "instant", **options)) == expected(20, 30)


def test_a_header_column_delays_what_is_written(spark: "SparkSession", broker: str) -> None:
    due = numbers(spark, 0, 10).selectExpr(
        "key",
        "value",
        HEADERS.format("array(struct('x-delay', if(cast(key as int) < 4, '1ms', '1h')))"),
    )
    write(due, broker, "delayed")
    write(numbers(spark, 10, 12), broker, "delayed")
    found: list[bytes] = []
    while len(found) < 6:
        found = values(read(spark, broker, "delayed"))
    assert found == sorted(expected(0, 4) + expected(10, 12))


def test_a_stream_goes_on_from_its_checkpoint(
    spark: "SparkSession", broker: str, tmp_path: Path
) -> None:
    for end in (50, 90):
        write(numbers(spark, end - 40, end), broker, "stream")
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker)
        source = source.options(subscribe="stream", startingOffsets="earliest")
        sink = source.load().select("partition", "offset", "value").writeStream.format("parquet")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination(60)
    copied = spark.read.parquet(str(tmp_path / "rows"))
    assert values(copied) == expected(10, 90)
    whole = read(spark, broker, "stream").select(*copied.columns)
    assert in_order(rows(copied)) == in_order(rows(whole))


def test_the_programs_of_the_page_run(spark: "SparkSession", broker: str) -> None:
    write(numbers(spark, 0, 20), broker, "orders")
    write(numbers(spark, 0, 1), broker, "reminders")
    names: dict[str, object] = {"spark": spark}
    source, sink = programs(of_kafka=True)
    for program in (source, sink):
        exec(compile(program.replace("127.0.0.1:9092", broker), "docs/SPARK.md", "exec"), names)
    assert names["orders"].count() == 20  # type: ignore[attr-defined]
    assert values(read(spark, broker, "reminders")) == expected(0, 1), "the others are not due"
