"""Kafka's own tools where they set what operators set: kafka-topics, -configs, -delete-records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients.client_setup import ClientMissingError
from tests.support.clients.kafka_tools import KafkaTools
from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.suites.confluent_library import Adapter
from tests.system.clients.suites.library import RefusedError
from tests.system.clients.suites.using import reading, receive, send_values, values_of

SETTINGS: Final = {
    "retention.ms": "604800000",
    "retention.bytes": "1073741824",
    "segment.bytes": "104857600",
    "max.message.bytes": "100000",
}


@pytest.fixture(scope="session")
def tools(broker: ApplianceProcess) -> Iterator[KafkaTools]:
    try:
        started = KafkaTools(broker.kafka)
    except ClientMissingError as missing:
        pytest.skip(str(missing))
    yield started
    started.close()


@pytest.fixture
def created(tools: KafkaTools, topic: str) -> str:
    """A topic with these settings."""
    configs = [word for pair in SETTINGS.items() for word in ("--config", "=".join(pair))]
    shape = ("--partitions", "2", "--replication-factor", "1")
    said = tools.ok("kafka-topics", "--create", "--topic", topic, *shape, *configs)
    assert said.strip() == f"Created topic {topic}."
    return topic


def overrides(tools: KafkaTools, topic: str) -> dict[str, str]:
    """The settings that were given for a topic, as kafka-topics shows them."""
    shown = tools.ok("kafka-topics", "--describe", "--topic", topic).splitlines()[0]
    configs = shown.partition("Configs: ")[2].strip()
    return dict(pair.split("=", 1) for pair in configs.split(",")) if configs else {}


def described(tools: KafkaTools, topic: str, *more: str) -> dict[str, str]:
    """The settings of a topic, as kafka-configs shows them."""
    entity = ("--entity-type", "topics", "--entity-name", topic)
    lines = tools.ok("kafka-configs", "--describe", *entity, *more).splitlines()[1:]
    pairs = (line.split()[0].split("=", 1) for line in lines)
    return dict(pairs)


def alter(tools: KafkaTools, topic: str, *change: str) -> str:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    return tools.ok("kafka-configs", "--alter", *entity, *change)


def test_a_topic_is_created_with_settings_and_shown_with_them(
    tools: KafkaTools, created: str
) -> None:
    assert overrides(tools, created) == SETTINGS
    assert described(tools, created) == SETTINGS
    everything = described(tools, created, "--all")
    assert everything.items() > SETTINGS.items()
    assert everything["cleanup.policy"] == "delete"
    listed = tools.ok("kafka-topics", "--describe", "--topics-with-overrides")
    assert f"Topic: {created}\t" in listed
    assert created in tools.ok("kafka-topics", "--list").split()


def test_settings_are_changed_and_removed(tools: KafkaTools, created: str) -> None:
    said = alter(tools, created, "--add-config", "retention.ms=-1,max.message.bytes=2000")
    assert said.strip() == f"Completed updating config for topic {created}."
    assert described(tools, created) == SETTINGS | {
        "retention.ms": "-1",
        "max.message.bytes": "2000",
    }
    alter(tools, created, "--delete-config", "retention.ms,retention.bytes,segment.bytes")
    assert overrides(tools, created) == {"max.message.bytes": "2000"}
    everything = described(tools, created, "--all")
    assert everything["retention.ms"] == "259200000"
    assert everything["retention.bytes"] == "-1"
    assert everything["segment.bytes"] == "1073741824"


def test_a_limit_that_was_set_holds(
    tools: KafkaTools, broker: ApplianceProcess, created: str
) -> None:
    library = Adapter(broker.kafka)
    send_values(library, created, b"x" * 3_000)
    alter(tools, created, "--add-config", "max.message.bytes=2000")
    with pytest.raises(RefusedError):
        send_values(library, created, b"x" * 3_000)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("retention.ms=soon", "retention.ms"),
        ("retention.ms=-2", "retention.ms"),
        ("segment.bytes=much", "segment.bytes"),
        ("cleanup.policy=compact", "cleanup.policy"),
    ],
)
def test_what_is_wrong_is_refused_by_name_and_changes_nothing(
    tools: KafkaTools, created: str, topic: str, setting: str, why: str
) -> None:
    entity = ("--entity-type", "topics", "--entity-name", created)
    answer = tools.run("kafka-configs", "--alter", *entity, "--add-config", setting)
    assert answer.status != 0
    assert why in answer.output
    assert described(tools, created) == SETTINGS
    other = f"{topic}-2"
    answer = tools.run("kafka-topics", "--create", "--topic", other, "--config", setting)
    assert answer.status != 0
    assert why in answer.output
    assert other not in tools.ok("kafka-topics", "--list").split()


def test_partitions_are_added_and_topics_deleted(tools: KafkaTools, created: str) -> None:
    tools.ok("kafka-topics", "--alter", "--topic", created, "--partitions", "3")
    shown = tools.ok("kafka-topics", "--describe", "--topic", created)
    assert "PartitionCount: 3" in shown
    assert overrides(tools, created) == SETTINGS
    tools.ok("kafka-topics", "--delete", "--topic", created)
    assert created not in tools.ok("kafka-topics", "--list").split()


def test_records_are_deleted(
    tools: KafkaTools, broker: ApplianceProcess, created: str, tmp_path: Path
) -> None:
    library = Adapter(broker.kafka)
    send_values(library, created, *[b"%d" % number for number in range(6)])
    wanted = tmp_path / "offsets.json"
    partitions = [
        {"topic": created, "partition": 0, "offset": 4},
        {"topic": created, "partition": 1, "offset": 0},
    ]
    wanted.write_text(json.dumps({"partitions": partitions, "version": 1}))
    said = tools.ok("kafka-delete-records", "--offset-json-file", str(wanted))
    assert f"partition: {created}-0\tlow_watermark: 4" in said
    assert f"partition: {created}-1\tlow_watermark: 0" in said
    with reading(library, created) as consumer:
        assert values_of(receive(consumer, 2)) == [b"4", b"5"]
    partitions[0]["offset"] = 7
    wanted.write_text(json.dumps({"partitions": partitions[:1], "version": 1}))
    said = tools.ok("kafka-delete-records", "--offset-json-file", str(wanted))
    assert "error: " in said


def test_settings_of_the_broker_are_shown(tools: KafkaTools) -> None:
    entity = ("--entity-type", "brokers", "--entity-name", "1")
    shown = tools.ok("kafka-configs", "--describe", "--all", *entity)
    assert "log.retention.ms=" in shown
    answer = tools.run("kafka-configs", "--alter", *entity, "--add-config", "log.retention.ms=1")
    assert answer.status != 0
    assert "--config FILE" in answer.output


def test_the_internal_topic_is_listed_and_nothing_is_complained_about(
    tools: KafkaTools, created: str
) -> None:
    """The description of all topics asks for settings and for moves of partitions as well."""
    assert {"__consumer_offsets", created} <= set(tools.ok("kafka-topics", "--list").split())
    listed = tools.ok("kafka-topics", "--list", "--exclude-internal").split()
    assert created in listed
    assert "__consumer_offsets" not in listed
    shown = tools.ok("kafka-topics", "--describe")
    assert "Topic: __consumer_offsets\t" in shown
    assert "Couldn't query reassignments" not in shown
    answer = tools.run("kafka-topics", "--delete", "--topic", "__consumer_offsets")
    assert answer.status != 0
    assert "internal and cannot be deleted" in answer.output


def test_no_leader_is_elected(tools: KafkaTools, created: str) -> None:
    kind = ("--election-type", "preferred")
    tools.ok("kafka-leader-election", *kind, "--all-topic-partitions")
    one = ("--topic", created, "--partition", "1")
    said = tools.ok("kafka-leader-election", *kind, *one)
    assert f"Valid replica already elected for partitions {created}-1" in said
