"""The real broker in its own process: start, stop, kill, and its output.

Its standard error goes to a file, whose tail is part of the message of each error. Every start
takes the same ports, so that clients find the broker again.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.harness.ports import free_address

READY_LIMIT_S: Final = 90.0
STOP_LIMIT_S: Final = 45.0
TAIL_SIZE_CHARS: Final = 4_000

CONFIG: Final = """\
[store]
segment_size_bytes = 67108864
[limits]
decompressed_size_max_bytes = 8388608
[disk]
refuse_percent = 100
"""
"""Small segments take a sixteenth of the disk of the default ones; the limit fits a segment. The
disk of the machine that runs the tests may be almost full."""

READY_LINE: Final = re.compile(r"latermq ready kafka=(\S+:\d+) admin=(\S+:\d+)\n")
_LINE: Final = re.compile(r".*\n")


class ApplianceError(AssertionError):
    """The broker did not do what its command line promises; the message holds its output."""


def latermq_command() -> str:
    """The `latermq` command of the environment that runs the tests."""
    return str(Path(sys.executable).with_name("latermq"))


class ApplianceProcess:
    """One data directory, and the broker process that serves it, if one runs.

    Args:
        data_dir: made by the broker if missing.
        arguments: further ones of `latermq serve`; without --config among them, segments are small.
        stderr_path: every start appends to it.
        latermq: the command; that of this environment if left.
    """

    def __init__(
        self,
        data_dir: Path,
        arguments: Sequence[str] = (),
        stderr_path: Path | None = None,
        latermq: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.stderr_path = stderr_path or data_dir.with_name(data_dir.name + ".stderr")
        self.kafka = free_address()
        self.admin = free_address()
        self.start_times_s: list[float] = []
        self._arguments = list(arguments)
        self._latermq = latermq or latermq_command()
        if "--config" not in self._arguments:
            config_path = self.stderr_path.with_suffix(".toml")
            config_path.write_text(CONFIG)
            self._arguments += ["--config", str(config_path)]
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout = b""

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker is not running"
        return self._process

    def start(self, *, limit_s: float = READY_LIMIT_S) -> None:
        """Start the broker and wait until it says that it is ready.

        Raises:
            ApplianceError: it ended, printed something else, or nothing within `limit_s` seconds.
        """
        begin_s = time.monotonic()
        self.spawn()
        self.await_line(_LINE, limit_s=limit_s)
        match = READY_LINE.fullmatch(self._stdout.decode())
        if match is None:
            self.kill()
            raise ApplianceError(f"not a ready line: {self._stdout!r}; {self.said()}")
        self.kafka, self.admin = match.groups()
        self.start_times_s.append(time.monotonic() - begin_s)

    def await_line(
        self, pattern: re.Pattern[str], *, limit_s: float = READY_LIMIT_S
    ) -> re.Match[str]:
        """Wait until its standard output has what a pattern finds.

        Raises:
            ApplianceError: it ended, or printed nothing of the kind within `limit_s` seconds; it is
                killed then.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            match = pattern.search(self._stdout.decode())
            if match is not None:
                return match
            if not self._read_stdout(deadline_s - time.monotonic()):
                self.kill()
                raise ApplianceError(f"not ready within {limit_s} s: {self.said()}")

    def printed(self) -> str:
        """What it printed so far; does not wait."""
        while self._read_stdout(0):
            pass
        return self._stdout.decode()

    def forget_stdout(self) -> None:
        """Let `await_line` find only what is printed from now on."""
        while self._read_stdout(0):
            pass
        self._stdout = b""

    def spawn(self) -> None:
        """Start the process; do not wait until it is ready."""
        assert self._process is None, "the broker is already running"
        addresses = ("--listen", self.kafka, "--admin", self.admin)
        command = [self._latermq, "serve", "--data-dir", str(self.data_dir), *addresses]
        self._stdout = b""
        with self.stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*command, *self._arguments], stdout=subprocess.PIPE, stderr=stderr
            )

    @property
    def is_running(self) -> bool:
        """Whether it was started, and nobody waited for its end since."""
        return self._process is not None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended by itself; `wait` returns the status."""
        return self._running.poll() is not None

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal; do not wait."""
        self._running.send_signal(number)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._running.kill()
        self.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to stop.

        Raises:
            ApplianceError: it did not end within STOP_LIMIT_S, or not with status 0.
        """
        self._running.send_signal(number)
        status = self.wait()
        if status != 0:
            raise ApplianceError(f"ended with status {status} after {number.name}: {self.said()}")

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Return the status with which it ends.

        Raises:
            ApplianceError: it did not end within `limit_s`; it is killed then.
        """
        process = self._running
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ApplianceError(f"did not end within {limit_s} s: {self.said()}") from None
        finally:
            while self._read_stdout(0):
                pass
            assert process.stdout is not None
            process.stdout.close()
            self._process = None
        return status

    def await_logged(self, pattern: str, *, limit_s: float = READY_LIMIT_S) -> str:
        """Wait until its log has what a pattern finds; return the log so far.

        A thread of the broker writes the log, so a line may come after the answer that it is about.

        Raises:
            ApplianceError: there was nothing of the kind within `limit_s` seconds.
        """
        deadline_s = time.monotonic() + limit_s
        while re.search(pattern, text := self.stderr_path.read_text(errors="replace")) is None:
            if time.monotonic() > deadline_s:
                raise ApplianceError(f"{pattern!r} is not in the log: {self.said()}")
            time.sleep(0.01)
        return text

    def said(self) -> str:
        """Its standard output so far and the end of its standard error, for people."""
        tail = self.stderr_path.read_text(errors="replace")[-TAIL_SIZE_CHARS:]
        return f"standard output {self._stdout!r}, end of {self.stderr_path}:\n{tail}"

    @property
    def stdout(self) -> bytes:
        """Standard output of the last process; complete once it has ended."""
        return self._stdout

    def get(self, path: str) -> tuple[int, bytes]:
        """GET a path of the admin address; return the HTTP status and the body."""
        url = f"http://{self.admin}{path}"
        try:
            with urllib.request.urlopen(url, timeout=READY_LIMIT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def get_json(self, path: str) -> tuple[int, Any]:
        status, body = self.get(path)
        return status, json.loads(body)

    def close(self) -> None:
        """Make sure that no process is left."""
        if self._process is not None:
            self.kill()

    def _read_stdout(self, wait_s: float) -> bool:
        """Read what is available; false at the end of the stream or if nothing came in time."""
        stdout = self._running.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], max(0.0, wait_s))[0]:
            return False
        piece = os.read(stdout.fileno(), 65_536)
        self._stdout += piece
        return piece != b""


@contextmanager
def running_appliance(root: Path, arguments: Sequence[str] = ()) -> Iterator[ApplianceProcess]:
    """Serve the directory `data` under `root` on free ports; a clean stop is checked at the end."""
    appliance = ApplianceProcess(root / "data", arguments)
    try:
        appliance.start()
        yield appliance
        appliance.stop()
    finally:
        appliance.close()
