"""A real broker whose log is gone: one sentence, status 74, and nothing is changed."""

import subprocess
from pathlib import Path

import pytest

from tests.support.appliance_process import ApplianceProcess, latermq_command
from tests.support.command_line import CommandLine

LIMIT_S = 120


def serve(appliance: ApplianceProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `latermq serve` where it is expected to end at once."""
    command = [latermq_command(), "serve", "--data-dir", str(appliance.data_dir)]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def tree(root: Path) -> dict[Path, bytes]:
    """Every file but the lock, which has the process id of its last holder."""
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    return {path: path.read_bytes() for path in files}


def test_a_log_that_is_gone_is_refused_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appliance = ApplianceProcess(tmp_path / "data")
    appliance.start()
    client = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
    client.ok("topics create orders --partitions 1")
    client.ok("send orders hello")
    appliance.stop()
    log, away = appliance.data_dir / "commitlog", tmp_path / "away"
    log.rename(away)
    before = tree(appliance.data_dir)
    refused = serve(appliance)
    assert refused.returncode == 74
    (line,) = refused.stderr.splitlines()
    assert "the log is gone" in line
    assert "--accept-loss" in line
    assert tree(appliance.data_dir) == before
    assert not log.exists()
    rebuilt = client.run(f"rebuild {appliance.data_dir}")
    assert rebuilt.status == 2
    assert tree(appliance.data_dir) == before
    away.rename(log)
    appliance.start()
    client = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
    assert "hello" in client.ok("tail orders").stdout
    appliance.stop()
    log.rename(away)
    accepted = ApplianceProcess(appliance.data_dir, ["--accept-loss"], tmp_path / "accepted.log")
    accepted.start()
    client = CommandLine(monkeypatch, accepted.kafka, accepted.admin)
    assert "orders" not in client.ok("topics list").stdout
    client.ok("topics create orders --partitions 1")
    accepted.stop()


def test_a_directory_that_must_exist_is_not_made(tmp_path: Path) -> None:
    config = tmp_path / "latermq.toml"
    config.write_text("[store]\nmust_exist = true\n")
    appliance = ApplianceProcess(tmp_path / "data")
    refused = serve(appliance, "--config", str(config))
    assert refused.returncode == 74
    assert "store.must_exist" in refused.stderr
    assert not appliance.data_dir.exists()
