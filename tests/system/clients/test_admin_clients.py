"""The admin clients of confluent-kafka and kafka-python: settings, partitions, start offsets."""

import gc
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.suites.confluent_library import Adapter
from tests.system.clients.suites.using import create_and_send, send_values

with warnings.catch_warnings():
    # It reads its schemas by functions of importlib.resources that are deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]
    import kafka.admin  # type: ignore[import-untyped]

LIMIT_S: Final = 60.0

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _no_garbage_for_other_tests() -> Iterator[None]:
    yield
    gc.collect()


def done(futures: dict[Any, Any]) -> list[Any]:
    """The results of what an admin client started."""
    return [future.result(LIMIT_S) for future in futures.values()]


def topic_resource(topic: str, *steps: tuple[str, AlterConfigOpType, str | None]) -> ConfigResource:
    return ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=operation)
            for name, operation, value in steps
        ],
    )


def described(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    (entries,) = done(admin.describe_configs([resource]))
    found: dict[str, ConfigEntry] = entries
    return found


# confluent-kafka


@pytest.fixture
def library(broker: ApplianceProcess) -> Adapter:
    return Adapter(broker.kafka)


@pytest.fixture
def admin(library: Adapter) -> AdminClient:
    return library.admin


@pytest.fixture
def created(library: Adapter, topic: str) -> str:
    """This test's topic, with one partition."""
    library.create(topic)
    return topic


def test_setting_that_is_not_supported_is_refused_by_name(admin: AdminClient, topic: str) -> None:
    """What the broker cannot keep it does not promise."""
    with pytest.raises(KafkaException, match=r"cleanup\.policy"):
        done(admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]))


def test_librdkafka_describes_the_broker(admin: AdminClient) -> None:
    entries = described(admin, ConfigResource(ConfigResource.Type.BROKER, "1"))
    assert entries["flush.mode"].is_read_only


