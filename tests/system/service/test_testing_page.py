"""What docs/TESTING.md says of a virtual clock: its fixture and tests run as they stand there."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config.config import Address, Config
from appliance.errors import ConfigError
from tests.support.clients.client_runs import JAVA
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.docs.source_files import ROOT
from tests.support.harness.appliance_process import (
    CONFIG,
    ApplianceProcess,
    latermq_command,
    running_appliance,
)
from tests.support.harness.command_line import CommandLine

HOUR_MS = 3_600_000


def write_files(directory: Path, language: str) -> list[str]:
    """Write the files of one language that the page shows; return their names."""
    text = (ROOT / "docs" / "TESTING.md").read_text()
    blocks = re.findall(rf"^```{language}\n(?:#|//) (\S+)\n(.*?)^```$", text, re.M | re.S)
    for name, program in blocks:
        (directory / name).write_text(program)
    return [name for name, _ in blocks]


def run_with_latermq(tmp_path: Path, *arguments: str | Path, **environment: str) -> str:
    """Run a program in a directory, with `latermq` on its path; return all that it prints."""
    # The disk of this machine may be almost full.
    (tmp_path / "small.toml").write_text(CONFIG)
    command = tmp_path / "bin" / "latermq"
    command.parent.mkdir(exist_ok=True)
    more = f"--config {tmp_path}/small.toml"
    command.write_text(
        f'#!/bin/sh\n[ "$1" = serve ] && exec {latermq_command()} "$@" {more}\n'
        f'exec {latermq_command()} "$@"\n'
    )
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        arguments,
        cwd=tmp_path,
        env=os.environ | environment | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout + done.stderr


def found(client: str) -> Path:
    """Return the directory of a client; skip the test if it is not installed."""
    try:
        return find(client)
    except ClientMissingError as missing:
        pytest.skip(str(missing))


def test_the_fixture_and_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    assert write_files(tmp_path, "python") == ["conftest.py", "test_orders.py"]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    printed = run_with_latermq(tmp_path, sys.executable, "-m", "pytest", *options)
    assert "2 passed" in printed, printed


def test_the_class_for_node_and_its_test_pass(tmp_path: Path) -> None:
    modules = found("kafkajs") / "node_modules"
    assert write_files(tmp_path, "js") == ["latermq.js", "orders.test.js"]
    printed = run_with_latermq(
        tmp_path, "node", "--test", NODE_PATH=str(modules), TMPDIR=str(tmp_path)
    )
    assert re.search(r"pass 1\n.*fail 0\n", printed), printed
    assert not list(tmp_path.glob("latermq-*")), "the directory of the broker is left"


def test_the_extension_for_junit_and_its_test_pass(tmp_path: Path) -> None:
    jars = f"{found('junit')}/jars/*{os.pathsep}{found('java_4')}/jars/*"
    files = write_files(tmp_path, "java")
    assert files == ["Latermq.java", "OrdersTest.java"]
    said = run_with_latermq(tmp_path, "javac", "-cp", jars, "-d", "classes", *files)
    launcher = ("-cp", jars, "org.junit.platform.console.ConsoleLauncher", "execute")
    options = ("--class-path", "classes", "--scan-class-path", "classes", "--disable-banner")
    home = f"-Djava.io.tmpdir={tmp_path}"
    printed = run_with_latermq(tmp_path, *JAVA, home, *launcher, *options)
    assert re.search(r"1 tests successful.*\n.*0 tests failed", printed), said + printed
    assert not [path for path in tmp_path.glob("latermq*") if path.is_dir()]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    directory = tmp_path_factory.mktemp("virtual")
    with running_appliance(directory, ["--clock", "virtual"]) as appliance:
        yield appliance


@pytest.fixture
def latermq(broker: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(monkeypatch, broker.kafka, broker.admin)


def test_all_that_is_due_is_visible_when_the_command_returns(latermq: CommandLine) -> None:
    latermq.ok("topics create many --partitions 4")
    latermq.ok("send many --delay 3h", b"".join(b"%d\n" % n for n in range(5_000)))
    latermq.ok("send many last --delay 4h")
    assert latermq.ok("clock advance 1h --json").json()["delivered"] == 0
    assert latermq.ok("clock advance 2h --json").json()["delivered"] == 5_000
    assert len(latermq.ok("tail many").lines) == 5_000
    assert latermq.ok("clock advance 1h").stdout.endswith(": 1 record delivered\n")


def test_the_clock_says_how_far_it_is_ahead(latermq: CommandLine) -> None:
    before = latermq.ok("clock show --json").json()
    latermq.ok("clock advance 7h")
    after = latermq.ok("clock show --json").json()
    assert after["ahead_ms"] - before["ahead_ms"] == 7 * HOUR_MS
    assert after["kind"] == "virtual"
    assert abs(after["now_at"] - after["ahead_ms"] - time.time() * 1000) < 60_000
    assert latermq.ok("clock show").stdout.endswith(" ahead of the machine\n")
    assert re.search(r"VIRTUAL CLOCK  .*ahead of the machine", latermq.ok("status").stdout)


def test_records_age_with_the_clock(latermq: CommandLine) -> None:
    latermq.ok("topics create aging --partitions 1 --set retention.ms=3600000")
    latermq.ok("send aging old")
    assert len(latermq.ok("tail aging").lines) == 1
    latermq.ok("clock advance 2h")
    latermq.ok("cleanup --topic aging")
    assert latermq.ok("tail aging").lines == []


def test_a_duration_is_needed(latermq: CommandLine) -> None:
    assert "is not a duration" in latermq.fails("clock advance 3", 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": Address("0.0.0.0", 1)}, "whose clock anybody can advance"),
        ({"admin": Address("0.0.0.0", 1)}, "whose clock anybody can advance"),
        ({"replication": "sync"}, "leave the pair out"),
        ({"role": "slave", "master": Address("127.0.0.1", 1)}, "leave the pair out"),
    ],
)
def test_a_virtual_clock_is_for_one_broker_on_loopback(
    tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    more = {"allow_insecure": True, "advertise": Address("10.0.0.1", 1)}
    with pytest.raises(ConfigError, match=said):
        Config(data_dir=tmp_path, clock="virtual", **more, **settings)  # type: ignore[arg-type]


def test_the_clock_of_the_machine_is_not_advanced(tmp_path: Path) -> None:
    with running_appliance(tmp_path) as real, pytest.MonkeyPatch.context() as patch:
        latermq = CommandLine(patch, real.kafka, real.admin)
        assert "--clock virtual" in latermq.fails("clock advance 1h")
        assert latermq.ok("clock show").stdout.endswith(", the clock of the machine\n")
