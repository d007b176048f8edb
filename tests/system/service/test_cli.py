"""The command line, in processes of its own."""

import errno
import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

from appliance.cli import exit_status
from appliance.config.config import Config, settings
from appliance.errors import (
    AddressError,
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    LatermqError,
    NotReadyError,
    StorageError,
    UnreachableError,
)
from tests.support.harness.appliance_process import latermq_command


def run_latermq(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [latermq_command(), *arguments],
        env={**os.environ, "COLUMNS": "100", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_prints_the_version_of_the_distribution(argument: str) -> None:
    result = run_latermq(argument)
    assert result.returncode == 0
    assert result.stdout == f"latermq {importlib.metadata.version('latermq')}\n"


def test_help_shows_every_flag_with_what_it_does_and_its_default() -> None:
    result = run_latermq("serve", "--help")
    assert result.returncode == 0
    words = " ".join(result.stdout.split())
    for name, setting in settings().items():
        if setting.flag:
            assert setting.flag in words
            assert setting.reason.split(".")[0] in words
            default = getattr(Config(), name)
            assert not default or f"Default: {default}" in words
    assert "--config FILE" in words
    assert "x-delay" in words


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--listen", "here"], ["--listen", "here", "HOST:PORT"]),
        (["--admin", "127.0.0.1:70000"], ["--admin", "70000"]),
        (["--flush", "never"], ["--flush", "never", "sync or async"]),
        (["--listen", "10.0.0.1:9092"], ["10.0.0.1:9092", "--allow-insecure"]),
        (["--admin", "0.0.0.0:9192"], ["0.0.0.0:9192", "--allow-insecure"]),
        (["--listen", "0.0.0.0:9092", "--allow-insecure"], ["0.0.0.0:9092", "--advertise"]),
        (["--config", "absent.toml"], ["absent.toml"]),
        (["--data-dir", ""], ["--data-dir"]),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it_and_status_2(
    arguments: list[str], facts: list[str]
) -> None:
    result = run_latermq("serve", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("latermq: ")
    assert result.stderr.count("\n") == 1
    for fact in facts:
        assert fact in result.stderr


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "latermq.toml"
    file.write_text('[network]\nallow_insecure = true\nlisten = "0.0.0.0:1"\n')
    # The address of the file is a wildcard, which is refused for another reason than by default.
    assert "network.advertise" in run_latermq("serve", "--config", str(file)).stderr
    result = run_latermq("serve", "--config", str(file), "--listen", "nowhere")
    assert "--listen" in result.stderr
    assert "nowhere" in result.stderr


def test_an_unknown_flag_is_refused_with_status_2() -> None:
    result = run_latermq("serve", "--listne", "127.0.0.1:0")
    assert result.returncode == 2
    assert "--listne" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interpreter_that_drops_asserts_is_refused() -> None:
    result = run_latermq("version", environment={"PYTHONOPTIMIZE": "1"})
    assert result.returncode == 2
    assert "PYTHONOPTIMIZE" in result.stderr


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("a setting"), 2),
        (AddressError("an address"), 75),
        (DataDirectoryLockedError(Path("data"), 7), 73),
        (StorageError(Path("data"), "mkdir", errno.EACCES, "Permission denied"), 73),
        (StorageError(Path("data"), "fdatasync", errno.EIO, "Input/output error"), 74),
        (CorruptionError(Path("data"), 0, "a frame", "zeros"), 74),
        (NotReadyError("stopping"), 1),
        (UnreachableError("nobody there"), 69),
    ],
)
def test_the_exit_status_says_who_must_act(error: LatermqError, status: int) -> None:
    assert exit_status(error) == status


def test_a_data_directory_that_cannot_be_made_is_one_line_and_status_73(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    data_dir = tmp_path / "file" / "data"
    result = run_latermq(
        "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    )
    assert result.returncode == 73
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("latermq: ")
    assert str(tmp_path / "file") in result.stderr
    assert "Traceback" not in result.stderr
