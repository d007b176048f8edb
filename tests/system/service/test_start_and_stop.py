"""What `latermq serve` does before it serves, and what ends it: addresses, signals, its log."""

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from appliance.admin.live import version
from appliance.config.config import Address, Config
from appliance.errors import AddressError, ConfigError
from appliance.main import Service
from appliance.pump import Pump
from appliance.system import listening
from compat.kafka.network.server import KafkaServer
from tests.support.harness.appliance_process import (
    CONFIG,
    ApplianceProcess,
    latermq_command,
)
from tests.support.harness.command_line import CommandLine
from tests.support.harness.live_broker import LiveBroker

LIMIT_S: Final = 60.0

DOCUMENTATION_ADDRESS: Final = "203.0.113.7"
"""No machine has it (RFC 5737)."""

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def run_serve(data_dir: Path, listen: str, admin: str) -> "subprocess.CompletedProcess[str]":
    """Run a broker that is expected to end by itself."""
    command = [latermq_command(), "serve", "--data-dir", str(data_dir), "--allow-insecure"]
    command += ["--listen", listen, "--admin", admin]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_a_start_without_its_addresses_touches_nothing_and_may_be_tried_again(
    tmp_path: Path, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for address in (taken, f"{DOCUMENTATION_ADDRESS}:9092"):
            addresses = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", flag: address}
            ended = run_serve(tmp_path / "data", addresses["--listen"], addresses["--admin"])
            assert ended.returncode == 75
            assert ended.stdout == ""
            said = ended.stderr.splitlines()[-1]
            assert said.startswith("latermq: cannot listen on ")
            assert address in said
            assert said.endswith(f"change {flag}")
            assert not (tmp_path / "data").exists()


async def test_an_address_is_bound_before_anybody_can_connect(tmp_path: Path) -> None:
    (bound,) = await listening.bind(Address("127.0.0.1", 0), "--listen")
    address = Address(*bound.getsockname())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    # Two brokers that start at the same time are both bound to it; one of them gets it.
    (other,) = await listening.bind(address, "--listen")
    other.listen()
    live = LiveBroker(tmp_path)
    for _ in live.broker.recover():
        pass
    server = KafkaServer(live.broker, Pump(live.broker))
    with pytest.raises(AddressError, match="already in use"):
        await server.start([bound])
    await server.stop()
    live.broker.abandon()
    with pytest.raises(AddressError, match="already in use"):
        await listening.bind(address, "--listen")
    listening.close_all([bound, other])


async def test_each_address_of_a_name_is_bound() -> None:
    sockets = await listening.bind(Address("localhost", 0), "--listen")
    assert {each.getsockname()[0] for each in sockets} <= {"127.0.0.1", "::1"}
    listening.close_all(sockets)
    with pytest.raises(AddressError, match=r"cannot listen on the port nowhere\.invalid:1: "):
        await listening.bind(Address("nowhere.invalid", 1), "--listen", what="the port")
    with pytest.raises(ConfigError, match="not the name of a host"):
        await listening.bind(Address("a..b", 1), "--listen")


def test_an_address_that_is_forbidden_stays_so() -> None:
    make = listening.explain(Address("127.0.0.1", 80), "--listen")
    refused = make(PermissionError(13, "Permission denied"))
    assert type(refused) is ConfigError
    assert str(refused) == "cannot listen on 127.0.0.1:80: Permission denied; change --listen"


LAUNCH: Final = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def serving(data_dir: Path, terminal: int | None) -> Iterator["subprocess.Popen[str]"]:
    """A broker that is ready, in a session of its own, controlled by a terminal or by none."""
    free = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    command = [latermq_command(), "serve", "--data-dir", str(data_dir), *free]
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *command],
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("latermq ready ")
            yield process
        finally:
            process.kill()


def test_a_hangup_of_a_service_is_ignored(tmp_path: Path) -> None:
    with serving(tmp_path / "data", None) as broker:
        broker.send_signal(signal.SIGHUP)
        assert broker.stderr is not None
        assert any("ignored SIGHUP: settings are read once" in line for line in broker.stderr)
        broker.terminate()
        assert broker.wait(LIMIT_S) == 0


def test_the_end_of_its_terminal_stops_it_cleanly(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    with serving(tmp_path / "data", terminal) as broker:
        os.close(terminal)
        os.close(master)
        assert broker.wait(LIMIT_S) == 0
        assert broker.stderr is not None
        said = broker.stderr.read()
    assert not (tmp_path / "data" / "abort").exists()
    assert "stopping: received SIGHUP" in said
    assert "stopped cleanly" in said


def ask_as(address: str, host: str) -> int:
    """Ask the admin address under a name; return the HTTP status."""
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request("GET", "/healthz", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


CLIENT_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def hang_up_on(address: str, first_bytes: bytes) -> str:
    """Send bytes until the broker closes the connection; return its own address."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as connection:
        connection.sendall(first_bytes)
        assert connection.recv(1) == b""
        return str(Address(*connection.getsockname()))


def test_the_log_says_what_listens_what_changes_and_why_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "latermq.toml"
    config.write_text(f"{CONFIG}[network]\nadmin_names = 'proxy.example'\n")
    appliance = ApplianceProcess(tmp_path / "data", ["--config", str(config)])
    try:
        appliance.start()
        pid = appliance.pid
        for name, status in (("proxy.example:80", 200), ("web.example", 421)):
            assert ask_as(appliance.admin, name) == status
        peers = [hang_up_on(appliance.kafka, first) for first in (b"GET / HTTP/1.1", CLIENT_HELLO)]
        latermq = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
        latermq.ok("topics create orders --partitions 3 --set delay.headers=off")
        latermq.ok("topics delete orders --yes")
        appliance.stop()
    finally:
        appliance.close()
    lines = [line.split(": ", 1)[1] for line in appliance.stderr_path.read_text().splitlines()]
    expected = [
        f"starting: pid {pid}, data directory {re.escape(str(tmp_path))}/data",
        f"listening for admin requests on http://{appliance.admin}",
        "recovered .*",
        f"latermq {re.escape(version())} serves Kafka clients on {appliance.kafka}, "
        f"advertised as {appliance.kafka}",
        f"closing connection {peers[0]}: it looks like HTTP, .* network.admin.*",
        f"closing connection {peers[1]}: it looks like TLS, .* security.protocol=PLAINTEXT",
        'topic created name="orders" id=[-0-9a-f]{36} partitions=3 settings="delay.headers=off"',
        'topic deleted name="orders" id=[-0-9a-f]{36} .*',
        "stopping: received SIGTERM",
        r"stopped cleanly; the log ends at \d+",
    ]
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


@pytest.mark.parametrize("stops", [False, True])
def test_a_stop_while_the_role_changes_ends_the_process(*, stops: bool, tmp_path: Path) -> None:
    """The service that would go on in this process heard no signal."""
    address = Address("127.0.0.1", 0)
    config = Config(data_dir=tmp_path / "data", listen=address, admin=address)

    async def run() -> bool:
        service = Service(config, 1_024)

        async def change_role(_sockets: object) -> None:
            service.must_start_again = True
            if stops:
                service._ask_to_stop(signal.SIGTERM)

        service._run = change_role  # type: ignore[method-assign]
        await service.run()
        listening.close_all(service.sockets)
        return service.must_start_again

    assert asyncio.run(run()) is not stops
