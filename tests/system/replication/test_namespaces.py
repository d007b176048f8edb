"""A pair with etcd on three hosts that are network namespaces: what a real network does when cut.

Where namespaces are not permitted the test is skipped; the proxy of the other tests is everywhere.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import ETCD, EtcdServer
from tests.support.harness.namespaces import (
    COORDINATOR,
    HOSTS,
    Namespaces,
    NamespacesRefusedError,
)
from tests.system.kill9.workload import now_ms
from tests.system.replication.etcd_pair import ETCD_LEASE_MS
from tests.system.replication.nodes import Node, await_equal, until
from tests.system.replication.test_fail_over import Trickle
from tests.system.replication.test_promotion import Sender, create_topic, read_all, stop_and_check

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")

OTHER = {"one": "two", "two": "one"}


class HostNode(Node):
    """A node on a host of its own."""

    def __init__(self, root: Path, name: str, namespaces: Namespaces, etcd: EtcdServer) -> None:
        super().__init__(root, name)
        self._namespaces, self._name = namespaces, name
        host = HOSTS[name]
        self.kafka, self.admin = f"{host}:9092", f"{host}:9192"
        self.replication = f"{host}:9292"
        self.mode = "sync"
        secret = root / "pair.secret"
        secret.write_text("0123456789abcdef" * 2)
        self.adds("--allow-insecure")
        self.sets(f'secret_file = "{secret}"')
        self.sets(f'peer = "{HOSTS[OTHER[name]]}:9292"')
        self.sets(f'etcd = "{etcd.url}"')
        self.sets(f"etcd_lease_ms = {ETCD_LEASE_MS}")

    def spawn(self) -> None:
        with self._namespaces.inside(self._name):
            super().spawn()


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    """The hosts; the test itself runs in the hub."""
    try:
        made = Namespaces()
    except NamespacesRefusedError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        with made.inside("hub"):
            yield made
    finally:
        made.close()


def test_a_pair_on_hosts_that_are_cut_off_has_one_master(
    namespaces: Namespaces, tmp_path: Path, shell: CommandLine
) -> None:
    with ExitStack() as stack:
        etcd = EtcdServer(tmp_path, host=COORDINATOR)
        stack.callback(etcd.stop)
        etcd.start()
        one, two = (HostNode(tmp_path, name, namespaces, etcd) for name in HOSTS)
        for node in (one, two):
            stack.callback(node.close)
        two.follows(one.replication).spawn()
        one.start()
        two.await_caught_up()
        create_topic(one)
        until(lambda: one.pair()["coordinator"]["in_sync"] is True, "the slave in sync")

        # One way between the two: the key is the master's, so nobody is promoted.
        sender = Sender(one, two)
        for host in HOSTS:
            namespaces.block(host, HOSTS[OTHER[host]])
            time.sleep(1.5 * ETCD_LEASE_MS / 1000)
            namespaces.heal()
            sender.send(50)
            sender.finish()
            assert (one.pair()["role"], two.pair()["role"]) == ("master", "slave")

        # The master reaches clients, and neither its slave nor etcd.
        alone = Trickle(one)
        alone.start()
        until(lambda: alone.last_ms > 0, "the first acknowledgement")
        namespaces.block("one", HOSTS["two"], COORDINATOR)
        two.await_serving()
        served_ms = now_ms()
        other = Sender(two)
        other.send(50)
        other.finish()
        time.sleep(2 * ETCD_LEASE_MS / 1000)
        assert alone.last_ms < served_ms, "both nodes acknowledge"
        namespaces.heal()
        one.await_caught_up()
        alone.stop()
        await_equal(two, one)

        # A host is gone at once, and comes back.
        until(lambda: two.pair()["coordinator"]["in_sync"] is True, "the slave in sync")
        two.kill()
        until(lambda: one.pair()["role"] == "master", "the promotion")
        two.spawn()
        sender.send(50)
        sender.finish()
        await_equal(one, two)
        found = Counter(read_all(one))
        for values in (sender.acknowledged, other.acknowledged, alone.acknowledged):
            assert not Counter(values) - found
        stop_and_check(shell, two, one)
