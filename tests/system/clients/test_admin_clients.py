"""The admin clients of confluent-kafka and kafka-python: settings, partitions, start offsets."""

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
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


def librdkafka_admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def done(futures: dict[Any, Any]) -> list[Any]:
    """The results of what an admin client started."""
    return [future.result(LIMIT_S) for future in futures.values()]


def produce(address: str, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(LIMIT_S) == 0


def consumed(address: str, topic: str, count: int, offset: int, partition: int = 0) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, offset)])
    values: list[bytes] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"{len(values)} of {count} records came"
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    return values


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
def admin(broker: ApplianceProcess) -> AdminClient:
    return librdkafka_admin(broker.kafka)


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    """This test's topic, with one partition."""
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    return topic


def test_librdkafka_describes_the_broker_and_the_cluster(admin: AdminClient) -> None:
    entries = described(admin, ConfigResource(ConfigResource.Type.BROKER, "1"))
    assert entries["message.max.bytes"].value == "1048588"
    assert entries["flush.mode"].is_read_only
    cluster = admin.describe_cluster(request_timeout=LIMIT_S).result(LIMIT_S)
    assert [node.id for node in cluster.nodes] == [1]


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


def test_librdkafka_adds_partitions_and_uses_them(
    broker: ApplianceProcess, admin: AdminClient, created: str
) -> None:
    done(admin.create_partitions([NewPartitions(created, 3)]))
    produce(broker.kafka, created, [b"new"], partition=2)
    assert consumed(broker.kafka, created, 1, 0, partition=2) == [b"new"]
    with pytest.raises(KafkaException) as refusal:
        done(admin.create_partitions([NewPartitions(created, 2)]))
    assert refusal.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    assert "cannot be reduced to 2" in refusal.value.args[0].str()


def test_librdkafka_deletes_records(
    broker: ApplianceProcess, admin: AdminClient, created: str
) -> None:
    produce(broker.kafka, created, [b"%d" % number for number in range(6)])
    (deleted,) = done(admin.delete_records([TopicPartition(created, 0, 4)]))
    assert deleted.low_watermark == 4
    earliest = admin.list_offsets({TopicPartition(created, 0): OffsetSpec.earliest()})
    assert [found.offset for found in done(earliest)] == [4]
    assert consumed(broker.kafka, created, 2, 4) == [b"4", b"5"]
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
        admin = librdkafka_admin(broker.kafka)
        done(admin.create_topics([NewTopic("t", 1, 1)]))
        produce(broker.kafka, "t", [b"0", b"1", b"2"])
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
        produce(broker.kafka, "t", [b"3"])
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


def test_kafka_python_adds_partitions_deletes_records_and_looks_around(
    broker: ApplianceProcess, python_admin: Any, topic: str
) -> None:
    python_admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    python_admin.create_partitions({topic: 2})
    with closing(kafka.KafkaProducer(bootstrap_servers=broker.kafka)) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=1)
        producer.flush(LIMIT_S)
        partition = kafka.TopicPartition(topic, 1)
        (state,) = python_admin.describe_producers([partition])[partition].active_producers
        assert (state.producer_epoch, state.last_sequence) == (0, 4)
    deleted = python_admin.delete_records({partition: 3})
    assert deleted[partition]["low_watermark"] == 3
    assert python_admin.describe_cluster()["controller_id"] == 1
    (of_broker,) = python_admin.describe_log_dirs({topic: [1]})
    assert topic in str(of_broker)
