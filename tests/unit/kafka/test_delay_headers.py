"""Delay headers end to end: what each record asks for, what is refused, and what is delivered.

The forms of the values have a table of their own (tests/unit/core/paths/test_delay_text.py). Here
one value of each header goes through a Produce, the log and a Fetch.
"""

from dataclasses import replace

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.oracles.kafka_oracle import FetchResponse
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Fetched
from tests.support.values.raw_batch import (
    CODECS,
    CREATED_MS,
    NONE,
    ZSTD,
    Raw,
    RawHeaders,
    make_batch,
    split_batches,
)
from tests.support.values.record_requests import fetch_part, fetch_request

DELAY_MAX_MS = 3_650 * 86_400_000
ONE_ID = (b"x-deliver-id", b"id")


def records(client: WireClient, topic: str = "t", partition: int = 0) -> list[Fetched]:
    return client.harness.fetch(topic, partition)


def accept(client: WireClient, *batch: Raw, topic: str = "t", partition: int = 0) -> int:
    """Produce a batch that must be accepted; the answered base offset."""
    part = client.produce(topic, partition, make_batch(batch))
    assert part.error_code == 0, part.error_message
    offset: int = part.base_offset
    return offset


def number(value: int) -> bytes:
    return b"%d" % value


def long(value: int) -> bytes:
    """As Java's Long serializer writes it."""
    return value.to_bytes(8, "big", signed=True)


# Refusals

ONLY_ONE = "use only one of x-delay, x-deliver-at and x-delay-level"
CANCEL_ALONE = "x-deliver-cancel cannot be combined with"

REFUSED: list[tuple[RawHeaders, str]] = [
    ([(b"x-delay", b"soon")], 'x-delay "soon": '),
    ([(b"x-deliver-at", None)], "x-deliver-at has a null value"),
    ([(b"x-deliver-at", long(-1))], "x-deliver-at "),
    ([(b"x-delay", b"-soon")], 'x-delay "-soon": '),
    ([(b"x-delay", b"")], "x-delay is empty"),
    ([(b"x-delay", number(DELAY_MAX_MS + 1))], "delay.max.ms"),
    ([(b"x-delay", long(2**60))], "delay.max.ms"),
    ([(b"x-deliver-at", number(START_MS + DELAY_MAX_MS + 1))], "delay.max.ms"),
    ([(b"x-delay", b"1"), (b"x-deliver-at", number(START_MS + 1))], ONLY_ONE),
    ([(b"x-delay", b"1000"), (b"x-delay-level", b"1")], ONLY_ONE),
    ([(b"x-deliver-at", number(START_MS)), (b"x-delay-level", b"1")], ONLY_ONE),
    ([(b"x-delay", b"1"), (b"x-deliver-id", b"")], "x-deliver-id must have 1 to 255 bytes, not 0"),
    ([(b"x-delay", b"1"), (b"x-deliver-id", bytes(256))], "1 to 255 bytes, not 256"),
    ([(b"x-deliver-id", bytes(256))], "1 to 255 bytes, not 256"),
    ([(b"x-deliver-cancel", b"")], "x-deliver-cancel must have 1 to 255 bytes, not 0"),
    ([(b"x-deliver-cancel", bytes(256))], "1 to 255 bytes, not 256"),
    ([(b"x-deliver-cancel", b"a"), (b"x-delay", b"1")], CANCEL_ALONE),
    ([(b"x-deliver-cancel", b"a"), (b"x-deliver-at", number(START_MS))], CANCEL_ALONE),
    ([(b"x-deliver-cancel", b"a"), (b"x-delay-level", b"2")], CANCEL_ALONE),
    ([(b"x-deliver-cancel", b"a"), (b"x-deliver-id", b"a")], CANCEL_ALONE),
]


