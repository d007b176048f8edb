"""Records of a real broker expire under a real client, and delayed ones only after delivery."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.support.harness.command_line import CommandLine

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


def test_an_operator_cleans_up(
    appliance: ApplianceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    latermq = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
    latermq.ok("topics create t --partitions 1")
    assert latermq.ok("cleanup").stderr.startswith("latermq: nothing has expired")
    latermq.ok("send t", b"1\n2\n3")
    wanted = {"topics": [{"topic": "t", "expired_records": 3}]}
    # The age of what is newest is known only after the next check.
    end_s = time.monotonic() + LIMIT_S
    while not (would := latermq.ok("cleanup --before 0s --dry-run --json").json())["topics"]:
        assert time.monotonic() < end_s
    assert would == {**wanted, "age_jump_ms": 0, "clock_jump_ms": 0}
    assert len(latermq.ok("tail t --from earliest").lines) == 3
    found = latermq.ok("cleanup --before 0s --topic t")
    assert [line.split() for line in found.lines] == [["TOPIC", "EXPIRED"], ["t", "3"]]
    assert latermq.ok("tail t --from earliest").lines == []
    assert "there is no topic 'none'" in latermq.fails("cleanup --topic none")
    assert '--before "soon": is malformed' in latermq.fails("cleanup --before soon", 2)
    assert "leave out --dry-run" in latermq.fails("cleanup --confirm-clock --dry-run", 2)
    assert latermq.ok("cleanup --dry-run").stderr.startswith("latermq: nothing would expire")
    assert latermq.ok("cleanup --confirm-clock").stderr.startswith("latermq: nothing has expired")
