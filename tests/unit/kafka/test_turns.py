"""What one connection takes of a turn, and of memory, is bounded."""

import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from _core.paths.answer import Reply
from appliance.loop_turns import SHARED_WORK_BYTES, TURN_WORK_BYTES
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
MIB = 1024 * KIB
REQUEST_WORK = 8 * KIB
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
    assert len(client.session.get_buffer()) >= len(data)
    counts = [client.session.requests]
    client.feed(data)
    client.end_round(between=lambda: counts.append(client.session.requests))
    counts.append(client.session.requests)
    return [after - before for before, after in pairwise(counts)]


def with_room(client: WireClient) -> WireClient:
    """Let the session's buffer take in a megabyte at once."""
    client.send_bytes(framed(produce_request([("no", [(0, bytes(1_000_000))])]), 8, 1))
    client.take()
    return client


def test_a_turn_ends_after_some_work() -> None:
    """Many small requests count by their number, so that none waits for all of another's."""
    client = with_room(make_client())
    request = framed(produce_request([("t", [(0, PLAIN)])], acks=0), 8, 1)
    found = turns(client, request * 4_000)
    most = TURN_WORK_BYTES // REQUEST_WORK
    assert sum(found) == 4_000
    assert len(found) > 2
    assert max(found) <= most
    assert next_offset(client) == 4_000


def test_a_turn_is_shorter_while_others_would_wait_for_it() -> None:
    client = with_room(make_client())
    request = framed(produce_request([("t", [(0, PLAIN)])], acks=0), 8, 1)
    client.session.turn_work_bytes = SHARED_WORK_BYTES
    found = turns(client, request * 500)
    assert sum(found) == 500
    assert max(found) <= SHARED_WORK_BYTES // REQUEST_WORK
    client.session.turn_work_bytes = TURN_WORK_BYTES
    assert max(turns(client, request * 500)) > 2 * max(found)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_is_unpacked_counts_as_work(codec: int) -> None:
    """Bombs of a few KiB that fit into all limits take two turns."""
    size = 900 * KIB
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
    assert turns(client, request * 4) == [3, 1]
    assert next_offset(client) == 4


# A request that takes several turns

PART_COUNT = 10
PART_KIB = 700
LARGE: dict[str, Any] = {
    "batch_size_max_bytes": MIB,
    "decompressed_size_max_bytes": 4 * MIB,
    "record_size_max_bytes": 4 * MIB,
    "request_size_max_bytes": 16 * MIB,
    "segment_size_bytes": 64 * MIB,
}


def large_request(batch: bytes, *indexes: int, acks: int = -1) -> bytes:
    half = len(indexes) // 2
    halves = (indexes[:half], indexes[half:])
    topics = [("t", [(index, batch) for index in part]) for part in halves]
    if acks:
        topics.append(("no", [(0, batch)]))
    return framed(produce_request(topics, acks=acks), 8, 1)


def codes(client: WireClient) -> list[tuple[int, int, int]]:
    """Partition, error and base offset of the last of the answers that leave now."""
    *_, answer = split_answers(client.take())
    topics = decode_response(ProduceResponse, 8, answer).responses
    return [
        (part.index, part.error_code, part.base_offset)
        for topic in topics
        for part in topic.partition_responses
    ]


