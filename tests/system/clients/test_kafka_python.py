"""kafka-python: the newest versions of the protocol, idempotent by default."""

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.delayed import (
    CODECS,
    OWN_HEADERS,
    REFUSALS,
    Header,
    Received,
    check_delivery,
    check_wishes,
    now_ms,
    wishes,
)

with warnings.catch_warnings():
    # It reads its schemas by functions of importlib.resources that are deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import (  # type: ignore[import-untyped]
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        TopicPartition,
    )
    from kafka.admin import NewTopic  # type: ignore[import-untyped]
    from kafka.errors import (  # type: ignore[import-untyped]
        InvalidRecordError,
        KafkaError,
        MessageSizeTooLargeError,
    )

LIMIT_S: Final = 60.0

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _no_garbage_for_other_tests() -> Iterator[None]:
    yield
    gc.collect()


def producing(address: str, **settings: Any) -> Any:
    """Return a producer that is closed at the end of a with statement."""
    return closing(KafkaProducer(bootstrap_servers=address, **settings))


def receive(address: str, topic: str, count: int) -> list[Received]:
    with closing(consumer_of(address, topic)) as consumer:
        return receive_from(consumer, count)


def consumer_of(address: str, topic: str) -> Any:
    consumer = KafkaConsumer(bootstrap_servers=address, fetch_max_wait_ms=20_000, group_id=None)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    return consumer


def receive_from(consumer: Any, count: int) -> list[Received]:
    received: list[Received] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(received) < count:
        assert time.monotonic() < deadline_s, f"{len(received)} of {count} records came"
        for records in consumer.poll(timeout_ms=1_000).values():
            received += (received_from(record) for record in records)
    return received


def received_from(record: Any) -> Received:
    return Received(
        value=record.value or b"",
        key=record.key,
        headers=tuple((name, value) for name, value in record.headers),
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        at_ms=now_ms(),
    )


@pytest.fixture
def admin(broker: ApplianceProcess) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.kafka)) as client:
        yield client


