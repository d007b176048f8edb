"""Consumer groups, tried with aiokafka."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition

from tests.system.clients.suites.aiokafka_client import (
    administrating,
    consuming,
    create,
    feature,
    receive,
    receive_values,
    send_values,
)
from tests.system.clients.suites.harness import LIMIT_S, METADATA


async def wait_until(is_true: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():  # noqa: ASYNC110 - there is no event for what is asked
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {LIMIT_S} s: {what}") from None


async def wait_for_share(count: int, *consumers: AIOKafkaConsumer) -> None:
    """Heartbeats and rebalances run in the background here."""
    await wait_until(
        lambda: all(len(consumer.assignment()) == count for consumer in consumers),
        f"every member has {count} partitions",
    )


@feature
async def subscribe(name: str) -> None:
    await create(name, 3)
    for partition in range(3):
        await send_values(name, b"%d" % partition, partition=partition)
    async with consuming(name) as consumer:
        consumer.subscribe([name])
        assert sorted(await receive_values(consumer, 3)) == [b"0", b"1", b"2"]


@feature
async def commit(name: str) -> None:
    await create(name, 2)
    one = TopicPartition(name, 0)
    async with consuming(name, enable_auto_commit=False) as consumer:
        consumer.assign([one, TopicPartition(name, 1)])
        await consumer.commit({one: OffsetAndMetadata(5, METADATA)})
        assert await consumer.committed(one) == 5
        assert await consumer.committed(TopicPartition(name, 1)) is None
    async with administrating() as admin:
        listed = await admin.list_consumer_group_offsets(name)
        assert listed == {one: OffsetAndMetadata(5, METADATA)}, listed


@feature
async def resume(name: str) -> None:
    await create(name)
    await send_values(name, b"one", b"two", b"three")
    await read_in_group(name)
    await send_values(name, b"four")
    async with consuming(name) as consumer:
        consumer.subscribe([name])
        assert await receive_values(consumer, 1) == [b"four"]


async def read_in_group(name: str) -> None:
    async with consuming(name) as consumer:  # commits by itself when it is stopped
        consumer.subscribe([name])
        await receive(consumer, 3)


@feature
async def rebalance(name: str) -> None:
    await create(name, 4)
    async with consuming(name) as first:
        first.subscribe([name])
        await wait_for_share(4, first)
        async with consuming(name) as second:
            second.subscribe([name])
            await wait_for_share(2, first, second)
            taken = {one.partition for one in (*first.assignment(), *second.assignment())}
            assert taken == {0, 1, 2, 3}
        await wait_for_share(4, first)


class Revocations(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.count = 0

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.count += 1

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


@feature
async def static_member(name: str) -> None:
    await create(name, 2)
    revocations = Revocations()
    async with consuming(name, group_instance_id="first") as first:
        first.subscribe([name], listener=revocations)
        async with consuming(name, group_instance_id="second") as second:
            second.subscribe([name])
            await wait_for_share(1, first, second)
            had = second.assignment()
        before = revocations.count
        async with consuming(name, group_instance_id="second") as second:
            second.subscribe([name])
            await wait_for_share(1, first, second)
            assert second.assignment() == had
        assert revocations.count == before


@feature
async def list_groups(name: str) -> None:
    await create(name)
    async with consuming(name) as consumer, administrating() as admin:
        consumer.subscribe([name])
        await wait_for_share(1, consumer)
        assert (name, "consumer") in await admin.list_consumer_groups()


@feature
async def describe_group(name: str) -> None:
    await create(name)
    async with consuming(name, client_id="me") as consumer, administrating() as admin:
        consumer.subscribe([name])
        await wait_for_share(1, consumer)
        (answer,) = await admin.describe_consumer_groups([name])
        ((code, group, state, _, protocol, members, *_),) = answer.groups
        assert (code, group, state, protocol) == (0, name, "Stable", "roundrobin")
        ((_, client_id, host, *_),) = [member[-5:] for member in members]
        assert (client_id, host) == ("me", "/127.0.0.1")