UNKNOWN = (0, ErrorCode.unknown_topic_or_partition, -1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_request_goes_on_in_the_next_turn(codec: int) -> None:
    """Others are served between its turns, and its answer is that of one turn."""
    client = make_client(**LARGE)
    other = WireClient(client.harness)
    batch = make_batch([Raw(bytes(PART_KIB * KIB))], codec=codec)
    small = framed(produce_request([("t", [(0, PLAIN)])]), 8, 7)
    client.feed(small + large_request(batch, *range(PART_COUNT)))
    offsets = iter(range(100))

    def serve_other() -> None:
        assert other.produce("t", 39, PLAIN).base_offset == next(offsets)
        assert client.session.held_bytes < 40 * MIB

    count = client.end_round(serve_other)
    assert count == next(offsets) + 1 >= 4
    client.harness.flush()
    expected = [(index, 0, 1 if index == 0 else 0) for index in range(PART_COUNT)]
    assert codes(client) == [*expected, UNKNOWN]
    assert [next_offset(client, "t", index) for index in range(PART_COUNT)] == [2] + [1] * 9
    assert client.session.requests == 2
    assert client.produce("t", 0, PLAIN).base_offset == 2


def test_a_partition_that_is_named_twice_is_refused_in_every_turn() -> None:
    """Also if requests of others have named it between the two."""
    client = make_client(**LARGE)
    other = WireClient(client.harness)
    batch = make_batch([Raw(bytes(PART_KIB * KIB))])
    client.feed(large_request(batch, 1, 2, 3, 4, 5, 6, 7, 1))
    both = produce_request([("t", [(1, PLAIN), (7, PLAIN)])])
    assert client.end_round(lambda: other.ask(both, 8, ProduceResponse)) >= 3
    client.harness.flush()
    twice = (1, ErrorCode.invalid_request, -1)
    found = codes(client)
    assert (found[0], found[7], found[8]) == (twice, twice, UNKNOWN)
    assert [error for _, error, _ in found[1:7]] == [0] * 6


def test_delays_count_from_the_first_turn_in_every_turn() -> None:
    client = make_client(**LARGE)
    clock = client.harness.clock
    headers = [(b"x-delay", b"60000"), (b"x-deliver-id", b"late")]
    batch = make_batch([Raw(bytes(PART_KIB * KIB), headers=headers)])
    begin_ms = clock.wall_ms()
    client.feed(large_request(batch, *range(PART_COUNT)))
    assert client.end_round(lambda: clock.advance_ms(7)) >= 3
    client.harness.flush()
    client.harness.tick(begin_ms + 60_000 - 1 - clock.wall_ms())
    assert [next_offset(client, "t", index) for index in range(PART_COUNT)] == [0] * PART_COUNT
    client.harness.tick(1)
    # Each replaces the one before it.
    assert [next_offset(client, "t", index) for index in range(PART_COUNT)] == [0] * 9 + [1]
    (record,) = client.harness.fetch("t", PART_COUNT - 1)
    headers = dict(record.headers)
    assert int(headers["x-accepted-at"]) == begin_ms
    assert int(headers["x-due-at"]) == begin_ms + 60_000


def test_what_waits_too_long_for_the_disk_is_marked_in_every_turn() -> None:
    client = make_client(**LARGE)
    batch = make_batch([Raw(bytes(PART_KIB * KIB))])
    small = framed(produce_request([("t", [(0, PLAIN)])]), 8, 7)
    client.feed(small + large_request(batch, *range(PART_COUNT)))
    client.end_round()
    assert client.take() == b""
    for now_ms in (0, 1_000):
        given_up = client.session.time_out(now_ms, 10, 0)
    assert given_up == PART_COUNT + 1
    timed_out = [(index, ErrorCode.request_timed_out, -1) for index in range(PART_COUNT)]
    assert codes(client) == [*timed_out, UNKNOWN]


def test_a_refusal_in_an_earlier_turn_closes_a_producer_without_acks() -> None:
    client = make_client(**LARGE)
    batch = make_batch([Raw(bytes(PART_KIB * KIB))])
    client.feed(large_request(batch, -1, *range(1, PART_COUNT), acks=0))
    client.end_turn()
    assert client.session.close_reason is None
    client.end_round()
    assert client.session.close_reason == "a batch sent with acks=0 was refused"
    assert next_offset(client, "t", PART_COUNT - 1) == 1


def test_a_connection_may_be_closed_between_two_turns() -> None:
    client = make_client(**LARGE)
    batch = make_batch([Raw(bytes(PART_KIB * KIB))])
    client.feed(large_request(batch, *range(PART_COUNT)))
    client.end_turn()
    client.session.close()
    assert client.session.held_bytes < MIB
    stored = [next_offset(client, "t", index) for index in range(PART_COUNT)]
    assert 0 < sum(stored) < PART_COUNT
    assert stored == sorted(stored, reverse=True)


def test_the_buffer_of_a_large_request_grows_to_its_size_and_not_beyond() -> None:
    """A size alone takes no memory."""
    client = make_client(**LARGE)
    size = 9 * MIB + 1_000
    client.feed(size.to_bytes(4, "big") + bytes(100))
    assert client.session.wanted_bytes == 4 + size
    assert client.session.held_bytes < 100 * KIB
    peak = 0
    for _ in range(9):
        client.feed(bytes(MIB))
        peak = max(peak, client.session.held_bytes)
    assert client.session.wanted_bytes == 4 + size
    assert size < peak < size + 64 * KIB


def test_whole_blocks_in_front_of_a_damaged_one_count_as_work() -> None:
    """Else a batch could have all the work done for nothing, as often as it likes."""
    client = make_client()
    head = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    block = compress(SNAPPY, bytes(4_000))
    sized = len(block).to_bytes(4, "big") + block
    packed = head + 2 * sized + b"\0\0\0\2\x09\x01"
    part = client.produce("t", 0, make_batch(packed, count=1, attributes=SNAPPY))
    assert part.error_code == ErrorCode.invalid_record
    assert client.session.produce.work_bytes == 8_009


def test_owner_can_end_a_turn() -> None:
    """It knows how long requests of the control plane took."""
    harness = BrokerHarness()
    client = WireClient(harness)

    def answer_control_plane(request: memoryview) -> Reply:
        client.session.yield_turn()
        return Reply(bytes(request[4:8]))

    client.session = harness.broker.open_session(answer_control_plane)
    data = b"".join(framed(ApiVersionsRequest(), 0, number) for number in range(5))
    assert turns(client, data) == [1, 1, 1, 1, 1]


def test_the_control_plane_sees_a_request_without_a_copy() -> None:
    """A copy of 95 MB, to refuse it, takes everybody 60 ms."""
    harness = BrokerHarness()
    client = WireClient(harness)
    seen: list[memoryview] = []

    def answer_control_plane(request: memoryview) -> str:
        seen.append(request)
        return "refused"

    client.session = harness.broker.open_session(answer_control_plane)
    data = framed(ApiVersionsRequest(), 0, 7)
    room = client.session.get_buffer()
    room[: len(data)] = data
    client.session.received(len(data), now_ns=1)
    assert bytes(seen[0]) == data[4:]
    room[4] = 99
    assert seen[0][0] == 99


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
    assert part.error_code == ErrorCode.invalid_record
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
        refused = ErrorCode.kafka_storage_error  # the batches fit: they are to be sent again
        assert [part.error_code for part in parts] == [0, 0, 0, refused, refused]
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
            ErrorCode.message_too_large,
            ErrorCode.invalid_record,
            ErrorCode.kafka_storage_error,
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
