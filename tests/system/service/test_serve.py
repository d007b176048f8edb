"""`latermq serve` from outside: its ready line, its signals, its refusals, its admin address."""

import json
import logging
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness.appliance_process import (
    CONFIG,
    ApplianceProcess,
    latermq_command,
    running_appliance,
)

Serve = Callable[..., ApplianceProcess]

LIMIT_S = 60.0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Make broker processes, none of which outlives the test."""
    made: list[ApplianceProcess] = []

    def make(*arguments: str, directory: str = "data") -> ApplianceProcess:
        stderr_path = tmp_path / f"{len(made)}.stderr"
        made.append(ApplianceProcess(tmp_path / directory, arguments, stderr_path))
        return made[-1]

    yield make
    for appliance in made:
        appliance.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """A broker for the tests that only ask."""
    with running_appliance(tmp_path_factory.mktemp("shared")) as appliance:
        yield appliance


def send(address: str, topic: str, *records: tuple[bytes, dict[str, bytes]]) -> None:
    """Produce to partition 0 and wait until all is acknowledged."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for value, headers in records:
        producer.produce(
            topic,
            value,
            partition=0,
            headers=list(headers.items()),
            on_delivery=lambda error, _: errors.append(str(error)) if error else None,
        )
    assert producer.flush(LIMIT_S) == 0
    assert errors == []


def receive(address: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    """Read offsets and values of partition 0 from its beginning."""
    settings = {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    received: list[tuple[int, bytes | None]] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(received) < count and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            received.append((message.offset() or 0, message.value()))
    consumer.close()
    return received


def refused(appliance: ApplianceProcess) -> str:
    """Start a broker that must refuse to run; return what it says on standard error."""
    appliance.spawn()
    assert appliance.wait() != 0
    assert appliance.stdout == b""
    said = appliance.stderr_path.read_text()
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_it_cleanly_under_load(serve: Serve, number: signal.Signals) -> None:
    """Status 0, with a client connected whose long poll lasts longer than a stop may.

    Before, the ready line has the ports that were taken, and both answer as soon as it is there.
    """
    appliance = serve()
    appliance.start()
    for address in (appliance.kafka, appliance.admin):
        host, port = address.split(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), LIMIT_S).close()
    send(appliance.kafka, "t", (b"one", {}))
    settings = {"bootstrap.servers": appliance.kafka, "group.id": "unused", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 60_000})
    consumer.assign([TopicPartition("t", 0, 0)])
    assert consumer.poll(LIMIT_S) is not None
    consumer.poll(0.1)  # the next fetch is parked
    appliance.stop(number)
    consumer.close()
    assert appliance.stdout.count(b"\n") == 1


def test_second_broker_on_the_same_directory_is_refused(
    shared: ApplianceProcess, tmp_path: Path
) -> None:
    """The message names the directory; the first broker is not disturbed."""
    said = refused(ApplianceProcess(shared.data_dir, (), tmp_path / "stderr"))
    assert str(shared.data_dir) in said
    assert "another" in said or "in use" in said
    assert shared.get("/readyz")[0] == 200


def test_address_in_use_is_refused(serve: Serve, shared: ApplianceProcess) -> None:
    """The message names the address, and nothing is created."""
    second = serve()
    second.kafka = shared.kafka
    assert shared.kafka in refused(second)
    assert not second.data_dir.exists()


def test_wildcard_address_needs_advertise(serve: Serve) -> None:
    """Clients are sent to the advertised address."""
    wildcard = ("--allow-insecure", "--listen", "0.0.0.0:0")
    appliance = serve(*wildcard, "--advertise", "127.0.0.1:0")
    appliance.start()
    host, port = appliance.kafka.split(":")
    assert host == "0.0.0.0"
    send(f"127.0.0.1:{port}", "t", (b"one", {}))
    assert receive(f"127.0.0.1:{port}", "t", 1) == [(0, b"one")]


def test_bad_configuration_is_refused(serve: Serve, tmp_path: Path) -> None:
    """The message names what is wrong, and nothing is created."""
    config = tmp_path / "latermq.toml"
    config.write_text("[flush]\nmodus = 'sync'\n")
    appliance = serve("--config", str(config))
    assert "modus" in refused(appliance)
    assert not appliance.data_dir.exists()


def test_restart_keeps_records_timers_and_topics(serve: Serve) -> None:
    """After a clean stop and after kill -9, which frees the directory as well.

    What was acknowledged is there at its offset. What comes due while no broker runs, which is
    longer than these 100 ms, comes out at once, and what is pending stays so.
    """
    appliance = serve()  # tests/system/kill9 has both flush modes
    appliance.start()
    later = {"x-delay": b"1h", "x-deliver-id": b"later"}
    send(appliance.kafka, "t", (b"one", {}), (b"due", {"x-delay": b"100"}), (b"later", later))
    appliance.stop()
    appliance.start()
    assert receive(appliance.kafka, "t", 2) == [(0, b"one"), (1, b"due")]
    send(appliance.kafka, "t", (b"two", {}), (b"overdue", {"x-delay": b"100"}))
    appliance.kill()
    appliance.start()
    expected = [b"one", b"due", b"two", b"overdue"]
    assert receive(appliance.kafka, "t", 4) == list(enumerate(expected))
    assert appliance.get_json("/api/v1/topics/t/timers/later")[1]["state"] == "pending"
    appliance.stop()


