"""confluent-kafka, which is librdkafka's newest: topics, records, delays and refusals."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

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

IDEMPOTENT: Final = {"enable.idempotence": True, "message.send.max.retries": 5}

Outcome = tuple[KafkaError | None, Message]


class Sender:
    """A producer whose outcomes are collected."""

    def __init__(self, address: str, settings: dict[str, Any] | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "message.send.max.retries": 0,
                "log_level": 0,
                **(settings or {}),
            }
        )

    def send(
        self,
        topic: str,
        value: bytes | None,
        headers: Sequence[Header] = (),
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        self._producer.produce(
            topic,
            value,
            key,
            partition,
            on_delivery=lambda error, message: self.outcomes.append((error, message)),
            timestamp=timestamp_ms,
            headers=list(headers),
        )

    def flush(self) -> list[Outcome]:
        """Wait for all outcomes and return them, in order."""
        assert self._producer.flush(LIMIT_S) == 0
        return self.outcomes

    def flush_all_acknowledged(self) -> None:
        assert [str(error) for error, _ in self.flush() if error is not None] == []


class Receiver:
    """A consumer of one partition."""

    def __init__(self, address: str, topic: str, partition: int = 0, offset: int = 0) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 30_000,  # so that only a woken long poll is quick
            }
        )
        self.consumer.assign([TopicPartition(topic, partition, offset)])

    def receive(self, count: int) -> list[Received]:
        """Wait for so many records."""
        received: list[Received] = []
        deadline_s = time.monotonic() + LIMIT_S
        while len(received) < count:
            message = self.consumer.poll(max(0.0, deadline_s - time.monotonic()))
            assert message is not None, f"{len(received)} of {count} records came"
            assert message.error() is None, message.error()
            received.append(received_from(message))
        return received


@contextmanager
def asking(broker: ApplianceProcess) -> Iterator[Consumer]:
    """A consumer that reads nothing, so that no long poll is in the way of its questions."""
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": "unused",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    yield consumer
    consumer.close()


def received_from(message: Message) -> Received:
    at_ms = now_ms()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Received(
        value=message.value() or b"",
        key=message.key(),
        headers=tuple(cast("list[Header]", message.headers() or [])),
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        at_ms=at_ms,
    )


@pytest.fixture
def receiver(broker: ApplianceProcess, topic: str) -> Iterator[Callable[..., Receiver]]:
    """Make consumers of this test's topic, and close them at its end."""
    made: list[Receiver] = []

    def make(**where: int) -> Receiver:
        made.append(Receiver(broker.kafka, topic, **where))
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()


