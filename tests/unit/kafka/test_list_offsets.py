"""ListOffsets: where a partition begins and ends, and where a time is."""

from typing import Any

import pytest

from appliance.model import STORED_TIMES_FROM
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import ListOffsetsRequest, ListOffsetsResponse, ask

VERSIONS = range(1, 10)
FOUND = ErrorCode.none
NOTHING = (ErrorCode.none, -1, -1)


@pytest.fixture
def broker() -> MemoryBroker:
    """Topic t: partition 0 empty, partition 1 with offsets 10 to 13, of which 13 is not visible."""
    broker = MemoryBroker(epoch=5)
    partition = broker.topics.create("t", 2, {}).partitions[1]
    partition.start_offset = partition.visible_offset = 10
    partition.append(1000, 3000, 2000)
    partition.next_offset = 14
    return broker


def list_offset(
    broker: MemoryBroker,
    version: int,
    timestamp: int,
    *,
    topic: str = "t",
    partition: int = 1,
    epoch: int = -1,
    isolation: int = 0,
) -> Any:
    asked = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            asked(
                name=topic,
                partitions=[
                    asked.ListOffsetsPartition(
                        partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
                    )
                ],
            )
        ],
    )
    response = ask(memory_node(broker), request, version, ListOffsetsResponse)
    (answered_topic,) = response.topics
    (answer,) = answered_topic.partitions
    assert (answered_topic.name, answer.partition_index) == (topic, partition)
    return answer


def outcome(answer: Any) -> tuple[int, int, int]:
    return answer.error_code, answer.offset, answer.timestamp


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (FOUND, 13, -1)),
        (-2, (FOUND, 10, -1)),
        (0, (FOUND, 10, 1000)),
        (1001, (FOUND, 11, 3000)),
        (3000, (FOUND, 11, 3000)),
        (3001, NOTHING),
        (STORED_TIMES_FROM - 1, NOTHING),
        (STORED_TIMES_FROM, (FOUND, 10, 0)),
        (STORED_TIMES_FROM + 101, (FOUND, 12, 200)),
        (STORED_TIMES_FROM + 201, NOTHING),
        (2**63 - 1, NOTHING),
    ],
)
def test_finds_the_ends_and_times(
    broker: MemoryBroker, version: int, timestamp: int, expected: tuple[int, int, int]
) -> None:
    answer = list_offset(broker, version, timestamp)
    assert outcome(answer) == expected
    if version >= 4:
        assert answer.leader_epoch == (-1 if expected == NOTHING else 5)


@pytest.mark.parametrize(
    ("timestamp", "first_version", "expected"),
    [(-3, 7, (FOUND, 11, 3000)), (-4, 8, (FOUND, 10, -1)), (-5, 9, NOTHING)],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_special_times_work_from_the_version_on_that_brought_them(
    broker: MemoryBroker,
    version: int,
    timestamp: int,
    first_version: int,
    expected: tuple[int, int, int],
) -> None:
    if version < first_version:
        expected = (ErrorCode.unsupported_version, -1, -1)
    assert outcome(list_offset(broker, version, timestamp)) == expected


@pytest.mark.parametrize("timestamp", [-6, -7, -(2**63)])
@pytest.mark.parametrize("version", VERSIONS)
def test_other_negative_times_are_refused(
    broker: MemoryBroker, version: int, timestamp: int
) -> None:
    answer = list_offset(broker, version, timestamp)
    assert outcome(answer) == (ErrorCode.unsupported_version, -1, -1)


def test_an_empty_partition_has_ends_and_no_times(broker: MemoryBroker) -> None:
    assert outcome(list_offset(broker, 9, -1, partition=0)) == (FOUND, 0, -1)
    assert outcome(list_offset(broker, 9, -2, partition=0)) == (FOUND, 0, -1)
    assert outcome(list_offset(broker, 9, -3, partition=0)) == NOTHING
    assert outcome(list_offset(broker, 9, 0, partition=0)) == NOTHING


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("topic", "partition"), [("t", 2), ("t", -1), ("missing", 0)])
def test_unknown_partitions(broker: MemoryBroker, version: int, topic: str, partition: int) -> None:
    answer = list_offset(broker, version, -1, topic=topic, partition=partition)
    assert outcome(answer) == (ErrorCode.unknown_topic_or_partition, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("epoch", "error_code"),
    [
        (-1, ErrorCode.none),
        (4, ErrorCode.fenced_leader_epoch),
        (5, ErrorCode.none),
        (6, ErrorCode.unknown_leader_epoch),
    ],
)
def test_a_client_with_another_epoch_gets_an_error(
    broker: MemoryBroker, version: int, epoch: int, error_code: ErrorCode
) -> None:
    answer = list_offset(broker, version, -1, epoch=epoch)
    assert answer.error_code == (error_code if version >= 4 else ErrorCode.none)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_read_committed_sees_the_same_end(broker: MemoryBroker, version: int) -> None:
    assert outcome(list_offset(broker, version, -1, isolation=1)) == (FOUND, 13, -1)
