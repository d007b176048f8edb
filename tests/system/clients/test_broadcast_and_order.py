"""Every consumer reads everything, and everything in order: docs/CLIENTS.md on both."""

import random
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.delayed import now_ms
from tests.system.clients.suites.library import Library
from tests.system.clients.suites.using import library_of, receive

PARTITION_COUNT: Final = 3
SEED: Final = 21_001
LIBRARIES: Final = ("confluent", "kafka_python", "aiokafka")

Read = tuple[int, int, bytes]
"""Partition, offset and value of a record."""


def admin_of(broker: ApplianceProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})


def create(broker: ApplianceProcess, topic: str, partition_count: int) -> None:
    admin = admin_of(broker)  # which has to live as long as its answer is awaited
    (answer,) = admin.create_topics([NewTopic(topic, partition_count)]).values()
    answer.result(30)


def producer_of(broker: ApplianceProcess) -> Producer:
    return Producer({"bootstrap.servers": broker.kafka, "linger.ms": 20, "log_level": 0})


def test_consumers_without_a_group_each_read_all_from_their_own_place(
    broker: ApplianceProcess, topic: str
) -> None:
    """Three libraries stop at different places and go on there; the broker knows of no group."""
    create(broker, topic, PARTITION_COUNT)
    producer = producer_of(broker)
    for index in range(60):
        headers = [("x-delay", b"200")] if index % 3 == 0 else []
        producer.produce(topic, b"%d" % index, partition=index % PARTITION_COUNT, headers=headers)
    assert producer.flush(30) == 0
    everything = {b"%d" % index for index in range(60)}
    seen = [
        read_in_two_parts(library_of(name, broker.kafka), topic, first)
        for name, first in zip(LIBRARIES, (7, 23, 40), strict=True)
    ]
    for records in seen:
        assert {value for _, _, value in records} == everything
        assert sorted(records) == sorted(seen[0])  # the same offsets, each once
    admin = admin_of(broker)
    listed = admin.list_consumer_groups().result(30)
    assert not [group for group in listed.valid if group.group_id == "unused"]


def read(library: Library, topic: str, places: dict[int, int | None], count: int) -> list[Read]:
    with library.consuming() as consumer:
        consumer.assign(topic, places)
        return [(one.partition, one.offset, one.value) for one in receive(consumer, count)]


def read_in_two_parts(library: Library, topic: str, first: int) -> list[Read]:
    """Read some, go away, and read the rest from the place where that was."""
    places: dict[int, int | None] = dict.fromkeys(range(PARTITION_COUNT))
    records = read(library, topic, places, first)
    for partition, offset, _ in records:
        places[partition] = offset + 1
    return records + read(library, topic, places, 60 - first)


@pytest.mark.parametrize("client", LIBRARIES)
def test_one_partition_is_in_order_with_delayed_and_immediate_records_mixed(
    broker: ApplianceProcess, topic: str, client: str
) -> None:
    """Immediate ones as sent, delayed ones by due time, those of one instant as sent."""
    library = library_of(client, broker.kafka)
    for margin_ms in (500, 5_000, 25_000):
        due_of, records = send_and_read(broker, f"{topic}-{margin_ms}", library, margin_ms)
        if due_of:
            break
    sent = [b"%d" % index for index in range(200)]
    delayed = sorted((value for value in sent if value in due_of), key=lambda value: due_of[value])
    expected = [value for value in sent if value not in due_of] + delayed
    assert [value for _, _, value in records] == expected
    assert [offset for _, offset, _ in records] == list(range(200))


def send_and_read(
    broker: ApplianceProcess, topic: str, library: Library, margin_ms: int
) -> tuple[dict[bytes, int], list[Read]]:
    """Send 200 records, about half of them delayed, and read them while they come.

    Returns the due times of the delayed ones by value; nothing if the machine was so slow that some
    were due before all were sent, which makes another order.
    """
    create(broker, topic, 1)
    choose = random.Random(SEED)
    due_of: dict[bytes, int] = {}
    with library.consuming() as consumer:
        consumer.assign(topic, {0: None})
        producer = producer_of(broker)
        begin_ms = now_ms() + margin_ms
        for index in range(200):
            value = b"%d" % index
            headers: list[tuple[str, bytes]] = []
            if choose.random() < 0.5:
                due_of[value] = begin_ms + choose.randrange(0, 300, 25)  # several of one instant
                headers = [("x-deliver-at", b"%d" % due_of[value])]
            producer.produce(topic, value, partition=0, headers=headers)
            if choose.random() < 0.1:
                producer.flush()  # batches of all sizes
        assert producer.flush(30) == 0
        was_in_time = now_ms() < begin_ms
        records = [(one.partition, one.offset, one.value) for one in receive(consumer, 200)]
    return (due_of if was_in_time else {}), records
