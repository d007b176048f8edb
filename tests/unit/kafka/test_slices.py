"""Answers that grow with the state are produced in slices: how many, how large, and what may change
between them."""

from typing import Any

import pytest

from _core.paths.answer import Reply
from appliance.errors import RemoteProtocolError
from appliance.units import KIB
from compat.kafka import dispatch
from compat.kafka.groups.member import JoinRequest, SyncRequest
from compat.kafka.groups.offset_rules import OFFSETS_AT_ONCE
from compat.kafka.node import Node
from compat.kafka.protocol import messages, slices
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.slices import (
    FIRST_SLICE_WORK,
    SLICE_WORK,
    SlicedAnswer,
)
from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, MemoryProducer, memory_node
from tests.support.harness.turns import Turns
from tests.support.oracles.kafka_oracle import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ask,
    decode_response,
    encode_request,
    messages_of,
)
from tests.support.values import group_requests as gr

DescribeProducersRequest, DescribeProducersResponse = messages_of("admin", "DescribeProducers")
DescribeLogDirsRequest, DescribeLogDirsResponse = messages_of("admin", "DescribeLogDirs")
DescribeConfigsRequest, DescribeConfigsResponse = messages_of("admin", "DescribeConfigs")

LIMITS = {
    "segment_size_bytes": 1 << 26,
    "topic_count_max": 100_000,
    "partition_total_max": 1_000_000,
    "partition_count_max_per_topic": 10_000,
    "group_count_max": 10_000,
    "group_member_count_max": 10_000,
    "group_size_max_bytes": 1 << 24,
    "group_total_size_max_bytes": 1 << 26,
}

ITEM_MAX_BYTES = 32 * KIB
"""More than any item of these tests."""


class Asked:
    """A request whose later slices are done when the test says so."""

    def __init__(
        self,
        node: Node,
        request: Any,
        version: int,
        response_class: Any,
        *,
        more_held_bytes: int = 0,
    ) -> None:
        """Ask; `more_held_bytes` is what the work holds besides the answer."""
        assert isinstance(node.later, Turns)
        self.turns = node.later
        self.turns.is_held = True
        self._class, self._version = response_class, version
        self._pieces: list[bytes] | None = None
        frame = encode_request(request, version)
        # A short request is decoded at once.
        is_short = len(frame) <= dispatch.DECODED_AT_ONCE_MAX_BYTES
        self._more_held_bytes = more_held_bytes + (100 * len(frame) if is_short else 0)
        answer = dispatch.answer(node, frame)
        assert isinstance(answer, SlicedAnswer), "it was answered at once"
        self.answer = answer
        answer.when_complete(self._note)

    def _note(self, reply: Reply) -> None:
        self._pieces = reply.pieces

    def finish(self) -> Any:
        """Do the rest; check that each slice did a slice's work, and return the answer."""
        held_bytes = self.answer.held_bytes
        assert held_bytes <= self._more_held_bytes + FIRST_SLICE_WORK + ITEM_MAX_BYTES
        while self.turns.do_one():
            if self._pieces is None:
                assert self.answer.held_bytes - held_bytes <= SLICE_WORK + ITEM_MAX_BYTES
                held_bytes = self.answer.held_bytes
        assert self._pieces is not None
        assert max(map(len, self._pieces)) <= SLICE_WORK + ITEM_MAX_BYTES
        return decode_response(self._class, self._version, b"".join(self._pieces))


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(small_config(**LIMITS))


@pytest.fixture
def node(broker: MemoryBroker) -> Node:
    return memory_node(broker)


def create(broker: MemoryBroker, count: int, partition_count: int = 1) -> list[str]:
    names = [f"topic-{number:05}" for number in range(count)]
    for name in names:
        broker.topics.create(name, partition_count, {})
    return names


def join_many(node: Node, group: str, count: int, metadata: bytes = b"m") -> list[str]:
    """Let members join a group, and begin its generation."""
    answers: list[Any] = []
    for number in range(count):
        request = JoinRequest(
            group_id=group,
            member_id="",
            instance_id=f"instance-{number}",
            client_id="c",
            client_host="h",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols={"range": metadata},
            is_member_id_required=False,
            can_skip_assignment=False,
        )
        deferred: DeferredResponse[Any] = DeferredResponse()
        deferred.when_complete(answers.append)
        node.groups.join(request, deferred, node.now_ms())
    assert isinstance(node.broker, MemoryBroker)
    while len(answers) < count:
        node.broker.clock.advance_ms(100)
        node.groups.expire(node.now_ms())
    return [answer.member_id for answer in answers]


