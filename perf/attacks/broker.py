"""A broker under observation: its memory, its own gauges, and the gaps of its loop.

The loop reports to a watchdog, as to systemd. The kernel notes when each report was sent, so that
a gap is one of the loop and not of who reads them.
"""

import fcntl
import http.client
import itertools
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perf.attacks import memory_samples
from perf.brokers import find_broker_command
from perf.machine import REPOSITORY, BenchError

WATCHDOG_MS: Final = 40
"""The loop reports twice in this time."""

UNREAD_BYTES: Final = 4_096
"""Of lines in a pipe that nobody reads."""

GAUGE_S: Final = 0.25
START_LIMIT_S: Final = 60.0
ATTACKER_ADDRESS: Final = "127.0.0.1"

OTHER_ADDRESS: Final = "127.0.0.2"
"""Of who is not the attacker, which may hold all that its own address may have."""

_SO_TIMESTAMPNS: Final = 35
_READY: Final = re.compile(rb"latermq ready kafka=(\S+) admin=(\S+)")
GAUGE: Final = "latermq_anonymous_bytes"
CONNECTIONS: Final = "latermq_connections"
GAUGES: Final = (
    GAUGE,
    "latermq_inflight_bytes",
    "latermq_cache_bytes",
    "latermq_locked_bytes",
    CONNECTIONS,
)
CONFIG: Final = "[disk]\nrefuse_percent = 100\n"


@dataclass
class Observed:
    """What was seen of one broker.

    Attributes:
        anonymous: seconds of the monotonic clock, and RssAnon.
        gauges: the same, and the broker's own figures by name.
        asked: when each of these was asked for.
        pings: when the loop reported.
    """

    anonymous: list[tuple[float, int]] = field(default_factory=list)
    gauges: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)

    def peak(self, begin_s: float, end_s: float) -> tuple[float, int]:
        """When RssAnon was largest in that span, and how large it was."""
        of = [each for each in self.anonymous if begin_s <= each[0] <= end_s]
        return max(of, key=lambda each: each[1]) if of else (begin_s, 0)

    def last(self, at_s: float) -> int:
        """RssAnon as it was last seen before a moment."""
        return max(each for each in self.anonymous if each[1] and each[0] <= at_s)[1]

    def connection_count(self, begin_s: float, end_s: float) -> int:
        """The most connections that the broker had in that span, also of clients that are gone."""
        of = [each.get(CONNECTIONS, 0.0) for at, each in self.gauges if begin_s <= at <= end_s]
        return int(max(of, default=0.0))

    def gauges_at(self, at_s: float) -> dict[str, float]:
        """The broker's figures nearest to a moment."""
        if not self.gauges:
            return {}
        return min(self.gauges, key=lambda each: abs(each[0] - at_s))[1]

    def gauge_ratio(self, begin_s: float, end_s: float) -> float:
        """The broker's gauge over RssAnon while it was asked for, where that differs most.

        NaN if it was never read.
        """
        ratios = []
        for (at_s, figures), asked_s in zip(self.gauges, self.asked, strict=True):
            span = [size for when, size in self.anonymous if asked_s - 0.1 <= when <= at_s + 0.1]
            if begin_s <= at_s <= end_s and GAUGE in figures and span:
                nearest = min(max(figures[GAUGE], min(span)), max(span))
                ratios.append(figures[GAUGE] / max(1, nearest))
        return max(ratios, key=lambda ratio: abs(ratio - 1), default=math.nan)

    def gap_s(self, begin_s: float, end_s: float) -> float:
        """The longest time between two reports of the loop that overlaps that span."""
        inside = [at for at in self.pings if begin_s <= at <= end_s]
        before = [at for at in self.pings if at < begin_s]
        after = [at for at in self.pings if at > end_s]
        whole = [*before[-1:], *inside, *(after[:1] or [end_s])]
        return max((b - a for a, b in itertools.pairwise(whole)), default=0.0)


