"""A disk that three clients fill side by side: deleting the topic frees it, again and again.

Writes are refused with an error that clients retry and that names the disk, what is due comes out
meanwhile, consumers are served, and what groups committed outlives the segments. The broker says
so, and needs no restart.
"""

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from appliance.units import MIB
from tests.support.disks.loop_disk import Tmpfs
from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.clients.suites.using import library_of, reading, receive, values_of
from tests.system.kill9.rounds import CONFIG
from tests.system.realdisk.load import CLIENT, LIMIT_S
from tests.system.realdisk.senders import SENDERS, Refusal

SIZE_BYTES: Final = 48 * MIB
VALUE: Final = bytes(50_000)
RETENTION: Final = "[retention]\ncheck_interval_ms = 100\n"
DELAY_MS: Final = 2_000
TIMER_EVERY_S: Final = 0.2

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _no_garbage_for_other_tests() -> Iterator[None]:
    yield
    gc.collect()


def test_a_disk_that_the_log_filled_is_freed_without_a_restart(
    make_tmpfs: Callable[[int], Tmpfs], tmp_path: Path, fills: int
) -> None:
    disk = make_tmpfs(SIZE_BYTES)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG + RETENTION)
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        pid, starts = appliance.pid, [0]
        with closing(Run(appliance)) as run:
            for number in range(fills):
                run.fill(number)
                run.check_full(number)
                run.free(number)
                starts.append(first_segment(disk.path))
        assert appliance.pid == pid
        assert starts == sorted(set(starts)), "each round frees segments"
        assert run.delivered_while_full > 0
        appliance.stop()
        check_log(appliance, fills)
        appliance.start()
        assert run.committed() == fills
        appliance.stop()
    finally:
        appliance.close()


def check_log(appliance: ApplianceProcess, fills: int) -> None:
    lines = appliance.stderr_path.read_text().splitlines()
    full = [
        line
        for line in lines
        if ("is full" in line or "is almost full" in line) and "no segment is freed" not in line
    ]
    over = [line for line in lines if "has room again" in line and "are accepted" in line]
    assert len(full) >= fills
    assert len(over) >= fills
    assert all("WARNING" in line and "% used" in line for line in full + over)
    assert any("head_freer: freed" in line for line in lines)


def check_refusal(name: str, refusal: Refusal) -> None:
    """It is an error that clients retry, and says what is the matter."""
    assert refusal.code == KafkaError.KAFKA_STORAGE_ERROR, (name, refusal)
    if name == "kafka_python":  # it alone shows the sentence of the broker
        assert "the broker's disk is" in refusal.text, refusal
    elif name == "confluent":
        assert "disk" in refusal.text, refusal
    else:  # it shows a name
        assert "KafkaStorageError" in refusal.text, refusal


class Run:
    """Three client libraries, and one broker that they fill."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        self.appliance = appliance
        self.libraries = {name: library_of(name, appliance.kafka) for name in SENDERS}
        self.senders = {name: make(appliance.kafka) for name, make in SENDERS.items()}
        self.threads = ThreadPoolExecutor(len(SENDERS))
        self.due: dict[str, list[bytes]] = {}
        self.delivered_while_full = 0
        self.group = {
            "bootstrap.servers": appliance.kafka,
            "group.id": "g",
            "enable.auto.commit": False,
            **CLIENT,
        }
        self.libraries["confluent"].create("committed")
        # It keeps no segment for long.
        self.libraries["confluent"].change_setting("committed", "retention.ms", "1000")

    def in_turn(self, number: int) -> str:
        return list(SENDERS)[number % len(SENDERS)]

    def fill(self, number: int) -> None:
        """Let all libraries send side by side until each is refused, with timers in between."""
        library = self.libraries[self.in_turn(number)]
        for name in (f"load-{number}", f"due-{number}"):
            library.create(name)
        filling = {name: self.threads.submit(self.send, name, number) for name in SENDERS}
        for name, future in filling.items():
            refusal = future.result(LIMIT_S)
            check_refusal(name, refusal)

    def send(self, name: str, number: int) -> Refusal:
        """Send until a record is refused; return why."""
        sender, due = self.senders[name], self.due.setdefault(name, [])
        due.clear()
        next_timer_s = 0.0
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            refusal = sender.send(f"load-{number}", VALUE)
            if refusal is None and time.monotonic() > next_timer_s:
                next_timer_s = time.monotonic() + TIMER_EVERY_S
                value = f"{name} {number} {len(due)}".encode()
                refusal = sender.send(f"due-{number}", value, DELAY_MS)
                if refusal is None:
                    due.append(value)
            if refusal is not None:
                return refusal
        raise AssertionError(f"{name} is never refused")

    def check_full(self, number: int) -> None:
        """All that was promised is delivered from the reserve, and the broker says what it is."""
        for _ in until("/readyz is 503"):
            status, readiness = self.appliance.get_json("/readyz")
            if status == 503:
                break
        assert "the broker's disk is" in readiness["error"]
        before = self.status()
        assert before["disk"]["state"] == "refusing"
        self.delivered_while_full += before["pending_timers"]
        expected = sorted(value for values in self.due.values() for value in values)
        for library in self.libraries.values():
            with reading(library, f"due-{number}") as consumer:
                assert sorted(values_of(receive(consumer, len(expected)))) == expected
        refusal = self.senders["kafka_python"].send(f"due-{number}", b"x")
        assert refusal is not None
        assert "% used" in refusal.text
        self.commit(number + 1)
        after = self.status()
        assert after["pending_timers"] == 0
        assert after["disk"]["state"] == "refusing"
        assert after["disk"]["refusal"].startswith("the broker's disk is")
        shown = self.metrics()
        assert shown["latermq_disk_state"] == 2
        assert shown["latermq_disk_used_bytes"] > 0.8 * SIZE_BYTES
        assert shown["latermq_disk_total_bytes"] == SIZE_BYTES
        assert "latermq_disk_seconds_until_full" in shown

    def free(self, number: int) -> None:
        """Delete the topics; the disk gets room, and all libraries are accepted."""
        freed = self.metrics()["latermq_freed_bytes_total"]
        library = self.libraries[self.in_turn(number + 1)]
        for name in (f"load-{number}", f"due-{number}"):
            library.delete_topic(name)
        for _ in until("/readyz is 200"):
            if self.appliance.get("/readyz")[0] == 200:
                break
        for name, sender in self.senders.items():
            assert sender.send("committed", b"x") is None, name
        assert self.committed() == number + 1
        assert self.status()["disk"]["refusal"] is None
        shown = self.metrics()
        assert shown["latermq_disk_state"] < 2
        assert shown["latermq_freed_bytes_total"] > freed

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.appliance.get_json("/api/v1/status")[1]
        return found

    def metrics(self) -> dict[str, float]:
        text = self.appliance.get("/metrics")[1].decode()
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    def commit(self, offset: int) -> None:
        consumer = Consumer(self.group)
        try:
            place = TopicPartition("committed", 0, offset)
            consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()

    def committed(self) -> int:
        consumer = Consumer(self.group)
        try:
            place = TopicPartition("committed", 0)
            return consumer.committed([place], timeout=LIMIT_S)[0].offset
        finally:
            consumer.close()

    def close(self) -> None:
        self.threads.shutdown()
        for sender in self.senders.values():
            sender.close()


def first_segment(disk: Path) -> int:
    names = [each.name for each in (disk / "data" / "commitlog").iterdir()]
    return min(int(name) for name in names if name.isdigit())


def until(what: str) -> Iterator[None]:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        yield
        time.sleep(0.05)
    raise AssertionError(f"too late: {what}")