def metadata_all() -> Any:
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)


# How many slices, and how large


def test_metadata_of_many_topics(broker: MemoryBroker, node: Node) -> None:
    names = create(broker, 3_000)
    asked = Asked(node, metadata_all(), 9, MetadataResponse)
    answer = asked.finish()
    assert [topic.name for topic in answer.topics[:-1]] == names
    # A kibibyte for each topic and its bytes: 240 in a slice.
    assert 12 <= asked.answer.slice_count <= 15


def test_metadata_of_many_partitions(broker: MemoryBroker, node: Node) -> None:
    broker.topics.create("wide", 9_500, {})
    asked = Asked(node, metadata_all(), 9, MetadataResponse)
    topic = asked.finish().topics[0]
    assert [part.partition_index for part in topic.partitions] == list(range(9_500))
    assert asked.answer.slice_count >= 2


def test_producers(broker: MemoryBroker, node: Node) -> None:
    partition = broker.topics.create("t", 1, {}).partitions[0]
    for number in range(30_000):
        partition.producers[number] = MemoryProducer(1, number, 7)
    kind = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(topics=[kind(name="t", partition_indexes=[0, 0, 0])])
    asked = Asked(node, request, 0, DescribeProducersResponse, more_held_bytes=30_000 * 8)
    (part,) = asked.finish().topics[0].partitions
    assert [each.producer_id for each in part.active_producers] == list(range(30_000))
    assert part.active_producers[-1].last_sequence == 29_999
    assert asked.answer.slice_count >= 5


def test_groups(node: Node) -> None:
    for number in range(2_000):
        node.groups.check_commit(f"group-{number:04}", "", None, -1, 0)
    asked = Asked(node, gr.ListGroupsRequest(states_filter=[]), 4, gr.ListGroupsResponse)
    found = [group.group_id for group in asked.finish().groups]
    assert found == [f"group-{number:04}" for number in range(2_000)]
    assert asked.answer.slice_count >= 8
    asked.turns.is_held = False
    none = gr.ListGroupsRequest(states_filter=["Stable"])
    assert ask(node, none, 4, gr.ListGroupsResponse).groups == []


def test_members_and_what_the_leader_learns_of_them(node: Node) -> None:
    """JoinGroup answers later than it was asked; its answer is produced in slices as well."""
    metadata = bytes(10 * KIB)
    member_ids = join_many(node, "g", 300, metadata)
    request = gr.DescribeGroupsRequest(groups=["g", "g", "g"])
    asked = Asked(node, request, 5, gr.DescribeGroupsResponse)
    (group,) = asked.finish().groups
    assert sorted(member.member_id for member in group.members) == sorted(member_ids)
    rejoin = gr.join_request(
        "g", member_ids[0], instance_id="instance-0", protocols={"range": metadata}
    )
    joined = Asked(node, rejoin, 5, gr.JoinGroupResponse)
    assert len(joined.finish().members) == 300
    assert joined.answer.slice_count >= 10


def test_settings(broker: MemoryBroker, node: Node) -> None:
    names = create(broker, 200)
    kind = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        kind(resource_type=2, resource_name=name, configuration_keys=None) for name in names
    ]
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    asked = Asked(node, request, 4, DescribeConfigsResponse)
    assert [each.resource_name for each in asked.finish().results] == names
    assert asked.answer.slice_count >= 8


def test_directories(broker: MemoryBroker, node: Node) -> None:
    create(broker, 40, 500)
    asked = Asked(node, DescribeLogDirsRequest(topics=None), 2, DescribeLogDirsResponse)
    (directory,) = asked.finish().results
    assert sum(len(topic.partitions) for topic in directory.topics) == 20_000
    assert asked.answer.slice_count >= 2


