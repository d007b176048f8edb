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
from tests.support.docs.source_files import ROOT
from tests.support.harness.appliance_process import (
    CONFIG,
    ApplianceProcess,
    latermq_command,
    running_appliance,
)
from tests.support.harness.command_line import CommandLine

HOUR_MS = 3_600_000


def test_the_fixture_and_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "TESTING.md").read_text()
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.M | re.S)
    assert [name for name, _ in blocks] == ["conftest.py", "test_orders.py"]
    for name, program in blocks:
        (tmp_path / name).write_text(program)
    # The disk of this machine may be almost full.
    (tmp_path / "small.toml").write_text(CONFIG)
    command = tmp_path / "bin" / "latermq"
    command.parent.mkdir()
    more = f"--config {tmp_path}/small.toml"
    command.write_text(
        f'#!/bin/sh\n[ "$1" = serve ] && exec {latermq_command()} "$@" {more}\n'
        f'exec {latermq_command()} "$@"\n'
    )
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


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
