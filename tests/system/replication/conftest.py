"""Pairs of processes for the tests here."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import EtcdServer
from tests.system.replication.etcd_pair import MakePair, Pair
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


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """A real etcd."""
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def make_pair(
    make_node: Callable[..., Node], make_proxy: Callable[[str], ProxyThread], etcd: EtcdServer
) -> MakePair:
    """Makes a pair with etcd, of sync or async replication, and waits until it is in sync."""
    return lambda mode: Pair(make_node, make_proxy, etcd, mode)