def test_topics_are_created_and_deleted_a_slice_at_a_time(broker: MemoryBroker, node: Node) -> None:
    kind = CreateTopicsRequest.CreatableTopic
    names = [f"n-{number}" for number in range(300)]
    topics = [
        kind(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=1, validate_only=False)
    asked = Asked(node, request, 5, CreateTopicsResponse)
    count = len(broker.topics.all())
    while asked.turns.do_one():
        assert len(broker.topics.all()) - count <= 10
        count = len(broker.topics.all())
    assert sorted(topic.name for topic in broker.topics.all()) == sorted(names)
    deleted = Asked(
        node, DeleteTopicsRequest(topic_names=names * 2, timeout_ms=1), 4, DeleteTopicsResponse
    )
    responses = deleted.finish().responses
    assert {each.error_code for each in responses} == {ErrorCode.invalid_request}
    assert len(responses) == 300  # answered once, and kept


def test_partitions_that_are_made_cost_work(node: Node) -> None:
    """60 times 49 more, 256 each, are two slices more."""

    def count_slices(prefix: str, partition_count: int) -> int:
        names = [f"{prefix}-{number}" for number in range(60)]
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partition_count,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            for name in names
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=1, validate_only=False)
        asked = Asked(node, request, 5, CreateTopicsResponse)
        assert len(asked.finish().topics) == 60
        return asked.answer.slice_count

    assert count_slices("wide", 50) >= count_slices("narrow", 1) + 2


def commit_many(names: list[str], partition_count: int, **member: Any) -> Any:
    """An OffsetCommit of group `g` for every partition of the topics, each of them named twice."""
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    partitions = [
        kind.OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=index,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for index in [*range(partition_count)] * 2
    ]
    given = {"generation_id_or_member_epoch": -1, "member_id": ""} | member
    topics = [kind(name=name, partitions=partitions) for name in names]
    return OffsetCommitRequest(group_id="g", group_instance_id=None, topics=topics, **given)


def test_offsets_are_committed_and_listed_in_slices(broker: MemoryBroker, node: Node) -> None:
    names = create(broker, 4, 500)
    commit = Asked(node, commit_many(names, 500), 8, OffsetCommitResponse)
    counts = [0]
    while commit.turns.do_one():
        counts.append(len(broker.groups.offsets("g")))
        assert counts[-1] - counts[-2] <= OFFSETS_AT_ONCE
    assert counts[-1] == 2_000
    broker.topics.create("another", 3, {})
    fetch = Asked(node, OffsetFetchRequest(group_id="g", topics=None), 6, OffsetFetchResponse)
    answer = fetch.finish()
    assert [topic.name for topic in answer.topics] == names
    assert [part.committed_offset for part in answer.topics[-1].partitions] == list(range(500))
    assert fetch.answer.slice_count >= 8


def test_a_rebalance_ends_what_a_member_commits(broker: MemoryBroker, node: Node) -> None:
    """Each step of a long commit is one of a generation."""
    names = create(broker, 4, 500)
    leader, other = join_many(node, "g", 2)
    group = node.groups.find("g")
    assert group is not None
    assignments = {leader: b"a", other: b"b"}
    deferred: DeferredResponse[Any] = DeferredResponse()
    request = SyncRequest(
        group_id="g", member_id=leader, generation=group.generation, assignments=assignments
    )
    node.groups.sync(request, deferred, node.now_ms())
    member = {"generation_id_or_member_epoch": group.generation, "member_id": leader}
    commit = Asked(node, commit_many(names, 500, **member), 8, OffsetCommitResponse)
    while not broker.groups.offsets("g"):
        assert commit.turns.do_one()
    committed = len(broker.groups.offsets("g"))
    node.groups.leave("g", [(leader, None)], node.now_ms())
    commit.turns.do_all()
    codes = [part.error_code for topic in commit.finish().topics for part in topic.partitions]
    refused = [int(ErrorCode.unknown_member_id)] * (2_000 - committed)
    assert codes == [0] * committed + refused
    assert len(broker.groups.offsets("g")) == committed == OFFSETS_AT_ONCE


def test_offsets_are_deleted_in_slices(broker: MemoryBroker, node: Node) -> None:
    names = create(broker, 4, 500)
    ask(node, commit_many(names, 500), 8, OffsetCommitResponse)
    kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
    indexes = [*range(500)] * 2
    partitions = [kind.OffsetDeleteRequestPartition(partition_index=each) for each in indexes]
    topics = [kind(name=name, partitions=partitions) for name in names]
    request = OffsetDeleteRequest(group_id="g", topics=topics)
    deleted = Asked(node, request, 0, OffsetDeleteResponse)
    counts = [2_000]
    while deleted.turns.do_one():
        counts.append(len(broker.groups.offsets("g")))
        assert counts[-2] - counts[-1] <= OFFSETS_AT_ONCE
    assert counts[-1] == 0
    assert [len(topic.partitions) for topic in deleted.finish().topics] == [500] * 4


