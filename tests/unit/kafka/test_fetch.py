"""Fetch: every version, limits, waiting, and what is and is not visible.

Requests come from kafka-python, which also decodes the answers, every byte of them.
"""

import random

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import FETCH_BY_ID_FROM, WireClient, framed
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import FetchResponse
from tests.support.simulator.virtual_clock import FIRST_EPOCH
from tests.support.values.kafka_records import read_batches
from tests.support.values.raw_batch import Raw, make_batch, split_batches
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

VERSIONS = range(4, 18)
LAST = VERSIONS[-1]
WITH_START_OFFSET = 5
WITH_SESSIONS = 7
WITH_LEADER_EPOCH = 9
WITH_READ_REPLICA = 11


BATCH = make_batch([Raw(b"a"), Raw(b"b"), Raw(b"c")])


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with the topics `t` and `u` of three partitions."""
    harness = with_topic(3)
    harness.create_topic("u", 3)
    return WireClient(harness)


def fill(client: WireClient, partition: int = 0, count: int = 3, batch: bytes = BATCH) -> None:
    for _ in range(count):
        assert client.produce("t", partition, batch).error_code == 0


def bases(records: bytes) -> list[int]:
    """Base offsets of the batches."""
    return [header.base_offset for header, _ in split_batches(records)]


# Versions and answers


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_answers_all_of_its_fields(client: WireClient, version: int) -> None:
    """Every partition that was asked for is there, in its order, also those with nothing."""
    fill(client, 1)
    client.harness.clock.advance_ms(1)
    topics = [
        ("t", [fetch_part(1, 3), fetch_part(0, 0), fetch_part(1, 0), fetch_part(7, 0)]),
        ("no-such-topic", [fetch_part(0, 0)]),
        ("u", []),
        ("u", [fetch_part(2, 0)]),
    ]
    answer = client.ask(fetch_request(topics), version, FetchResponse)
    assert answer.throttle_time_ms == 0
    if version >= WITH_SESSIONS:
        assert (answer.error_code, answer.session_id) == (0, 0)
    reported = [
        (name, p.partition_index, p.error_code, p.high_watermark, bases(bytes(p.records)))
        for (name, _), topic in zip(topics, answer.responses, strict=True)
        for p in topic.partitions
    ]
    is_by_id = version >= FETCH_BY_ID_FROM
    unknown = ErrorCode.unknown_topic_id if is_by_id else ErrorCode.unknown_topic_or_partition
    assert reported == [
        ("t", 1, 0, 9, [3, 6]),
        ("t", 0, 0, 0, []),
        ("t", 1, ErrorCode.invalid_request, 9, []),
        ("t", 7, ErrorCode.unknown_topic_or_partition, -1, []),
        ("no-such-topic", 0, unknown, -1, []),
        ("u", 2, 0, 0, []),
    ]
    if is_by_id:
        named = [topic.topic_id for topic in answer.responses]
        assert named == [client.topic_id(name) for name, _ in topics]
    else:
        assert [topic.topic for topic in answer.responses] == [name for name, _ in topics]
    for topic in answer.responses:
        for part in topic.partitions:
            is_known = part.high_watermark >= 0
            assert part.last_stable_offset == part.high_watermark
            assert part.aborted_transactions == []
            if version >= WITH_START_OFFSET:
                assert part.log_start_offset == (0 if is_known else -1)
            if version >= WITH_READ_REPLICA:
                assert part.preferred_read_replica == -1


@pytest.mark.parametrize("version", VERSIONS)
def test_malformed_request_closes_the_connection(client: WireClient, version: int) -> None:
    """Cut before the end of its last partition."""
    request = fetch_request([("t", [fetch_part(0, 0)])])
    request.topics[0].topic_id = client.topic_id("t")
    whole = framed(request, version, 1)
    # What may follow a partition: tags, forgotten topics, rack, tags.
    tail = 12 if version < 12 else 6
    for size in range(30, len(whole) - tail, 3):
        other = WireClient(client.harness)
        other.send_bytes((size - 4).to_bytes(4, "big") + whole[4:size])
        assert other.session.close_reason == "malformed Fetch request", size
        assert other.take() == b""


# Offsets


def test_answer_begins_with_the_batch_that_holds_the_offset(client: WireClient) -> None:
    """Also where batches are of different sizes, delivered, or the rest of a mixed one."""
    fill(client)
    mixed = [Raw(b"x"), Raw(b"l", headers=[(b"x-delay", b"5")]), Raw(b"y")]
    client.produce("t", 0, make_batch([*mixed, *mixed]))  # offsets 9 to 12 now, 16 and 17 later
    fill(client, count=1)
    client.harness.tick(5)
    fill(client, count=1)
    starts = [0, 3, 6, 9, 13, 16, 18]
    for offset in range(21):
        begin = max(start for start in starts if start <= offset)
        expected = [start for start in starts if start >= begin]
        assert bases(client.fetch_records("t", 0, offset)) == expected
    assert bases(client.fetch_records("t", 0, 21)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_offset_out_of_range_is_reported_with_the_range(client: WireClient, version: int) -> None:
    """Below the first and above the next offset; the next offset itself is fine."""
    fill(client, count=1)
    for offset in (-1, -2, -(2**63), 4, 2**63 - 1):
        part = client.fetch("t", 0, offset, version=version)
        assert part.error_code == ErrorCode.offset_out_of_range
        assert (part.high_watermark, bytes(part.records)) == (3, b"")
        if version >= WITH_START_OFFSET:
            assert part.log_start_offset == 0
    part = client.fetch("t", 0, 3, version=version)
    assert (part.error_code, part.high_watermark, bytes(part.records)) == (0, 3, b"")


@pytest.mark.parametrize("version", range(WITH_LEADER_EPOCH, LAST + 1))
def test_leader_epoch_is_checked(client: WireClient, version: int) -> None:
    """An older one is fenced, a newer one is not known; -1 asks for no check."""
    fill(client)
    client = WireClient(client.harness.crash("kept", random.Random(0)))
    for epoch, code in (
        (-1, 0),
        (FIRST_EPOCH, ErrorCode.fenced_leader_epoch),
        (FIRST_EPOCH + 1, 0),
        (FIRST_EPOCH + 2, ErrorCode.unknown_leader_epoch),
    ):
        part = client.fetch("t", 0, version=version, leader_epoch=epoch)
        assert part.error_code == code
        assert bool(part.records) == (code == 0)


# Visibility


def test_sync_flush_hides_what_is_not_flushed(client: WireClient) -> None:
    """Its offset is no error, so a consumer that knows it can wait there."""
    fill(client, count=1)
    client.send(produce_request([("t", [(0, BATCH)])]), 9)
    other = WireClient(client.harness)
    for offset in (0, 3, 5):
        other.send(fetch_request([("t", [fetch_part(0, offset)])]), LAST)
        (answer,) = other.answers(FetchResponse, LAST)
        (part,) = answer.responses[0].partitions
        assert (part.error_code, part.high_watermark) == (0, 3)
        assert bases(bytes(part.records)) == ([0] if offset == 0 else [])
    client.harness.flush()
    assert bases(other.fetch_records("t", 0)) == [0, 3]


def test_async_flush_shows_what_is_written() -> None:
    client = WireClient(with_topic(config=small_config(flush="async")))
    client.send(produce_request([("t", [(0, BATCH)])], acks=0), 9)
    client.send(fetch_request([("t", [fetch_part(0, 0)])]), LAST)
    (answer,) = client.answers(FetchResponse, LAST)
    assert bases(bytes(answer.responses[0].partitions[0].records)) == [0]


# Limits


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("limit", "count"), [(-1, 1), (0, 1), (1, 1), (2, 2), (2.9, 2), (3, 3), (9, 5)]
)
def test_partition_limit_is_kept_by_whole_batches(
    client: WireClient, version: int, limit: float, count: int
) -> None:
    """All that fit into it, and one even if it does not fit (KIP-74)."""
    fill(client, count=5)
    size = int(limit * len(BATCH))
    records = client.fetch_records("t", 0, version=version, limit=size)
    assert bases(records) == list(range(0, 3 * count, 3))


@pytest.mark.parametrize(
    ("max_bytes", "counts"),
    [
        (-1, [0, 1, 0]),
        (0, [0, 1, 0]),
        (2, [0, 2, 0]),
        (3, [0, 2, 1]),
        (3.9, [0, 2, 1]),
        (4, [0, 2, 2]),
        (99, [0, 2, 2]),
    ],
)
def test_total_limit_is_kept_over_partitions(
    client: WireClient, max_bytes: float, counts: list[int]
) -> None:
    """Only the first partition that has something is given a batch beyond it."""
    for partition in (1, 2):
        fill(client, partition, count=3)
    parts = [fetch_part(index, 0, limit=2 * len(BATCH)) for index in range(3)]
    request = fetch_request([("t", parts)], max_bytes=int(max_bytes * len(BATCH)))
    answer = client.ask(request, LAST, FetchResponse)
    found = [bases(bytes(part.records)) for part in answer.responses[0].partitions]
    assert [len(each) for each in found] == counts


def test_batch_beyond_all_limits_is_given_only_first(client: WireClient) -> None:
    """A later partition with a small limit stays empty when there is something already."""
    fill(client, 0, count=1)
    fill(client, 1, count=1)
    parts = [fetch_part(0, 0), fetch_part(1, 0, limit=1)]
    answer = client.ask(fetch_request([("t", parts)]), LAST, FetchResponse)
    assert [bases(bytes(p.records)) for p in answer.responses[0].partitions] == [[0], []]
    parts = [fetch_part(0, 3), fetch_part(1, 0, limit=1)]
    answer = client.ask(fetch_request([("t", parts)]), LAST, FetchResponse)
    assert [bases(bytes(p.records)) for p in answer.responses[0].partitions] == [[], [0]]


def test_broker_limit_holds_whatever_is_asked_for() -> None:
    client = WireClient(with_topic(3, config=small_config(fetch_size_max_bytes=1024)))
    fill(client, count=20)
    whole = 1024 // len(BATCH)
    assert len(bases(client.fetch_records("t", 0, max_bytes=2**31 - 1))) == whole


def test_large_and_small_batches_of_many_segments_come_in_one_answer() -> None:
    """Slices of the log and copies are put together in order, for several partitions."""
    config = small_config(
        segment_size_bytes=256 * 1024,
        batch_size_max_bytes=40_000,
        record_size_max_bytes=40_000,
        decompressed_size_max_bytes=40_000,
    )
    harness = with_topic(2, config=config)
    client = WireClient(harness)
    expected: list[list[bytes]] = [[], []]
    for index in range(40):
        value = b"%d:" % index + bytes([index]) * (index % 4 * 9_000)
        client.produce("t", index % 3 % 2, make_batch([Raw(value)]))
        expected[index % 3 % 2].append(value)
    parts = [fetch_part(0, 0), fetch_part(1, 0)]
    answer = client.ask(fetch_request([("t", parts)]), LAST, FetchResponse)
    found = [
        [record.value for record in read_batches(bytes(part.records))]
        for part in answer.responses[0].partitions
    ]
    assert found == expected
    segments = [path for path in harness.disk.files() if len(path.name) == 20]
    assert len(segments) > 1


# Waiting


def wait_for(client: WireClient, min_bytes: int, *parts: dict[str, int]) -> None:
    request = fetch_request(
        [("t", parts or [fetch_part(0, 0)])], wait_ms=60_000, min_bytes=min_bytes
    )
    client.send(request, LAST)


def wake(client: WireClient) -> int:
    """Flush and look again at the fetches that this concerns; how many."""
    woken = client.harness.broker.flush()
    for parked in woken:
        client.session.retry(parked)
    return len(woken)


def test_fetch_waits_until_there_are_enough_bytes(client: WireClient) -> None:
    """It is tried when there may be enough, and answered with all there is."""
    producer = WireClient(client.harness)
    wait_for(client, 2 * len(BATCH) + 1)
    for count in range(3):
        assert client.answers(FetchResponse, LAST) == []
        producer.send(produce_request([("t", [(0, BATCH)])]), 9)
        assert wake(client) == 1
        assert [parked.answered for parked in client.parked] == [count == 2]
    (answer,) = client.answers(FetchResponse, LAST)
    assert bases(bytes(answer.responses[0].partitions[0].records)) == [0, 3, 6]
    producer.send(produce_request([("t", [(0, BATCH)])]), 9)
    assert wake(client) == 0


def test_a_fetch_that_waits_for_much_is_not_tried_for_each_record(client: WireClient) -> None:
    """It is tried again when the log is longer by what it lacks: others' records count, too."""
    producer = WireClient(client.harness)
    count = 200
    wait_for(client, count * len(BATCH))
    (parked,) = client.parked
    tried = 0
    for _ in range(count):
        assert not parked.answered
        both = produce_request([("t", [(0, BATCH), (1, BATCH)])])
        producer.send(both, 9)
        tried += wake(client)
        producer.take()
    assert parked.answered
    assert 2 <= tried <= 30
    (answer,) = client.answers(FetchResponse, LAST)
    assert len(answer.responses[0].partitions[0].records) == count * len(BATCH)


