"""A disk that is too small for what a producer sends: the oldest records make room for new ones.

With `disk.expire_percent`, although their retention is not over.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from appliance.units import MIB
from tests.support.disks.loop_disk import Tmpfs
from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.kill9.rounds import CONFIG
from tests.system.realdisk.load import CLIENT, LIMIT_S, TOPIC

SIZE_BYTES: Final = 24 * MIB
VALUE_BYTES: Final = 50_000
COUNT: Final = 3 * SIZE_BYTES // 2 // VALUE_BYTES
EXPIRE: Final = "[disk]\nexpire_percent = 80\n"


def test_a_producer_goes_on_and_the_oldest_records_expire(
    make_tmpfs: Callable[[int], Tmpfs], tmp_path: Path
) -> None:
    disk = make_tmpfs(SIZE_BYTES)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG + EXPIRE)
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        send_all(appliance)
        start = start_after_expiry(appliance)
        assert read_all(appliance) == list(range(start, COUNT))
        appliance.stop()
        said = appliance.stderr_path.read_text().splitlines()
        assert [line for line in said if "WARNING" in line and "expire before their" in line]
        assert [line for line in said if "no more records expire before their" in line]
        appliance.start()
        left = read_all(appliance)
        # A start takes room of its own, so some more may have expired.
        assert left == list(range(max(start, left[0]), COUNT))
        appliance.stop()
    finally:
        appliance.close()


def send_all(appliance: ApplianceProcess) -> None:
    """Send more than the disk holds; a client retries what is refused meanwhile."""
    producer = Producer(
        {
            "bootstrap.servers": appliance.kafka,
            "enable.idempotence": True,
            "batch.num.messages": 4,
            **CLIENT,
        }
    )
    errors: list[str] = []
    for number in range(COUNT):
        value = b"%d " % number + bytes(VALUE_BYTES)
        producer.produce(
            TOPIC,
            value,
            partition=0,
            on_delivery=lambda error, _: errors.append(str(error)) if error else None,
        )
        if number % 20 == 0:
            assert producer.flush(LIMIT_S) == 0
    assert producer.flush(LIMIT_S) == 0
    assert errors == []


def start_after_expiry(appliance: ApplianceProcess) -> int:
    """Wait until nothing more expires; return the start offset."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        _, found = appliance.get_json("/api/v1/status")
        disk = found["disk"]
        # The broker looks at the disk once a second: the last records may have come since.
        is_full = disk["log_bytes"] * 100 >= 80 * disk["total_bytes"]
        if not is_full and not found["freeing"]["expires_early"]:
            break
        assert time.monotonic() < deadline_s, "the disk stays too full"
        time.sleep(0.02)
    assert disk["used_percent"] < 80
    partition = appliance.get_json(f"/api/v1/topics/{TOPIC}")[1]["partitions"][0]
    start: int = partition["start_offset"]
    assert found["freeing"]["early_expired_records"] == start > 0
    text = appliance.get("/metrics")[1].decode()
    shown = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert shown["latermq_early_expired_records_total"] == start
    assert shown["latermq_expires_early"] == 0
    return start


def read_all(appliance: ApplianceProcess) -> list[int]:
    """The numbers of the records that are left, up to the last one sent."""
    consumer = Consumer(
        {
            "bootstrap.servers": appliance.kafka,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **CLIENT,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[int] = []
        deadline_s = time.monotonic() + LIMIT_S
        while not found or found[-1] != COUNT - 1:
            assert time.monotonic() < deadline_s, f"{len(found)} records came"
            for message in consumer.consume(100, 1.0):
                assert message.error() is None, message.error()
                found.append(int((message.value() or b"").split()[0]))
        return found
    finally:
        consumer.close()