def test_a_coordinator_that_is_asked_for_twice_is_answered_once(node: Node) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b", "a"])
    answer = ask(node, request, 4, FindCoordinatorResponse)
    assert [each.key for each in answer.coordinators] == ["a", "b"]


def test_small_answers_are_there_at_once(broker: MemoryBroker, node: Node) -> None:
    create(broker, 40, 10)
    assert isinstance(dispatch.answer(node, encode_request(metadata_all(), 9)), Reply)


def test_a_slice_ends_after_its_time_too(
    broker: MemoryBroker, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should items take longer than their price says."""
    create(broker, 200)
    monkeypatch.setattr(slices, "SLICE_NS", 0)
    asked = Asked(node, metadata_all(), 9, MetadataResponse)
    asked.finish()
    assert asked.answer.slice_count >= 10


# What changes between two slices


def test_topics_that_are_deleted_meanwhile_are_left_out(broker: MemoryBroker, node: Node) -> None:
    names = create(broker, 1_000)
    for make in (
        lambda: Asked(node, metadata_all(), 9, MetadataResponse),
        lambda: Asked(node, DescribeLogDirsRequest(topics=None), 2, DescribeLogDirsResponse),
    ):
        asked = make()
        assert asked.turns.do_one()
        broker.topics.delete(names.pop())
        answer = asked.finish()
        found = answer.results[0].topics if hasattr(answer, "results") else answer.topics[:-1]
        assert [topic.name for topic in found] == names


def test_a_group_that_is_deleted_meanwhile(node: Node) -> None:
    groups = [f"group-{number:04}" for number in range(1_000)]
    for group in groups:
        node.groups.check_commit(group, "", None, -1, 0)
    listed = Asked(node, gr.ListGroupsRequest(), 2, gr.ListGroupsResponse)
    described = Asked(node, gr.DescribeGroupsRequest(groups=groups), 6, gr.DescribeGroupsResponse)
    assert node.groups.delete(groups[-1]) == ErrorCode.none
    assert listed.turns.do_one()
    answer = described.finish()
    assert answer.groups[-1].error_code == ErrorCode.group_id_not_found
    assert answer.groups[-2].error_code == ErrorCode.none
    listed.turns.do_all()
    assert len(listed.finish().groups) == 999


def test_members_are_those_of_one_generation(node: Node) -> None:
    """A rebalance between two slices of a group does not mix two generations."""
    member_ids = join_many(node, "g", 200, bytes(KIB))
    leader = node.groups.find("g")
    assert leader is not None
    asked = Asked(node, gr.DescribeGroupsRequest(groups=["g"]), 5, gr.DescribeGroupsResponse)
    leaving = [(member_id, None) for member_id in member_ids[:100]]
    node.groups.leave("g", leaving, node.now_ms())
    (group,) = asked.finish().groups
    assert {member.member_id for member in group.members} == set(member_ids)


def test_producers_that_are_forgotten_meanwhile_are_left_out(
    broker: MemoryBroker, node: Node
) -> None:
    producers = broker.topics.create("t", 1, {}).partitions[0].producers
    for number in range(10_000):
        producers[number] = MemoryProducer(1, number, 7)
    kind = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(topics=[kind(name="t", partition_indexes=[0])])
    asked = Asked(node, request, 0, DescribeProducersResponse, more_held_bytes=10_000 * 8)
    for number in range(9_990, 10_000):
        del producers[number]
    producers[10_000] = MemoryProducer(1, 1, 7)
    (part,) = asked.finish().topics[0].partitions
    assert [each.producer_id for each in part.active_producers] == list(range(9_990))


# Connections


def wide_client() -> WireClient:
    """A client of a broker with so many partitions that their Metadata takes several slices."""
    harness = with_topic(64, config=small_config())
    for number in range(300):
        harness.broker.topics.create(f"topic-{number}", 1, {})
    harness.flush()
    harness.turns.is_held = True
    return WireClient(harness)


def test_answers_keep_their_order() -> None:
    client = wide_client()
    small = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    requests = (small, metadata_all(), small, metadata_all(), small)
    data = (framed(each, 9, number) for number, each in enumerate(requests))
    client.send_bytes(b"".join(data))
    found: list[int] = []
    while len(found) < 5:
        found += [int.from_bytes(each[:4], "big") for each in split_answers(client.take())]
        assert len(found) in {1, 3, 5}, "what follows a long answer is not handled before it"
        client.harness.turns.do_all()
        if client.session.paused:
            client.resume()
    assert found == [0, 1, 2, 3, 4]


def test_a_change_in_a_later_slice_is_waited_for() -> None:
    """The answer leaves when the last change is durable."""
    client = wide_client()
    names = [f"topic-{number}" for number in range(300)]
    client.send(DeleteTopicsRequest(topic_names=names, timeout_ms=1), 4)
    while client.harness.turns.do_one():
        client.harness.broker.commit()
        assert client.take() == b""
    assert client.take() == b""
    client.harness.flush()
    (answer,) = client.answers(DeleteTopicsResponse, 4)
    assert {each.error_code for each in answer.responses} == {0}
    assert len(client.harness.broker.topics.all()) == 1


def test_an_abandoned_answer_holds_nothing(broker: MemoryBroker, node: Node) -> None:
    create(broker, 3_000)
    asked = Asked(node, metadata_all(), 9, MetadataResponse)
    assert asked.turns.do_one()
    assert asked.answer.held_bytes > SLICE_WORK / 16
    asked.answer.abandon()
    assert asked.answer.held_bytes == 0
    slice_count = asked.answer.slice_count
    asked.turns.do_all()
    assert asked.answer.slice_count == slice_count
    assert not asked.answer.is_complete


# Requests


def test_a_long_request_is_decoded_in_slices(node: Node) -> None:
    names = [f"topic-{number:06}" for number in range(20_000)]
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=1)
    node.later.is_held = True  # type: ignore[attr-defined]
    answer = dispatch.answer(node, encode_request(request, 4))
    assert isinstance(answer, SlicedAnswer)
    # Its fields are charged while they are decoded.
    held = [answer.held_bytes]
    while answer.slice_count < 6:
        answer.step()
        held.append(answer.held_bytes)
    counts = (1_000, 5_000, 9_000, 13_000, 17_000, 20_000)
    wanted = [20_000 * 13 + count * messages.VALUE_HELD_BYTES for count in counts]
    assert held == [pytest.approx(each, rel=0.05) for each in wanted]


def test_a_long_request_may_change_once_it_was_handed_over(node: Node) -> None:
    """It is a view of the connection's buffer, which takes the next request."""
    names = [f"topic-{number:06}" for number in range(20_000)]
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=1)
    frame = bytearray(encode_request(request, 4))
    node.later.is_held = True  # type: ignore[attr-defined]
    answer = dispatch.answer(node, memoryview(frame))
    assert isinstance(answer, SlicedAnswer)
    frame[:] = bytes(len(frame))
    replies: list[Reply] = []
    answer.when_complete(replies.append)
    while not replies:
        answer.step()
    found = decode_response(DeleteTopicsResponse, 4, replies[0].payload)
    assert [each.name for each in found.responses] == names


