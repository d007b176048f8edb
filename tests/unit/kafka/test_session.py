"""A connection without its socket: bytes in any pieces, answers in order, limits on both."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import (
    ApiVersionsRequest,
    FetchResponse,
    ListOffsetsRequest,
    MetadataRequest,
    decode_response,
)
from tests.support.values.raw_batch import ZSTD, Raw, make_batch, split_batches
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

ANSWERS_MAX = 256
REQUEST_MAX = 4096 * 3


def produce(number: int, *batches: bytes, acks: int = -1, version: int = 8) -> bytes:
    parts = [(index % 2, batch) for index, batch in enumerate(batches)]
    return framed(produce_request([("t", parts)], acks=acks), version, number)


def fetch(
    number: int, offset: int = 0, *, topic: str = "t", version: int = 11, wait_ms: int = 0
) -> bytes:
    request = fetch_request([(topic, [fetch_part(0, offset)])], wait_ms=wait_ms)
    return framed(request, version, number)


def api_versions(number: int) -> bytes:
    return framed(ApiVersionsRequest(), 0, number)


def metadata(number: int) -> bytes:
    topics = [MetadataRequest.MetadataRequestTopic(name="t")]
    return framed(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 5, number)


def list_offsets(number: int) -> bytes:
    kind = ListOffsetsRequest.ListOffsetsTopic
    part = kind.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=-1, max_num_offsets=1
    )
    topic = kind(name="still", partitions=[part])
    return framed(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 5, number)


def numbers(data: bytes) -> list[int]:
    """Correlation ids of the answers."""
    return [int.from_bytes(payload[:4], "big") for payload in split_answers(data)]


SMALL = make_batch([Raw(b"a"), Raw(b"b")])
LARGE = make_batch([Raw(bytes(6000))])
MIXED = make_batch([Raw(b"now"), Raw(b"later", headers=[(b"x-delay", b"9")])], codec=ZSTD)
WRONG = make_batch([Raw(b"a")], crc=7)


# Pieces

# Fetch and ListOffsets see what was written before their round, which depends on the pieces: here
# they ask for a topic in which nothing happens.
kinds = st.sampled_from(
    [
        lambda n: produce(n, SMALL),
        lambda n: produce(n, SMALL, MIXED, version=3),
        lambda n: produce(n, LARGE, version=11),
        lambda n: produce(n, WRONG, SMALL),
        lambda n: produce(n, SMALL, acks=0),
        lambda n: fetch(n, topic="still"),
        lambda n: fetch(n, 1, topic="still", version=12),
        lambda n: fetch(n, 10_000, topic="still", version=4),
        api_versions,
        metadata,
        list_offsets,
    ]
)


def answered(data: bytes, sizes: Iterator[int]) -> tuple[bytes, str | None]:
    """All that a new broker answers to bytes that come in pieces of these sizes."""
    harness = with_topic(2, config=small_config(flush="async", request_size_max_bytes=REQUEST_MAX))
    harness.create_topic("still", 1)
    WireClient(harness).produce("still", 0, LARGE)
    client = WireClient(harness)
    found = b""
    start = 0
    while start < len(data) and client.session.close_reason is None:
        size = next(sizes)
        client.send_bytes(data[start : start + size])
        found += client.take()
        start += size
    harness.flush()
    return found + client.take(), client.session.close_reason


def ever(size: int) -> Iterator[int]:
    while True:
        yield size


def without_uuids(data: bytes) -> bytes:
    """Answers without those to Metadata, which hold random ids."""
    return b"".join(
        payload for payload in split_answers(data) if int.from_bytes(payload[:4], "big") < 1000
    )


@settings(max_examples=50)
@given(
    requests=st.lists(kinds, min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    tail=st.sampled_from([b"", b"\x00", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x07" + bytes(7)]),
)
def test_pieces_of_any_size_get_the_same_answers(
    requests: list[Any], sizes: list[int], tail: bytes
) -> None:
    """Whole, in random pieces, and short requests also byte by byte."""
    data = b"".join(
        make(1000 + index if make is metadata else index) for index, make in enumerate(requests)
    )
    data += tail
    whole, reason = answered(data, ever(len(data)))
    ways = [(sizes[index % len(sizes)] for index in range(10**6))]
    if len(data) < 1500:
        ways.append(ever(1))  # type: ignore[arg-type]
    for pieces in ways:
        found, found_reason = answered(data, pieces)
        assert without_uuids(found) == without_uuids(whole)
        assert numbers(found) == numbers(whole)
        assert found_reason == reason


# Order


def test_pipelined_requests_are_answered_in_order(client: WireClient) -> None:
    """Whatever handles them, and whether they wait for the disk or not."""
    makers = [produce, fetch, api_versions, metadata, list_offsets]
    data, expected = b"", []
    for number in range(40):
        make = makers[number * 7 % 5]
        data += make(number, SMALL) if make is produce else make(number)  # type: ignore[operator]
        expected.append(number)
    client.send_bytes(data)
    found = numbers(client.take())
    assert found == expected[: len(found)]
    client.harness.flush()
    assert found + numbers(client.take()) == expected


def test_answer_that_waits_holds_back_those_after_it(client: WireClient) -> None:
    """A parked fetch, then a produce for it on another connection, then all leave."""
    client.send_bytes(api_versions(1) + fetch(2, wait_ms=60_000) + api_versions(3) + produce(4))
    assert numbers(client.take()) == [1]
    assert client.session.is_waiting
    other = WireClient(client.harness)
    other.send_bytes(produce(1, SMALL))
    (woken,) = client.harness.broker.flush()
    assert client.session.retry(woken)
    assert numbers(client.take()) == [2]
    assert client.session.paused, "what follows a fetch that waits is not looked at"
    client.resume()
    client.harness.flush()
    assert numbers(client.take()) == [3, 4]
    assert not client.session.is_waiting


def test_answers_that_are_not_taken_hold_little_memory(client: WireClient) -> None:
    """By their bytes, not only by their number: each request here asks for everything there is."""
    for number in range(100):
        client.send_bytes(produce(number, LARGE))
    client.harness.flush()
    client.take()
    before = client.session.requests
    client.send_bytes(b"".join(fetch(number) for number in range(200)))
    assert client.session.paused
    # 600 KB each; 8 MiB may wait.
    assert client.session.requests - before < 20


def test_produce_and_fetch_in_one_piece_see_what_was_flushed_before(client: WireClient) -> None:
    """The fetch is answered by what is visible when it is handled."""
    client.send_bytes(produce(1, SMALL) + fetch(2) + produce(3, SMALL))
    assert client.session.awaits_flush
    client.harness.flush()
    payloads = list(split_answers(client.take()))
    assert [int.from_bytes(p[:4], "big") for p in payloads] == [1, 2, 3]
    part = decode_response(FetchResponse, 11, payloads[1]).responses[0].partitions[0]
    assert (part.high_watermark, bytes(part.records)) == (0, b"")
    assert len(split_batches(client.fetch_records("t", 0))) == 2


# Limits


def test_request_size_limit_is_named() -> None:
    """At the limit it is handled, above it the connection ends before the body comes."""
    harness = with_topic(2, config=small_config(request_size_max_bytes=REQUEST_MAX))
    # The size of the value in the record, of the record and of the batch do not change their width.
    missing = REQUEST_MAX + 4 - len(produce(1, LARGE, make_batch([Raw(bytes(5000))])))
    largest = produce(1, LARGE, make_batch([Raw(bytes(5000 + missing))]))
    assert len(largest) - 4 == REQUEST_MAX
    client = WireClient(harness)
    client.send_bytes(largest)
    assert client.session.close_reason is None
    client.send_bytes((REQUEST_MAX + 1).to_bytes(4, "big"))
    reason = client.session.close_reason
    assert reason is not None
    assert f"a request of {REQUEST_MAX + 1} bytes" in reason
    assert f"request_size_max_bytes is {REQUEST_MAX}" in reason
    harness.flush()
    assert numbers(client.take()) == [1]


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"\xff\xff\xff\xff", "network.request_size_max_bytes"),
        (b"\x00\x00\x00\x00", "network.request_size_max_bytes"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x08", "network.request_size_max_bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "it looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "it looks like TLS"),
    ],
)
def test_garbage_closes_the_connection(client: WireClient, garbage: bytes, reason: str) -> None:
    """What came before it is answered; what follows is not looked at."""
    client.send_bytes(api_versions(1) + garbage + api_versions(2))
    assert client.session.close_reason is not None
    assert reason in client.session.close_reason
    assert numbers(client.take()) == [1]


def test_memory_follows_what_came_and_not_what_was_announced(client: WireClient) -> None:
    """A size of 1 MiB alone takes no MiB."""
    size = client.harness.config.request_size_max_bytes
    client.send_bytes(size.to_bytes(4, "big") + bytes(100))
    assert client.session.close_reason is None
    assert len(client.session.get_buffer()) <= 32 * 1024


def test_a_read_of_a_large_request_touches_little_new_memory() -> None:
    """Memory is slow when it is touched for the first time: others come between two reads."""
    client = WireClient(BrokerHarness(config=small_config(request_size_max_bytes=16 << 20)))
    rest = framed(produce_request([("no", [(0, bytes(10_000_000))])]), 8, 1)
    read_count = 0
    while rest:
        window = client.session.get_buffer()
        assert len(window) <= 1 << 20
        read_count += 1
        client.send_bytes(rest[: len(window)])
        rest = rest[len(window) :]
    assert 10_000_000 // (1 << 20) < read_count < 40
    assert numbers(client.take()) == [1]


def fill(client: WireClient, data: bytes, piece: int) -> Iterator[tuple[int, int]]:
    """Send part of a request; yields what was announced, and what was taken, for each read."""
    while data:
        announced, before = client.session.growth_bytes, client.session.held_bytes
        part = data[: min(piece, len(client.session.get_buffer()))]
        client.send_bytes(part)
        data = data[len(part) :]
        yield announced, client.session.held_bytes - before


@pytest.mark.parametrize("piece", [1_000, 16_384, 5_000_000])
@pytest.mark.parametrize("size", [65_536, 70_000, 200_000, 900_000, 1_048_000, 3_000_000])
def test_growth_of_the_buffer_is_known_before_it_is_read(size: int, piece: int) -> None:
    """A request of 64 KiB takes no more than that."""
    client = WireClient(BrokerHarness(config=small_config(request_size_max_bytes=16 << 20)))
    request = (size - 4).to_bytes(4, "big") + bytes(size - 5)
    grown = []
    for announced, taken in fill(client, request, piece):
        is_small = client.session.held_bytes <= 64 << 10
        assert announced == (0 if is_small else taken)
        grown.append(announced)
    assert client.session.held_bytes <= max(64 << 10, 2 * size)
    assert (client.session.held_bytes > 64 << 10) == (size > 64 << 10)
    assert any(grown) == (size > 64 << 10)


def test_a_byte_of_the_next_request_keeps_no_memory_of_a_large_one() -> None:
    """And the request of which it is the first one arrives all the same."""
    client = WireClient(BrokerHarness(config=small_config(request_size_max_bytes=16 << 20)))
    large = framed(produce_request([("no", [(0, bytes(10_000_000))])]), 8, 1)
    client.send_bytes(large + large[:1])
    assert client.session.held_bytes < 5 << 20
    client.session.compact(64 << 10)
    assert client.session.held_bytes < 100 << 10
    client.send_bytes(large[1:])
    assert numbers(client.take()) == [1, 1]


def test_client_that_does_not_read_is_not_read_either(client: WireClient) -> None:
    """After 256 waiting answers, input is left until they are sent."""
    count = 2 * ANSWERS_MAX + 10
    waiting = produce(0, SMALL)  # for the disk
    client.send_bytes(waiting + b"".join(api_versions(number) for number in range(1, count)))
    assert client.session.paused
    assert client.session.requests == ANSWERS_MAX
    client.send_bytes(api_versions(count))
    assert client.session.requests == ANSWERS_MAX
    client.harness.flush()
    found = numbers(client.take())
    for _ in range(2):
        client.resume()
        found += numbers(client.take())
    assert not client.session.paused
    assert found == list(range(count + 1))


# Memory and end


def test_trimmed_session_goes_on(client: WireClient) -> None:
    """Also with part of a request in its buffer, and with an answer that waits."""
    data = produce(1, SMALL) + api_versions(2)
    client.session.trim()
    for start in range(0, len(data), 11):
        client.send_bytes(data[start : start + 11])
        client.session.trim()
    client.harness.flush()
    assert numbers(client.take()) == [1, 2]
    client.session.trim()
    client.send_bytes(produce(3, LARGE))
    client.harness.flush()
    assert numbers(client.take()) == [3]


def test_trim_gives_the_buffer_back(client: WireClient) -> None:
    client.send_bytes(produce(1, *[LARGE] * 20))
    client.session.trim()
    assert len(client.session.get_buffer()) == 16 * 1024


def test_client_that_fills_the_buffer_gets_a_larger_one(client: WireClient) -> None:
    """So that its requests take fewer turns; to send much in many pieces does not help."""
    data = b"".join(produce(number, SMALL) for number in range(2000))
    sizes = []
    for part in (100, 200, None, None, None, None):
        room = len(client.session.get_buffer())
        sizes.append(-(-room // 1024))
        client.send_bytes(data[: part or room])
        data = data[part or room :]
        client.harness.flush()
        client.take()
    assert sizes == [16, 16, 16, 32, 64, 64]


def test_closed_session_sends_nothing_more(client: WireClient) -> None:
    """What it accepted stays."""
    client.send_bytes(produce(1, SMALL) + fetch(2, 2, wait_ms=60_000))
    client.session.close()
    assert client.session.close_reason == "closed"
    client.harness.flush()
    assert client.take() == b""
    assert not client.session.is_waiting
    assert len(split_batches(WireClient(client.harness).fetch_records("t", 0))) == 1


@settings(max_examples=300)
@given(
    version=st.integers(3, 12),
    is_fetch=st.booleans(),
    changes=st.lists(st.tuples(st.integers(4, 400), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_request_is_answered_or_closes_the_connection(
    version: int, is_fetch: bool, changes: list[tuple[int, int]]
) -> None:
    """Whichever bytes are wrong: the requests after it, or the next client, are served."""
    if is_fetch:
        data = bytearray(fetch(1, version=max(version, 4)) + api_versions(2))
    else:
        data = bytearray(produce(1, SMALL, MIXED, version=min(version, 11)) + api_versions(2))
    size = int.from_bytes(data[:4], "big")
    for at, byte in changes:
        data[4 + (at - 4) % size] = byte
    harness = shared_harness()
    client = WireClient(harness)
    client.send_bytes(bytes(data))
    client.end_waits()
    harness.flush()
    found = numbers(client.take())
    if client.session.paused:  # a parked fetch: the connection resumes when its answer has left
        client.resume()
        client.end_waits()
        harness.flush()
        found += numbers(client.take())
    assert client.session.close_reason is not None or found[-1:] == [2]
    assert WireClient(harness).produce("t", 0, SMALL).error_code == 0


@functools.cache
def shared_harness() -> BrokerHarness:
    return with_topic(2)
