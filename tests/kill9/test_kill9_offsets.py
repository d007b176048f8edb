"""Committed offsets with their metadata survive kill -9, whichever client commits them."""

import asyncio
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.appliance_process import running_appliance

TOPIC: Final = "t"
PARTITION_COUNT: Final = 4
LIMIT_S: Final = 20.0

Noted = dict[int, tuple[int, str]]
"""Offset and metadata by partition."""

BY_CONFLUENT: Final[Noted] = {0: (5, "a note, nötig"), 1: (6, "")}
BY_AIOKAFKA: Final[Noted] = {1: (7, "from aiokafka"), 2: (0, "x" * 4_000)}


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
    answers = consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    assert answers is not None
    assert all(answer.error is None for answer in answers)


def read_by_confluent(address: str, group: str) -> Noted:
    consumer = confluent_consumer(address, group)
    asked = [TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT)]
    found = consumer.committed(asked, timeout=LIMIT_S)
    consumer.close()
    # This client does not tell empty metadata from none.
    return {
        each.partition: (each.offset, each.metadata or "") for each in found if each.offset >= 0
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
        assert read_by_confluent(address, "g") == BY_CONFLUENT
        run(commit_by_aiokafka(address, "g", BY_AIOKAFKA))
        appliance.kill()
        appliance.start()
        assert read_by_confluent(address, "g") == BY_CONFLUENT | BY_AIOKAFKA
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
