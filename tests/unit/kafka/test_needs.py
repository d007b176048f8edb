"""An answer waits only for the changes that it shows, and not for ever."""

from typing import Any

import pytest

from _core.paths.answer import Reply
from appliance.replication.lease import Lease
from compat.kafka import dispatch
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, commit_request, fetch_request
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.oracles.kafka_oracle import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    decode_response,
    encode_request,
)
from tests.support.values import group_requests as gr

BOUND_MS = 5_000


def ask(harness: BrokerHarness, request: Any, version: int) -> Reply:
    """Answer a request without writing anything to the disk."""
    answer = dispatch.answer(harness._node, encode_request(request, version))
    if isinstance(answer, Reply):
        return answer
    replies: list[Reply] = []
    answer.when_complete(replies.append)
    (reply,) = replies
    return reply


def leaves_at_once(harness: BrokerHarness, request: Any, version: int) -> bool:
    return ask(harness, request, version).end_pos <= harness.durable_pos


def metadata(*names: str) -> Any:
    topic = MetadataRequest.MetadataRequestTopic
    topics = [topic(name=name) for name in names] or None
    return MetadataRequest(topics=topics, allow_auto_topic_creation=True)


def create(name: str, timeout_ms: int = 60_000) -> Any:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=-1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)


def latest(name: str) -> Any:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topics = [topic(name=name, partitions=[part])]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def commit(group: str) -> Any:
    return commit_request(group, {("t", 0): Commit(7)})


