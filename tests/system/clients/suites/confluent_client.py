"""What the programs use of confluent-kafka: send, receive, create."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.system.clients.suites.harness import LIMIT_S, Header, Suite

SUITE: Final = Suite("confluent")
BOOTSTRAP: Final = {"bootstrap.servers": SUITE.address, "log_level": 0}
ADMIN: Final = AdminClient(BOOTSTRAP)


def create(topic: str, partition_count: int = 1) -> None:
    (answer,) = ADMIN.create_topics([NewTopic(topic, partition_count, 1)]).values()
    answer.result(LIMIT_S)


def send(
    topic: str,
    records: Sequence[tuple[bytes, Sequence[Header]]],
    *,
    partition: int = 0,
    times_ms: Sequence[int] = (),
    **settings: Any,
) -> list[Message]:
    """Send them in one batch, with dots of settings' names as underscores; return the answers."""
    answers: list[Message] = []
    errors: list[Any] = []
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({**BOOTSTRAP, "linger.ms": 30, **named})
    for index, (value, headers) in enumerate(records):
        producer.produce(
            topic,
            value,
            partition=partition,
            headers=list(headers),
            timestamp=times_ms[index] if times_ms else 0,
            on_delivery=lambda error, message: (errors if error else answers).append(
                error or message
            ),
        )
    assert producer.flush(LIMIT_S) == 0
    if errors:
        raise KafkaException(errors[0])
    return answers


def send_values(topic: str, *values: bytes, partition: int = 0, **settings: Any) -> list[Message]:
    return send(topic, [(value, ()) for value in values], partition=partition, **settings)


@contextmanager
def consuming(group: str = "none", **settings: Any) -> Iterator[Consumer]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer({**BOOTSTRAP, "group.id": group, "auto.offset.reset": "earliest", **named})
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def reading(topic: str, partition: int = 0, offset: int = 0) -> Iterator[Consumer]:
    """A consumer of one partition, without a group."""
    with consuming(enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        yield consumer


def receive(consumer: Consumer, count: int) -> list[Message]:
    deadline_s = time.monotonic() + LIMIT_S
    messages: list[Message] = []
    while len(messages) < count:
        message = consumer.poll(max(0.0, deadline_s - time.monotonic()))
        assert message is not None, f"{len(messages)} of {count} records came"
        if message.error() is not None:
            raise KafkaException(message.error())
        messages.append(message)
    return messages


def values_of(messages: Sequence[Message]) -> list[bytes]:
    return [message.value() or b"" for message in messages]
