"""`x-deliver-reply` through real clients, and across a kill of the broker."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.harness.appliance_process import ApplianceProcess

LIMIT_S: Final = 30.0
PARTITION_COUNT: Final = 3
REPLY: Final = ("x-deliver-reply", b"replies")
Sent = tuple[bytes, list[tuple[str, bytes]]]
"""Value and headers."""


def schedule(user_id: bytes, delay: bytes = b"1h") -> Sent:
    return user_id, [("x-delay", delay), ("x-deliver-id", user_id), REPLY]


def cancel(user_id: bytes) -> Sent:
    return b"", [("x-deliver-cancel", user_id), REPLY]


BATCHES: Final = (
    [schedule(b"a"), schedule(b"a"), cancel(b"a"), cancel(b"a"), schedule(b"b")],
    [cancel(b"b"), cancel(b"never"), schedule(b"c", b"0")],
)
EXPECTED: Final = [
    *[(b"a", "cancelled"), (b"a", "cancelled"), (b"a", "replaced"), (b"b", "cancelled")],
    (b"never", "unknown"),
]


def send_confluent(address: str, records: Sequence[Sent]) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    for value, headers in records:
        producer.produce("orders", value, b"same", headers=headers)
    assert producer.flush(LIMIT_S) == 0


def send_aiokafka(address: str, records: Sequence[Sent]) -> None:
    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        await producer.start()
        try:
            for value, headers in records:
                await producer.send("orders", value, b"same", headers=headers)
            await producer.flush()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(send(), LIMIT_S))


SENDERS: Final = {"confluent": send_confluent, "aiokafka": send_aiokafka}


def read(address: str, topic: str, count: int) -> list[Any]:
    """All records of a topic, at least `count` of them."""
    settings = {"bootstrap.servers": address, "group.id": "g", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    places = [TopicPartition(topic, index, 0) for index in range(PARTITION_COUNT)]
    consumer.assign(places)
    found: list[Any] = []
    end_s = time.monotonic() + LIMIT_S
    try:
        while len(found) < count and time.monotonic() < end_s:
            found += [each for each in consumer.consume(100, 0.2) if each.error() is None]
        # One that is too many would come next.
        found += [each for each in consumer.consume(1, 0.3) if each.error() is None]
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("client", SENDERS)
def test_each_client_gets_the_outcome_of_its_cancels(tmp_path: Path, client: str) -> None:
    broker = ApplianceProcess(tmp_path / "data")
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        (answer,) = admin.create_topics([NewTopic("orders", PARTITION_COUNT)]).values()
        answer.result(LIMIT_S)
        for records in BATCHES:
            SENDERS[client](broker.kafka, records)
            broker.kill()
            broker.start()
        SENDERS[client](broker.kafka, [cancel(b"c")])
        *_, late = found = sorted(
            read(broker.kafka, "replies", len(EXPECTED) + 1),
            key=lambda each: (b'"too-late"' in each.value(), each.key(), each.value()),
        )
        said = [(each.key(), json.loads(each.value())["outcome"]) for each in found]
        assert said == [*EXPECTED, (b"c", "too-late")]
        (record,) = read(broker.kafka, "orders", 1)
        place = {"partition": record.partition(), "offset": record.offset()}
        outcome = {"outcome": "too-late", "topic": "orders"}
        assert json.loads(late.value()) == {**outcome, **place}
        assert record.value() == b"c"
        # All replies of an id are in one partition.
        assert len({(each.key(), each.partition()) for each in found}) == 4
    finally:
        broker.stop()
