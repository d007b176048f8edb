"""DescribeLogDirs and DescribeProducers: what a partition holds, and who wrote it."""

import random
from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ask,
)
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.topic_requests import delete_records

VERSIONS = range(1, 5)
UNKNOWN = ErrorCode.unknown_topic_or_partition


def log_dirs_request(topics: dict[str, list[int]] | None) -> Any:
    if topics is None:
        return DescribeLogDirsRequest(topics=None)
    kind = DescribeLogDirsRequest.DescribableLogDirTopic
    return DescribeLogDirsRequest(
        topics=[kind(topic=name, partitions=indexes) for name, indexes in topics.items()]
    )


def sizes_in(result: Any) -> dict[tuple[str, int], int]:
    assert not any(
        part.is_future_key or part.offset_lag for t in result.topics for part in t.partitions
    )
    return {
        (topic.name, part.partition_index): part.partition_size
        for topic in result.topics
        for part in topic.partitions
    }


def sizes(client: WireClient) -> dict[tuple[str, int], int]:
    answer = client.ask(log_dirs_request(None), 4, DescribeLogDirsResponse)
    (result,) = answer.results
    assert (answer.error_code, result.error_code) == (0, 0)
    return sizes_in(result)


@pytest.fixture
def broker() -> MemoryBroker:
    """Topics `t` and `u` of two partitions; partition i of `t` takes 1000 + i bytes."""
    broker = MemoryBroker()
    broker.topics.create("t", 2, {})
    broker.topics.create("u", 2, {})
    for partition in broker.topics.all()[0].partitions:
        partition.log_bytes = 1000 + partition.index
    return broker


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        (None, {("t", 0): 1000, ("t", 1): 1001, ("u", 0): 0, ("u", 1): 0}),
        ({"t": [1]}, {("t", 1): 1001}),
        ({"t": [1, 1, 7, -1], "none": [0], "u": []}, {("t", 1): 1001}),
        ({}, {}),
    ],
)
def test_one_directory_holds_what_is_asked_for(
    broker: MemoryBroker,
    version: int,
    asked: dict[str, list[int]] | None,
    reported: dict[tuple[str, int], int],
) -> None:
    answer = ask(memory_node(broker), log_dirs_request(asked), version, DescribeLogDirsResponse)
    (result,) = answer.results
    assert (result.error_code, result.log_dir) == (0, str(broker.config.data_dir))
    assert sizes_in(result) == reported
    if version >= 4:
        assert (result.total_bytes, result.usable_bytes) == (1_000_000, 300_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_directory_that_cannot_be_read_is_reported(broker: MemoryBroker, version: int) -> None:
    broker.is_full = True
    answer = ask(memory_node(broker), log_dirs_request(None), version, DescribeLogDirsResponse)
    (result,) = answer.results
    assert (result.error_code, result.topics) == (ErrorCode.kafka_storage_error, [])


def test_a_partitions_size_is_what_its_frames_take(client: WireClient) -> None:
    """Records, records that wait, their delivery; the same after any stop."""
    broker = client.harness.broker
    reported = {("t", 0): 0, ("t", 1): 0}
    assert sizes(client) == reported
    client.produce("t", 1, make_batch([Raw()]))  # its segment knows the topic now
    reported = sizes(client)
    for partition, headers in ((0, ()), (1, ((b"x-delay", b"500"),)), (0, ())):
        before = broker.wrote_pos
        batch = make_batch([Raw(b"x" * 700, headers=headers)])
        assert client.produce("t", partition, batch).error_code == 0
        reported["t", partition] += broker.wrote_pos - before
        assert sizes(client) == reported
    before = broker.wrote_pos
    client.harness.tick(500)
    reported["t", 1] += broker.wrote_pos - before
    assert delete_records(client, "t", (0, 1), (1, 1))[0] == (0, 1)
    assert sizes(client) == reported
    assert sizes(WireClient(client.harness.crash("kept", random.Random(1)))) == reported


def test_space_is_that_of_the_disk() -> None:
    client = WireClient(BrokerHarness())
    client.harness.disk.free = 123_456
    (result,) = client.ask(log_dirs_request({}), 4, DescribeLogDirsResponse).results
    assert result.usable_bytes == 123_456
    assert result.total_bytes > result.usable_bytes


# Producers


def producers_of(client: WireClient, *topics: tuple[str, list[int]]) -> dict[tuple[str, int], Any]:
    """Error code and producers of each partition."""
    kind = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(
        topics=[kind(name=name, partition_indexes=indexes) for name, indexes in topics]
    )
    answer = client.ask(request, 0, DescribeProducersResponse)
    return {
        (topic.name, part.partition_index): (
            part.error_code,
            [
                (each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp)
                for each in part.active_producers
            ],
        )
        for topic in answer.topics
        for part in topic.partitions
    }


def send(client: WireClient, producer_id: int, epoch: int, sequence: int, count: int) -> None:
    batch = make_batch(
        [Raw() for _ in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    assert client.produce("t", 0, batch).error_code == 0


def test_producers_are_reported_with_their_last_batch(client: WireClient) -> None:
    send(client, 70, 0, 0, 3)
    send(client, 71, 4, 0, 1)
    client.harness.clock.advance_ms(500)
    send(client, 70, 0, 3, 2)
    client.produce("t", 0, make_batch([Raw()]))  # one of nobody
    reported = {("t", 0): (0, [(70, 0, 4, START_MS + 500), (71, 4, 0, START_MS)])}
    assert producers_of(client, ("t", [0])) == reported
    again = WireClient(client.harness.crash("kept", random.Random(1)))
    assert producers_of(again, ("t", [0])) == reported


def test_a_new_epoch_and_a_wrapped_sequence_are_reported(client: WireClient) -> None:
    send(client, 70, 0, 2**31 - 2, 3)
    assert producers_of(client, ("t", [0]))["t", 0][1] == [(70, 0, 0, START_MS)]
    send(client, 70, 1, 0, 1)
    assert producers_of(client, ("t", [0]))["t", 0][1] == [(70, 1, 0, START_MS)]


def test_partitions_are_answered_once_each_and_what_is_not_there_is_refused(
    client: WireClient,
) -> None:
    assert producers_of(client, ("t", [1, 1, 2, -1]), ("none", [0]), ("t", [1])) == {
        ("t", 1): (0, []),
        ("t", 2): (UNKNOWN, []),
        ("t", -1): (UNKNOWN, []),
        ("none", 0): (UNKNOWN, []),
    }
    kind = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(topics=[kind(name="t", partition_indexes=[0] * 1000)] * 9)
    (topic,) = client.ask(request, 0, DescribeProducersResponse).topics
    assert len(topic.partitions) == 1
