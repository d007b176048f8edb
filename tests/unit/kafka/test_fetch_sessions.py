"""Fetch by topic id, fetch sessions that are refused, what newer versions add, and its bounds."""

from typing import Any
from uuid import UUID

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import FETCH_BY_ID_FROM, WireClient, framed
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import FetchRequest, FetchResponse
from tests.support.values.raw_batch import Raw, make_batch, split_batches
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

LAST = 17
WITH_SESSIONS = 7
VERSIONS = range(4, LAST + 1)
BY_ID = range(FETCH_BY_ID_FROM, LAST + 1)


BATCH = make_batch([Raw(b"a"), Raw(b"b"), Raw(b"c")])


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with one batch in partition 0 of `t`, which has three."""
    client = WireClient(with_topic(3))
    assert client.produce("t", 0, BATCH).error_code == 0
    return client


def errors(answer: Any) -> list[tuple[int, int]]:
    """Partition and error, of all topics."""
    return [
        (part.partition_index, part.error_code)
        for topic in answer.responses
        for part in topic.partitions
    ]


# Topic ids


@pytest.mark.parametrize("version", BY_ID)
def test_id_of_a_deleted_topic_is_unknown(client: WireClient, version: int) -> None:
    """Also if there is a new topic of the same name, which has its own id."""
    request = fetch_request([("t", [fetch_part(0, 0), fetch_part(5, 0)])])
    answer = client.ask(request, version, FetchResponse)
    assert errors(answer) == [(0, 0), (5, ErrorCode.unknown_topic_or_partition)]
    old = request.topics[0].topic_id
    client.harness.delete_topic("t")
    client.harness.create_topic("t", 3)
    assert client.topic_id("t") != old
    answer = client.ask(request, version, FetchResponse)
    assert answer.responses[0].topic_id == old
    assert errors(answer) == [(0, ErrorCode.unknown_topic_id), (5, ErrorCode.unknown_topic_id)]
    assert client.fetch("t", 0, version=version).error_code == 0


@pytest.mark.parametrize("version", BY_ID)
def test_nil_id_is_unknown(client: WireClient, version: int) -> None:
    """The oracle reads it as no id at all."""
    request = fetch_request([("t", [fetch_part(0, 0)])], wait_ms=60_000)
    request.topics[0].topic_id = UUID(int=0)
    answer = client.ask(request, version, FetchResponse)
    assert answer.responses[0].topic_id in (None, UUID(int=0))
    assert errors(answer) == [(0, ErrorCode.unknown_topic_id)]


def test_topics_keep_their_ids_over_a_restart(client: WireClient) -> None:
    topic_id = client.topic_id("t")
    again = WireClient(client.harness.restart())
    assert again.topic_id("t") == topic_id
    assert len(split_batches(again.fetch_records("t", 0, version=LAST))) == 1


@pytest.mark.parametrize("version", range(12, LAST + 1))
def test_tagged_fields_for_followers_are_skipped(client: WireClient, version: int) -> None:
    """Cluster id, replica state, directory id and high watermark; rack and forgotten topics."""
    request = fetch_request([("t", [fetch_part(0, 0), fetch_part(1, 0)])])
    request.cluster_id = "any cluster"
    request.replica_state = FetchRequest.ReplicaState(replica_id=7, replica_epoch=3)
    for part in request.topics[0].partitions:
        part.replica_directory_id = UUID(int=1 << 100)
        part.high_watermark = 5
    forgotten = FetchRequest.ForgottenTopic
    request.forgotten_topics_data = [
        forgotten(topic="u", topic_id=UUID(int=9), partitions=[1, 2]) for _ in range(3)
    ]
    request.rack_id = "rack"
    answer = client.ask(request, version, FetchResponse)
    assert errors(answer) == [(0, 0), (1, 0)]
    assert len(split_batches(bytes(answer.responses[0].partitions[0].records))) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_that_waits_keeps_only_what_it_asks_for(client: WireClient, version: int) -> None:
    """Large fields that nobody reads are let go, and the answer is that of the whole request."""
    topics = [("t", [fetch_part(2, 0), fetch_part(0, 0)])]
    request = fetch_request(topics, wait_ms=60_000, min_bytes=1 << 19)
    request.rack_id = "r" * 30_000
    if version >= 12:
        request.cluster_id = "c" * 30_000
        for part in request.topics[0].partitions:
            part.unknown_tags = {90: bytes(30_000)}
    before = client.session.held_bytes
    client.send(request, version)
    (parked,) = client.parked
    client.session.compact(0)
    assert client.session.held_bytes - before < 2_000
    client.end_waits()
    (answer,) = client.answers(FetchResponse, version)
    assert errors(answer) == [(2, 0), (0, 0)]
    assert len(split_batches(bytes(answer.responses[0].partitions[1].records))) == 1
    assert parked.answered


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_is_named_again_is_refused_there(client: WireClient, version: int) -> None:
    parts = [fetch_part(0, 0), fetch_part(1, 0), fetch_part(0, 0), fetch_part(0, 0)]
    answer = client.ask(fetch_request([("t", parts)]), version, FetchResponse)
    refused = ErrorCode.invalid_request
    assert errors(answer) == [(0, 0), (1, 0), (0, refused), (0, refused)]
    found = [bytes(part.records or b"") for part in answer.responses[0].partitions]
    assert found[0] != b""
    assert found[2:] == [b"", b""]


def test_a_closed_connection_lets_its_fetch_go(client: WireClient) -> None:
    request = fetch_request([("t", [fetch_part(2, 0)])], wait_ms=60_000, min_bytes=1 << 19)
    client.send(request, LAST)
    (parked,) = client.parked
    partition = client.harness.partition(2)
    assert list(partition.waiters) == [parked]
    client.session.close()
    parked.drop()
    assert partition.waiters == {}
    assert parked.session is None
    assert client.session.held_bytes == 0


# Sessions


@pytest.mark.parametrize("version", range(WITH_SESSIONS, LAST + 1))
@pytest.mark.parametrize("session_id", [0, 5])
@pytest.mark.parametrize("session_epoch", [0, -1])
def test_full_fetch_is_answered_without_a_session(
    client: WireClient, version: int, session_id: int, session_epoch: int
) -> None:
    """It opens a session (0) or ends one (-1), whichever; every partition is in the answer."""
    parts = [fetch_part(1, 0), fetch_part(0, 0), fetch_part(2, 0)]
    request = fetch_request([("t", parts)], session_id=session_id, session_epoch=session_epoch)
    answer = client.ask(request, version, FetchResponse)
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert errors(answer) == [(1, 0), (0, 0), (2, 0)]


@pytest.mark.parametrize("version", range(WITH_SESSIONS, LAST + 1))
@pytest.mark.parametrize("session_id", [0, 5, -5])
@pytest.mark.parametrize("session_epoch", [1, 2**31 - 1, -2])
def test_fetch_that_continues_a_session_is_refused(
    client: WireClient, version: int, session_id: int, session_epoch: int
) -> None:
    """There is none, so a client begins again; it does not wait for that."""
    topics = [("t", [fetch_part(1, 0)])]
    request = fetch_request(
        topics, session_id=session_id, session_epoch=session_epoch, wait_ms=60_000
    )
    answer = client.ask(request, version, FetchResponse)
    assert answer.error_code == ErrorCode.fetch_session_id_not_found
    assert (answer.session_id, answer.responses) == (0, [])
    assert client.harness.broker.collect_metrics().request_errors == {
        ErrorCode.fetch_session_id_not_found: 1
    }


def test_end_of_a_session_is_answered_at_once(client: WireClient) -> None:
    """It names no partition, so there is nothing to wait for."""
    client.send(fetch_request([], session_id=5, session_epoch=-1, wait_ms=60_000), LAST)
    (answer,) = client.answers(FetchResponse, LAST)
    assert (answer.error_code, answer.responses) == (0, [])


# Bounds


@pytest.mark.parametrize("version", [4, 6, 7, 12, LAST])
def test_request_names_no_more_than_there_can_be(version: int) -> None:
    """Partitions and topics count together, so that tiny entries cannot hold up the loop."""
    config = small_config(
        topic_count_max=3,
        partition_total_max=7,
        partition_count_max_per_topic=7,
        default_partition_count=1,
        batch_size_max_bytes=10_000,
        record_size_max_bytes=10_000,
        decompressed_size_max_bytes=10_000,
        segment_size_bytes=4 << 20,
    )
    harness = with_topic(3, config=config)
    client = WireClient(harness)
    # So large that an answer has it as a slice, also one that is given up.
    assert client.produce("t", 0, make_batch([Raw(bytes(9_000))])).error_code == 0
    most = [("t", [fetch_part(index % 3, 0) for index in range(4)]), ("t", [fetch_part(0, 0)] * 4)]
    assert len(errors(client.ask(fetch_request(most), version, FetchResponse))) == 8
    for beyond in ([*most, ("t", [])], [("t", [fetch_part(0, 0)] * 10)], [("t", [])] * 11):
        if version < WITH_SESSIONS:
            other = WireClient(harness)
            other.send(fetch_request(beyond), version)
            assert other.session.close_reason is not None
            assert "topics and partitions" in other.session.close_reason
            assert other.take() == b""
        else:
            request = fetch_request(beyond, wait_ms=60_000)
            answer = client.ask(request, version, FetchResponse)
            assert (answer.error_code, answer.responses) == (ErrorCode.invalid_request, [])


def test_answer_copies_a_bounded_number_of_bytes() -> None:
    """What is cut off comes with the next fetch; no fetch waits for more than an answer takes.

    Small batches are copied: 4,096 of them and 1 MiB at most.
    """
    harness = BrokerHarness(
        config=small_config(segment_size_bytes=1 << 24, fetch_size_max_bytes=1 << 30)
    )
    harness.create_topic("t", 2)
    client = WireClient(harness)
    tiny, large = make_batch([Raw(b"")]), make_batch([Raw(bytes(8_000))])
    for partition, batch, count in ((0, tiny, 20_000), (1, large, 600)):
        request = produce_request([("t", [(partition, batch)])], acks=0)
        for _ in range(count // 100):
            client.send_bytes(framed(request, 9, 1) * 100)
    harness.flush()
    for partition, expected in ((0, 4_096), (1, (1 << 20) // len(large) + 1)):
        records = client.fetch_records("t", partition, limit=1 << 30, max_bytes=1 << 30)
        assert len(split_batches(records)) == expected
    # The whole answer has one bound, and is not held back for what cannot be in it.
    request = fetch_request(
        [("t", [fetch_part(1, 0, limit=1 << 30)] * 3)],
        wait_ms=60_000,
        min_bytes=1 << 30,
        max_bytes=1 << 30,
    )
    client.send(request, LAST)
    (answer,) = client.answers(FetchResponse, LAST)
    assert [bool(part.records) for part in answer.responses[0].partitions] == [True, False, False]
