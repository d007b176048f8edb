"""What the programs use of kafka-python: send, receive, create."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from tests.system.clients.suites.harness import LIMIT_S, Header, Suite

SUITE: Final = Suite("kafka_python")


@contextmanager
def administrating() -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=SUITE.address)) as admin:
        yield admin


def create(topic: str, partition_count: int = 1) -> None:
    with administrating() as admin:
        admin.create_topics([NewTopic(topic, partition_count, 1)])


def partition_count(topic: str) -> int:
    with administrating() as admin:
        return len(admin.describe_topics([topic])[0]["partitions"])


def send(
    topic: str,
    records: Sequence[tuple[bytes, Sequence[Header]]],
    *,
    partition: int = 0,
    times_ms: Sequence[int] = (),
    **settings: Any,
) -> list[Any]:
    """Send them in one batch and return the answers."""
    settings = {"linger_ms": 30, **settings}
    with closing(KafkaProducer(bootstrap_servers=SUITE.address, **settings)) as producer:
        futures = [
            producer.send(
                topic,
                value,
                partition=partition,
                headers=list(headers),
                timestamp_ms=times_ms[index] if times_ms else None,
            )
            for index, (value, headers) in enumerate(records)
        ]
        return [future.get(LIMIT_S) for future in futures]


def send_values(topic: str, *values: bytes, **settings: Any) -> list[Any]:
    return send(topic, [(value, ()) for value in values], **settings)


@contextmanager
def consuming(group: str | None = None, **settings: Any) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        bootstrap_servers=SUITE.address,
        group_id=group,
        auto_offset_reset="earliest",
        **settings,
    )
    with closing(consumer):
        yield consumer


@contextmanager
def reading(topic: str, partition: int = 0) -> Iterator[KafkaConsumer]:
    """A consumer of one partition, without a group."""
    with consuming() as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        yield consumer


def receive(consumer: KafkaConsumer, count: int) -> list[Any]:
    deadline_s = time.monotonic() + LIMIT_S
    records: list[Any] = []
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"{len(records)} of {count} records came"
        for some in consumer.poll(timeout_ms=1_000, max_records=count - len(records)).values():
            records += some
    return records


def receive_values(consumer: KafkaConsumer, count: int) -> list[bytes]:
    return [record.value for record in receive(consumer, count)]
