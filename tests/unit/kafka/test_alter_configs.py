"""AlterConfigs and IncrementalAlterConfigs: settings of topics, all of a topic's or none."""

from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    AlterConfigsResponse,
    IncrementalAlterConfigsResponse,
    ask,
)
from tests.support.values.topic_requests import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    Step,
    alter_request,
    incremental_request,
)

BROKER, LOGGER, GROUP = 4, 8, 32
GIVEN = {"delay.headers": "off", "delay.timestamp": "due"}


@pytest.fixture
def broker() -> MemoryBroker:
    """Two topics with settings."""
    broker = MemoryBroker()
    broker.topics.create("t", 1, GIVEN)
    broker.topics.create("u", 1, {})
    broker.change_count = 0
    return broker


def replace(
    broker: MemoryBroker, *resources: Any, version: int = 2, validate_only: bool = False
) -> list[Any]:
    request = alter_request(resources, validate_only=validate_only)
    answers: list[Any] = ask(memory_node(broker), request, version, AlterConfigsResponse).responses
    return answers


def change(
    broker: MemoryBroker, *resources: Any, version: int = 1, validate_only: bool = False
) -> list[Any]:
    request = incremental_request(resources, validate_only=validate_only)
    answers: list[Any] = ask(
        memory_node(broker), request, version, IncrementalAlterConfigsResponse
    ).responses
    return answers


def settings(broker: MemoryBroker, name: str = "t") -> dict[str, str]:
    return broker.topic(name).settings


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_settings(broker: MemoryBroker, version: int) -> None:
    (answer,) = replace(
        broker, (TOPIC, "t", [("delay.headers", "on"), ("retention.ms", "-1")]), version=version
    )
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.resource_type, answer.resource_name) == (TOPIC, "t")
    assert settings(broker) == {"delay.headers": "on", "retention.ms": "-1"}
    assert replace(broker, (TOPIC, "t", []), version=version)[0].error_code == 0
    assert settings(broker) == {}


@pytest.mark.parametrize("version", range(2))
def test_incremental_changes_leave_the_others_alone(broker: MemoryBroker, version: int) -> None:
    (answer,) = change(
        broker,
        (TOPIC, "t", [("delay.headers", DELETE, None), ("delay.max.ms", SET, "007")]),
        version=version,
    )
    assert (answer.error_code, answer.error_message) == (0, None)
    assert settings(broker) == {"delay.timestamp": "due", "delay.max.ms": "7"}


def test_what_is_not_set_can_be_deleted(broker: MemoryBroker) -> None:
    """Also by a name that nobody knows: Kafka is as patient."""
    steps = [("delay.max.ms", DELETE, None), ("no.such.setting", DELETE, "x")]
    assert change(broker, (TOPIC, "t", steps))[0].error_code == 0
    assert settings(broker) == GIVEN


@pytest.mark.parametrize(
    ("operation", "value", "kept"),
    [
        (APPEND, "delete", "delete"),
        (APPEND, " delete , delete ", "delete"),
        (APPEND, "", "delete"),
        (SUBTRACT, "compact", "delete"),
    ],
)
def test_lists_take_items_and_give_them_back(
    broker: MemoryBroker, operation: int, value: str, kept: str
) -> None:
    (answer,) = change(broker, (TOPIC, "u", [("cleanup.policy", operation, value)]))
    assert answer.error_code == 0
    assert settings(broker, "u") == {"cleanup.policy": kept}


@pytest.mark.parametrize(
    ("step", "error_code", "words"),
    [
        (
            ("cleanup.policy", APPEND, "compact"),
            ErrorCode.invalid_config,
            "cleanup.policy='delete,compact' is not supported yet: use cleanup.policy=delete",
        ),
        (
            ("cleanup.policy", SUBTRACT, "delete"),
            ErrorCode.invalid_config,
            "cleanup.policy='' is not supported yet",
        ),
        (("delay.headers", APPEND, "on"), ErrorCode.invalid_config, "delay.headers is not a list"),
        (("delay.header", APPEND, "on"), ErrorCode.invalid_config, "did you mean delay.headers?"),
        (("delay.header", SET, "on"), ErrorCode.invalid_config, "did you mean delay.headers?"),
        (("delay.headers", SET, "maybe"), ErrorCode.invalid_config, "use on or off"),
        (("max.message.bytes", SET, "104857600"), ErrorCode.invalid_config, "above limits.raised"),
        (("delay.headers", SET, None), ErrorCode.invalid_request, "'delay.headers' has no value"),
        (("cleanup.policy", APPEND, None), ErrorCode.invalid_request, "has no value"),
        (("delay.headers", 4, "on"), ErrorCode.invalid_request, "operation 4 is unknown"),
        (("delay.headers", -1, "on"), ErrorCode.invalid_request, "operation -1 is unknown"),
        (("delay.timestamp", SET, "due"), ErrorCode.invalid_request, "more than once"),
    ],
)
def test_a_refused_step_leaves_the_topic_as_it_is(
    broker: MemoryBroker, step: Step, error_code: ErrorCode, words: str
) -> None:
    """The good one before it too; the other topic of the request is changed."""
    good = ("delay.timestamp", SET, "created")
    refused, done = change(
        broker, (TOPIC, "t", [good, step]), (TOPIC, "u", [("delay.headers", SET, "off")])
    )
    assert refused.error_code == error_code
    assert words in refused.error_message
    assert settings(broker) == GIVEN
    assert done.error_code == 0
    assert settings(broker, "u") == {"delay.headers": "off"}


