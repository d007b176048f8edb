"""What tools ask of a cluster about replicas: elections, moves, and directories of the data."""

from collections.abc import Sequence
from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ask,
)

NEEDLESS = (ErrorCode.election_not_needed, "Leader election not needed for topic partition.")


@pytest.fixture
def broker() -> MemoryBroker:
    """Topic `t` with two partitions."""
    broker = MemoryBroker()
    broker.topics.create("t", 2, {})
    return broker


def elect(
    broker: MemoryBroker,
    version: int,
    asked: Sequence[tuple[str, list[int]]] | None,
    *,
    election: int = 0,
) -> Any:
    topic = ElectLeadersRequest.TopicPartitions
    topics = None
    if asked is not None:
        topics = [topic(topic=name, partitions=parts) for name, parts in asked]
    request = ElectLeadersRequest(election_type=election, topic_partitions=topics, timeout_ms=1)
    return ask(memory_node(broker), request, version, ElectLeadersResponse)


@pytest.mark.parametrize("version", range(3))
def test_no_partition_needs_another_leader(broker: MemoryBroker, version: int) -> None:
    answer = elect(broker, version, None)
    assert answer.replica_election_results == []
    if version >= 1:
        assert answer.error_code == 0
    asked = [("t", [0, 1, 0, 2]), ("none", [0]), ("__consumer_offsets", [0])]
    found = {
        (topic.topic, part.partition_id): (part.error_code, part.error_message)
        for topic in elect(broker, version, asked).replica_election_results
        for part in topic.partition_result
    }
    assert found == {
        ("t", 0): NEEDLESS,
        ("t", 1): NEEDLESS,
        ("t", 2): (ErrorCode.unknown_topic_or_partition, "No such partition as t-2"),
        ("none", 0): (ErrorCode.unknown_topic_or_partition, "No such topic as none"),
        ("__consumer_offsets", 0): NEEDLESS,
    }


def test_a_name_of_any_length_is_answered(broker: MemoryBroker) -> None:
    (topic,) = elect(broker, 2, [("x" * 32_767, [0])]).replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.unknown_topic_or_partition


def test_an_unknown_kind_of_election_is_refused(broker: MemoryBroker) -> None:
    for election, code in ((1, NEEDLESS[0]), (2, ErrorCode.invalid_request)):
        (topic,) = elect(broker, 2, [("t", [0])], election=election).replica_election_results
        assert [part.error_code for part in topic.partition_result] == [code]


def test_no_partition_moves(broker: MemoryBroker) -> None:
    topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    for topics in (None, [topic(name="t", partition_indexes=[0, 7])]):
        request = ListPartitionReassignmentsRequest(timeout_ms=1, topics=topics)
        answer = ask(memory_node(broker), request, 0, ListPartitionReassignmentsResponse)
        assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])


@pytest.mark.parametrize("version", [1, 2])
def test_partitions_move_only_to_where_they_are(broker: MemoryBroker, version: int) -> None:
    def directory(path: str, *topics: tuple[str, list[int]]) -> Any:
        kind = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        named = kind.AlterReplicaLogDirTopic
        return kind(
            path=path, topics=[named(name=name, partitions=parts) for name, parts in topics]
        )

    here = str(broker.config.data_dir)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            directory(here, ("t", [0, 5]), ("none", [0]), ("__consumer_offsets", [0])),
            directory("/elsewhere", ("t", [1])),
        ]
    )
    answer = ask(memory_node(broker), request, version, AlterReplicaLogDirsResponse)
    found = {
        (topic.topic_name, part.partition_index): part.error_code
        for topic in answer.results
        for part in topic.partitions
    }
    assert found == {
        ("t", 0): 0,
        ("t", 1): ErrorCode.log_dir_not_found,
        ("t", 5): ErrorCode.unknown_topic_or_partition,
        ("none", 0): ErrorCode.unknown_topic_or_partition,
        ("__consumer_offsets", 0): 0,
    }
