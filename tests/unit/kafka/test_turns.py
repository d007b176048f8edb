"""What one connection takes of a turn, and of memory, is bounded."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import next_offset
from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import ApiVersionsRequest, ProduceResponse, decode_response
from tests.support.values.raw_batch import (
    CODECS,
    SNAPPY,
    ZSTD,
    Raw,
    compress,
    make_batch,
    records_of,
)
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

KIB = 1024
TURN_WORK = 2 << 20
REQUEST_WORK = KIB
PLAIN = make_batch([Raw(b"a")])
LARGER = {
    "batch_size_max_bytes": 30 * KIB,
    "decompressed_size_max_bytes": 30 * KIB,
    "record_size_max_bytes": 30 * KIB,
    "segment_size_bytes": 4 << 20,
}


def make_client(**settings: Any) -> WireClient:
    """A client of a broker with the topic `t` of 40 partitions."""
    return WireClient(with_topic(40, config=small_config(**settings)))


def zeros(codec: int, size: int) -> bytes:
    """A batch of one record of zeros, which packs well."""
    records = records_of([Raw(bytes(size))])
    return make_batch(compress(codec, records), count=1, attributes=codec)


# Turns


def turns(client: WireClient, data: bytes) -> list[int]:
    """The requests handled in each turn, if all of them are received at once."""
    session, harness = client.session, client.harness
    room = session.get_buffer()
    assert len(room) >= len(data)
    room[: len(data)] = data
    before, found = session.requests, []
    session.received(len(data), now_ns=harness.clock.wall_ns())
    while True:
        harness.broker.commit()
        session.compact()
        found.append(session.requests - before)
        before = session.requests
        if not session.yielded:
            return found
        session.resume(now_ns=harness.clock.wall_ns())


def with_room(client: WireClient) -> WireClient:
    """Let the session's buffer take in a megabyte at once."""
    client.send_bytes(framed(produce_request([("no", [(0, bytes(1_000_000))])]), 8, 1))
    client.take()
    return client


def test_a_turn_ends_after_some_work() -> None:
    """Many small requests count by their number, so that none waits for all of another's."""
    client = with_room(make_client())
    request = framed(produce_request([("t", [(0, PLAIN)])], acks=0), 8, 1)
    found = turns(client, request * 6_000)
    most = TURN_WORK // REQUEST_WORK
    assert sum(found) == 6_000
    assert len(found) > 3
    assert max(found) <= most
    assert next_offset(client) == 6_000


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_is_unpacked_counts_as_work(codec: int) -> None:
    """Two bombs of a few KiB that fit into all limits take two turns."""
    size = 1_200 * KIB
    client = with_room(
        make_client(
            decompressed_size_max_bytes=2 * size,
            record_size_max_bytes=2 * size,
            batch_size_max_bytes=100 * KIB,
            segment_size_bytes=16 << 20,
            inflight_max_bytes=1 << 30,
        )
    )
    request = framed(produce_request([("t", [(0, zeros(codec, size))])], acks=0), 8, 1)
    assert turns(client, request * 4) == [2, 2]
    assert next_offset(client) == 4


def test_whole_blocks_in_front_of_a_damaged_one_count_as_work() -> None:
    """Else a batch could have all the work done for nothing, as often as it likes."""
    client = make_client()
    head = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    block = compress(SNAPPY, bytes(4_000))
    sized = len(block).to_bytes(4, "big") + block
    packed = head + 2 * sized + b"\0\0\0\2\x09\x01"
    part = client.produce("t", 0, make_batch(packed, count=1, attributes=SNAPPY))
    assert part.error_code == ErrorCode.corrupt_message
    assert client.session.produce.work_bytes == 8_009


def test_owner_can_end_a_turn() -> None:
    """It knows how long requests of the control plane took."""
    harness = BrokerHarness()
    client = WireClient(harness)

    def answer_control_plane(request: bytes) -> tuple[bytes, int]:
        client.session.yield_turn()
        return request[4:8], 0

    client.session = harness.broker.open_session(answer_control_plane)
    data = b"".join(framed(ApiVersionsRequest(), 0, number) for number in range(5))
    assert turns(client, data) == [1, 1, 1, 1, 1]


# Produce


