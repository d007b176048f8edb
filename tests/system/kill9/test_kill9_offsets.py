"""Committed offsets with their metadata survive kill -9, whichever client commits them."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.harness.appliance_process import running_appliance

with warnings.catch_warnings():
    # It reads its definitions with a function that Python wants to retire.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer  # type: ignore[import-untyped]
    from kafka import TopicPartition as KafkaPythonPartition

TOPIC: Final = "t"
PARTITION_COUNT: Final = 4
LIMIT_S: Final = 60.0

Noted = dict[int, tuple[int, str]]
"""Offset and metadata by partition."""

BY_CONFLUENT: Final[Noted] = {0: (5, "a note, nötig"), 1: (6, "m")}
BY_AIOKAFKA: Final[Noted] = {1: (7, "from aiokafka"), 2: (0, "x" * 4_000)}


# kafka-python leaves the two ends of its wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _no_garbage_for_other_tests() -> Iterator[None]:
    yield
    gc.collect()


def confluent_consumer(address: str, group: str) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    return Consumer(settings)


def commit_by_confluent(address: str, group: str, noted: Noted) -> None:
    consumer = confluent_consumer(address, group)
    offsets = [TopicPartition(TOPIC, index, *each) for index, each in noted.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def read_by_kafka_python(address: str, group: str) -> Noted:
    """The one of these clients that shows metadata as they are.

    confluent-kafka reads them up to a zero byte, which only it sends with them; aiokafka shows
    none.
    """
    with closing(KafkaConsumer(bootstrap_servers=address, group_id=group)) as consumer:
        partitions = [KafkaPythonPartition(TOPIC, index) for index in range(PARTITION_COUNT)]
        reported = {each.partition: consumer.committed(each, metadata=True) for each in partitions}
        return {
            index: (each.offset, each.metadata)
            for index, each in reported.items()
            if each is not None
        }


async def commit_by_aiokafka(address: str, group: str, noted: Noted) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = {index: AiokafkaPartition(TOPIC, index) for index in noted}
        consumer.assign(list(partitions.values()))
        await consumer.commit(
            {partitions[index]: OffsetAndMetadata(*each) for index, each in noted.items()}
        )
    finally:
        await consumer.stop()


def run(step: Any) -> Any:
    return asyncio.run(asyncio.wait_for(step, LIMIT_S))


def test_offsets_with_metadata_survive_kill_9(tmp_path: Path) -> None:
    """As soon as a commit has returned; a later one replaces it, offset and metadata alike."""
    with running_appliance(tmp_path) as appliance:
        address = appliance.kafka
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITION_COUNT, 1)]).values():
            future.result(timeout=LIMIT_S)
        commit_by_confluent(address, "g", BY_CONFLUENT)
        appliance.kill()
        appliance.start()
        as_sent = {index: (offset, text + "\0") for index, (offset, text) in BY_CONFLUENT.items()}
        assert read_by_kafka_python(address, "g") == as_sent
        run(commit_by_aiokafka(address, "g", BY_AIOKAFKA))
        appliance.kill()
        appliance.start()
        assert read_by_kafka_python(address, "g") == as_sent | BY_AIOKAFKA
        assert run(read_by_aiokafka(address, "g")) == {
            index: offset for index, (offset, _) in (BY_CONFLUENT | BY_AIOKAFKA).items()
        }


async def read_by_aiokafka(address: str, group: str) -> dict[int, int]:
    """This client shows offsets alone."""
    consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [AiokafkaPartition(TOPIC, index) for index in range(PARTITION_COUNT)]
        consumer.assign(partitions)
        found = {each.partition: await consumer.committed(each) for each in partitions}
        return {index: offset for index, offset in found.items() if offset is not None}
    finally:
        await consumer.stop()
