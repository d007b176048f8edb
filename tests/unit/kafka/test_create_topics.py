"""CreateTopics: each topic of a request is made or refused by itself."""

from typing import Any
from uuid import UUID

import pytest

from compat.kafka.configs.topic_setting_table import TOPIC_SETTINGS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import CreateTopicsRequest, CreateTopicsResponse, ask

VERSIONS = range(2, 8)
LAST = 7
Topic = CreateTopicsRequest.CreatableTopic


def create(
    broker: MemoryBroker, *topics: Topic, version: int = LAST, validate_only: bool = False
) -> Any:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1, validate_only=validate_only)
    return ask(memory_node(broker), request, version, CreateTopicsResponse).topics


def topic(
    name: str = "t",
    partitions: int = -1,
    replicas: int = -1,
    *,
    settings: dict[str, str | None] | None = None,
    assigned: dict[int, list[int]] | None = None,
) -> Topic:
    return Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            Topic.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assigned or {}).items()
        ],
        configs=[
            Topic.CreatableTopicConfig(name=name, value=value)
            for name, value in (settings or {}).items()
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_made_as_asked_for(version: int) -> None:
    broker = MemoryBroker()
    (result,) = create(
        broker, topic(partitions=3, replicas=1, settings={"delay.headers": "off"}), version=version
    )
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    made = broker.topic()
    assert (len(made.partitions), made.settings) == (3, {"delay.headers": "off"})
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
    if version >= 7:
        assert result.topic_id == made.uuid == UUID(int=1)


def test_the_answer_lists_all_settings_and_where_each_comes_from() -> None:
    (result,) = create(MemoryBroker(), topic(settings={"delay.timestamp": "due"}), version=5)
    settings = {entry.name: entry for entry in result.configs}
    given, default = settings["delay.timestamp"], settings["message.timestamp.type"]
    assert (given.value, given.config_source, given.read_only) == ("due", 1, False)
    assert (default.value, default.config_source, default.read_only) == ("CreateTime", 5, False)
    assert settings["max.message.bytes"].value == "1048588"
    assert settings["cleanup.policy"].read_only
    assert not any(entry.is_sensitive for entry in result.configs)


STREAMS_REPARTITION: dict[str, str | None] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}
"""What Kafka Streams asks of a topic through which it repartitions records."""


def test_a_repartition_topic_of_kafka_streams_is_made_as_asked_for() -> None:
    broker = MemoryBroker()
    (result,) = create(
        broker, topic("app-KSTREAM-KEY-SELECT-0000000001-repartition", settings=STREAMS_REPARTITION)
    )
    assert (result.error_code, result.error_message) == (0, None)
    assert broker.topic(result.name).settings == STREAMS_REPARTITION


@pytest.mark.parametrize(
    ("name", "partitions"), [("connect-configs", 1), ("connect-offsets", 25), ("connect-status", 5)]
)
def test_connect_s_own_topics_are_refused_by_name_for_compaction_alone(
    name: str, partitions: int
) -> None:
    broker = MemoryBroker()
    (refused,) = create(broker, topic(name, partitions, 1, settings={"cleanup.policy": "compact"}))
    assert refused.error_code == ErrorCode.invalid_config
    assert refused.error_message.startswith("cleanup.policy='compact' is not supported yet")
    (made,) = create(broker, topic(name, partitions, 1, settings={"cleanup.policy": "delete"}))
    assert (made.error_code, made.num_partitions) == (0, partitions)


@pytest.mark.parametrize("version", VERSIONS)
def test_default_partition_count_is_the_brokers(version: int) -> None:
    broker = MemoryBroker(small_config(default_partition_count=5))
    create(broker, topic(), version=version)
    assert len(broker.topic().partitions) == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_only_checks_everything_and_makes_nothing(version: int) -> None:
    broker = MemoryBroker()
    broker.topics.create("old", 1, {})
    good, old, bad = create(
        broker,
        topic("good"),
        topic("old"),
        topic("bad", partitions=0),
        version=version,
        validate_only=True,
    )
    assert good.error_code == 0
    assert old.error_code == ErrorCode.topic_already_exists
    assert bad.error_code == ErrorCode.invalid_partitions
    assert broker.change_count == 1
    if version >= 7:
        assert good.topic_id is None


