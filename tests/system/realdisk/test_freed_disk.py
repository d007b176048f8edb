"""A disk that the log fills: deleting a topic frees it, again and again, without a restart.

What is due comes out while the disk is full, and what groups committed outlives the segments.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.units import MIB
from tests.support.disks.loop_disk import Tmpfs
from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.kill9.rounds import CONFIG
from tests.system.realdisk.load import CLIENT, LIMIT_S

ROUNDS: Final = 3
SIZE_BYTES: Final = 48 * MIB
VALUE: Final = bytes(50_000)
SHORT_MS: Final = 1_000
RETENTION: Final = "[retention]\ncheck_interval_ms = 100\n"


def test_a_disk_that_the_log_filled_is_freed_without_a_restart(
    make_tmpfs: Callable[[int], Tmpfs], tmp_path: Path
) -> None:
    disk = make_tmpfs(SIZE_BYTES)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG + RETENTION)
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        pid, starts = appliance.pid, [0]
        run = Run(appliance)
        for number in range(ROUNDS):
            run.fill(number)
            run.free(number)
            starts.append(first_segment(disk.path))
        assert appliance.pid == pid
        assert starts == sorted(set(starts)), "each round frees segments"
        appliance.stop()
        said = appliance.stderr_path.read_text()
        assert said.count("is full") + said.count("is almost full") >= ROUNDS
        assert said.count("has room again") >= ROUNDS
        assert "head_freer: freed" in said
        appliance.start()
        assert run.committed() == ROUNDS
        assert run.try_send("due", b"after") is None
        appliance.stop()
    finally:
        appliance.close()


class Run:
    """Real clients of one broker."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        self.appliance = appliance
        address = {"bootstrap.servers": appliance.kafka, **CLIENT}
        self.producer = Producer({**address, "linger.ms": 0, "message.send.max.retries": 0})
        self.admin = AdminClient(address)
        self.group = {**address, "group.id": "g", "enable.auto.commit": False}
        self.create("due", {"retention.ms": str(SHORT_MS)})

    def create(self, name: str, settings: dict[str, str] | None = None) -> None:
        topic = NewTopic(name, 1, config=settings or {})
        for _ in until(f"{name} is created"):
            (future,) = self.admin.create_topics([topic]).values()
            try:
                future.result(LIMIT_S)
            except KafkaException:
                continue
            break

    def try_send(self, topic: str, value: bytes, delay_ms: int = 0) -> int | None:
        """Send a record; return its error code, None if it is stored."""
        found: list[int | None] = []
        self.producer.produce(
            topic,
            value,
            headers=[("x-delay", b"%d" % delay_ms)] if delay_ms else [],
            on_delivery=lambda error, _: found.append(None if error is None else error.code()),
        )
        assert self.producer.flush(LIMIT_S) == 0
        return found[0]

    def fill(self, number: int) -> None:
        """Fill the disk with records that are kept, and have one more delivered."""
        self.create("load", {"retention.ms": "-1"})
        end = self.end_of("due")
        assert self.try_send("due", b"later", delay_ms=2_000) is None
        while self.try_send("load", VALUE) is None:
            pass
        self.wait_for_readiness(503)
        for _ in until("the record is delivered although the disk is full"):
            if self.end_of("due") > end:
                break
        self.commit(number + 1)

    def free(self, number: int) -> None:
        """Delete the topic; the disk gets room, and records are accepted."""
        (future,) = self.admin.delete_topics(["load"]).values()
        future.result(LIMIT_S)
        self.wait_for_readiness(200)
        assert self.try_send("due", b"round %d" % number) is None
        assert self.committed() == number + 1

    def wait_for_readiness(self, status: int) -> None:
        for _ in until(f"/readyz is {status}"):
            if self.appliance.get("/readyz")[0] == status:
                break

    def end_of(self, topic: str) -> int:
        consumer = Consumer(self.group)
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT_S)[1]
        finally:
            consumer.close()

    def commit(self, offset: int) -> None:
        consumer = Consumer(self.group)
        try:
            consumer.commit(offsets=[TopicPartition("due", 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def committed(self) -> int:
        consumer = Consumer(self.group)
        try:
            return consumer.committed([TopicPartition("due", 0)], timeout=LIMIT_S)[0].offset
        finally:
            consumer.close()


def first_segment(disk: Path) -> int:
    names = [each.name for each in (disk / "data" / "commitlog").iterdir()]
    return min(int(name) for name in names if name.isdigit())


def until(what: str) -> Iterator[None]:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        yield
        time.sleep(0.05)
    raise AssertionError(f"too late: {what}")
