"""aiokafka: old versions of the protocol, its own codecs (snappy in xerial's framing)."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    KafkaError,
    TransactionalIdAuthorizationFailed,
)

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.delayed import (
    BAD,
    CODECS,
    OWN_HEADERS,
    Header,
    Received,
    check_delivery,
    check_wishes,
    now_ms,
    wishes,
)

LIMIT_S: Final = 60.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * LIMIT_S))


@asynccontextmanager
async def producing(address: str, **settings: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=address, **settings)
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(address: str, topic: str, partition: int = 0) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=address, fetch_max_wait_ms=30_000)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition)])
        await consumer.seek_to_beginning()
        yield consumer
    finally:
        await consumer.stop()


async def receive(consumer: AIOKafkaConsumer, count: int) -> list[Received]:
    return [await receive_one(consumer) for _ in range(count)]


async def receive_one(consumer: AIOKafkaConsumer) -> Received:
    record = await asyncio.wait_for(consumer.getone(), LIMIT_S)
    return Received(
        value=record.value or b"",
        key=record.key,
        headers=tuple(record.headers),
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        at_ms=now_ms(),
    )


async def create(address: str, topic: str, partition_count: int = 1) -> int:
    """Create a topic and return the error code of the answer."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, partition_count, 1)])
        code: int = answer.topic_errors[0][1]
        return code
    finally:
        await admin.close()


async def send_batch(
    producer: AIOKafkaProducer, topic: str, records: Sequence[tuple[bytes, Sequence[Header]]]
) -> list[Any]:
    """Hand all over before the first is sent; return metadata or error of each."""
    futures = [
        await producer.send(topic, value, partition=0, headers=list(headers))
        for value, headers in records
    ]
    return list(await asyncio.gather(*futures, return_exceptions=True))


@pytest.mark.parametrize(
    ("codec", "idempotent"), [*((codec, False) for codec in (None, *CODECS)), (None, True)]
)
def test_records_come_back_as_they_were_sent(
    broker: ApplianceProcess, topic: str, codec: str | None, idempotent: bool
) -> None:
    """Key, value, headers and timestamp, through each codec."""

    async def test() -> None:
        await create(broker.kafka, topic)
        settings = {"compression_type": codec, "enable_idempotence": idempotent, "linger_ms": 5}
        async with producing(broker.kafka, **settings) as producer:
            sent = [
                await producer.send(
                    topic,
                    b"value %d " % index * 50,
                    key=b"key-%d" % index,
                    partition=0,
                    timestamp_ms=1_700_000_000_000 + index,
                    headers=list(OWN_HEADERS),
                )
                for index in range(200)
            ]
            assert [(await one).offset for one in sent] == list(range(200))
        async with consuming(broker.kafka, topic) as consumer:
            for index, one in enumerate(await receive(consumer, 200)):
                assert one.value == b"value %d " % index * 50
                assert (one.offset, one.key) == (index, b"key-%d" % index)
                assert one.headers == OWN_HEADERS
                assert one.timestamp_ms == 1_700_000_000_000 + index

    run(test())


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_one_batch_mixes_immediate_and_delayed_records(
    broker: ApplianceProcess, topic: str, codec: str | None
) -> None:
    """Every form of request is understood; each record comes out when it is due."""

    async def test() -> None:
        await create(broker.kafka, topic)
        async with producing(
            broker.kafka, compression_type=codec, linger_ms=50, enable_idempotence=True
        ) as producer:
            sent = wishes()
            sent_ms = now_ms()
            shuffled = [*reversed(sent[2:]), *sent[:2]]
            answers = await send_batch(
                producer, topic, [(one.value, one.headers) for one in shuffled]
            )
            assert not any(isinstance(answer, Exception) for answer in answers), answers
        async with consuming(broker.kafka, topic) as consumer:
            check_wishes(sent, sent_ms, await receive(consumer, len(sent)))

    run(test())