@pytest.mark.parametrize(
    ("asked", "error_code"),
    [
        (topic(partitions=0), ErrorCode.invalid_partitions),
        (topic(partitions=-2), ErrorCode.invalid_partitions),
        (topic(partitions=1_001), ErrorCode.invalid_partitions),
        (topic(replicas=2), ErrorCode.invalid_replication_factor),
        (topic(replicas=0), ErrorCode.invalid_replication_factor),
        (topic(""), ErrorCode.invalid_topic_exception),
        (topic(".."), ErrorCode.invalid_topic_exception),
        (topic("a b"), ErrorCode.invalid_topic_exception),
        (topic("x" * 250), ErrorCode.invalid_topic_exception),
        (topic("__transaction_state"), ErrorCode.invalid_topic_exception),
        (topic("SCHEDULE_TOPIC_XXXX"), ErrorCode.invalid_topic_exception),
        (topic(settings={"cleanup.policy": "compact"}), ErrorCode.invalid_config),
        (topic(settings={"delay.headers": None}), ErrorCode.invalid_config),
        (topic(assigned={0: [2]}), ErrorCode.invalid_replica_assignment),
        (topic(assigned={0: [1, 2]}), ErrorCode.invalid_replica_assignment),
        (topic(assigned={0: []}), ErrorCode.invalid_replica_assignment),
        (topic(assigned={0: [1], 2: [1]}), ErrorCode.invalid_replica_assignment),
        (topic(assigned={-1: [1]}), ErrorCode.invalid_replica_assignment),
        (topic(assigned={0: [1]}, partitions=1), ErrorCode.invalid_request),
        (topic(assigned={0: [1]}, replicas=1), ErrorCode.invalid_request),
    ],
)
def test_refusals(asked: Topic, error_code: ErrorCode) -> None:
    broker = MemoryBroker()
    for version in VERSIONS:
        (result,) = create(broker, asked, version=version)
        assert (result.name, result.error_code) == (asked.name, error_code)
        assert result.error_message
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (-1, -1)
            assert result.configs == []
    assert broker.change_count == 0


def test_an_assignment_to_this_broker_counts_the_partitions() -> None:
    broker = MemoryBroker()
    create(broker, topic(assigned={1: [1], 0: [1]}))
    assert len(broker.topic().partitions) == 2


def test_a_partition_that_is_assigned_twice_is_refused() -> None:
    twice = topic(assigned={0: [1]})
    twice.assignments *= 2
    (result,) = create(MemoryBroker(), twice)
    assert result.error_code == ErrorCode.invalid_replica_assignment


def test_a_name_that_occurs_twice_is_refused_once_and_the_others_are_made() -> None:
    broker = MemoryBroker()
    results = create(broker, topic("a"), topic("b"), topic("a", partitions=2))
    assert [(result.name, result.error_code) for result in results] == [
        ("a", ErrorCode.invalid_request),
        ("b", 0),
    ]
    assert [made.name for made in broker.topics.all()] == ["b"]


@pytest.mark.parametrize("version", VERSIONS)
def test_longest_strings_can_be_named_in_the_refusal(version: int) -> None:
    """A message that repeats what a client sent must still fit the int16 of old versions."""
    long = "\x00" * 32767
    results = create(
        MemoryBroker(),
        topic(long),
        topic("b", settings={long: long}),
        topic("c", settings={"retention.ms": long}),
        topic("d", settings={"delay.headers": long}),
        topic("e", settings={"delay.max.ms": "9" * 32767}),
        version=version,
    )
    assert [result.error_code for result in results] == [17, 40, 40, 40, 40]
    assert all(len(result.error_message) < 1000 for result in results)


def test_every_setting_that_is_not_supported_is_refused_by_its_name() -> None:
    for setting in TOPIC_SETTINGS:
        if not setting.is_supported:
            (result,) = create(MemoryBroker(), topic(settings={setting.name: "12345"}))
            assert result.error_code == ErrorCode.invalid_config
            assert f"{setting.name}='12345' is not supported yet" in result.error_message