def test_health_and_readiness_are_ok_while_it_serves(shared: ApplianceProcess) -> None:
    """Both answer 200, as JSON."""
    assert shared.get_json("/healthz") == (200, {"status": "ok"})
    assert shared.get_json("/readyz") == (200, {"ready": True})


def test_metrics_are_prometheus_text_and_count_what_happens(shared: ApplianceProcess) -> None:
    """Every line can be parsed, and delivered timers are counted."""

    def delivered() -> float:
        status, body = shared.get("/metrics")
        assert status == 200
        families = text_string_to_metric_families(body.decode())
        samples = [sample for family in families for sample in family.samples]
        (count,) = [one.value for one in samples if one.name == "latermq_timers_delivered_total"]
        return count

    before = delivered()
    send(shared.kafka, "metrics", (b"now", {}), (b"later", {"x-delay": b"10"}))
    assert len(receive(shared.kafka, "metrics", 2)) == 2
    assert delivered() == before + 1


def test_timer_look_up_tells_each_state(shared: ApplianceProcess) -> None:
    """Pending, cancelled, delivered, unknown; an id is any bytes, percent-encoded."""
    wild = bytes(range(1, 256))
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    send(
        shared.kafka,
        "timers",
        (b"a", {"x-deliver-at": b"%d" % due_ms, "x-deliver-id": wild}),
        (b"b", {"x-delay": b"1h", "x-deliver-id": b"cancelled"}),
        (b"c", {"x-deliver-cancel": b"cancelled"}),
        (b"d", {"x-delay": b"1", "x-deliver-id": b"delivered"}),
    )
    assert receive(shared.kafka, "timers", 1) == [(0, b"d")]

    def state(name: bytes) -> dict[str, object]:
        status, answer = shared.get_json(f"/api/v1/topics/timers/timers/{quote(name, safe='')}")
        assert status == 200
        assert set(answer) == {"state", "due_at", "partition", "offset"}
        return dict(answer)

    pending = {"state": "pending", "due_at": due_ms, "partition": 0, "offset": None}
    assert state(wild) == pending
    assert state(b"cancelled")["state"] == "cancelled"
    assert (state(b"delivered")["state"], state(b"delivered")["offset"]) == ("delivered", 0)
    assert set(state(b"never seen").values()) == {"unknown", None}


def test_timer_of_a_topic_that_does_not_exist_is_not_found(shared: ApplianceProcess) -> None:
    """As JSON that says so; and the admin address makes no topics."""
    status, answer = shared.get_json("/api/v1/topics/nowhere/timers/x")
    assert status == 404
    assert "nowhere" in json.dumps(answer)


def test_process_says_nothing_alarming(shared: ApplianceProcess) -> None:
    """No traceback in the log of a broker that was only asked good questions."""
    assert "Traceback" not in shared.stderr_path.read_text()


def test_the_codecs_of_requests_are_prepared_after_a_start(tmp_path: Path) -> None:
    config = tmp_path / "debug.toml"
    config.write_text(f"{CONFIG}[process]\nlog_level = 'debug'\n")
    free = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    command = [latermq_command(), "serve", "--config", str(config), *free]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("prepared the codecs of all requests" in line for line in process.stderr)
        process.terminate()
    assert process.returncode == 0


def test_a_request_is_followed_by_client_id_and_correlation_id(
    serve: Serve, tmp_path: Path
) -> None:
    """The client says by which number it asked, and the debug log what became of that."""
    config = tmp_path / "debug.toml"
    config.write_text(f"{CONFIG}[process]\nlog_level = 'debug'\n")
    appliance = serve("--config", str(config))
    appliance.start()
    spoken: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        spoken.append(record.getMessage())
        return False

    client = logging.Logger("client")
    client.addFilter(keep)
    settings = {"client.id": "traced \n", "debug": "protocol", "acks": "all"}
    producer = Producer({"bootstrap.servers": appliance.kafka, **settings}, logger=client)
    producer.produce("t", b"one", partition=0)
    assert producer.flush(LIMIT_S) == 0
    producer.poll(0)
    appliance.stop()
    asked = [re.search(r"Sent ProduceRequest \(v(\d+), .* CorrId (\d+)\)", text) for text in spoken]
    ((version, number),) = [match.groups() for match in asked if match is not None]
    facts = f'api=Produce version={version} client_id="traced \\n" correlation_id={number} peer='
    said = appliance.stderr_path.read_text().splitlines()
    lines = [line.split(": ", 1)[1] for line in said if facts in line]
    assert [line.split()[0] for line in lines] == ["request", "answer"]
    assert lines[0].endswith(" answer=ready")
    assert any('setting process.log_level="debug"' in line for line in said)
    assert any('topic created name="t" ' in line for line in said)
    assert any("connection opened peer=" in line for line in said)
    assert any("flush bytes=" in line for line in said)
    assert any("checkpoint number=" in line for line in said)
    assert all(re.match(r"\d{4}-\d\d-\d\d [\d:,]+ (DEBUG|INFO) ", line) for line in said)