def test_cancelled_timer_never_comes_and_a_replaced_one_comes_once(
    broker: ApplianceProcess, topic: str
) -> None:
    """By id, and acknowledged like any other record."""

    async def test() -> None:
        await create(broker.kafka, topic)
        async with producing(broker.kafka) as producer:
            sent_ms = now_ms()
            for value, headers in (
                (b"cancelled", [("x-delay", b"1h"), ("x-deliver-id", b"one")]),
                (b"old", [("x-delay", b"1h"), ("x-deliver-id", b"two")]),
                (b"", [("x-deliver-cancel", b"one")]),
                (b"new", [("x-delay", b"400ms"), ("x-deliver-id", b"two")]),
                (b"end", [("x-delay", b"500ms")]),
            ):
                await producer.send_and_wait(topic, value, partition=0, headers=headers)
        async with consuming(broker.kafka, topic) as consumer:
            new, end = await receive(consumer, 2)
        assert (new.value, end.value) == (b"new", b"end")
        check_delivery(new, sent_ms, delay_ms=400, timer_id=b"two", own=())
        path = f"/api/v1/topics/{topic}/timers"
        states = [broker.get_json(f"{path}/{name}")[1]["state"] for name in ("one", "two")]
        assert states == ["cancelled", "delivered"]

    run(test())


def test_one_bad_request_refuses_its_whole_batch(broker: ApplianceProcess, topic: str) -> None:
    """Nothing of it is stored, and the producer can go on."""

    async def test() -> None:
        await create(broker.kafka, topic)
        async with producing(broker.kafka, linger_ms=100) as producer:
            batch = [(b"before", []), (b"bad", [BAD]), (b"after", [("x-delay", b"10")])]
            answers = await send_batch(producer, topic, batch)
            # It does not know the code INVALID_RECORD.
            assert all(isinstance(answer, KafkaError) for answer in answers), answers
            await producer.send_and_wait(topic, b"good", partition=0)
        async with consuming(broker.kafka, topic) as consumer:
            assert (await receive_one(consumer)).value == b"good"

    run(test())


def test_large_records_pass_and_too_large_ones_are_refused(
    broker: ApplianceProcess, topic: str
) -> None:
    """900 KB pass, at once and delayed; 2 MB are above the limit of a batch."""

    async def test() -> None:
        await create(broker.kafka, topic)
        large = bytes(range(256)) * 3_600
        async with producing(broker.kafka, max_request_size=4_000_000) as producer:
            await producer.send_and_wait(topic, large, partition=0)
            delay = [("x-delay", b"100")]
            await producer.send_and_wait(topic, large[::-1], partition=0, headers=delay)
            with pytest.raises(KafkaError) as raised:
                await producer.send_and_wait(topic, b"x" * 2_000_000, partition=0)
            assert raised.value.errno == 10
        async with consuming(broker.kafka, topic) as consumer:
            assert [one.value for one in await receive(consumer, 2)] == [large, large[::-1]]

    run(test())


@pytest.mark.parametrize("request_headers", [[], [("x-delay", b"300")]], ids=["now", "delayed"])
def test_waiting_consumer_gets_the_record_at_once(
    broker: ApplianceProcess, topic: str, request_headers: list[Header]
) -> None:
    """A parked fetch wakes up when a record is produced or becomes due, long before its time."""

    async def test() -> None:
        await create(broker.kafka, topic)
        async with producing(broker.kafka) as producer, consuming(broker.kafka, topic) as consumer:
            await producer.send_and_wait(topic, b"warm up", partition=0)
            await receive_one(consumer)
            awaited = asyncio.create_task(receive_one(consumer))
            begin_s = time.monotonic()
            await producer.send_and_wait(topic, b"x", partition=0, headers=request_headers)
            await awaited
            assert time.monotonic() - begin_s < 20.0  # the poll would last 30 s

    run(test())


def test_transactional_producer_is_refused_quickly(broker: ApplianceProcess) -> None:
    """With an error that ends it, not with a time-out."""

    async def test() -> None:
        with pytest.raises(TransactionalIdAuthorizationFailed):
            async with producing(broker.kafka, transactional_id="t"):
                pass

    run(test())
