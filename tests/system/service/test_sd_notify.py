"""What systemd hears, on real datagram sockets."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.system.sd_notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening service manager, and the NOTIFY_SOCKET that names it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(60)
        if request.param == "path":
            name = str(tmp_path / "notify")
            listener.bind(name)
        else:
            listener.bind(b"")  # the kernel picks an unused abstract name
            name = "@" + listener.getsockname()[1:].decode()
        yield listener, name


def test_each_state_is_one_datagram(manager: tuple[socket.socket, str]) -> None:
    listener, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.extend_start(30_000)
    notifier.ready("3 topics")
    notifier.watchdog()
    notifier.status("busy\nREADY=1")
    notifier.stopping("bye")
    notifier.close()
    assert [listener.recv(4096) for _ in range(5)] == [
        b"EXTEND_TIMEOUT_USEC=30000000",
        b"READY=1\nSTATUS=3 topics",
        b"WATCHDOG=1",
        b"STATUS=busy READY=1",
        b"STOPPING=1\nSTATUS=bye",
    ]


def test_without_a_manager_nothing_is_sent() -> None:
    notifier = Notifier({})
    notifier.ready("unheard")
    notifier.close()
    assert notifier.watchdog_interval_ms is None


def test_a_manager_that_is_gone_is_reported_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with caplog.at_level(logging.WARNING):
        notifier.ready("a")
        notifier.watchdog()
    notifier.close()
    assert len(caplog.records) == 1
    assert str(tmp_path / "gone") in caplog.text


def test_a_full_socket_never_blocks_the_loop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        for _ in range(10_000):  # many times what a socket queues; a blocking send would hang here
            notifier.watchdog()
        notifier.close()


def test_an_unsupported_address_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Notifier({"NOTIFY_SOCKET": "vsock:2:1234"}).ready("unheard")
    assert [each.getMessage() for each in caplog.records] == [
        "NOTIFY_SOCKET=vsock:2:1234 is neither a path nor an abstract socket: ignored"
    ]


@pytest.mark.parametrize(
    ("environment", "interval_ms"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "77"}, 15_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "78"}, None),
        ({"WATCHDOG_USEC": "10"}, 1),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_its_time_if_it_means_this_process(
    environment: dict[str, str], interval_ms: int | None
) -> None:
    assert Notifier(environment, pid=77).watchdog_interval_ms == interval_ms


def test_the_process_environment_is_the_default(
    monkeypatch: pytest.MonkeyPatch, manager: tuple[socket.socket, str]
) -> None:
    listener, name = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notifier = Notifier()
    notifier.watchdog()
    notifier.close()
    assert listener.recv(4096) == b"WATCHDOG=1"
    assert notifier.watchdog_interval_ms == 1000
