"""Records of a real broker expire under a real client, and delayed ones only after delivery."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.support.harness.appliance_process import ApplianceProcess, running_appliance

LIMIT_S = 30.0
KEPT_MS = 1_500
DELAY_MS = 4_000


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    config = tmp_path / "latermq.toml"
    config.write_text("[retention]\ncheck_interval_ms = 100\n", encoding="utf-8")
    with running_appliance(tmp_path, ["--config", str(config)]) as running:
        yield running


def wait_for_offsets(consumer: Consumer, wanted: tuple[int, int]) -> None:
    """Wait until the partition has these offsets, the first and the next one."""
    place, end_s = TopicPartition("t", 0), time.monotonic() + LIMIT_S
    while (found := consumer.get_watermark_offsets(place, timeout=LIMIT_S)) != wanted:
        assert time.monotonic() < end_s, f"{found} instead of {wanted}"


def test_records_expire_and_a_delayed_one_does_after_its_delivery(
    appliance: ApplianceProcess,
) -> None:
    address = {"bootstrap.servers": appliance.kafka}
    admin = AdminClient(address)
    kept = {"retention.ms": str(KEPT_MS), "segment.bytes": "1048576"}
    admin.create_topics([NewTopic("t", 1, config=kept)])["t"].result(LIMIT_S)
    resource = ConfigResource(ResourceType.TOPIC, "t")
    shown = admin.describe_configs([resource])[resource].result(LIMIT_S)
    assert {name: shown[name].value for name in kept} == kept

    producer = Producer(address)
    sent_s = time.monotonic()
    for number in range(10):
        producer.produce("t", b"%d" % number, partition=0)
    producer.produce("t", b"later", partition=0, headers={"x-delay": str(DELAY_MS)})
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**address, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        wait_for_offsets(consumer, (10, 10))
        assert time.monotonic() - sent_s >= KEPT_MS / 1_000
        consumer.assign([TopicPartition("t", 0, 3)])  # gone: the client resets to the earliest
        message = consumer.poll(LIMIT_S)
        assert message is not None
        assert (message.error(), message.value(), message.offset()) == (None, b"later", 10)
        assert time.monotonic() - sent_s >= DELAY_MS / 1_000
        wait_for_offsets(consumer, (11, 11))
        assert time.monotonic() - sent_s >= (DELAY_MS + KEPT_MS) / 1_000
    finally:
        consumer.close()