def test_a_request_that_is_too_large_is_refused(node: Node) -> None:
    """Millions of names would take many times their size once they are decoded."""
    frame = encode_request(DeleteTopicsRequest(topic_names=["n"], timeout_ms=1), 4)
    padded = frame + bytes(dispatch.REQUEST_MAX_BYTES)
    with pytest.raises(RemoteProtocolError) as caught:
        dispatch.answer(node, padded)
    assert "DeleteTopics of 4194" in caught.value.message
    assert "at most 4194304 are allowed; name fewer items" in caught.value.message


def test_a_request_of_a_group_may_have_the_size_of_a_group(broker: MemoryBroker) -> None:
    node = memory_node(broker)
    request = gr.join_request("g", protocols={"range": bytes(5 << 20)})
    answer = ask(node, request, 4, gr.JoinGroupResponse)
    assert answer.error_code == ErrorCode.member_id_required
    frame = encode_request(gr.join_request("g", protocols={"range": bytes(1 << 24)}), 3)
    with pytest.raises(RemoteProtocolError, match=r"raise groups\.size_max_bytes"):
        dispatch.answer(node, frame)


def test_a_request_that_turns_out_malformed_fails_alone(node: Node) -> None:
    names = [f"topic-{number:06}" for number in range(20_000)]
    frame = encode_request(DeleteTopicsRequest(topic_names=names, timeout_ms=1), 4)
    node.later.is_held = True  # type: ignore[attr-defined]
    answer = dispatch.answer(node, frame[:-20])
    assert isinstance(answer, SlicedAnswer)
    errors: list[Exception] = []
    answer.when_failed(errors.append)
    for _ in range(20):
        answer.step()
    (error,) = errors
    assert isinstance(error, RemoteProtocolError)