@pytest.mark.parametrize(
    ("codec", "head", "block"),
    [
        (SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1", b"\0\0\0\1\0"),
        (ZSTD, b"\x28\xb5\x2f\xfd\0\x58", b"\0\0\0"),
    ],
    ids=["snappy", "zstd"],
)
def test_batch_of_tiny_blocks_is_refused(codec: int, head: bytes, block: bytes) -> None:
    """A thousand times as many as a writer makes, of nothing each, would count as no work."""
    client = make_client()
    packed = head + 1_000 * block
    part = client.produce("t", 0, make_batch(packed, count=1, attributes=codec))
    assert part.error_code == ErrorCode.corrupt_message
    assert "it has 17 blocks for" in part.error_message
    assert client.session.produce.work_bytes == 0


@pytest.mark.parametrize("version", [3, 9])
def test_request_names_no_more_than_there_can_be(version: int) -> None:
    """Topics and partitions together; more close the connection, and nothing is stored."""
    client = make_client(
        topic_count_max=3,
        partition_total_max=40,
        partition_count_max_per_topic=40,
        default_partition_count=1,
    )
    most = [("t", [(index, PLAIN) for index in range(40)]), ("no", []), ("no", [])]
    client.ask(produce_request(most), version, ProduceResponse)
    assert client.session.close_reason is None
    client.send(produce_request([*most, ("no", [])]), version)
    assert client.session.close_reason is not None
    assert "topics and partitions" in client.session.close_reason
    assert next_offset(WireClient(client.harness)) == 1


@pytest.mark.parametrize("codec", CODECS[1:])
def test_batches_of_a_request_unpack_to_so_much_together(codec: int) -> None:
    """What is beyond is refused without being unpacked; the next request begins again."""
    limit = 30 * KIB
    client = make_client(request_decompressed_size_max_bytes=limit)
    bomb = zeros(codec, 8_000)
    request = produce_request([("t", [(index, bomb) for index in range(5)])])
    for _ in range(2):
        answer = client.ask(request, 8, ProduceResponse)
        parts = answer.responses[0].partition_responses
        assert [part.error_code for part in parts] == [0, 0, 0, *[ErrorCode.message_too_large] * 2]
        assert parts[4].error_message == (
            f"the batches of the request decompress to more than {limit} bytes, the limit set "
            "by limits.request_decompressed_size_max_bytes"
        )


@pytest.mark.parametrize("codec", CODECS[1:])
def test_forty_bombs_in_a_request_take_the_work_of_a_few(codec: int) -> None:
    """Also if each is too large or damaged at its end, so that it is unpacked in vain."""
    limit = 256 * KIB
    client = make_client(
        decompressed_size_max_bytes=limit,
        request_decompressed_size_max_bytes=limit,
        segment_size_bytes=4 << 20,
        inflight_max_bytes=1 << 30,
        batch_size_max_bytes=100 * KIB,
    )
    damaged = bytearray(compress(codec, records_of([Raw(bytes(limit // 2))])))
    damaged[-9] ^= 0x55
    bombs: list[Callable[[], bytes]] = [
        lambda: zeros(codec, 4 << 20 if codec != SNAPPY else 400 * KIB),
        lambda: make_batch(bytes(damaged), count=1, attributes=codec),
    ]
    for make_bomb in bombs:
        bomb = make_bomb()
        request = produce_request([("t", [(index, bomb) for index in range(40)])])
        path = client.session.produce
        before = path.work_bytes
        data = framed(request, 8, 1)
        tracemalloc.start()
        client.send_bytes(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (payload,) = split_answers(client.take())
        answer = decode_response(ProduceResponse, 8, payload)
        parts = answer.responses[0].partition_responses
        assert {part.error_code for part in parts} <= {
            ErrorCode.corrupt_message,
            ErrorCode.message_too_large,
            ErrorCode.invalid_record,
        }
        # The last one may be begun with a single byte left; a step counts that was cut short.
        assert path.work_bytes - before <= 2 * limit + (1 << 20)
        assert peak < 4 << 20


# Memory


def test_output_can_be_taken_in_parts() -> None:
    """However small they are, the bytes are the same; what is left waits in the session."""
    client = make_client(**LARGER)
    for index in range(20):
        client.produce("t", 0, make_batch([Raw(bytes([index]) * (index % 3 * 9_000 + 10))]))
    request = framed(fetch_request([("t", [fetch_part(0, 0), fetch_part(1, 0)])]), 11, 1)
    whole = []
    for size_max in (1 << 60, 10_000, 1_000):
        client.send_bytes(request * 3)
        found = b""
        while True:
            pieces = client.session.output(1 << 60, size_max)
            part = b"".join(pieces)
            # A piece of the answer's own bytes is not cut.
            assert len(part) <= max(size_max, 0) + 8_192 * 2
            assert client.session.taken_bytes == len(part)
            found += part
            if not client.session.has_more:
                break
        assert not client.session.is_waiting
        whole.append(found)
        assert len(list(split_answers(found))) == 3
    assert whole[0] == whole[1] == whole[2]


def test_held_bytes_follow_what_waits() -> None:
    """Copies, slices and parked requests count; at the end nothing is left."""
    client = make_client(**LARGER)
    for partition, size in ((0, 1_000), (1, 20_000)):
        for _ in range(20):
            client.produce("t", partition, make_batch([Raw(bytes(size))]))
    client.session.trim()
    assert client.session.held_bytes == 0
    for partition, low, high in ((0, 20_000, 25_000), (1, 400_000, 405_000)):
        client.send(fetch_request([("t", [fetch_part(partition, 0)])]), 11)
        client.session.trim()
        assert low <= client.session.held_bytes <= high
        client.take()
        client.session.trim()
        assert client.session.held_bytes == 0
    parts = [fetch_part(index % 40, 0) for index in range(2, 2_000)]
    client.send(fetch_request([("t", parts)], wait_ms=60_000, min_bytes=1 << 29), 11)
    client.session.trim()
    assert client.session.held_bytes > 2_000 * 20
    client.end_waits()
    client.take()
    client.session.trim()
    assert client.session.held_bytes == 0


def test_half_a_request_is_seen_as_such() -> None:
    client = make_client()
    data = framed(produce_request([("t", [(0, PLAIN)])]), 8, 1)
    for size in range(1, len(data)):
        client.send_bytes(data[size - 1 : size])
        assert client.session.partial_bytes == size
    client.send_bytes(data[-1:])
    assert client.session.partial_bytes == 0
    client.send_bytes(framed(fetch_request([("t", [fetch_part(0, 0)])], wait_ms=60_000), 11, 2))
    client.send_bytes(data[:9])
    assert client.session.partial_bytes == 0, "the broker does not look at it before it answers"
