"""What is no feature in the table of docs/KAFKA.md: refusals, limits, timers seen from outside."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.delayed import BAD, Header, check_delivery, now_ms
from tests.system.clients.suites import confluent_library, kafka_python_library
from tests.system.clients.suites.library import Sent
from tests.system.clients.suites.using import (
    library_of,
    reading,
    receive,
    send,
    send_values,
    values_of,
)

LIMIT_S: Final = 60.0

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _no_garbage_for_other_tests() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def library(broker: ApplianceProcess) -> confluent_library.Adapter:
    return confluent_library.Adapter(broker.kafka)


def produced(
    address: str, topic: str, *records: tuple[bytes, list[Header]], **settings: Any
) -> list[Any]:
    """Send one record at a time by one producer of confluent-kafka; return their errors."""
    errors: list[Any] = []
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **named})
    for value, headers in records:
        producer.produce(
            topic,
            value,
            partition=0,
            headers=list(headers),
            on_delivery=lambda error, _: errors.append(error and error.code()),
        )
        assert producer.flush(LIMIT_S) == 0
    return errors


def test_cancelled_timer_never_comes_and_a_replaced_one_comes_once(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    """Cancel and replacement may come through any partition of the topic."""
    library.create(topic, 2)
    sent_ms = now_ms()
    names = (b"cancel me", b"replace me", b"bring forward")
    send(
        library,
        topic,
        [Sent(b"old", [("x-delay", b"1h"), ("x-deliver-id", name)]) for name in names],
    )
    assert broker.get_json(f"/api/v1/topics/{topic}/timers/cancel%20me")[1]["state"] == "pending"
    changes = [
        Sent(b"", [("x-deliver-cancel", b"cancel me")]),
        Sent(b"new", [("x-delay", b"300ms"), ("x-deliver-id", b"replace me")]),
        Sent(b"now", [("x-deliver-id", b"bring forward")]),
    ]
    send(library, topic, changes, partition=1)
    send(library, topic, [Sent(b"end", [("x-delay", b"400ms")])])
    with reading(library, topic, 1) as consumer:
        now, replaced = receive(consumer, 2)
    assert now.value == b"now"
    check_delivery(replaced, sent_ms, delay_ms=300, timer_id=b"replace me", own=())
    with reading(library, topic) as consumer:
        assert values_of(receive(consumer, 1)) == [b"end"]
    states = [
        broker.get_json(f"/api/v1/topics/{topic}/timers/{name}")[1]["state"]
        for name in ("cancel%20me", "replace%20me", "bring%20forward", "nobody")
    ]
    assert states == ["cancelled", "delivered", "delivered", "unknown"]


def test_idempotent_producer_goes_on_after_a_refusal(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    """A refused batch uses up no sequence number."""
    library.create(topic)
    records = ((b"one", []), (b"bad", [BAD]), (b"two", []))
    codes = produced(broker.kafka, topic, *records, enable_idempotence=True)
    assert codes == [None, KafkaError.INVALID_RECORD, None]
    with reading(library, topic) as consumer:
        assert values_of(receive(consumer, 2)) == [b"one", b"two"]


def test_refused_batch_with_acks_0_closes_the_connection_and_stores_nothing(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    """Without an answer there is no other way to tell; the client reconnects and goes on."""
    library.create(topic)
    produced(broker.kafka, topic, (b"bad", [BAD]), acks="0")
    send_values(library, topic, b"good")
    with reading(library, topic) as consumer:
        assert values_of(receive(consumer, 1)) == [b"good"]


@pytest.mark.parametrize("client", ["aiokafka", "confluent", "kafka_python"])
def test_large_records_pass(broker: ApplianceProcess, topic: str, client: str) -> None:
    """900 KB, at once and delayed."""
    library = library_of(client, broker.kafka)
    library.create(topic)
    large = bytes(range(256)) * 3_600
    send_values(library, topic, large)
    send(library, topic, [Sent(large[::-1], [("x-delay", b"100")])])
    with reading(library, topic) as consumer:
        assert values_of(receive(consumer, 2)) == [large, large[::-1]]


def test_too_large_records_are_refused(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    """2 MB are above the limit of a batch."""
    library.create(topic)
    (code,) = produced(broker.kafka, topic, (b"x" * 2_000_000, []), message_max_bytes=4_000_000)
    assert code == KafkaError.MSG_SIZE_TOO_LARGE


def test_pending_records_count_in_no_watermark(
    library: confluent_library.Adapter, topic: str
) -> None:
    """A record that is not due has no offset."""
    library.create(topic)
    send(library, topic, [Sent(b"tomorrow", [("x-delay", b"1d")])])
    with library.consuming() as consumer:
        assert consumer.ends(topic) == (0, 0)


def test_transactional_producer_is_refused_quickly(broker: ApplianceProcess) -> None:
    """By each library with an error that ends it, not with a time-out."""
    begin_s = time.monotonic()
    settings = {"bootstrap.servers": broker.kafka, "transactional.id": "t", "log_level": 0}
    with pytest.raises(KafkaException) as raised:
        Producer(settings).init_transactions(LIMIT_S)
    assert raised.value.args[0].fatal()
    assert "transactions are not supported" in raised.value.args[0].str()

    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, transactional_id="t")
        try:
            with pytest.raises(TransactionalIdAuthorizationFailed):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(start())
    producer = kafka_python_library.KafkaProducer(
        bootstrap_servers=broker.kafka, transactional_id="t"
    )
    with closing(producer), pytest.raises(kafka_python_library.KafkaError):
        producer.init_transactions()
    assert time.monotonic() - begin_s < LIMIT_S / 2