@pytest.fixture
def created(admin: Any, topic: str) -> str:
    """This test's topic, with one partition."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    return topic


def send_batch(
    producer: Any, topic: str, records: Sequence[tuple[bytes, Sequence[Header]]]
) -> list[Any]:
    """Hand all over before the first is sent; return metadata or error of each."""
    futures = [
        producer.send(topic, value, partition=0, headers=list(headers))
        for value, headers in records
    ]
    answers = []
    for future in futures:
        try:
            answers.append(future.get(LIMIT_S))
        except KafkaError as error:
            answers.append(error)
    return answers


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_records_come_back_as_they_were_sent(
    broker: ApplianceProcess, created: str, codec: str | None
) -> None:
    """Key, value, headers and timestamp, through each codec."""
    with producing(broker.kafka, compression_type=codec) as producer:
        sent = [
            producer.send(
                created,
                b"value %d " % index * 50,
                key=b"key-%d" % index,
                partition=0,
                timestamp_ms=1_700_000_000_000 + index,
                headers=list(OWN_HEADERS),
            )
            for index in range(200)
        ]
        assert [one.get(LIMIT_S).offset for one in sent] == list(range(200))
    for index, one in enumerate(receive(broker.kafka, created, 200)):
        assert one.value == b"value %d " % index * 50
        assert (one.offset, one.key) == (index, b"key-%d" % index)
        assert one.headers == OWN_HEADERS
        assert one.timestamp_ms == 1_700_000_000_000 + index


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_one_batch_mixes_immediate_and_delayed_records(
    broker: ApplianceProcess, created: str, codec: str | None
) -> None:
    """Every form of request is understood; each record comes out when it is due."""
    with producing(broker.kafka, compression_type=codec, linger_ms=50) as producer:
        sent = wishes()
        sent_ms = now_ms()
        batch = [(one.value, one.headers) for one in (*reversed(sent[2:]), *sent[:2])]
        answers = send_batch(producer, created, batch)
        assert not any(isinstance(answer, KafkaError) for answer in answers), answers
        check_wishes(sent, sent_ms, receive(broker.kafka, created, len(sent)))


def test_cancelled_timer_never_comes_and_a_replaced_one_comes_once(
    broker: ApplianceProcess, created: str
) -> None:
    """By id, all in one batch, whose records take effect in their order."""
    with producing(broker.kafka, linger_ms=50) as producer:
        sent_ms = now_ms()
        batch = [
            (b"cancelled", [("x-delay", b"100ms"), ("x-deliver-id", b"one")]),
            (b"old", [("x-delay", b"100ms"), ("x-deliver-id", b"two")]),
            (b"", [("x-deliver-cancel", b"one")]),
            (b"new", [("x-delay", b"200ms"), ("x-deliver-id", b"two")]),
            (b"end", [("x-delay", b"300ms")]),
        ]
        send_batch(producer, created, batch)
        new, end = receive(broker.kafka, created, 2)
    assert (new.value, end.value) == (b"new", b"end")
    check_delivery(new, sent_ms, delay_ms=200, timer_id=b"two", own=())


@pytest.mark.parametrize(("bad", "words"), REFUSALS)
def test_one_bad_request_refuses_its_whole_batch_and_says_why(
    broker: ApplianceProcess, created: str, bad: Header, words: str
) -> None:
    """Nothing of it is stored. This client's idempotent producer then gives up by itself."""
    with producing(broker.kafka, linger_ms=100) as producer:
        batch = [(b"before", []), (b"bad", [bad]), (b"after", [("x-delay", b"10")])]
        answers = send_batch(producer, created, batch)
        assert all(isinstance(answer, KafkaError) for answer in answers), answers
        assert isinstance(answers[1], InvalidRecordError)
        assert words in str(answers[1])
    with producing(broker.kafka) as producer:
        send_batch(producer, created, [(b"good", [])])
    assert receive(broker.kafka, created, 1)[0].value == b"good"


def test_large_records_pass_and_too_large_ones_are_refused(
    broker: ApplianceProcess, created: str
) -> None:
    """900 KB pass, at once and delayed; 2 MB are above the limit of a batch."""
    large = bytes(range(256)) * 3_600
    with producing(broker.kafka, max_request_size=4_000_000, retries=0) as producer:
        for value, headers in ((large, []), (large[::-1], [("x-delay", b"100")])):
            producer.send(created, value, partition=0, headers=headers).get(LIMIT_S)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(created, b"x" * 2_000_000, partition=0).get(LIMIT_S)
    assert [one.value for one in receive(broker.kafka, created, 2)] == [large, large[::-1]]


@pytest.mark.parametrize("request_headers", [[], [("x-delay", b"300")]], ids=["now", "delayed"])
def test_waiting_consumer_gets_the_record_at_once(
    broker: ApplianceProcess, created: str, request_headers: list[Header]
) -> None:
    """A parked fetch wakes up when a record is produced or becomes due, long before its time."""
    with (
        producing(broker.kafka) as producer,
        closing(consumer_of(broker.kafka, created)) as consumer,
    ):
        producer.send(created, b"warm up", partition=0).get(LIMIT_S)
        receive_from(consumer, 1)
        assert consumer.poll(timeout_ms=50) == {}  # the long poll is on its way
        begin_s = time.monotonic()
        producer.send(created, b"awaited", partition=0, headers=request_headers)
        receive_from(consumer, 1)
        assert time.monotonic() - begin_s < 20.0  # the poll would last 30 s


def test_transactional_producer_is_refused_quickly(broker: ApplianceProcess) -> None:
    """With an error that ends it, not with a time-out."""
    begin_s = time.monotonic()
    with producing(broker.kafka, transactional_id="t") as producer, pytest.raises(KafkaError):
        producer.init_transactions()
    assert time.monotonic() - begin_s < LIMIT_S / 2