def test_librdkafka_changes_settings_one_by_one_and_all_at_once(
    admin: AdminClient, created: str
) -> None:
    """What changes holds for records; a refusal shows the broker's sentence."""
    changed = topic_resource(
        created,
        ("max.message.bytes", AlterConfigOpType.SET, "2000"),
        ("delay.headers", AlterConfigOpType.SET, "off"),
        ("cleanup.policy", AlterConfigOpType.APPEND, "delete"),
    )
    done(admin.incremental_alter_configs([changed]))
    done(
        admin.incremental_alter_configs(
            [topic_resource(created, ("delay.headers", AlterConfigOpType.DELETE, None))]
        )
    )
    entries = described(admin, ConfigResource(ConfigResource.Type.TOPIC, created))
    limit = entries["max.message.bytes"]
    assert (limit.value, limit.source) == ("2000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    assert entries["delay.headers"].source == ConfigSource.DEFAULT_CONFIG.value
    refused = topic_resource(created, ("cleanup.policy", AlterConfigOpType.SET, "compact"))
    with pytest.raises(KafkaException, match=r"use cleanup.policy=delete"):
        done(admin.incremental_alter_configs([refused]))
    whole = ConfigResource(
        ConfigResource.Type.TOPIC, created, set_config={"delay.timestamp": "due"}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the old request is what is tried
        done(admin.alter_configs([whole]))
    entries = described(admin, ConfigResource(ConfigResource.Type.TOPIC, created))
    assert entries["delay.timestamp"].value == "due"
    assert entries["max.message.bytes"].value == "1048588"


def test_librdkafka_sets_retention_and_learns_what_is_wrong(admin: AdminClient, topic: str) -> None:
    wanted = {"retention.ms": "604800000", "retention.bytes": "-1", "segment.bytes": "104857600"}
    done(admin.create_topics([NewTopic(topic, 1, 1, config=wanted)]))
    entries = described(admin, topic_resource(topic))
    for name, value in wanted.items():
        assert entries[name].value == value
        assert entries[name].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    removed = topic_resource(topic, ("retention.ms", AlterConfigOpType.DELETE, None))
    done(admin.incremental_alter_configs([removed]))
    entry = described(admin, topic_resource(topic))["retention.ms"]
    assert (entry.value, entry.source) == ("259200000", ConfigSource.DEFAULT_CONFIG.value)
    for operation, value, why in (
        (AlterConfigOpType.SET, "soon", "retention.ms"),
        (AlterConfigOpType.SET, "-2", "retention.ms"),
        (AlterConfigOpType.APPEND, "1", "is not a list"),
    ):
        wrong = topic_resource(topic, ("retention.ms", operation, value))
        with pytest.raises(KafkaException, match=why) as refusal:
            done(admin.incremental_alter_configs([wrong]))
        assert refusal.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_librdkafka_learns_where_settings_of_the_broker_are_changed(admin: AdminClient) -> None:
    resource = ConfigResource(
        ConfigResource.Type.BROKER,
        "1",
        incremental_configs=[
            ConfigEntry("flush.mode", "async", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    with pytest.raises(KafkaException, match="--config FILE"):
        done(admin.incremental_alter_configs([resource]))


def test_librdkafka_learns_why_partitions_cannot_be_fewer(admin: AdminClient, created: str) -> None:
    done(admin.create_partitions([NewPartitions(created, 3)]))
    with pytest.raises(KafkaException) as refusal:
        done(admin.create_partitions([NewPartitions(created, 2)]))
    assert refusal.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    assert "would not be an increase" in refusal.value.args[0].str()


def test_librdkafka_finds_the_start_after_deleted_records(
    library: Adapter, admin: AdminClient, created: str
) -> None:
    send_values(library, created, *[b"%d" % number for number in range(6)])
    assert library.delete_records(created, 4) == 4
    earliest = admin.list_offsets({TopicPartition(created, 0): OffsetSpec.earliest()})
    assert [found.offset for found in done(earliest)] == [4]
    with pytest.raises(KafkaException) as refusal:
        done(admin.delete_records([TopicPartition(created, 0, 7)]))
    assert refusal.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_librdkafka_that_must_authenticate_ends_at_once(broker: ApplianceProcess) -> None:
    """It shows that no mechanism is enabled; nothing hangs."""
    errors: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    deadline_s = time.monotonic() + LIMIT_S
    while not errors:
        assert time.monotonic() < deadline_s, "the producer heard nothing"
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "mechanism" in errors[0].str()


def test_changes_survive_kill_9_and_a_consumer_goes_on(tmp_path: Path) -> None:
    """The leader epoch rises; the consumer asks where its epoch ended and loses nothing."""
    broker = ApplianceProcess(tmp_path / "data")
    try:
        broker.start()
        library = Adapter(broker.kafka)
        admin = library.admin
        create_and_send(library, "t", b"0", b"1", b"2")
        done(admin.create_partitions([NewPartitions("t", 2)]))
        done(admin.delete_records([TopicPartition("t", 0, 1)]))
        step = "delay.timestamp", AlterConfigOpType.SET, "due"
        done(admin.incremental_alter_configs([topic_resource("t", step)]))
        consumer = Consumer(
            {
                "bootstrap.servers": broker.kafka,
                "group.id": "g",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition("t", 0, 1)])
        values = poll_values(consumer, 2)
        broker.kill()
        broker.start()
        send_values(library, "t", b"3")
        values += poll_values(consumer, 1)
        assert values == [b"1", b"2", b"3"]
        consumer.close()
        entries = described(admin, ConfigResource(ConfigResource.Type.TOPIC, "t"))
        assert entries["delay.timestamp"].value == "due"
        assert set(admin.list_topics("t", LIMIT_S).topics["t"].partitions) == {0, 1}
        earliest = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.earliest()})
        assert [found.offset for found in done(earliest)] == [1]
        broker.stop()
    finally:
        broker.close()


def poll_values(consumer: Consumer, count: int) -> list[bytes]:
    """So many records; errors on the way, such as of a broker that is away, are passed over."""
    values: list[bytes] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"{len(values)} of {count} records came"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
    return values


# kafka-python


@pytest.fixture
def python_admin(broker: ApplianceProcess) -> Iterator[Any]:
    with closing(kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)) as client:
        yield client


def python_resource(topic: str, configs: dict[str, Any] | None = None) -> Any:
    return kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, configs)


def python_settings(python_admin: Any, topic: str) -> dict[str, str]:
    """The settings that were given for a topic."""
    found = python_admin.describe_configs([python_resource(topic)], config_filter="all")
    (entries,) = (of_topic for by_name in found.values() for of_topic in by_name.values())
    return {
        name: entry["value"]
        for name, entry in entries.items()
        if "TOPIC" in str(entry["config_source"])
    }


def test_kafka_python_changes_settings(python_admin: Any, topic: str) -> None:
    python_admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    for is_incremental in (True, False):
        python_admin.alter_configs(
            [python_resource(topic, {"delay.timestamp": "due"})], incremental=is_incremental
        )
        assert python_settings(python_admin, topic) == {"delay.timestamp": "due"}
    refused = python_admin.alter_configs(
        [python_resource(topic, {"cleanup.policy": "compact"})], raise_on_unknown=False
    )
    assert "cleanup.policy='compact' is not supported yet" in str(refused)


def test_kafka_python_looks_around(broker: ApplianceProcess, python_admin: Any, topic: str) -> None:
    python_admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
    with closing(kafka.KafkaProducer(bootstrap_servers=broker.kafka)) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=1)
        producer.flush(LIMIT_S)
        partition = kafka.TopicPartition(topic, 1)
        (state,) = python_admin.describe_producers([partition])[partition].active_producers
        assert (state.producer_epoch, state.last_sequence) == (0, 4)
    (of_broker,) = python_admin.describe_log_dirs({topic: [1]})
    assert topic in str(of_broker)
