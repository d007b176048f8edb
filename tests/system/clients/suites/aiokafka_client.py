"""What the programs use of aiokafka: send, receive, create."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code
from aiokafka.structs import ConsumerRecord

from tests.system.clients.suites.harness import LIMIT_S, Header, Suite

SUITE: Final = Suite("aiokafka")


def feature(function: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    def run(name: str) -> None:
        asyncio.run(asyncio.wait_for(function(name), 2 * LIMIT_S))

    run.__name__ = function.__name__
    SUITE.feature(run)


@asynccontextmanager
async def administrating() -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=SUITE.address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def check(errors: Sequence[Sequence[Any]]) -> None:
    """Raise the first error of rows that hold a code second."""
    for row in errors:
        if row[1]:
            raise for_code(row[1])(*row[2:])


async def create(topic: str, partition_count: int = 1) -> None:
    async with administrating() as admin:
        check((await admin.create_topics([NewTopic(topic, partition_count, 1)])).topic_errors)


async def partition_count(topic: str) -> int:
    async with administrating() as admin:
        (shown,) = await admin.describe_topics([topic])
        return len(shown["partitions"])


async def send(
    topic: str,
    records: Sequence[tuple[bytes, Sequence[Header]]],
    *,
    partition: int = 0,
    times_ms: Sequence[int] = (),
    **settings: Any,
) -> list[Any]:
    """Send them in one batch and return the answers."""
    settings = {"linger_ms": 30, **settings}
    async with AIOKafkaProducer(bootstrap_servers=SUITE.address, **settings) as producer:
        futures = [
            await producer.send(
                topic,
                value,
                partition=partition,
                headers=list(headers),
                timestamp_ms=times_ms[index] if times_ms else None,
            )
            for index, (value, headers) in enumerate(records)
        ]
        return list(await asyncio.gather(*futures))


async def send_values(topic: str, *values: bytes, **settings: Any) -> list[Any]:
    return await send(topic, [(value, ()) for value in values], **settings)


@asynccontextmanager
async def consuming(group: str | None = None, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=SUITE.address,
        group_id=group,
        auto_offset_reset="earliest",
        **settings,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def reading(topic: str, partition: int = 0) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of one partition, without a group."""
    async with consuming() as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        yield consumer


async def receive(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    return [await asyncio.wait_for(consumer.getone(), LIMIT_S) for _ in range(count)]


async def receive_values(consumer: AIOKafkaConsumer, count: int) -> list[bytes]:
    return [record.value for record in await receive(consumer, count)]
