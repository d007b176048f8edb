"""The directory of a broker that runs, is written to and is killed, against its own answers."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.harness.appliance_process import ApplianceProcess, latermq_command
from tests.system.spark.reading import load, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    process = ApplianceProcess(tmp_path / "data")
    try:
        process.start()
        yield process
    finally:
        process.close()


def produce(address: str, codec: str, count: int, name: str) -> None:
    """Send records, each third one with a delay; return when all are acknowledged."""
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    settings = {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 20}
    producer = Producer(settings)
    for number in range(count):
        value = f"{name} {codec} {number} ".encode() * 20
        headers: list[tuple[str, str | bytes | None]] = [("codec", codec)]
        if number % 3 == 0:
            headers.append(("x-delay", "1ms" if number % 2 else "1h"))
        producer.produce("orders", value, key=str(number), headers=headers, on_delivery=note)
    assert producer.flush(LIMIT_S) == 0
    assert not errors


def consume(address: str, count: int) -> list[tuple[object, ...]]:
    """What a consumer sees of the topic: all of its records."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "spark"})
    partitions = consumer.list_topics("orders", LIMIT_S).topics["orders"].partitions
    consumer.assign([TopicPartition("orders", number, 0) for number in partitions])
    found: list[tuple[object, ...]] = []
    try:
        while len(found) < count:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None
            headers = [{"key": key, "value": value} for key, value in message.headers() or []]
            instant = message.timestamp()[1]
            place = (message.partition(), message.offset(), instant)
            found.append((*place, message.key(), message.value(), repr(headers)))
    finally:
        consumer.close()
    return sorted(found, key=repr)


def messages(spark: "SparkSession", root: Path) -> list[tuple[object, ...]]:
    names = ("partition", "offset", "timestamp", "key", "value")
    columns = ",".join((*names, "headers"))
    return sorted(
        (
            (*(row[name] for name in names), repr(row["headers"]))
            for row in rows(load(spark, root, columns=columns))
        ),
        key=repr,
    )


def wait_for(spark: "SparkSession", root: Path, count: int) -> None:
    """Wait until the broker has published that so many records are flushed."""
    end_s = time.monotonic() + LIMIT_S
    while load(spark, root, columns="offset").count() < count:
        assert time.monotonic() < end_s, "the broker does not publish its flushed position"


def test_a_table_is_what_a_consumer_sees_of_the_same_broker(
    spark: "SparkSession", appliance: ApplianceProcess
) -> None:
    """Batches of each codec, while the broker runs, after it is killed, and after a restart."""
    root = appliance.data_dir
    for codec in CODECS:
        produce(appliance.kafka, codec, 30, "before")
    visible = 5 * 25  # five of thirty wait for an hour
    wait_for(spark, root, visible)
    first = load(spark, root, columns="offset")
    assert first.count() == visible
    assert messages(spark, root) == consume(appliance.kafka, visible)
    pending = load(spark, root, "timers").where("delay_state = 'pending'")
    assert (pending.count(), pending.where("due_at < accepted_at").count()) == (25, 0)

    produce(appliance.kafka, "zstd", 30, "after")
    wait_for(spark, root, visible + 25)
    assert first.count() == visible, "a DataFrame stays as it was loaded"

    appliance.kill()
    found = messages(spark, root)
    assert len(found) == visible + 25
    appliance.start()
    assert found == consume(appliance.kafka, visible + 25)
    appliance.stop()


def test_a_snapshot_stays_when_the_head_of_the_log_goes(
    spark: "SparkSession", appliance: ApplianceProcess
) -> None:
    root = appliance.data_dir
    produce(appliance.kafka, "none", 30, "before")
    wait_for(spark, root, 25)
    command = [latermq_command(), "snapshot", "create", "pinned", "--admin", appliance.admin]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    produce(appliance.kafka, "none", 30, "after")
    wait_for(spark, root, 50)
    appliance.stop()
    df = load(spark, root, snapshot="pinned", columns="value", verifyCrc="false")
    before = rows(df)
    assert len(before) == 25
    for segment in (root / "commitlog").iterdir():
        segment.unlink()
    assert rows(df) == before
    elsewhere = str(root / "snapshots" / "pinned")
    assert rows(load(spark, root, snapshot=elsewhere, columns="value")) == before


def test_lateness_and_groups_are_those_of_the_broker(
    spark: "SparkSession", appliance: ApplianceProcess
) -> None:
    produce(appliance.kafka, "none", 12, "late")
    wait_for(spark, appliance.data_dir, 10)
    consumer = Consumer({"bootstrap.servers": appliance.kafka, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    consumer.close()
    appliance.stop()
    late = rows(load(spark, appliance.data_dir, "deliveries"))
    assert [row["lateness_ms"] >= 0 for row in late] == [True, True]
    (group,) = rows(load(spark, appliance.data_dir, "groups"))
    ends = [row for row in messages(spark, appliance.data_dir) if row[0] == 0]
    assert (group["group"], group["offset"], group["lag"]) == ("billing", 0, len(ends))
