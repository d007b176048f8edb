"""Metadata: one broker, its topics, and the topics that come to be by being asked for."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from appliance.errors import PolicyError, RemoteProtocolError
from appliance.topics import NAMED_BURST, NAMED_PER_S
from compat.kafka import dispatch
from compat.kafka.node import Client, Node
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    MetadataRequest,
    MetadataResponse,
    ask,
    encode_request,
)

VERSIONS = range(13)
BY_ID = 12


def ask_metadata(
    broker: MemoryBroker,
    version: int,
    names: list[str] | None,
    *,
    ids: tuple[UUID, ...] = (),
    may_create: bool = True,
) -> Any:
    topic = MetadataRequest.MetadataRequestTopic
    topics = None
    if names is not None:
        topics = [topic(name=name) for name in names] + [
            topic(topic_id=topic_id, name=None) for topic_id in ids
        ]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=may_create)
    return ask(memory_node(broker), request, version, MetadataResponse)


def broker_with(*names: str, epoch: int = 0) -> MemoryBroker:
    broker = MemoryBroker(epoch=epoch)
    for name in names:
        broker.topics.create(name, 2, {})
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_describes_the_broker_and_every_partition(version: int) -> None:
    response = ask_metadata(broker_with("t", epoch=6), version, ["t"])
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", 9092)
    assert node.rack is None
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id == "memory-cluster"
    (topic,) = response.topics
    assert (topic.name, topic.error_code) == ("t", 0)
    assert not topic.is_internal
    if version >= 8:
        assert topic.authorized_operations is None
    if version >= 10:
        assert topic.topic_id == UUID(int=1)
    assert [partition.partition_index for partition in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert partition.error_code == 0
        assert partition.leader_id == 1
        assert (partition.replica_nodes, partition.isr_nodes) == ([1], [1])
        assert partition.offline_replicas == []
        if version >= 7:
            assert partition.leader_epoch == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_no_list_means_all_topics(version: int) -> None:
    """In v0, which cannot say null, kafka-python sends the empty list that means the same there."""
    response = ask_metadata(broker_with("a", "b"), version, None)
    assert [topic.name for topic in response.topics] == ["a", "b", "__consumer_offsets"]


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_an_empty_list_means_the_brokers_only(version: int) -> None:
    response = ask_metadata(broker_with("a", "b"), version, [])
    assert response.topics == []
    assert len(response.brokers) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_is_asked_for_is_made_once(version: int) -> None:
    broker = MemoryBroker()
    response = ask_metadata(broker, version, ["new", "new"])
    (topic,) = response.topics
    assert (topic.name, topic.error_code, len(topic.partitions)) == ("new", 0, 4)
    assert broker.change_count == 1
    ask_metadata(broker, version, ["new"])
    assert broker.change_count == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_may_forbid_to_make_topics_from_v4_on(version: int) -> None:
    broker = MemoryBroker()
    (topic,) = ask_metadata(broker, version, ["new"], may_create=False).topics
    expected = ErrorCode.unknown_topic_or_partition if version >= 4 else ErrorCode.none
    assert topic.error_code == expected
    assert broker.change_count == (0 if version >= 4 else 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_may_forbid_to_make_topics(version: int) -> None:
    broker = MemoryBroker(small_config(auto_create_topics=False))
    (topic,) = ask_metadata(broker, version, ["new"]).topics
    assert (topic.name, topic.error_code) == ("new", ErrorCode.unknown_topic_or_partition)
    assert topic.partitions == []
    assert broker.change_count == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250, "__transaction_state"])
@pytest.mark.parametrize("may_create", [False, True])
def test_a_name_that_no_topic_may_have_is_called_invalid(name: str, may_create: bool) -> None:
    broker = MemoryBroker()
    (topic,) = ask_metadata(broker, 12, [name], may_create=may_create).topics
    assert (topic.name, topic.error_code) == (name, ErrorCode.invalid_topic_exception)
    assert broker.change_count == 0


def test_the_brokers_own_topic_is_shown_as_internal() -> None:
    broker = broker_with("SCHEDULE_TOPIC_XXXX", "mine")
    internal, ordinary, _ = ask_metadata(broker, 12, None).topics
    assert internal.is_internal
    assert not ordinary.is_internal


def test_a_broker_that_is_full_says_so_and_answers_the_other_topics() -> None:
    broker = MemoryBroker(small_config(topic_count_max=1, default_partition_count=1))
    first, second = ask_metadata(broker, 9, ["a", "b"]).topics
    assert (first.error_code, second.error_code) == (0, ErrorCode.policy_violation)


def test_topics_are_found_by_id() -> None:
    broker = broker_with("a", "b")
    response = ask_metadata(broker, BY_ID, [], ids=(UUID(int=2), UUID(int=7)), may_create=True)
    found, missing = response.topics
    assert (found.name, found.topic_id, found.error_code) == ("b", UUID(int=2), 0)
    assert (missing.topic_id, missing.error_code) == (UUID(int=7), ErrorCode.unknown_topic_id)
    assert missing.name is None
    assert broker.change_count == 2


@pytest.mark.parametrize("version", [10, 11, 12])
def test_neither_name_nor_id_is_no_request(version: int) -> None:
    topic = MetadataRequest.MetadataRequestTopic(name=None)
    frame = encode_request(MetadataRequest(topics=[topic]), version)
    with pytest.raises(RemoteProtocolError):
        dispatch.answer(memory_node(MemoryBroker()), frame)


def test_a_new_epoch_is_answered_at_once() -> None:
    """What is kept encoded between requests must not outlive the epoch it was made in."""
    broker = broker_with("t")
    before = ask_metadata(broker, 12, ["t"])
    broker.epoch = 1
    after = ask_metadata(broker, 12, ["t"])
    epochs = [answer.topics[0].partitions[1].leader_epoch for answer in (before, after)]
    assert epochs == [0, 1]


# Topics of clients that name many


def errors_of(node: Node, names: list[str]) -> list[int]:
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=[topic(name=name) for name in names], allow_auto_topic_creation=True
    )
    return [each.error_code for each in ask(node, request, 4, MetadataResponse).topics]


def test_an_address_creates_only_so_many_topics_at_once() -> None:
    broker = MemoryBroker(small_config(default_partition_count=1))
    node = memory_node(broker)
    names = [f"t{number}" for number in range(NAMED_BURST + 20)]
    wait = ErrorCode.leader_not_available
    assert errors_of(node, names) == [0] * NAMED_BURST + [wait] * 20
    assert len(broker.topics.all()) == NAMED_BURST
    other = replace(node, client=Client(host="10.0.0.2"))
    assert errors_of(other, ["other"]) == [0]
    broker.clock.advance_ms(2_000)
    found = errors_of(node, names)
    assert found == [0] * (NAMED_BURST + 2 * NAMED_PER_S) + [wait] * (20 - 2 * NAMED_PER_S)
    broker.clock.advance_ms(60_000)
    assert errors_of(node, names) == [0] * len(names)


def test_some_topics_are_left_for_those_who_create_them_on_purpose() -> None:
    topics = BrokerHarness(config=small_config(topic_count_max=8)).broker.topics
    for number in range(6):
        topics.create_named(f"t{number}", 1)
    with pytest.raises(PolicyError, match="topic_count_max = 8 is left, for topics"):
        topics.create_named("more", 1)
    for name in ("one", "two"):
        topics.create(name, 1, {})
    with pytest.raises(PolicyError, match="topic_count_max is reached"):
        topics.create("three", 1, {})


def test_some_partitions_are_left_for_those_who_create_them_on_purpose() -> None:
    config = small_config(partition_total_max=20, partition_count_max_per_topic=20)
    topics = BrokerHarness(config=config).broker.topics
    topics.create_named("t", 15)
    with pytest.raises(PolicyError, match="partition_total_max = 20 is left, for partitions"):
        topics.create_named("u", 1)
    topics.create("u", 5, {})