def fetched(group: str) -> Any:
    return fetch_request(5, {group: [("t", 0)]})


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with the flushed topic `t`, and unflushed changes of others."""
    harness = with_topic()
    harness.flush()
    ask(harness, commit("theirs"), 8)
    ask(harness, create("other"), 5)
    harness.broker.commit()
    ask(harness, commit("theirs"), 8)  # not even encoded as a frame yet
    return harness


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
        (metadata("t"), 8),
        (gr.heartbeat_request("theirs", "m", 1), 3),
        (FindCoordinatorRequest(key="theirs", key_type=0), 2),
        (DescribeClusterRequest(), 0),
        (latest("t"), 5),
        (fetched("mine"), 5),
        (gr.describe_request("mine"), 4),
        (gr.join_request("mine"), 5),  # gets its member id
    ],
)
def test_an_answer_does_not_wait_for_what_others_changed(
    harness: BrokerHarness, request_: Any, version: int
) -> None:
    assert leaves_at_once(harness, request_, version)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (metadata("other"), 8),
        (metadata("t", "new"), 8),
        (metadata(), 8),
        (latest("other"), 5),
        (fetched("theirs"), 5),
        (commit("theirs"), 8),
        (commit("mine"), 8),
        (create("other"), 5),  # it exists already
        (create("mine"), 5),
        (DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4),
        (gr.describe_request("theirs"), 4),
        (gr.list_request(), 4),
        (gr.DeleteGroupsRequest(groups_names=["theirs"]), 1),
        (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 1),
    ],
)
def test_an_answer_waits_for_the_changes_that_it_shows(
    harness: BrokerHarness, request_: Any, version: int
) -> None:
    assert not leaves_at_once(harness, request_, version)
    reply = ask(harness, request_, version)
    harness.flush()
    assert reply.end_pos <= harness.durable_pos
    assert leaves_at_once(harness, metadata("other"), 8)
    assert leaves_at_once(harness, fetched("theirs"), 5)


def test_a_request_about_nothing_is_answered(harness: BrokerHarness) -> None:
    assert leaves_at_once(harness, fetch_request(8, {}), 8)
    assert leaves_at_once(harness, gr.describe_request(), 4)


def test_every_id_of_a_reserved_block_waits_for_the_block() -> None:
    harness = with_topic()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    assert not leaves_at_once(harness, request, 1)
    assert not leaves_at_once(harness, request, 1)
    harness.flush()
    assert leaves_at_once(harness, request, 1)


def test_what_is_remembered_of_changes_is_bounded_by_a_flush(harness: BrokerHarness) -> None:
    for index in range(50):
        ask(harness, commit(f"group-{index}"), 8)
        harness.flush()
    assert len(harness.broker.groups.changes) <= 2


# An answer that waits too long


class Impatient:
    """A connection whose requests wait for a disk that does not respond."""

    def __init__(self) -> None:
        self.client = WireClient(with_topic())
        self.harness = self.client.harness
        self.harness.flush()

    def ask(self, request: Any, version: int, response_class: Any, wait_ms: int = BOUND_MS) -> Any:
        """Return the answer that the client gets after `wait_ms`."""
        session = self.client.session
        self.client.send(request, version)
        self.harness.broker.commit()
        durable_pos = self.harness.durable_pos
        now_ms = self.harness.now_ms()
        assert session.time_out(now_ms, BOUND_MS, durable_pos) == 0
        assert session.time_out(now_ms + wait_ms - 1, BOUND_MS, durable_pos) == 0
        assert self.client.take() == b""
        assert session.time_out(now_ms + wait_ms, BOUND_MS, durable_pos) == 1
        (frame,) = split_answers(self.client.take())
        assert not session.is_waiting
        return decode_response(response_class, version, frame)


def test_late_answer_to_a_commit_makes_the_client_ask_again() -> None:
    client = Impatient()
    answer = client.ask(commit("g"), 8, OffsetCommitResponse)
    (part,) = answer.topics[0].partitions
    assert part.error_code == ErrorCode.coordinator_not_available
    answer = client.ask(fetched("g"), 5, OffsetFetchResponse)
    assert answer.error_code == ErrorCode.coordinator_load_in_progress
    client.harness.flush()
    assert client.client.take() == b"", "they were answered already"
    client.client.send(fetched("g"), 5)
    (answer,) = client.client.answers(OffsetFetchResponse, 5)
    assert answer.topics[0].partitions[0].committed_offset == 7
    assert client.client.session.late_count == 2


def test_late_answer_to_metadata_shows_what_is_durable() -> None:
    client = Impatient()
    answer = client.ask(metadata("t", "new"), 8, MetadataResponse)
    found = {topic.name: (topic.error_code, len(topic.partitions)) for topic in answer.topics}
    assert found == {"t": (0, 1), "new": (ErrorCode.leader_not_available, 0)}
    answer = client.ask(metadata(), 8, MetadataResponse)
    assert {topic.name: topic.error_code for topic in answer.topics}.items() >= {
        ("t", 0),
        ("new", ErrorCode.leader_not_available),
    }


def test_a_client_that_waits_less_is_answered_earlier() -> None:
    answer = Impatient().ask(create("new", timeout_ms=300), 5, CreateTopicsResponse, wait_ms=300)
    assert answer.topics[0].error_code == ErrorCode.request_timed_out


def test_late_producer_id_is_not_given_out() -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    answer = Impatient().ask(request, 1, InitProducerIdResponse)
    assert answer.error_code == ErrorCode.coordinator_load_in_progress


def test_what_is_kept_for_a_late_answer_counts_as_memory() -> None:
    client = Impatient()
    idle = client.client.session.held_bytes
    request = commit_request("g" * 200, {("t", 0): Commit(7, "x" * 50)})
    for _ in range(20):
        client.client.send(request, 8)
    held = client.client.session.held_bytes
    assert held - idle >= 20 * 300
    for passed_ms in (0, BOUND_MS):
        client.client.session.time_out(
            client.harness.now_ms() + passed_ms, BOUND_MS, client.harness.durable_pos
        )
    assert client.client.session.held_bytes < held - 20 * 200
    client.client.take()
    client.client.session.trim()
    assert client.client.session.held_bytes == idle == 0


def test_long_requests_wait_on_for_the_disk(harness: BrokerHarness) -> None:
    parts = {("t", 0): Commit(7, "x" * 100)}
    short = ask(harness, commit_request("g", parts), 8)
    assert short.late is not None
    names = [f"topic-{number:05}" for number in range(2_000)]
    long = ask(harness, metadata(*names), 8)
    assert (long.late, long.kept_bytes) == (None, 0)


def test_answers_keep_their_order_when_the_first_is_late() -> None:
    client = Impatient()
    client.client.send(commit("g"), 8)
    client.client.send(metadata("t"), 8)
    client.harness.broker.commit()
    assert client.client.take() == b""
    now_ms = client.harness.now_ms()
    for passed_ms in (0, BOUND_MS):
        client.client.session.time_out(now_ms + passed_ms, BOUND_MS, client.harness.durable_pos)
    numbers = [int.from_bytes(frame[:4], "big") for frame in split_answers(client.client.take())]
    assert numbers == sorted(numbers)
    assert len(numbers) == 2


def test_a_long_request_waits_for_what_it_names(harness: BrokerHarness) -> None:
    """Its names are looked at in steps, once it is handled."""
    names = [f"nosuch-{number:04}" for number in range(2_000)]
    topic = MetadataRequest.MetadataRequestTopic

    def asked(*more: str) -> Any:
        topics = [topic(name=name) for name in (*more, *names)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        assert len(encode_request(request, 5)) > dispatch.DECODED_AT_ONCE_MAX_BYTES
        return request

    ask(harness, create("long"), 5)
    changes = harness.broker.topics.changes
    assert leaves_at_once(harness, asked("t"), 5)
    assert ask(harness, asked("t", "long"), 5).end_pos == changes.of("long") > harness.durable_pos


@pytest.mark.parametrize(
    ("request_", "version", "response_class"),
    [
        (metadata("new"), 8, MetadataResponse),
        (commit("mine"), 8, OffsetCommitResponse),
        (fetched("mine"), 5, OffsetFetchResponse),
        (create("new"), 5, CreateTopicsResponse),
        (
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
            1,
            InitProducerIdResponse,
        ),
    ],
)
def test_master_without_a_lease_changes_nothing_and_shows_nothing_old(
    request_: Any, version: int, response_class: Any
) -> None:
    harness = with_topic()
    harness.flush()
    lease = harness.broker.lease = Lease(harness.clock, 1_000)
    lease.renew(harness.clock.boottime_ns() // 1_000_000)
    before_pos = harness.broker.wrote_pos
    harness.clock.advance_ms(1_000)
    refused = ask(harness, request_, version)
    assert (refused.end_pos, refused.late) == (0, None)
    assert harness.broker.wrote_pos == before_pos
    assert error_codes(decode_response(response_class, version, refused.payload)) - {0}
    lease.renew(harness.clock.boottime_ns() // 1_000_000)
    answer = ask(harness, request_, version)
    assert error_codes(decode_response(response_class, version, answer.payload)) == {0}


def error_codes(value: Any) -> set[int]:
    """All error codes in a decoded response."""
    if isinstance(value, list):
        return set().union(*map(error_codes, value))
    found = {value.error_code} if hasattr(value, "error_code") else set()
    return found.union(
        *map(error_codes, getattr(value, "topics", [])),
        *map(error_codes, getattr(value, "partitions", [])),
    )