def test_a_fetch_counts_the_partitions_that_it_watches_as_memory(client: WireClient) -> None:
    parts = [fetch_part(index, 0) for index in range(3)]
    wait_for(client, 1000, *parts)
    held = client.session.held_bytes
    assert held > 3 * 128
    client.end_waits()
    client.take()
    assert client.session.held_bytes <= held - 3 * 128


def test_fetch_that_has_enough_does_not_wait(client: WireClient) -> None:
    fill(client, count=2)
    wait_for(client, 2 * len(BATCH))
    assert len(client.answers(FetchResponse, LAST)) == 1
    wait_for(client, 0, fetch_part(1, 0))
    assert len(client.answers(FetchResponse, LAST)) == 1
    assert client.parked == []


def test_any_of_its_partitions_wakes_a_fetch(client: WireClient) -> None:
    """Bytes of all partitions count together; others do not wake it."""
    producer = WireClient(client.harness)
    wait_for(client, 2 * len(BATCH), fetch_part(0, 0), fetch_part(2, 0))
    producer.send(produce_request([("t", [(1, BATCH)])]), 9)
    assert wake(client) == 0
    producer.send(produce_request([("t", [(2, BATCH)])]), 9)
    assert wake(client) == 1
    assert client.answers(FetchResponse, LAST) == []
    producer.send(produce_request([("t", [(0, BATCH)])]), 9)
    assert wake(client) == 1
    (answer,) = client.answers(FetchResponse, LAST)
    assert [bases(bytes(p.records)) for p in answer.responses[0].partitions] == [[0], [0]]


def test_end_of_the_wait_answers_with_what_there_is(client: WireClient) -> None:
    fill(client, count=1)
    wait_for(client, 1 << 19)
    (parked,) = client.parked
    assert parked.wait_ms == 60_000
    client.end_waits()
    (answer,) = client.answers(FetchResponse, LAST)
    assert bases(bytes(answer.responses[0].partitions[0].records)) == [0]
    assert client.harness.partition().waiters == {}


@pytest.mark.parametrize(
    "part", [fetch_part(9, 0), fetch_part(0, 99), fetch_part(0, 0, leader_epoch=9)]
)
def test_error_is_answered_at_once(client: WireClient, part: dict[str, int]) -> None:
    """Whatever else the fetch could wait for."""
    wait_for(client, 1 << 19, fetch_part(1, 0), part)
    (answer,) = client.answers(FetchResponse, LAST)
    assert [p.error_code > 0 for p in answer.responses[0].partitions] == [False, True]


def test_topic_deleted_under_a_waiting_fetch_is_reported(client: WireClient) -> None:
    wait_for(client, 1)
    client.harness.delete_topic("t")
    client.end_waits()
    (answer,) = client.answers(FetchResponse, LAST)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.unknown_topic_id