@pytest.mark.parametrize(
    ("asked", "error_code", "words"),
    [
        ([("cleanup.policy", "compact")], ErrorCode.invalid_config, "not supported yet"),
        ([("delay.headers", None)], ErrorCode.invalid_request, "'delay.headers' has no value"),
        (2 * [("delay.headers", "on")], ErrorCode.invalid_request, "more than once"),
    ],
)
def test_a_refused_replacement_leaves_the_topic_as_it_is(
    broker: MemoryBroker, asked: list[tuple[str, str | None]], error_code: ErrorCode, words: str
) -> None:
    (answer,) = replace(broker, (TOPIC, "t", asked))
    assert answer.error_code == error_code
    assert words in answer.error_message
    assert settings(broker) == GIVEN


@pytest.mark.parametrize(
    ("kind", "name", "error_code", "words"),
    [
        (TOPIC, "none", ErrorCode.unknown_topic_or_partition, "There is no topic none"),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception, "'a b'"),
        (BROKER, "1", ErrorCode.invalid_request, "--config FILE"),
        (
            BROKER,
            "",
            ErrorCode.invalid_request,
            "'delay.headers': clients cannot change broker settings",
        ),
        (BROKER, "2", ErrorCode.invalid_request, "there is no broker '2'"),
        (LOGGER, "1", ErrorCode.invalid_request, "loggers"),
        (GROUP, "g", ErrorCode.invalid_request, "groups"),
        (0, "", ErrorCode.invalid_request, "type 0"),
    ],
)
def test_only_topics_that_are_there_can_be_changed(
    broker: MemoryBroker, kind: int, name: str, error_code: ErrorCode, words: str
) -> None:
    for version in range(3):
        (answer,) = replace(broker, (kind, name, [("delay.headers", "off")]), version=version)
        assert (answer.error_code, answer.resource_name) == (error_code, name)
        assert words in answer.error_message
    for version in range(2):
        (answer,) = change(broker, (kind, name, [("delay.headers", SET, "off")]), version=version)
        assert (answer.error_code, answer.resource_type) == (error_code, kind)
        assert words in answer.error_message
    assert broker.change_count == 0


def test_a_resource_that_is_named_twice_is_refused_once(broker: MemoryBroker) -> None:
    twice = 2 * [(TOPIC, "t", [("delay.headers", "on")])]
    refused, done = replace(broker, *twice, (TOPIC, "u", [("delay.headers", "on")]))
    assert (refused.error_code, refused.resource_name) == (ErrorCode.invalid_request, "t")
    assert "more than once" in refused.error_message
    assert done.error_code == 0
    assert settings(broker) == GIVEN


def test_validate_only_checks_everything_and_changes_nothing(broker: MemoryBroker) -> None:
    good, bad = (TOPIC, "t", [("delay.headers", "on")]), (TOPIC, "u", [("delay.headers", "x")])
    fine, refused = replace(broker, good, bad, validate_only=True)
    assert (fine.error_code, refused.error_code) == (0, ErrorCode.invalid_config)
    (fine,) = change(broker, (TOPIC, "t", [("delay.headers", SET, "on")]), validate_only=True)
    assert fine.error_code == 0
    assert broker.change_count == 0


def test_a_full_disk_is_reported(broker: MemoryBroker) -> None:
    broker.is_full = True
    (answer,) = replace(broker, (TOPIC, "t", []))
    assert answer.error_code == ErrorCode.kafka_storage_error


@pytest.mark.parametrize("version", range(3))
def test_longest_strings_can_be_named_in_the_refusal(broker: MemoryBroker, version: int) -> None:
    long = "\x00" * 32767
    asked = [(TOPIC, "t", [(long, long)]), (TOPIC, long, []), (BROKER, "1", [(long, "x")])]
    answers = replace(broker, *asked, version=version)
    assert all(answer.error_code for answer in answers)
    assert all(len(answer.error_message) < 1000 for answer in answers)
