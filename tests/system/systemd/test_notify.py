"""What a real broker reports to the service manager that started it."""

import socket
from pathlib import Path

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.replication.nodes import Node


def test_the_broker_says_when_it_is_ready_alive_and_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(90)
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        appliance = ApplianceProcess(tmp_path / "data")
        try:
            appliance.start()
            received = [manager.recv(4096)]
            while not received[-1].startswith(b"WATCHDOG=1"):
                received.append(manager.recv(4096))
            ready = [message for message in received if b"READY=1" in message.splitlines()]
            assert len(ready) == 1, received
            assert f"kafka={appliance.kafka}".encode() in ready[0]
            # While it recovers, the start may take longer than TimeoutStartSec.
            assert b"EXTEND_TIMEOUT_USEC" in received[0]
            appliance.stop()
        finally:
            appliance.close()
        while b"STOPPING=1" not in received[-1].splitlines():
            received.append(manager.recv(4096))


def test_a_slave_has_time_until_it_has_caught_up_and_feeds_the_watchdog_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service manager kills what is not ready in time, and what is silent afterwards."""
    master, slave = Node(tmp_path, "master"), Node(tmp_path, "slave")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(90)
        manager.bind(str(tmp_path / "notify"))
        try:
            master.start()
            master.stop()
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
            monkeypatch.setenv("WATCHDOG_USEC", "200000")
            slave.follows(master.replication).spawn()
            before = [manager.recv(4096) for _ in range(20)]
            assert before[-1].startswith(b"EXTEND_TIMEOUT_USEC")
            monkeypatch.delenv("NOTIFY_SOCKET")
            master.spawn()
            while b"READY=1" not in (report := manager.recv(4096)).splitlines():
                assert report.startswith((b"EXTEND_TIMEOUT_USEC", b"STATUS="))
            master.await_serving()
            assert [manager.recv(4096) for _ in range(20)] == [b"WATCHDOG=1"] * 20
            slave.await_caught_up()
        finally:
            slave.close()
            master.close()
