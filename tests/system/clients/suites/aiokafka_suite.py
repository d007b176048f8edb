"""Topics, records and settings, tried with aiokafka."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError, UnknownError

from tests.system.clients.suites import aiokafka_groups  # noqa: F401 - has more features
from tests.system.clients.suites.aiokafka_client import (
    SUITE,
    administrating,
    check,
    consuming,
    create,
    feature,
    partition_count,
    reading,
    receive,
    receive_values,
    send,
    send_values,
)
from tests.system.clients.suites.harness import (
    GAP_END,
    GAP_RECORDS,
    GAP_STARTS,
    HEADERS,
    TIME_MS,
    cancelled_records,
    check_delayed,
    codec_values,
    now_ms,
    replaced_records,
)


@feature
async def create_topic(name: str) -> None:
    await create(name, 3)
    assert await partition_count(name) == 3
    with pytest.raises(TopicAlreadyExistsError):
        await create(name, 3)


@feature
async def list_topics(name: str) -> None:
    await create(name, 2)
    async with administrating() as admin:
        assert name in await admin.list_topics()
    assert await partition_count(name) == 2


@feature
async def auto_create(name: str) -> None:
    await send_values(name, b"first")
    assert await partition_count(name) == 4


@feature
async def describe_cluster(_name: str) -> None:
    async with administrating() as admin:
        shown = await admin.describe_cluster()
    (broker,) = shown["brokers"]
    assert f"{broker['host']}:{broker['port']}" == SUITE.address
    assert (shown["controller_id"], bool(shown["cluster_id"])) == (broker["node_id"], True)


async def produce_with_acks(name: str, acks: int | str) -> None:
    await create(name)
    await send_values(name, b"one", b"two", acks=acks)
    async with reading(name) as consumer:
        assert await receive_values(consumer, 2) == [b"one", b"two"]


@feature
async def acks_0(name: str) -> None:
    await produce_with_acks(name, 0)


@feature
async def acks_1(name: str) -> None:
    await produce_with_acks(name, 1)


@feature
async def acks_all(name: str) -> None:
    await produce_with_acks(name, "all")


async def use_codec(name: str, codec: str) -> None:
    await create(name)
    sent = await send_values(name, *codec_values(), compression_type=codec)
    assert [one.offset for one in sent] == list(range(100))
    async with reading(name) as consumer:
        assert await receive_values(consumer, 100) == codec_values()


@feature
async def codec_gzip(name: str) -> None:
    await use_codec(name, "gzip")


@feature
async def codec_snappy(name: str) -> None:
    await use_codec(name, "snappy")


@feature
async def codec_lz4(name: str) -> None:
    await use_codec(name, "lz4")


@feature
async def codec_zstd(name: str) -> None:
    await use_codec(name, "zstd")


@feature
async def headers(name: str) -> None:
    await create(name)
    await send(name, [(b"value", HEADERS)])
    async with reading(name) as consumer:
        (record,) = await receive(consumer, 1)
        assert tuple(record.headers) == HEADERS


@feature
async def idempotent(name: str) -> None:
    await create(name)
    values = [b"%d" % index for index in range(1_000)]
    await send_values(name, *values, enable_idempotence=True, max_batch_size=2_000, linger_ms=1)
    async with reading(name) as consumer:
        assert await receive_values(consumer, 1_000) == values


@feature
async def delay(name: str) -> None:
    await create(name)
    sent_ms = now_ms()
    await send(name, [(b"late", [*HEADERS, ("x-delay", b"300ms")]), (b"now", ())])
    async with reading(name) as consumer:
        first, late = await receive(consumer, 2)
        assert (first.value, late.value) == (b"now", b"late")
        check_delayed(list(late.headers), sent_ms)


@feature
async def deliver_at(name: str) -> None:
    await create(name)
    sent_ms = now_ms()
    due_ms = sent_ms + 400
    await send(name, [(b"late", [("x-deliver-at", b"%d" % due_ms)])])
    async with reading(name) as consumer:
        (late,) = await receive(consumer, 1)
        check_delayed(list(late.headers), sent_ms, due_ms)


@feature
async def cancel(name: str) -> None:
    await create(name)
    await send(name, cancelled_records())
    async with reading(name) as consumer:
        assert await receive_values(consumer, 1) == [b"end"]


@feature
async def replace(name: str) -> None:
    await create(name)
    await send(name, replaced_records())
    async with reading(name) as consumer:
        assert await receive_values(consumer, 2) == [b"new", b"end"]


@feature
async def bad_delay(name: str) -> None:
    await create(name)
    with pytest.raises(UnknownError):
        await send(name, [(b"bad", [("x-delay", b"soon")])])


@feature
async def assign(name: str) -> None:
    await create(name, 2)
    for partition in (0, 1):
        await send_values(name, b"%d" % partition, partition=partition)
    async with consuming() as consumer:
        consumer.assign([TopicPartition(name, index) for index in (0, 1)])
        assert sorted(await receive_values(consumer, 2)) == [b"0", b"1"]


@feature
async def seek(name: str) -> None:
    await create(name)
    await send_values(name, *[b"%d" % index for index in range(10)])
    async with reading(name) as consumer:
        await receive(consumer, 10)
        consumer.seek(TopicPartition(name, 0), 7)
        assert await receive_values(consumer, 3) == [b"7", b"8", b"9"]


@feature
async def gaps(name: str) -> None:
    async with reading(name) as consumer:
        found = await receive(consumer, len(GAP_RECORDS))
        assert [(one.offset, one.value) for one in found] == GAP_RECORDS
        await send_values(name, b"after")
        (after,) = await receive(consumer, 1)
        assert (after.offset, after.value) == (GAP_END, b"after")
        for start in GAP_STARTS:
            consumer.seek(TopicPartition(name, 0), start)
            (after,) = await receive(consumer, 1)
            assert (after.offset, after.value) == (GAP_END, b"after")
            assert await consumer.getmany(timeout_ms=300) == {}


@feature
async def wait(name: str) -> None:
    await create(name)
    async with reading(name) as consumer:
        waiting = asyncio.create_task(receive_values(consumer, 1))
        await asyncio.sleep(0.3)
        sent_ms = now_ms()
        await send(name, [(b"late", [("x-delay", b"300ms")])])
        assert await waiting == [b"late"]
        assert now_ms() - sent_ms >= 300


@feature
async def ends(name: str) -> None:
    await create(name)
    await send_values(name, b"one", b"two")
    one = TopicPartition(name, 0)
    async with consuming() as consumer:
        assert await consumer.beginning_offsets([one]) == {one: 0}
        assert await consumer.end_offsets([one]) == {one: 2}


@feature
async def offsets_by_time(name: str) -> None:
    await create(name)
    times_ms = [TIME_MS + 1_000 * index for index in range(5)]
    await send(name, [(b"x", ())] * 5, times_ms=times_ms)
    one = TopicPartition(name, 0)
    async with consuming() as consumer:
        found = (await consumer.offsets_for_times({one: TIME_MS + 2_500}))[one]
        assert (found.offset, found.timestamp) == (3, TIME_MS + 3_000)
        assert (await consumer.offsets_for_times({one: TIME_MS + 9_000}))[one] is None


@feature
async def create_partitions(name: str) -> None:
    await create(name)
    async with administrating() as admin:
        check((await admin.create_partitions({name: NewPartitions(3)})).topic_errors)
    assert await partition_count(name) == 3
    await send_values(name, b"new", partition=2)
    async with reading(name, 2) as consumer:
        assert await receive_values(consumer, 1) == [b"new"]


async def settings_of(kind: ConfigResourceType, name: str) -> dict[str, Any]:
    async with administrating() as admin:
        (answer,) = await admin.describe_configs([ConfigResource(kind, name)])
    ((code, message, _, _, entries),) = answer.resources
    assert code == 0, message
    return {entry[0]: entry[1:] for entry in entries}


@feature
async def describe_configs(name: str) -> None:
    await create(name)
    shown = await settings_of(ConfigResourceType.TOPIC, name)
    assert shown["cleanup.policy"][0] == "delete"
    async with administrating() as admin:
        (broker,) = (await admin.describe_cluster())["brokers"]
    assert await settings_of(ConfigResourceType.BROKER, str(broker["node_id"]))


@feature
async def alter_configs(name: str) -> None:
    await create(name)
    setting = {"max.message.bytes": "2000"}
    async with administrating() as admin:
        changed = ConfigResource(ConfigResourceType.TOPIC, name, setting)
        (answer,) = await admin.alter_configs([changed])
        assert [row[0] for row in answer.resources] == [0], answer
    shown = await settings_of(ConfigResourceType.TOPIC, name)
    assert shown["max.message.bytes"][0] == "2000"
    with pytest.raises(MessageSizeTooLargeError):
        await send_values(name, b"x" * 3_000)


@feature
async def delete_records(name: str) -> None:
    await create(name)
    await send_values(name, *[b"%d" % index for index in range(5)])
    one = TopicPartition(name, 0)
    async with administrating() as admin:
        assert await admin.delete_records({one: RecordsToDelete(before_offset=3)}) == {one: 3}
    async with consuming() as consumer:
        consumer.assign([one])
        assert await receive_values(consumer, 2) == [b"3", b"4"]


@feature
async def delete_topic(name: str) -> None:
    await create(name)
    async with administrating() as admin:
        check((await admin.delete_topics([name])).topic_error_codes)
        assert name not in await admin.list_topics()


if __name__ == "__main__":
    SUITE.run()