class ObservedBroker:
    """One broker process on one data directory.

    Attributes:
        address, admin: HOST:PORT, once it is ready.
        observed: grows while it runs.
    """

    def __init__(
        self,
        directory: Path,
        config: str = "",
        *,
        file_limit: int | None = None,
        is_unread: bool = False,
    ) -> None:
        """Start a broker and wait until it is ready.

        Args:
            directory: gets its data, its configuration and its log.
            config: settings that differ from the defaults, as TOML.
            file_limit: open files that it may have.
            is_unread: standard error is a pipe that nobody reads.

        Raises:
            BenchError: it did not become ready.
        """
        self.observed = Observed()
        self._is_over = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.settimeout(0.2)
        place = directory / "notify"
        place.unlink(missing_ok=True)
        self._socket.bind(str(place))
        settings = directory / "latermq.toml"
        settings.write_text(config or CONFIG)
        self.stderr_path = directory / "log"
        command = [str(find_broker_command()), "serve", "--config", str(settings)]
        command += ["--data-dir", str(directory / "data")]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        if file_limit is not None:
            command = ["prlimit", f"--nofile={file_limit}:{file_limit}", *command]
        watched = {"NOTIFY_SOCKET": str(place), "WATCHDOG_USEC": str(WATCHDOG_MS * 1_000)}

        self._unread: int | None = None
        with ExitStack() as stack:
            log = stack.enter_context(self.stderr_path.open("ab")).fileno()
            if is_unread:
                self._unread, log = os.pipe()
                stack.callback(os.close, log)
                fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, UNREAD_BYTES)
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=os.environ | watched
            )
        self.address, self.admin = self._await_ready()
        self.pid = self.process.pid
        watchers = (self._watch_loop, self._watch_memory, self._watch_gauges)
        self._threads = [threading.Thread(target=each, daemon=True) for each in watchers]
        for thread in self._threads:
            thread.start()

    def _await_ready(self) -> tuple[str, str]:
        timer = threading.Timer(START_LIMIT_S, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        match = _READY.match(line)
        if match is None:
            self.process.kill()
            self.process.wait()
            raise BenchError(f"the broker did not become ready: {self.said()}")
        return match[1].decode(), match[2].decode()

    def said(self) -> str:
        """The last lines of its log."""
        return " / ".join(self.stderr_path.read_text(errors="replace").splitlines()[-3:])

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, number: signal.Signals) -> int:
        """Signal it, wait, and return its status; kill it if it does not end."""
        self.process.send_signal(number)
        try:
            status = self.process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self._unread is not None:
            os.close(self._unread)
        return status

    def metric(self, name: str) -> float:
        """One figure of /metrics without label, now."""
        return _read_metrics(self.admin, (name,), limit_s=30)[name]

    def _watch_loop(self) -> None:
        ahead_s = time.time() - time.monotonic()
        while not self._is_over.is_set():
            with suppress(TimeoutError):
                data, more, _, _ = self._socket.recvmsg(1_000, 100)
                if b"WATCHDOG=1" in data and more:
                    seconds, ns = struct.unpack("qq", more[0][2])
                    self.observed.pings.append(seconds + ns / 1e9 - ahead_s)

    def _watch_memory(self) -> None:
        command = [sys.executable, "-m", memory_samples.__name__, str(self.pid)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as sampler:
            assert sampler.stdout is not None
            for line in sampler.stdout:
                at_s, size = line.split()
                self.observed.anonymous.append((float(at_s), int(size)))

    def _watch_gauges(self) -> None:
        while not self._is_over.wait(GAUGE_S):
            begin_s = time.monotonic()
            with suppress(OSError, ValueError):
                figures = _read_metrics(self.admin, GAUGES, limit_s=5)
                self.observed.asked.append(begin_s)
                self.observed.gauges.append((time.monotonic(), figures))


def _read_metrics(admin: str, names: tuple[str, ...], *, limit_s: float) -> dict[str, float]:
    host, port = admin.rsplit(":", 1)
    source = (OTHER_ADDRESS, 0)
    with closing(
        http.client.HTTPConnection(host, int(port), timeout=limit_s, source_address=source)
    ) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(names))
    return {name: float(value) for name, value in found}


@contextmanager
def observed_broker(
    directory: Path, config: str = "", *, file_limit: int | None = None, is_unread: bool = False
) -> Iterator[ObservedBroker]:
    """A broker that is killed at the end if it still runs."""
    broker = ObservedBroker(directory, config, file_limit=file_limit, is_unread=is_unread)
    try:
        yield broker
    finally:
        if not broker.has_ended:
            broker.end(signal.SIGKILL)
