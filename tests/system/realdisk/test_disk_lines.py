"""A disk that others fill beyond `disk.refuse_percent`, and what real clients see of it.

New records are refused with an error that clients retry and a message that says why; what is due
comes out and consumers are served; readiness, status and metrics say so. All of it ends by itself.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from appliance.units import MIB
from tests.support.clients.wire_socket import ask_broker
from tests.support.disks.loop_disk import Tmpfs
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.broker_harness import PRODUCE_VERSION, produced
from tests.support.harness.command_line import CommandLine
from tests.support.oracles.kafka_oracle import ProduceResponse
from tests.support.values.kafka_records import Record, build_batch
from tests.support.values.record_requests import produce_request
from tests.system.kill9.rounds import CONFIG
from tests.system.realdisk.load import CLIENT, LIMIT_S, TOPIC, read_all

ROUNDS: Final = 5
ATTEMPTS: Final = 6
FILLED_PERCENT: Final = 94
DELAY_MS: Final = 1_000
"""Doubled until the record is due after the broker refuses, however slow the machine is."""

TIME_OUT_MS: Final = 1_500
REFUSED: Final = "the broker's disk is almost full"


def test_beyond_the_line_records_are_refused_and_all_else_goes_on_five_times_in_a_row(
    make_tmpfs: Callable[[int], Tmpfs], tmp_path: Path
) -> None:
    disk = make_tmpfs(64 * MIB)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG)
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        clients = Clients(appliance)
        expected: list[bytes] = []
        for number in range(ROUNDS):
            expected += fill_and_free(clients, disk.path, b"%d" % number)
            assert read_all(appliance.kafka) == expected
        clients.close()
        appliance.stop()
        lines = appliance.stderr_path.read_text().splitlines()
        crossed = [line for line in lines if "is almost full" in line]
        over = [line for line in lines if "has room again" in line]
        assert len(crossed) == len(over) >= ROUNDS
        assert all("WARNING" in line and "% used" in line for line in crossed + over)
        appliance.start()
        assert read_all(appliance.kafka) == expected
        appliance.stop()
    finally:
        appliance.close()


def test_the_command_line_says_why_a_record_is_refused(
    make_tmpfs: Callable[[int], Tmpfs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make_tmpfs(64 * MIB)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG)
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        latermq = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
        latermq.ok(f"send {TOPIC} x --delay 1h --id a")
        assert "REFUSING" not in latermq.ok("status").stdout
        fill(disk.path)
        wait_for_readiness(appliance, 503)
        for command in (f"send {TOPIC} x", f"send {TOPIC} x --delay 1h", "topics create new"):
            assert REFUSED in latermq.fails(command)
        assert f"REFUSING     {REFUSED}" in latermq.ok("status").stdout
        assert latermq.ok("status --json").json()["disk"]["state"] == "refusing"
        latermq.ok(f"send {TOPIC} --cancel a")
        assert latermq.ok(f"timers show {TOPIC} a --json").json()["state"] == "cancelled"
        latermq.ok(f"topics delete {TOPIC} --yes")
        appliance.stop()
    finally:
        appliance.close()
        # Kafka clients that are closed leave the two ends of their wake-up pipes to the collector.
        gc.collect()


class Clients:
    """Real clients of one broker, which live as long as the test."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        self.appliance = appliance
        common = {"bootstrap.servers": appliance.kafka, "linger.ms": 0, **CLIENT}
        self.patient = Producer({**common, "enable.idempotence": True})
        self.hasty = Producer({**common, "delivery.timeout.ms": TIME_OUT_MS})
        self.single = Producer({**common, "message.send.max.retries": 0})
        self.admin = AdminClient({"bootstrap.servers": appliance.kafka, **CLIENT})
        self.consumer = Consumer(
            {
                "bootstrap.servers": appliance.kafka,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **CLIENT,
            }
        )
        self.consumer.subscribe([TOPIC])

    def read(self, value: bytes) -> None:
        """Consume until a value comes, and commit its offset."""
        for _ in until(f"{value!r} is consumed"):
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None and message.value() == value:
                break
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        """Leave the group."""
        self.consumer.close()


def fill_and_free(clients: Clients, disk: Path, name: bytes) -> list[bytes]:
    """Cross the line and come back; return the values that were stored."""
    stored, due = send_and_fill(clients, disk, name)
    check_refused(clients)
    waiting = send(clients.patient, b"waited " + name)
    clients.read(due)
    check_told(clients.appliance, is_refusing=True)
    assert not waiting, "it was accepted, or given up, while writes are refused"

    (disk / "ballast").unlink()
    for _ in until("the record that waits is accepted"):
        clients.patient.poll(0.1)
        if waiting:
            break
    assert waiting == [None]
    wait_for_readiness(clients.appliance, 200)
    check_told(clients.appliance, is_refusing=False)
    assert outcome(clients.single, b"after " + name) is None
    clients.read(b"after " + name)
    return [*stored, b"waited " + name, b"after " + name]


