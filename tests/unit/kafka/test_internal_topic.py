"""`__consumer_offsets`: listed as an internal topic, read and changed by nobody."""

from typing import Any

import pytest

from compat.kafka.configs.internal_topic import internal_topic_id
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ask,
)
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request

NAME = "__consumer_offsets"
ID = internal_topic_id(MemoryBroker.cluster_id)
TOPIC = 2


@pytest.fixture
def broker() -> MemoryBroker:
    """One topic, `t`."""
    broker = MemoryBroker(epoch=5)
    broker.topics.create("t", 1, {})
    broker.change_count = 0
    return broker


def metadata(broker: MemoryBroker, version: int, **asked: Any) -> Any:
    topic = MetadataRequest.MetadataRequestTopic
    topics = [topic(**({"name": None} | asked))] if asked else None
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
    return ask(memory_node(broker), request, version, MetadataResponse).topics


@pytest.mark.parametrize("version", range(1, 13))
def test_it_is_listed_as_internal_with_one_partition(broker: MemoryBroker, version: int) -> None:
    ordinary, internal = metadata(broker, version)
    (named,) = metadata(broker, version, name=NAME)
    assert not ordinary.is_internal
    for shown in (internal, named):
        assert (shown.name, shown.error_code, shown.is_internal) == (NAME, 0, True)
        (partition,) = shown.partitions
        assert (partition.partition_index, partition.leader_id) == (0, 1)
    if version >= 10:
        assert internal.topic_id == named.topic_id == ID
    assert broker.change_count == 0
    assert [topic.name for topic in broker.topics.all()] == ["t"]


def test_it_is_found_by_its_id_which_differs_from_cluster_to_cluster(broker: MemoryBroker) -> None:
    (internal,) = metadata(broker, 12, topic_id=ID)
    assert (internal.name, internal.error_code) == (NAME, 0)
    assert internal_topic_id("another") != ID


def test_nobody_creates_it(broker: MemoryBroker) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=NAME, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1, validate_only=False)
    (answer,) = ask(memory_node(broker), request, 7, CreateTopicsResponse).topics
    assert answer.error_code == ErrorCode.topic_already_exists
    assert answer.error_message == f"Topic '{NAME}' already exists."
    assert broker.change_count == 0


@pytest.mark.parametrize("by_id", [False, True])
def test_nobody_deletes_it(broker: MemoryBroker, by_id: bool) -> None:
    state = DeleteTopicsRequest.DeleteTopicState
    topic = state(name=None, topic_id=ID) if by_id else state(name=NAME, topic_id=None)
    request = DeleteTopicsRequest(topics=[topic], timeout_ms=1)
    (answer,) = ask(memory_node(broker), request, 6, DeleteTopicsResponse).responses
    assert answer.error_code == ErrorCode.invalid_topic_exception
    assert "internal and cannot be deleted" in answer.error_message


def test_nobody_changes_its_settings_partitions_and_records(broker: MemoryBroker) -> None:
    node = memory_node(broker)
    resource = AlterConfigsRequest.AlterConfigsResource
    asked = resource(
        resource_type=TOPIC,
        resource_name=NAME,
        configs=[resource.AlterableConfig(name="retention.ms", value="1")],
    )
    alter = AlterConfigsRequest(resources=[asked], validate_only=False)
    (answer,) = ask(node, alter, 2, AlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.invalid_topic_exception
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=NAME, count=9, assignments=None)
    grow = CreatePartitionsRequest(topics=[topic], timeout_ms=1, validate_only=False)
    (answer,) = ask(node, grow, 3, CreatePartitionsResponse).results
    assert answer.error_code == ErrorCode.invalid_topic_exception
    emptied = DeleteRecordsRequest.DeleteRecordsTopic
    delete = DeleteRecordsRequest(
        topics=[
            emptied(
                name=NAME,
                partitions=[emptied.DeleteRecordsPartition(partition_index=0, offset=-1)],
            )
        ],
        timeout_ms=1,
    )
    ((part,),) = (topic.partitions for topic in ask(node, delete, 2, DeleteRecordsResponse).topics)
    assert part.error_code == ErrorCode.invalid_topic_exception
    assert broker.change_count == 0


def test_its_settings_are_the_defaults(broker: MemoryBroker) -> None:
    """kafka-topics asks for the settings of every topic that is listed."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[
            resource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
            for name in ("t", NAME)
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    ordinary, internal = ask(memory_node(broker), request, 4, DescribeConfigsResponse).results
    assert internal.error_code == 0
    assert [config.value for config in internal.configs] == [
        config.value for config in ordinary.configs
    ]


@pytest.mark.parametrize(("timestamp", "offset"), [(-1, 0), (-2, 0), (-3, -1), (-4, 0), (5, -1)])
def test_it_looks_empty(broker: MemoryBroker, timestamp: int, offset: int) -> None:
    node = memory_node(broker)
    asked = ListOffsetsRequest.ListOffsetsTopic
    parts = [
        asked.ListOffsetsPartition(
            partition_index=index, current_leader_epoch=-1, timestamp=timestamp
        )
        for index in (0, 1)
    ]
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[asked(name=NAME, partitions=parts)]
    )
    ((part, beyond),) = (
        each.partitions for each in ask(node, request, 8, ListOffsetsResponse).topics
    )
    assert (part.error_code, part.offset, part.timestamp) == (0, offset, -1)
    assert beyond.error_code == ErrorCode.unknown_topic_or_partition


def test_it_has_no_producers(broker: MemoryBroker) -> None:
    topic = DescribeProducersRequest.TopicRequest(name=NAME, partition_indexes=[0])
    request = DescribeProducersRequest(topics=[topic])
    ((part,),) = (
        each.partitions
        for each in ask(memory_node(broker), request, 0, DescribeProducersResponse).topics
    )
    assert (part.error_code, part.active_producers) == (0, [])


def test_nobody_commits_offsets_of_it_or_asks_for_its_epochs(broker: MemoryBroker) -> None:
    node = memory_node(broker)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    commit = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic(name=NAME, partitions=[part])],
    )
    ((answer,),) = (each.partitions for each in ask(node, commit, 8, OffsetCommitResponse).topics)
    assert answer.error_code == ErrorCode.topic_authorization_failed
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    wanted = asked.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=5)
    epochs = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[asked(topic=NAME, partitions=[wanted])]
    )
    ((answer,),) = (
        each.partitions for each in ask(node, epochs, 4, OffsetForLeaderEpochResponse).topics
    )
    assert answer.error_code == ErrorCode.topic_authorization_failed


@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_nobody_writes_it(version: int) -> None:
    client = WireClient(with_topic(1))
    end_pos = client.harness.broker.wrote_pos
    answer = client.produce(NAME, 0, make_batch([Raw(b"a")]), version=version)
    assert answer.error_code == ErrorCode.invalid_topic_exception
    if version >= 8:
        assert answer.error_message == f"Cannot append to internal topic {NAME}"
    assert client.harness.broker.wrote_pos == end_pos


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
def test_nobody_reads_it(version: int) -> None:
    client = WireClient(with_topic(1))
    request = fetch_request([(NAME, [fetch_part(0, 0)]), ("t", [fetch_part(0, 0)])])
    request.topics[0].topic_id = internal_topic_id(client.harness.broker.cluster_id)
    answer = client.ask(request, version, FetchResponse)
    (internal,), (ordinary,) = (topic.partitions for topic in answer.responses)
    assert internal.error_code == ErrorCode.topic_authorization_failed
    assert ordinary.error_code == 0
