"""Pairs of processes for the tests here."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.harness.command_line import CommandLine
from tests.system.replication.nodes import Node, ProxyThread


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs `latermq` commands."""
    return CommandLine(monkeypatch, "127.0.0.1:1", "127.0.0.1:1")


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes a `Node` of a name, which is killed after the test if it still runs."""
    with ExitStack() as stack:

        def make(name: str, data_dir: Path | None = None) -> Node:
            node = Node(tmp_path, name, data_dir)
            stack.callback(node.close)
            return node

        yield make


@pytest.fixture
def make_proxy() -> Iterator[Callable[[str], ProxyThread]]:
    """Makes a proxy to an address."""
    with ExitStack() as stack:

        def make(target: str) -> ProxyThread:
            proxy = ProxyThread(target)
            stack.callback(proxy.close)
            return proxy

        yield make