def send_and_fill(clients: Clients, disk: Path, name: bytes) -> tuple[list[bytes], bytes]:
    """Fill the disk while a record is pending; return all that is stored, and that record."""
    stored: list[bytes] = []
    for attempt in range(ATTEMPTS):
        stored.append(b"before %s.%d" % (name, attempt))
        assert outcome(clients.single, stored[-1]) is None
        due = b"due %s.%d" % (name, attempt)
        assert outcome(clients.single, due, delay_ms=DELAY_MS << attempt) is None
        fill(disk)
        wait_for_readiness(clients.appliance, 503)
        stored.append(due)
        if due not in read_all(clients.appliance.kafka):
            return stored, due
        (disk / "ballast").unlink()
        wait_for_readiness(clients.appliance, 200)
    raise AssertionError("the record was always due before the disk was full")


def fill(disk: Path) -> None:
    """Let another file take the space of the disk."""
    found = os.statvfs(disk)
    kept = found.f_blocks * found.f_frsize * (100 - FILLED_PERCENT) // 100
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - kept)


def check_refused(clients: Clients) -> None:
    """Every client gets an error that it retries; who cannot wait reports what it has."""
    refused = KafkaError.KAFKA_STORAGE_ERROR
    assert outcome(clients.single, b"refused") == refused
    assert outcome(clients.single, b"refused", delay_ms=1) == refused
    assert outcome(clients.hasty, b"refused") == KafkaError._MSG_TIMED_OUT

    request = produce_request([(TOPIC, [(0, build_batch([Record(b"refused")]))])])
    answer = produced(
        ask_broker(
            clients.appliance.kafka, request, PRODUCE_VERSION, ProduceResponse, limit_s=LIMIT_S
        )
    )
    assert answer.error == refused
    assert answer.message is not None
    assert answer.message.startswith(REFUSED)

    (future,) = clients.admin.create_topics([NewTopic("new", 1)]).values()
    error = error_of(future)
    assert error.code() == refused
    assert REFUSED in error.str()


def error_of(future: Any) -> KafkaError:
    try:
        future.result(LIMIT_S)
    except KafkaException as error:
        found: KafkaError = error.args[0]
        return found
    raise AssertionError("it was not refused")


def check_told(appliance: ApplianceProcess, *, is_refusing: bool) -> None:
    """Readiness, status and metrics agree."""
    status, readiness = appliance.get_json("/readyz")
    assert (status, readiness["ready"]) == ((503, False) if is_refusing else (200, True))
    _, found = appliance.get_json("/api/v1/status")
    disk = found["disk"]
    assert (disk["state"] == "refusing") == is_refusing
    assert (disk["refusal"] is not None) == is_refusing
    if is_refusing:
        assert readiness["error"].startswith(REFUSED)
        assert disk["refusal"].startswith(REFUSED)
    assert disk["total_bytes"] == 64 * MIB
    assert (disk["used_percent"] >= 90) == is_refusing
    text = appliance.get("/metrics")[1].decode()
    shown = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert shown["latermq_disk_total_bytes"] == 64 * MIB
    assert (shown["latermq_disk_state"] == 2) == is_refusing
    assert (shown["latermq_disk_free_bytes"] < 7 * MIB) == is_refusing
    assert shown["latermq_disk_log_bytes"] > 0


def wait_for_readiness(appliance: ApplianceProcess, status: int) -> None:
    for _ in until(f"/readyz is {status}"):
        if appliance.get("/readyz")[0] == status:
            break


def send(producer: Producer, value: bytes, delay_ms: int = 0) -> list[int | None]:
    """Send a record; return a list that gets its error code, None if it is stored."""
    found: list[int | None] = []
    producer.produce(
        TOPIC,
        value,
        partition=0,
        headers=[("x-delay", b"%d" % delay_ms)] if delay_ms else [],
        on_delivery=lambda error, _: found.append(None if error is None else error.code()),
    )
    producer.poll(0)
    return found


def outcome(producer: Producer, value: bytes, delay_ms: int = 0) -> int | None:
    """Send a record, and return its error code; None if it is stored."""
    found = send(producer, value, delay_ms)
    assert producer.flush(LIMIT_S) == 0
    return found[0]


def until(what: str) -> Iterator[None]:
    """Yield until the time for it is over, which is a failure."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        yield
    raise AssertionError(f"too late: {what}")
