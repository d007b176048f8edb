"""A table as a stream: each row once, whatever stops and restarts, in batches of bounded size."""

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.offline_scenario import export
from tests.support.oracles.tables_model import UsedBroker
from tests.support.values.kafka_records import Record
from tests.system.spark.reading import Row, error_of, in_order, load, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = ("deliveries", "frames")
"""Other tests have the messages."""


class Stream:
    """A table that is copied to files by one query after another, with one checkpoint."""

    def __init__(self, spark: "SparkSession", root: Path, out: Path, **options: str) -> None:
        self.spark = spark
        self.root = root
        self.out = out
        self.options = options

    def start(self, **trigger: Any) -> Any:
        """Start a query; by default it ends with what is there now."""
        source = self.spark.readStream.format("latermq").options(**self.options)
        sink = source.load(str(self.root)).writeStream.format("parquet")
        sink = sink.option("checkpointLocation", str(self.out / "checkpoint"))
        return sink.trigger(**trigger or {"availableNow": True}).start(str(self.out / "rows"))

    def run(self) -> list[dict[str, Any]]:
        """Run a query to its end; return the progress of each micro-batch with rows."""
        query = self.start()
        query.awaitTermination(60)
        assert not query.isActive
        return [each for each in query.recentProgress if each["numInputRows"]]

    def rows(self) -> list[Row]:
        """All rows so far, in an order that depends on them alone."""
        return in_order(rows(self.spark.read.parquet(str(self.out / "rows"))))

    def expected(self) -> list[Row]:
        """All rows of the table as it is now."""
        options = {name: text for name, text in self.options.items() if name != "table"}
        options.pop("maxBytesPerTrigger", None)
        table = self.options.get("table", "messages")
        return in_order(rows(load(self.spark, self.root, table, **options)))

    def position(self) -> int:
        """The log position up to which micro-batches were planned."""
        offsets = self.out / "checkpoint" / "offsets"
        newest = max((path for path in offsets.iterdir() if path.name.isdigit()), key=number_of)
        position: int = json.loads(newest.read_text().splitlines()[-1])["position"]
        return position

    def forget_commit(self) -> None:
        """Make it seem that the last micro-batch was planned, but not completed."""
        commits = self.out / "checkpoint" / "commits"
        newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=number_of)
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)
        shutil.rmtree(self.out / "rows" / "_spark_metadata")


def number_of(path: Path) -> int:
    return int(path.name)


def grown(used: UsedBroker, root: Path, steps: int) -> None:
    """Use a broker, stop it, and write its directory."""
    used.use(steps)
    used.stop("clean")
    export(used.harness.disk, root)


@pytest.mark.parametrize("table", STREAMS)
def test_a_stream_has_the_rows_of_its_table_once(
    spark: "SparkSession", tmp_path: Path, table: str
) -> None:
    used = UsedBroker(random.Random(11))
    stream = Stream(
        spark, tmp_path / "data", tmp_path, table=table, columns=COLUMNS[table], splitBytes="16k"
    )
    for _ in range(2):
        grown(used, stream.root, 80)
        stream.run()
    found = stream.rows()
    assert len(found) > 20
    assert found == stream.expected()


COLUMNS = {
    "deliveries": "topic,partition,offset,id,lateness_ms",
    "frames": "position,size,kind",
}


def test_batches_are_no_larger_than_the_limit_and_a_frame(
    spark: "SparkSession", tmp_path: Path
) -> None:
    used = UsedBroker(random.Random(12))
    stream = Stream(spark, tmp_path / "data", tmp_path, maxBytesPerTrigger="20k")
    grown(used, stream.root, 120)
    batches = stream.run()
    assert len(batches) > 3
    sizes = [size_of(each) for each in batches]
    # A segment ends with a blank frame of any size.
    assert max(sizes) < 20 * 1024 + 16 * 1024
    assert stream.rows() == stream.expected()
    assert stream.run() == [], "nothing was added"


def size_of(progress: Any) -> int:
    (source,) = progress["sources"]
    begin, end = (json.loads(source[name] or "null") for name in ("startOffset", "endOffset"))
    return int(end["position"]) - (int(begin["position"]) if begin else 0)


def test_a_batch_that_was_not_completed_has_the_same_rows_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Also after the log has grown, and after a topic of it was deleted."""
    used = UsedBroker(random.Random(13))
    stream = Stream(spark, tmp_path / "data", tmp_path)
    grown(used, stream.root, 80)
    stream.run()
    before = stream.rows()
    end = stream.position()
    stream.forget_commit()
    shutil.rmtree(stream.out / "rows")
    used.harness.delete_topic("mails")
    used.harness.produce("orders", 0, [Record(b"new")])
    grown(used, stream.root, 0)
    stream.run()
    assert stream.position() > end
    found = stream.rows()
    new = [row for row in found if row["position"] >= end]
    assert [row["value"] for row in new] == [b"new"]
    assert [row for row in found if row["position"] < end] == before
    assert {row["topic"] for row in before} == {"orders", "mails"}


def test_a_stream_that_runs_takes_what_is_added(spark: "SparkSession", tmp_path: Path) -> None:
    used = UsedBroker(random.Random(14))
    stream = Stream(spark, tmp_path / "data", tmp_path)
    grown(used, stream.root, 30)
    query = stream.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        assert stream.rows() == stream.expected()
        grown(used, stream.root, 40)
        query.processAllAvailable()
        assert stream.rows() == stream.expected()
    finally:
        query.stop()


def test_a_stream_may_begin_before_the_first_record(spark: "SparkSession", tmp_path: Path) -> None:
    harness = BrokerHarness()
    harness.create_topic("orders")
    stream = Stream(spark, tmp_path / "data", tmp_path)
    harness.broker.close()
    export(harness.disk, stream.root)
    assert stream.run() == []
    harness = BrokerHarness(harness.disk)
    harness.produce("orders", 0, [Record(b"first")])
    export(harness.reborn("clean", 0).disk, stream.root)
    stream.run()
    assert [row["value"] for row in stream.rows()] == [b"first"]


def test_a_stream_does_not_go_on_with_another_log_or_less_of_its_own(
    spark: "SparkSession", tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "data", tmp_path)
    used = UsedBroker(random.Random(18))
    grown(used, tmp_path / "older", 40)
    grown(used, stream.root, 40)
    stream.run()
    shutil.rmtree(stream.root)
    (tmp_path / "older").rename(stream.root)
    message = error_of(lambda: stream.start().awaitTermination(60))
    assert f"and was read up to {stream.position()}" in message
    shutil.rmtree(stream.root)
    grown(UsedBroker(random.Random(17)), stream.root, 80)
    message = error_of(lambda: stream.start().awaitTermination(60))
    assert "does not hold the log that was read before: it is of cluster" in message
