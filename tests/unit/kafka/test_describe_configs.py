"""DescribeConfigs: every setting with its value, where that comes from, and what it does."""

from typing import Any

import pytest

from appliance.config.config import settings
from compat.kafka.configs.topic_setting_table import TOPIC_SETTINGS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import DescribeConfigsRequest, DescribeConfigsResponse, ask

VERSIONS = range(1, 5)
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT = 1, 4, 5
BOOLEAN, STRING, INT, LONG, LIST = 1, 2, 3, 5, 7
Resource = DescribeConfigsRequest.DescribeConfigsResource


def describe(
    broker: MemoryBroker,
    *resources: Resource,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> list[Any]:
    request = DescribeConfigsRequest(
        resources=list(resources), include_synonyms=synonyms, include_documentation=documentation
    )
    results: list[Any] = ask(memory_node(broker), request, version, DescribeConfigsResponse).results
    return results


def resource(kind: int, name: str, keys: list[str] | None = None) -> Resource:
    return Resource(resource_type=kind, resource_name=name, configuration_keys=keys)


def by_name(result: Any) -> dict[str, Any]:
    assert (result.error_code, result.error_message) == (0, None)
    entries = {entry.name: entry for entry in result.configs}
    assert len(entries) == len(result.configs)
    return entries


@pytest.fixture
def broker() -> MemoryBroker:
    """One topic, `t`, with two settings given; the broker lowers the largest batch."""
    broker = MemoryBroker(small_config(batch_size_max_bytes=9_000))
    broker.topics.create("t", 1, {"delay.headers": "off", "max.message.bytes": "2000"})
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topics_settings_have_their_value_and_its_source(
    broker: MemoryBroker, version: int
) -> None:
    (result,) = describe(broker, resource(TOPIC, "t"), version=version)
    assert (result.resource_type, result.resource_name) == (TOPIC, "t")
    entries = by_name(result)
    reported = {
        name: (entries[name].value, entries[name].config_source, entries[name].read_only)
        for name in ("delay.headers", "delay.timestamp", "max.message.bytes", "cleanup.policy")
    }
    assert reported == {
        "delay.headers": ("off", FROM_TOPIC, False),
        "delay.timestamp": ("created", FROM_DEFAULT, False),
        "max.message.bytes": ("2000", FROM_TOPIC, False),
        "cleanup.policy": ("delete", FROM_DEFAULT, True),
    }
    assert not any(entry.is_sensitive or entry.synonyms for entry in entries.values())
    if version >= 3:
        types = {name: entries[name].config_type for name in reported}
        assert list(types.values()) == [STRING, STRING, INT, LIST]
        assert not any(entry.documentation for entry in entries.values())


def test_all_settings_of_kafka_that_have_a_value_here_are_reported(broker: MemoryBroker) -> None:
    (result,) = describe(broker, resource(TOPIC, "t"))
    with_value = {
        each.name
        for each in TOPIC_SETTINGS
        if each.values or each.limit or each.bounds or each.is_duration or each.is_schedule
    }
    assert set(by_name(result)) == with_value
    assert {"retention.ms", "min.insync.replicas", "compression.type"} <= with_value


@pytest.mark.parametrize("version", VERSIONS)
def test_synonyms_list_all_places_a_value_may_come_from(broker: MemoryBroker, version: int) -> None:
    (result,) = describe(broker, resource(TOPIC, "t"), version=version, synonyms=True)
    synonyms = {
        name: [(each.name, each.value, each.source) for each in entry.synonyms]
        for name, entry in by_name(result).items()
    }
    assert synonyms["max.message.bytes"] == [
        ("max.message.bytes", "2000", FROM_TOPIC),
        ("limits.batch_size_max_bytes", "9000", FROM_BROKER),
        ("limits.batch_size_max_bytes", "1048588", FROM_DEFAULT),
    ]
    assert synonyms["delay.timestamp"] == [("delay.timestamp", "created", FROM_DEFAULT)]
    assert all(synonyms.values())


def test_a_limit_that_only_the_broker_has_comes_from_the_broker() -> None:
    broker = MemoryBroker(small_config(batch_size_max_bytes=9_000))
    broker.topics.create("t", 1, {})
    entry = by_name(describe(broker, resource(TOPIC, "t"))[0])["max.message.bytes"]
    assert (entry.value, entry.config_source, entry.read_only) == ("9000", FROM_BROKER, False)


@pytest.mark.parametrize("version", [3, 4])
def test_documentation_is_reported_when_it_is_asked_for(broker: MemoryBroker, version: int) -> None:
    asked = resource(TOPIC, "t"), resource(BROKER, "1")
    for result in describe(broker, *asked, version=version, documentation=True):
        assert all(entry.documentation for entry in by_name(result).values())


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_choose_settings_and_unknown_ones_are_left_out(
    broker: MemoryBroker, version: int
) -> None:
    keys = ["retention.ms", "compression.gzip.level", "no.such.setting", "delay.headers"]
    chosen, whole = describe(
        broker, resource(TOPIC, "t", keys), resource(BROKER, "", []), version=version
    )
    assert set(by_name(chosen)) == {"retention.ms", "delay.headers"}
    assert len(by_name(whole)) > 10


@pytest.mark.parametrize("name", ["1", ""])
def test_the_broker_reports_its_own_names_and_those_of_kafka(
    broker: MemoryBroker, name: str
) -> None:
    (result,) = describe(broker, resource(BROKER, name), synonyms=True)
    entries = by_name(result)
    assert {setting.key for setting in settings().values()} <= set(entries)
    own, kafkas = entries["limits.batch_size_max_bytes"], entries["message.max.bytes"]
    for entry in (own, kafkas):
        assert (entry.value, entry.config_source, entry.config_type) == ("9000", FROM_BROKER, LONG)
        assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
            ("limits.batch_size_max_bytes", "9000", FROM_BROKER),
            ("limits.batch_size_max_bytes", "1048588", FROM_DEFAULT),
        ]
    assert all(entry.read_only for entry in entries.values())
    values = {name: entry.value for name, entry in entries.items()}
    assert values["auto.create.topics.enable"] == "true"
    assert values["broker.id"] == "1"
    assert values["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert values["network.listen"] == "127.0.0.1:0"
    assert values["network.advertise"] is None
    assert values["delay.levels"].startswith("1s 5s 10s 30s 1m")
    assert values["network.allow_insecure"] == "false"
    assert entries["topics.auto_create"].config_type == BOOLEAN


@pytest.mark.parametrize(
    ("kind", "name", "error_code", "words"),
    [
        (TOPIC, "none", ErrorCode.unknown_topic_or_partition, "There is no topic none"),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception, "'a b'"),
        (TOPIC, "", ErrorCode.invalid_topic_exception, "empty"),
        (BROKER, "2", ErrorCode.invalid_request, "there is no broker '2'"),
        (BROKER, "one", ErrorCode.invalid_request, "there is no broker 'one'"),
        (BROKER, "x" * 32_767, ErrorCode.invalid_request, "there is no broker 'xx"),
        (LOGGER, "1", ErrorCode.invalid_request, "loggers"),
        (CLIENT_METRICS, "m", ErrorCode.invalid_request, "client metrics"),
        (GROUP, "g", ErrorCode.invalid_request, "groups"),
        (0, "", ErrorCode.invalid_request, "type 0"),
        (-128, "t", ErrorCode.invalid_request, "type -128"),
    ],
)
def test_what_is_not_there_is_refused_and_the_rest_is_answered(
    broker: MemoryBroker, kind: int, name: str, error_code: ErrorCode, words: str
) -> None:
    for version in VERSIONS:
        refused, good = describe(
            broker, resource(kind, name), resource(TOPIC, "t"), version=version
        )
        assert (refused.error_code, refused.configs) == (error_code, [])
        assert (refused.resource_type, refused.resource_name) == (kind, name)
        assert words in refused.error_message
        assert by_name(good)


def test_a_resource_that_is_named_twice_is_answered_once(broker: MemoryBroker) -> None:
    """Else a small request could ask for gigabytes."""
    asked = [resource(TOPIC, "t"), resource(BROKER, "1")] + 1000 * [resource(TOPIC, "t")]
    twice, once = describe(broker, *asked)
    assert (twice.error_code, twice.resource_name) == (ErrorCode.invalid_request, "t")
    assert "more than once" in twice.error_message
    assert by_name(once)