@pytest.mark.parametrize("codec", [NONE, ZSTD])
@pytest.mark.parametrize(("headers", "sentence"), REFUSED)
def test_wrong_headers_refuse_the_whole_batch(
    client: WireClient, headers: RawHeaders, sentence: str, codec: int
) -> None:
    """With the index of the record; the good ones before and after it leave no timer."""
    good = Raw(b"good", headers=[(b"x-delay", b"5"), ONE_ID])
    batch = make_batch([Raw(b"now"), good, Raw(b"bad", headers=headers), good], codec=codec)
    part = client.produce("t", 0, batch)
    assert (part.error_code, part.base_offset) == (ErrorCode.invalid_record, -1)
    (error,) = part.record_errors
    assert error.batch_index == 2
    assert sentence in error.batch_index_error_message
    assert error.batch_index_error_message.isprintable()
    assert client.harness.broker.pending_timers == 0
    assert client.harness.timer_state("t", b"id") == ("unknown", None, None)
    assert client.harness.tick(10) == 0
    assert records(client) == []
    assert accept(client, Raw()) == 0


def test_topic_lowers_the_longest_delay(client: WireClient) -> None:
    """Exactly the limit is accepted."""
    client.harness.create_topic("s", 1, {"delay.max.ms": "1000"})
    for headers in (
        [(b"x-delay", b"1000")],
        [(b"x-deliver-at", number(START_MS + 1000))],
        [(b"x-delay-level", b"1")],
    ):
        assert accept(client, Raw(headers=headers), topic="s") == -1
    for headers in (
        [(b"x-delay", b"1001")],
        [(b"x-deliver-at", number(START_MS + 1001))],
        [(b"x-delay-level", b"2")],
    ):
        part = client.produce("s", 0, make_batch([Raw(headers=headers)]))
        assert part.error_code == ErrorCode.invalid_record
        assert "due more than delay.max.ms = 1000 ms after receipt" in part.error_message


# What a record asks for

DUE_IN: list[tuple[RawHeaders, int]] = [
    ([(b"x-delay", b"PT1.5S")], 1500),
    ([(b"x-delay", long(2500))], 2500),
    ([(b"x-delay", number(DELAY_MAX_MS))], DELAY_MAX_MS),
    ([(b"x-deliver-at", number(START_MS + 7))], 7),
    ([(b"x-deliver-at", b"2026-01-01T00:00:01.0001Z")], 1001),
    ([(b"x-delay-level", b"3")], 10_000),
    ([(b"x-delay-level", b"19")], 7_200_000),
    ([(b"x-delay-level", b"9" * 64)], 7_200_000),
    ([(b"x-delay-level", b"0"), (b"x-delay", b"20")], 20),
    ([(b"x-delay", b"20"), (b"x-delay-level", b"00")], 20),
    ([(b"x-delay", b"5h"), (b"x-delay", b"20")], 20),
    ([(b"x-delay", b"soon"), (b"h", b""), (b"x-delay", b"20")], 20),
    ([(b"x-delay", None), (b"x-delay", b"20")], 20),
    ([(b"X-Delay", b"soon"), (b"x-delay", b"20"), (b"x-delay2", b"x"), (b"x-dela", b"")], 20),
]


@pytest.mark.parametrize(("headers", "delay_ms"), DUE_IN)
def test_record_comes_at_its_millisecond(
    client: WireClient, headers: RawHeaders, delay_ms: int
) -> None:
    """Not one before; acknowledged with base offset -1, and counted in no watermark."""
    assert accept(client, Raw(b"later", headers=headers)) == -1
    part = client.fetch("t", 0)
    assert (part.high_watermark, bytes(part.records)) == (0, b"")
    assert client.harness.broker.next_wake_ms() == START_MS + delay_ms
    assert client.harness.tick(delay_ms - 1) == 0
    assert client.harness.tick(1) == 1
    (found,) = records(client)
    assert (found.offset, found.value) == (0, b"later")
    assert found.header("x-due-at") == number(START_MS + delay_ms)
    assert found.header("x-accepted-at") == number(START_MS)


