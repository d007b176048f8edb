"""Messages that tools match on begin with the words of Kafka's broker, version 4.2."""

from uuid import UUID

import pytest

from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.oracles.kafka_oracle import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

NO_SUCH = "This server does not host this topic-partition."


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with topic `t` of two partitions."""
    return WireClient(with_topic(2))


def refusal_of_topic(client: WireClient, name: str, partitions: int = 1) -> str:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1, validate_only=False)
    (answer,) = client.ask(request, 7, CreateTopicsResponse).topics
    assert answer.error_code != 0
    return str(answer.error_message)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "a b",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        ("x" * 250, "Topic name is invalid: the length of 'xxx"),
        (
            "__transaction_state",
            "The request attempted to perform an operation on an invalid topic",
        ),
        ("t", "Topic 't' already exists."),
    ],
)
def test_refused_names(client: WireClient, name: str, words: str) -> None:
    assert refusal_of_topic(client, name).startswith(words)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "Number of partitions was set to an invalid non-positive value."),
        (-2, "Number of partitions was set to an invalid non-positive value."),
        (2**31 - 1, "Excessively large number of partitions per request."),
    ],
)
def test_refused_counts_of_partitions(client: WireClient, count: int, words: str) -> None:
    assert refusal_of_topic(client, "new", count).startswith(words)


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("t", 2, "Topic already has 2 partition(s)."),
        ("t", 1, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        ("none", 3, NO_SUCH),
    ],
)
def test_refused_growth(client: WireClient, name: str, count: int, words: str) -> None:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=1, validate_only=False)
    (answer,) = client.ask(request, 3, CreatePartitionsResponse).results
    assert answer.error_message.startswith(words)


def test_refused_deletion(client: WireClient) -> None:
    state = DeleteTopicsRequest.DeleteTopicState
    topics = [state(name="none", topic_id=None), state(name=None, topic_id=UUID(int=9))]
    request = DeleteTopicsRequest(topics=topics, timeout_ms=1)
    named, by_id = client.ask(request, 6, DeleteTopicsResponse).responses
    assert named.error_message.startswith(NO_SUCH)
    assert by_id.error_message == "This server does not host this topic ID."
