"""DeleteTopics: by name in every version, by id in the last."""

from typing import Any
from uuid import UUID

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import DeleteTopicsRequest, DeleteTopicsResponse, ask

VERSIONS = range(1, 7)
BY_ID = 6


def broker_with(*names: str) -> MemoryBroker:
    broker = MemoryBroker()
    for name in names:
        broker.topics.create(name, 1, {})
    return broker


def delete(broker: MemoryBroker, version: int, *topics: tuple[str | None, UUID | None]) -> Any:
    if version < BY_ID:
        request = DeleteTopicsRequest(topic_names=[name for name, _ in topics], timeout_ms=1)
    else:
        state = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(
            topics=[state(name=name, topic_id=topic_id) for name, topic_id in topics], timeout_ms=1
        )
    return ask(memory_node(broker), request, version, DeleteTopicsResponse).responses


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_deleted_by_name_each_for_itself(version: int) -> None:
    broker = broker_with("a", "b", "c")
    results = delete(broker, version, ("c", None), ("missing", None), ("a", None))
    assert [(result.name, result.error_code) for result in results] == [
        ("c", 0),
        ("missing", ErrorCode.unknown_topic_or_partition),
        ("a", 0),
    ]
    assert [topic.name for topic in broker.topics.all()] == ["b"]
    if version >= 5:
        assert [bool(result.error_message) for result in results] == [False, True, False]
    if version >= BY_ID:
        assert [result.topic_id for result in results] == [UUID(int=3), None, UUID(int=1)]


def test_topics_are_deleted_by_id() -> None:
    broker = broker_with("a", "b")
    found, missing = delete(broker, BY_ID, (None, UUID(int=2)), (None, UUID(int=9)))
    assert (found.name, found.topic_id, found.error_code) == ("b", UUID(int=2), 0)
    assert (missing.name, missing.topic_id) == (None, UUID(int=9))
    assert missing.error_code == ErrorCode.unknown_topic_id
    assert [topic.name for topic in broker.topics.all()] == ["a"]


@pytest.mark.parametrize("topic", [("a", UUID(int=1)), (None, None)])
def test_name_and_id_together_or_neither_delete_nothing(
    topic: tuple[str | None, UUID | None],
) -> None:
    broker = broker_with("a")
    (result,) = delete(broker, BY_ID, topic)
    assert result.error_code == ErrorCode.invalid_request
    assert broker.topics.find("a")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_is_named_twice_stays(version: int) -> None:
    broker = broker_with("a")
    (result,) = delete(broker, version, ("a", None), ("a", None))
    assert result.error_code == ErrorCode.invalid_request
    assert broker.topics.find("a")


def test_a_topic_that_is_named_by_name_and_by_id_stays() -> None:
    broker = broker_with("a")
    results = delete(broker, BY_ID, ("a", None), (None, UUID(int=1)))
    assert [result.error_code for result in results] == [ErrorCode.invalid_request] * 2
    assert broker.topics.find("a")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_brokers_own_topic_stays(version: int) -> None:
    broker = broker_with("SCHEDULE_TOPIC_XXXX")
    (result,) = delete(broker, version, ("SCHEDULE_TOPIC_XXXX", None))
    assert result.error_code == ErrorCode.invalid_topic_exception
    assert broker.topics.find("SCHEDULE_TOPIC_XXXX")