def test_levels_are_those_of_the_configuration(client: WireClient) -> None:
    levels = client.harness.config.delay_levels
    asked = [Raw(number(n), headers=[(b"x-delay-level", number(n))]) for n in range(18, 0, -1)]
    assert accept(client, *asked) == -1
    assert client.harness.run_until_idle() == 18
    found = [(record.value, record.header("x-due-at")) for record in records(client)]
    assert found == [(number(n), number(START_MS + levels[n - 1])) for n in range(1, 19)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("headers", "due_ms"),
    [
        ([(b"x-delay", b"0")], START_MS),
        ([(b"x-deliver-at", number(START_MS))], START_MS),
        ([(b"x-deliver-at", number(START_MS - 5000))], START_MS - 5000),
        ([(b"x-deliver-at", b"100000000000")], 100_000_000_000),
    ],
)
def test_what_is_due_already_comes_at_once_in_its_place(
    client: WireClient, headers: RawHeaders, due_ms: int, codec: int
) -> None:
    """The batch is visible whole, so it is answered with its offset."""
    accept(client, Raw(b"0"))
    batch = [Raw(b"1"), Raw(b"2", b"key", [(b"h", b"x"), *headers], 5), Raw(b"3")]
    part = client.produce("t", 0, make_batch(batch, codec=codec))
    assert (part.error_code, part.base_offset) == (0, 1)
    found = records(client)
    assert [(record.offset, record.value) for record in found] == list(
        enumerate([b"0", b"1", b"2", b"3"])
    )
    assert found[2] == Fetched(
        2,
        CREATED_MS + 5,
        b"key",
        b"2",
        (("h", b"x"), ("x-accepted-at", number(START_MS)), ("x-due-at", number(due_ms))),
    )
    assert found[1].headers == found[3].headers == ()


# What is delivered


def test_delivered_record_keeps_all_but_the_request_headers(client: WireClient) -> None:
    """Other headers keep order, doubles and null; stamps that came along are replaced."""
    headers: RawHeaders = [
        (b"h", b"1"),
        (b"x-due-at", b"forged"),
        (b"x-delay", b"999"),
        (b"h", None),
        (b"x-accepted-at", b"forged"),
        (b"", b""),
        (b"x-due-id", b"forged"),
        (b"x-deliver-id", b"old"),
        (b"h", b"1"),
        (b"x-deliver-id", b"\x00\xff"),
        (b"x-delay", b"10"),
    ]
    batch = [
        Raw(b"value", b"key", headers, 7),
        Raw(None, None, [(b"x-delay", b"10")], -7),
        Raw(b"", b"", [(b"x-delay", b"10")]),
    ]
    assert accept(client, *batch) == -1
    assert client.harness.tick(10) == 3
    raw = client.fetch_records("t", 0)
    first, second, third = records(client)
    stamps = (("x-accepted-at", number(START_MS)), ("x-due-at", number(START_MS + 10)))
    kept = (("h", b"1"), ("h", b""), ("", b""), ("h", b"1"))
    assert first == Fetched(
        0, CREATED_MS + 7, b"key", b"value", (*kept, *stamps, ("x-due-id", b"\x00\xff"))
    )
    assert second == Fetched(1, CREATED_MS - 7, None, b"", stamps)
    assert third == Fetched(2, CREATED_MS, b"", b"", stamps)
    ((header, _),) = split_batches(raw)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.count, header.last_delta, header.attributes) == (3, 2, 0)
    assert header.max_timestamp == CREATED_MS + 7


def test_record_produced_again_is_not_delayed_again(client: WireClient) -> None:
    accept(client, Raw(b"a", b"k", [(b"h", b"1"), (b"x-delay", b"50"), ONE_ID]))
    client.harness.tick(50)
    (found,) = records(client)
    again = Raw(found.value, found.key, [(name.encode(), value) for name, value in found.headers])
    assert accept(client, again) == 1
    first, second = records(client)
    assert replace(second, offset=0, timestamp_ms=first.timestamp_ms) == first
    assert client.harness.broker.pending_timers == 0