@pytest.fixture
def admin(broker: ApplianceProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    """This test's topic, with one partition."""
    create(admin, NewTopic(topic, 1, 1))
    return topic


def create(admin: AdminClient, topic: NewTopic) -> None:
    for future in admin.create_topics([topic]).values():
        future.result(LIMIT_S)


def test_setting_that_is_not_supported_is_refused_by_name(admin: AdminClient, topic: str) -> None:
    """What the broker cannot keep it does not promise."""
    with pytest.raises(KafkaException, match=r"cleanup\.policy"):
        create(admin, NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"}))


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_records_come_back_as_they_were_sent(
    broker: ApplianceProcess, created: str, receiver: Callable[..., Receiver], codec: str
) -> None:
    """Key, value, headers and timestamp, through each codec; offsets are those reported."""
    sender = Sender(broker.kafka, {"compression.type": codec})
    values: list[bytes | None] = [None, b"", *(b"value %d " % i * 50 for i in range(200))]
    for index, value in enumerate(values):
        key = None if index % 3 == 0 else b"key-%d" % index
        sender.send(created, value, OWN_HEADERS, key=key, timestamp_ms=1_700_000_000_000 + index)
    sender.flush_all_acknowledged()
    assert [message.offset() for _, message in sender.outcomes] == list(range(len(values)))
    for index, one in enumerate(receiver().receive(len(values))):
        assert one.offset == index
        assert one.value == (values[index] or b"")
        assert one.key == (None if index % 3 == 0 else b"key-%d" % index)
        assert one.headers == OWN_HEADERS
        assert one.timestamp_ms == 1_700_000_000_000 + index


@pytest.mark.parametrize(
    ("codec", "idempotent"), [*((codec, False) for codec in ("none", *CODECS)), ("none", True)]
)
def test_one_batch_mixes_immediate_and_delayed_records(
    broker: ApplianceProcess,
    created: str,
    receiver: Callable[..., Receiver],
    codec: str,
    idempotent: bool,
) -> None:
    """Every form of request is understood; each record comes out when it is due."""
    settings = {"linger.ms": 50, "compression.type": codec}
    sender = Sender(broker.kafka, settings | (IDEMPOTENT if idempotent else {}))
    sender.send(created, b"warm up")  # getting a producer id takes this client half a second
    sender.flush_all_acknowledged()
    sent = wishes()
    sent_ms = now_ms()
    for wish in reversed(sent[2:]):  # so that nothing comes out by order of arrival
        sender.send(created, wish.value, wish.headers)
    for wish in sent[:2]:
        sender.send(created, wish.value, wish.headers)
    sender.flush_all_acknowledged()
    check_wishes(sent, sent_ms, receiver(offset=1).receive(len(sent)))


def test_delayed_record_keeps_key_body_and_timestamp(
    broker: ApplianceProcess, created: str, receiver: Callable[..., Receiver]
) -> None:
    """Even a null value and a timestamp far from the due time."""
    sender = Sender(broker.kafka)
    sent_ms = now_ms()
    delay = ("x-delay", b"50")
    for value in (None, b"", b"body"):
        sender.send(created, value, [delay], key=b"key", timestamp_ms=1_600_000_000_000)
    sender.flush_all_acknowledged()
    received = receiver().receive(3)
    assert [one.value for one in received] == [b"", b"", b"body"]
    for one in received:
        assert (one.key, one.timestamp_ms) == (b"key", 1_600_000_000_000)
        check_delivery(one, sent_ms, delay_ms=50, own=())


def test_cancelled_timer_never_comes_and_a_replaced_one_comes_once(
    broker: ApplianceProcess, topic: str, admin: AdminClient, receiver: Callable[..., Receiver]
) -> None:
    """Cancel and replacement may come through any partition of the topic."""
    create(admin, NewTopic(topic, 2, 1))
    sender = Sender(broker.kafka, {"linger.ms": 0})
    sent_ms = now_ms()
    for name in (b"cancel me", b"replace me", b"bring forward"):
        sender.send(topic, b"old", [("x-delay", b"1h"), ("x-deliver-id", name)])
    sender.flush_all_acknowledged()
    assert broker.get_json(f"/api/v1/topics/{topic}/timers/cancel%20me")[1]["state"] == "pending"
    sender.send(topic, b"", [("x-deliver-cancel", b"cancel me")], partition=1)
    new = [("x-delay", b"300ms"), ("x-deliver-id", b"replace me")]
    sender.send(topic, b"new", new, partition=1)
    sender.send(topic, b"now", [("x-deliver-id", b"bring forward")], partition=1)
    sender.flush_all_acknowledged()
    sender.send(topic, b"end", [("x-delay", b"900ms")])
    sender.flush_all_acknowledged()

    now, replaced = receiver(partition=1).receive(2)
    assert now.value == b"now"
    check_delivery(replaced, sent_ms, delay_ms=300, timer_id=b"replace me", own=())
    assert [one.value for one in receiver(partition=0).receive(1)] == [b"end"]
    states = {
        name: broker.get_json(f"/api/v1/topics/{topic}/timers/{name}")[1]["state"]
        for name in ("cancel%20me", "replace%20me", "bring%20forward", "nobody")
    }
    assert list(states.values()) == ["cancelled", "delivered", "delivered", "unknown"]


def test_one_bad_request_refuses_its_whole_batch(
    broker: ApplianceProcess, created: str, receiver: Callable[..., Receiver]
) -> None:
    """Nothing of it is stored, and the producer can go on."""
    sender = Sender(broker.kafka, {"linger.ms": 200})
    sender.send(created, b"first")  # from now on the topic is known, and batches are whole
    sender.flush_all_acknowledged()
    sender.send(created, b"before")
    sender.send(created, b"bad", [BAD])
    sender.send(created, b"after", [("x-delay", b"10")])
    errors = [error.code() for error, _ in sender.flush() if error is not None]
    assert len(errors) == 3
    assert errors[1] == KafkaError.INVALID_RECORD
    assert set(errors) <= {KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD}
    good = Sender(broker.kafka)
    good.send(created, b"good")
    good.flush_all_acknowledged()
    assert [one.value for one in receiver().receive(2)] == [b"first", b"good"]


def test_idempotent_producer_goes_on_after_a_refusal(
    broker: ApplianceProcess, created: str, receiver: Callable[..., Receiver]
) -> None:
    """A refused batch uses up no sequence number."""
    sender = Sender(broker.kafka, {**IDEMPOTENT, "linger.ms": 0})
    for value, headers in ((b"one", []), (b"bad", [("x-delay", b"soon")]), (b"two", [])):
        sender.send(created, value, headers)
        sender.flush()
    codes = [error and error.code() for error, _ in sender.outcomes]
    assert codes == [None, KafkaError.INVALID_RECORD, None]
    assert [one.value for one in receiver().receive(2)] == [b"one", b"two"]


def test_large_records_pass_and_too_large_ones_are_refused(
    broker: ApplianceProcess, created: str, receiver: Callable[..., Receiver]
) -> None:
    """900 KB pass, at once and delayed; 2 MB are above the limit of a batch."""
    sender = Sender(broker.kafka, {"message.max.bytes": 4_000_000, "linger.ms": 0})
    large = bytes(range(256)) * 3_600
    sender.send(created, large)
    sender.send(created, large[::-1], [("x-delay", b"100")])
    sender.flush_all_acknowledged()
    sender.send(created, b"x" * 2_000_000)
    error, _ = sender.flush()[-1]
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert [one.value for one in receiver().receive(2)] == [large, large[::-1]]


@pytest.mark.parametrize("request_headers", [[], [("x-delay", b"300")]], ids=["now", "delayed"])
def test_waiting_consumer_gets_the_record_at_once(
    broker: ApplianceProcess,
    created: str,
    receiver: Callable[..., Receiver],
    request_headers: list[Header],
) -> None:
    """A parked fetch wakes up when a record is produced or becomes due, long before its time."""
    sender = Sender(broker.kafka, {"linger.ms": 0})
    waiting = receiver()
    sender.send(created, b"warm up")
    sender.flush_all_acknowledged()
    waiting.receive(1)  # what follows waits in one long poll
    begin_s = time.monotonic()
    sender.send(created, b"awaited", request_headers)
    waiting.receive(1)
    assert time.monotonic() - begin_s < 20.0  # the poll would last 30 s


def test_pending_records_count_in_no_watermark(broker: ApplianceProcess, created: str) -> None:
    """A record that is not due has no offset."""
    sender = Sender(broker.kafka)
    sender.send(created, b"tomorrow", [("x-delay", b"1d")])
    sender.flush_all_acknowledged()
    with asking(broker) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(created, 0), timeout=LIMIT_S) == (0, 0)


def test_transactional_producer_is_refused_quickly(broker: ApplianceProcess) -> None:
    """With an error that ends it, not with a time-out."""
    producer = Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "t", "log_level": 0}
    )
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(LIMIT_S)
    assert raised.value.args[0].fatal()
    assert "transactions are not supported" in raised.value.args[0].str()


def test_refused_batch_with_acks_0_closes_the_connection_and_stores_nothing(
    broker: ApplianceProcess, created: str, receiver: Callable[..., Receiver]
) -> None:
    """Without an answer there is no other way to tell; the client reconnects and goes on."""
    sender = Sender(broker.kafka, {"acks": "0", "linger.ms": 0})
    sender.send(created, b"bad", [("x-delay", b"soon")])
    sender.flush()
    acknowledged = Sender(broker.kafka)
    acknowledged.send(created, b"good")
    acknowledged.flush_all_acknowledged()
    assert [one.value for one in receiver().receive(1)] == [b"good"]
