"""The Java client with its default settings, through hand-overs and a promotion by itself."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients.client_runs import JAVA
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import ETCD
from tests.system.replication import test_hand_over
from tests.system.replication.etcd_pair import MakePair
from tests.system.replication.nodes import Node, until
from tests.system.replication.test_promotion import TOPIC, read_all, stop_and_check

PROGRAM: Final = Path(__file__).with_name("java") / "Sender.java"
COUNT: Final = 300
"""Acknowledged at least, before the master is killed and after it."""


class JavaSender:
    """The program.

    Attributes:
        lines: what it printed.
    """

    def __init__(self, servers: str) -> None:
        jars = find("java_4") / "jars"
        self._process = subprocess.Popen(
            [*JAVA, "-cp", f"{jars}/*", str(PROGRAM), servers, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._said = ""
        self._threads = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_errors),
        ]
        for thread in self._threads:
            thread.start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(line.strip() for line in self._process.stdout)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._said = self._process.stderr.read()

    def await_more(self) -> None:
        """Wait until COUNT more are acknowledged."""
        wanted = self.count() + COUNT
        until(lambda: self.count() >= wanted, "what the Java client sends")

    def count(self) -> int:
        """How many are acknowledged, as far as it said."""
        assert self._process.poll() is None, "it ended"
        lines = tuple(self.lines)
        return int(lines[-1]) if lines else 0

    def finish(self) -> int:
        """Let it end; return how many it sent."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        status = self._process.wait(90)
        self._join()
        assert status == 0, self._said
        return int(self.lines[-1].removeprefix("sent "))

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def close(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._join()


def start_sender(one: Node, two: Node) -> JavaSender:
    """Start the program with the addresses of both nodes."""
    try:
        return JavaSender(f"{one.kafka},{two.kafka}")
    except ClientMissingError as error:
        pytest.skip(str(error))


def test_the_java_client_goes_on_through_two_hand_overs(
    make_node: Callable[..., Node], shell: CommandLine
) -> None:
    one, two = test_hand_over.make_pair(make_node, "sync")
    sender = start_sender(one, two)
    try:
        sender.await_more()
        for old, new in ((one, two), (two, one)):
            test_hand_over.hand_over(old, new, shell)
            sender.await_more()
        count = sender.finish()
    finally:
        sender.close()
    assert [int(value) for value in read_all(one)] == list(range(count))
    stop_and_check(shell, two, one)


@pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")
def test_the_java_client_goes_on_with_the_slave_by_itself(
    make_pair: MakePair, shell: CommandLine
) -> None:
    pair = make_pair("sync")
    one, two = pair.one, pair.two
    sender = start_sender(one, two)
    try:
        sender.await_more()
        one.kill()
        two.await_serving()
        sender.await_more()
        count = sender.finish()
    finally:
        sender.close()
    assert [int(value) for value in read_all(two)] == list(range(count))
    stop_and_check(shell, two)