def test_headers_pass_through_where_they_are_off(client: WireClient) -> None:
    """Unread, whatever is wrong with them, compressed or not, byte by byte."""
    client.harness.create_topic("off", 1, {"delay.headers": "off"})
    batches = [
        make_batch([Raw(b"a", headers=headers) for headers, _ in REFUSED], codec=codec)
        for codec in CODECS
    ]
    for index, batch in enumerate(batches):
        assert client.produce("off", 0, batch).base_offset == len(REFUSED) * index
    found = split_batches(client.fetch_records("off", 0))
    assert [data[16:] for _, data in found] == [batch[16:] for batch in batches]
    assert client.harness.broker.pending_timers == 0


TIMESTAMPS = [
    ({}, CREATED_MS, CREATED_MS),
    ({"delay.timestamp": "due"}, START_MS + 100, START_MS - 3),
    ({"message.timestamp.type": "LogAppendTime"}, START_MS + 150, START_MS),
    (
        {"message.timestamp.type": "LogAppendTime", "delay.timestamp": "due"},
        START_MS + 150,
        START_MS,
    ),
]


@pytest.mark.parametrize(("settings", "late_ms", "at_once_ms"), TIMESTAMPS)
def test_timestamp_is_created_or_due_or_appended(
    client: WireClient, settings: dict[str, str], late_ms: int, at_once_ms: int
) -> None:
    """By the topic's settings; what is due at once is delivered under the same rules."""
    client.harness.create_topic("s", 1, settings)
    now = Raw(b"now", headers=[(b"x-deliver-at", number(START_MS - 3))])
    later = Raw(b"later", headers=[(b"x-delay", b"100")])
    accept(client, Raw(b"plain"), now, later, topic="s")
    client.harness.clock.advance_ms(150)
    client.harness.deliver_all()
    plain_ms = START_MS if "message.timestamp.type" in settings else CREATED_MS
    found = [(record.value, record.timestamp_ms) for record in records(client, "s")]
    assert found == [(b"plain", plain_ms), (b"now", at_once_ms), (b"later", late_ms)]
    headers = [header for header, _ in split_batches(client.fetch_records("s", 0))]
    assert [header.max_timestamp for header in headers] == [max(plain_ms, at_once_ms), late_ms]
    is_append = "message.timestamp.type" in settings
    assert [header.attributes for header in headers] == [8 * is_append] * 2


def test_waiting_fetch_gets_what_is_delivered(client: WireClient) -> None:
    """It is parked over the acknowledgement and answered by the delivery."""
    client.send(fetch_request([("t", [fetch_part(0, 0)])], wait_ms=60_000), 11)
    accept_with = WireClient(client.harness)
    accept(accept_with, Raw(b"a", headers=[(b"x-delay", b"100")]))
    (parked,) = client.parked
    assert not parked.answered
    client.harness.tick(100)
    assert client.session.retry(parked)
    answer = FetchResponse.decode(client.take()[4:], version=11, header=True)
    (part,) = answer.responses[0].partitions
    assert part.high_watermark == 1


@pytest.mark.parametrize("codec", CODECS)
def test_malformed_records_are_refused_where_headers_are_off(
    client: WireClient, codec: int
) -> None:
    """Headers go unread there, but what is stored is sound, also inside compressed batches."""
    client.harness.create_topic("off", 1, {"delay.headers": "off"})
    wrong = make_batch([Raw(headers=[(b"x-delay", b"1")]), Raw(offset_delta=7)], codec=codec)
    part = client.produce("off", 0, wrong)
    assert part.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in part.record_errors] == [1]
    assert client.produce("off", 0, make_batch([Raw()], codec=codec)).base_offset == 0
