"""CreatePartitions: a topic gets more partitions, which can be used at once and after any stop."""

from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    ask,
)
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.topic_requests import (
    EARLIEST,
    create_partitions,
    list_offset,
    settings_of,
)

VERSIONS = range(4)
Topic = CreatePartitionsRequest.CreatePartitionsTopic


def grow(
    broker: MemoryBroker, *topics: Topic, version: int = 3, validate_only: bool = False
) -> list[Any]:
    request = CreatePartitionsRequest(
        topics=list(topics), timeout_ms=1, validate_only=validate_only
    )
    results: list[Any] = ask(
        memory_node(broker), request, version, CreatePartitionsResponse
    ).results
    return results


def topic(name: str, count: int, assigned: list[list[int]] | None = None) -> Topic:
    assignments = None
    if assigned is not None:
        assignments = [Topic.CreatePartitionsAssignment(broker_ids=ids) for ids in assigned]
    return Topic(name=name, count=count, assignments=assignments)


def count_of(broker: MemoryBroker, name: str = "t") -> int:
    return len(broker.topic(name).partitions)


@pytest.fixture
def broker() -> MemoryBroker:
    """Topics `t` with 2 partitions and `u` with one."""
    broker = MemoryBroker()
    broker.topics.create("t", 2, {})
    broker.topics.create("u", 1, {})
    broker.change_count = 0
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_each_topic_grows_or_is_refused_by_itself(broker: MemoryBroker, version: int) -> None:
    good, bad = grow(broker, topic("t", 5), topic("u", 1), version=version)
    assert (good.name, good.error_code, good.error_message) == ("t", 0, None)
    assert (bad.name, bad.error_code) == ("u", ErrorCode.invalid_partitions)
    assert (count_of(broker), count_of(broker, "u")) == (5, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_assignment_may_name_this_broker_only(broker: MemoryBroker, version: int) -> None:
    (result,) = grow(broker, topic("t", 4, [[1], [1]]), version=version)
    assert result.error_code == 0
    assert count_of(broker) == 4


@pytest.mark.parametrize(
    ("asked", "error_code", "words"),
    [
        (topic("none", 3), ErrorCode.unknown_topic_or_partition, "There is no topic none"),
        (topic("a b", 3), ErrorCode.invalid_topic_exception, "'a b'"),
        (topic("t", 4, [[2], [1]]), ErrorCode.invalid_replica_assignment, "to [1] only"),
        (topic("t", 4, [[1, 1], [1]]), ErrorCode.invalid_replica_assignment, "to [1] only"),
        (topic("t", 4, [[], [1]]), ErrorCode.invalid_replica_assignment, "to [1] only"),
        (topic("t", 4, [[1]]), ErrorCode.invalid_replica_assignment, "assign the 2 that are added"),
        (topic("t", 4, []), ErrorCode.invalid_replica_assignment, "0 partitions are assigned"),
        (topic("t", 2, []), ErrorCode.invalid_partitions, ""),
        (topic("t", 2**31 - 1), ErrorCode.invalid_partitions, ""),
        (topic("t", -1), ErrorCode.invalid_partitions, ""),
    ],
)
def test_refusals(broker: MemoryBroker, asked: Topic, error_code: ErrorCode, words: str) -> None:
    for version in VERSIONS:
        for validate_only in (True, False):
            (result,) = grow(broker, asked, version=version, validate_only=validate_only)
            assert (result.name, result.error_code) == (asked.name, error_code)
            assert words in result.error_message
    assert broker.change_count == 0


def test_a_topic_that_is_named_twice_stays_as_it_is(broker: MemoryBroker) -> None:
    refused, good = grow(broker, topic("t", 3), topic("u", 2), topic("t", 3))
    assert (refused.error_code, refused.name) == (ErrorCode.invalid_request, "t")
    assert good.error_code == 0
    assert (count_of(broker), count_of(broker, "u")) == (2, 2)


def test_validate_only_makes_nothing(broker: MemoryBroker) -> None:
    (result,) = grow(broker, topic("t", 3), validate_only=True)
    assert result.error_code == 0
    assert broker.change_count == 0


def test_limits_are_the_brokers() -> None:
    harness = BrokerHarness(
        config=small_config(partition_count_max_per_topic=5, partition_total_max=8)
    )
    client = WireClient(harness)
    harness.create_topic("t", 3)
    harness.create_topic("u", 3)
    assert create_partitions(client, "t", 3) == ErrorCode.invalid_partitions
    assert create_partitions(client, "t", 2) == ErrorCode.invalid_partitions
    assert create_partitions(client, "t", 6) == ErrorCode.invalid_partitions
    assert create_partitions(client, "t", 5) == 0
    assert create_partitions(client, "u", 4) == ErrorCode.policy_violation
    harness.delete_topic("t")
    assert create_partitions(client, "u", 5) == 0
    # A restart counts the same.
    client = WireClient(harness.restart())
    client.harness.create_topic("v", 3)
    assert create_partitions(client, "v", 4) == ErrorCode.policy_violation


def test_new_partitions_are_used_at_once(client: WireClient) -> None:
    """Also by delayed records; the old ones go on."""
    assert client.produce("t", 2, make_batch([Raw(b"early")])).error_code == 3
    client.produce("t", 1, make_batch([Raw(b"old")]))
    assert create_partitions(client, "t", 4) == 0
    headers = ((b"x-delay", b"500"),)
    assert client.produce("t", 3, make_batch([Raw(b"now")])).base_offset == 0
    assert client.produce("t", 3, make_batch([Raw(b"due", headers=headers)])).error_code == 0
    assert client.produce("t", 1, make_batch([Raw(b"more")])).base_offset == 1
    client.harness.tick(500)
    assert client.harness.values(partition=1) == [b"old", b"more"]
    assert client.harness.values(partition=3) == [b"now", b"due"]
    assert client.produce("t", 4, make_batch([Raw()])).error_code == 3


@pytest.mark.parametrize("mode", ["clean", "kept", "dropped"])
@pytest.mark.parametrize("filled", [0, 60])
def test_new_partitions_survive_with_their_records_and_timers(mode: Stop, filled: int) -> None:
    """Also when the segments of their frames are full and others have followed."""
    harness = with_topic(1, {"delay.timestamp": "due"})
    client = WireClient(harness)
    client.produce("t", 0, make_batch([Raw(b"first")]))
    for count in (2, 3):
        assert create_partitions(client, "t", count) == 0
        client.produce("t", count - 1, make_batch([Raw(b"%d" % count)]))
        for _ in range(filled):
            client.produce("t", 0, make_batch([Raw(b"x" * 3000)]))
    headers = ((b"x-delay", b"500"),)
    client.produce("t", 2, make_batch([Raw(b"due", headers=headers)]))
    harness = harness.reborn(mode)
    client = WireClient(harness)
    harness.tick(500)
    assert client.harness.values(partition=1) == [b"2"]
    assert client.harness.values(partition=2) == [b"3", b"due"]
    assert len(client.harness.values(partition=0)) == 1 + 2 * filled
    assert [list_offset(client, "t", index, EARLIEST)[1] for index in range(3)] == [0, 0, 0]
    assert settings_of(client, "t") == {"delay.timestamp": "due"}
    assert create_partitions(client, "t", 3) == ErrorCode.invalid_partitions
