"""A real broker whose log is gone: one sentence, status 74, and nothing is changed."""

import subprocess
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.harness.appliance_process import ApplianceProcess, latermq_command

LIMIT_S: Final = 120
TOPIC: Final = "orders"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that is expected to end by itself."""
    command = [latermq_command(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def serve(data_dir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    addresses = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    return run("serve", "--data-dir", str(data_dir), *addresses, *arguments)


def send(broker: ApplianceProcess, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(TOPIC, value, partition=0)
    assert producer.flush(LIMIT_S) == 0


def read(broker: ApplianceProcess, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = consumer.consume(count, LIMIT_S)
        assert all(message.error() is None for message in found)
        return [message.value() for message in found]
    finally:
        consumer.close()


def tree(root: Path) -> dict[Path, bytes]:
    """Every file but the lock, which has the process id of its last holder."""
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    return {path: path.read_bytes() for path in files}


def test_a_log_that_is_gone_is_refused_until_it_is_back(tmp_path: Path) -> None:
    broker = ApplianceProcess(tmp_path / "data")
    broker.start()
    send(broker, b"before")
    broker.stop()
    log, away = broker.data_dir / "commitlog", tmp_path / "away"
    log.rename(away)
    before = tree(broker.data_dir)
    refused = serve(broker.data_dir)
    assert refused.returncode == 74
    line = refused.stderr.splitlines()[-1]
    assert "the log is gone" in line
    assert "--accept-loss" in line
    assert run("rebuild", str(broker.data_dir)).returncode == 2
    assert tree(broker.data_dir) == before
    assert not log.exists()
    away.rename(log)
    broker.start()
    assert read(broker, 1) == [b"before"]
    broker.stop()
    log.rename(away)
    accepted = ApplianceProcess(broker.data_dir, ["--accept-loss"], tmp_path / "accepted.log")
    accepted.start()
    send(accepted, b"after")
    assert read(accepted, 1) == [b"after"]
    accepted.stop()


def test_a_directory_that_must_exist_is_not_made(tmp_path: Path) -> None:
    config = tmp_path / "latermq.toml"
    config.write_text("[store]\nmust_exist = true\n")
    refused = serve(tmp_path / "data", "--config", str(config))
    assert refused.returncode == 74
    assert "store.must_exist" in refused.stderr
    assert not (tmp_path / "data").exists()
