"""Attacks on the start: the lock of the data directory, and what is no configuration.

Each returns what happened, and whether that is right.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perf.attacks.broker import observed_broker
from perf.brokers import find_broker_command

LIMIT_S: Final = 20.0

REFUSED: Final = (2, 73, 74, 75)
"""The statuses of a start that says why it ends, see docs/CLI.md."""

Outcome = tuple[str, bool]
StartAttack = Callable[[Path], Outcome]


def _start(directory: Path, *more: str) -> tuple[int | None, str]:
    """Start a broker; return its status, None if it runs on, and the last line that it said."""
    command = [str(find_broker_command()), "serve", "--data-dir", str(directory / "data"), *more]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, ""
    lines = said.decode(errors="replace").splitlines() or [""]
    return process.returncode, "a traceback" if "Traceback" in said.decode() else lines[-1][-60:]


def _refused(directory: Path, *more: str) -> Outcome:
    status, said = _start(directory, *more)
    if status is None:
        return f"no end within {LIMIT_S:.0f} s", False
    return f"status {status}", status in REFUSED and said != "a traceback"


def lock_is_link(directory: Path) -> Outcome:
    """`lock` is a symbolic link to another file."""
    target = directory / "target"
    target.write_text("precious")
    (directory / "data").mkdir(mode=0o750)
    (directory / "data" / "lock").symlink_to(target)
    outcome, is_right = _refused(directory)
    is_kept = target.read_text() == "precious"
    return f"{outcome}, the target is {'kept' if is_kept else 'overwritten'}", is_right and is_kept


def lock_is_removed(directory: Path) -> Outcome:
    """`lock` is removed, and a second broker is started."""
    with observed_broker(directory):
        (directory / "data" / "lock").unlink()
        return _refused(directory)


def _with_config(directory: Path, text: str) -> Outcome:
    config = directory / "latermq.toml"
    config.write_text(text)
    return _refused(directory, "--config", str(config))


def deep_toml(directory: Path) -> Outcome:
    """A configuration of 100,000 nested arrays."""
    return _with_config(directory, "a = " + "[" * 100_000)


def long_number(directory: Path) -> Outcome:
    """A configuration with a number of 5,000 digits."""
    return _with_config(directory, "[store]\nsegment_size_bytes = " + "9" * 5_000)


def fifo(directory: Path) -> Outcome:
    """The configuration is a pipe that nobody writes to."""
    config = directory / "latermq.toml"
    os.mkfifo(config)
    return _refused(directory, "--config", str(config))


def hang_up(directory: Path) -> Outcome:
    """SIGHUP without a terminal, then SIGTERM."""
    with observed_broker(directory) as broker:
        broker.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        if broker.has_ended:
            return "it ended", os.isatty(0)
        status = broker.end(signal.SIGTERM)
        return f"ignored; then status {status}", status == 0


START_ATTACKS: Final[tuple[StartAttack, ...]] = (
    lock_is_link,
    lock_is_removed,
    deep_toml,
    long_number,
    fifo,
    hang_up,
)
