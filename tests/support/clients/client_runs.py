"""Runs the programs that try a client's features, and collects what they report."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.support.clients.client_features import CLIENTS
from tests.support.clients.client_setup import ROOT, ClientMissingError, find

LIMIT_S: Final = 240.0
"""For a whole program; its own limits are much shorter."""

# The programs live for seconds: a large heap and optimised code do not pay off.
JAVA: Final = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program reports about one feature.

    Args:
        detail: what went wrong; empty if nothing did.
        seconds: how long it took.
    """

    detail: str
    seconds: float


class ClientRun:
    """One program; the constructor starts it.

    Args:
        client: name of the client.
        address: of the broker.

    Raises:
        ClientMissingError: it cannot run here.
    """

    def __init__(self, client: str, address: str) -> None:
        self.client = client
        command, environment = _command(client, address)
        self._outcomes: dict[str, Outcome] = {}
        self._changed = threading.Condition()
        self._has_ended = False
        self._deadline_s = time.monotonic() + LIMIT_S
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stderr = ""
        self._threads = [
            threading.Thread(target=self._follow_stdout),
            threading.Thread(target=self._follow_stderr),
        ]
        for thread in self._threads:
            thread.start()

    def outcome(self, feature: str) -> Outcome:
        """Wait for the report about a feature; a missing report is a failure."""
        with self._changed:
            while feature not in self._outcomes:
                left_s = self._deadline_s - time.monotonic()
                if self._has_ended or left_s <= 0:
                    said = self._stderr[-2_000:]
                    return Outcome(f"the program reported nothing about it; it said: {said}", 0.0)
                self._changed.wait(left_s)
            return self._outcomes[feature]

    def outcomes(self) -> Mapping[str, Outcome]:
        """Wait for the end and return all reports."""
        with self._changed:
            while not self._has_ended and time.monotonic() < self._deadline_s:
                self._changed.wait(self._deadline_s - time.monotonic())
            return dict(self._outcomes)

    def close(self) -> None:
        """Make sure that no process is left."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _follow_stdout(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            report = json.loads(line)
            detail = "" if report["ok"] else report["detail"] or "it failed"
            with self._changed:
                self._outcomes[report["feature"]] = Outcome(detail, report["seconds"])
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _follow_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr += line


def _command(client: str, address: str) -> tuple[list[str], dict[str, str]]:
    if client == "kcat" and shutil.which("kcat") is None:
        raise ClientMissingError("kcat is not installed: apt-get install kcat")
    if client == "kafkajs":
        modules = find(client) / "node_modules"
        program = ROOT / "tests" / "system" / "clients" / "node" / "suite.js"
        return ["node", str(program), address], {"NODE_PATH": str(modules)}
    if client.startswith("java"):
        directory = find(client)
        path = f"{directory}/jars/*:{directory}/classes"
        return [*JAVA, "-cp", path, "Suite", client, address], {}
    return [sys.executable, "-m", "tests.system.clients.suites.features", client, address], {}


@contextmanager
def running_clients(address: str) -> Iterator[dict[str, ClientRun | ClientMissingError]]:
    """Start the programs of all clients; yield the run, or why there is none, by client."""
    runs: dict[str, ClientRun | ClientMissingError] = {}
    try:
        for client in CLIENTS:
            try:
                runs[client.name] = ClientRun(client.name, address)
            except ClientMissingError as missing:
                runs[client.name] = missing
        yield runs
    finally:
        for run in runs.values():
            if isinstance(run, ClientRun):
                run.close()
