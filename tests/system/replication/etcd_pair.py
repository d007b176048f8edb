"""A pair of real processes with an etcd between them, each with a way of its own to everything."""

from collections.abc import Callable
from typing import Final

from tests.support.harness.etcd_server import EtcdServer
from tests.support.harness.ports import free_address
from tests.system.replication.nodes import Node, ProxyThread, until
from tests.system.replication.test_promotion import create_topic

ETCD_LEASE_MS: Final = 2_000
"""The least that etcd grants."""


class Pair:
    """Node one, the master, and node two, its slave; both have their own way to etcd.

    Attributes:
        one, two: the nodes.
        links: to each node's replication address, by the node.
        ways: to etcd, by the node.
    """

    def __init__(
        self,
        make_node: Callable[..., Node],
        make_proxy: Callable[[str], ProxyThread],
        etcd: EtcdServer,
        mode: str,
        *arguments: str,
    ) -> None:
        self.one, self.two = make_node("one"), make_node("two")
        self.links: dict[Node, ProxyThread] = {}
        self.ways: dict[Node, ProxyThread] = {}
        for node in (self.one, self.two):
            node.mode = mode
            node.adds(*arguments)
            node.kafka, node.replication = free_address(), free_address()
            self.links[node] = make_proxy(node.replication)
            self.ways[node] = make_proxy(etcd.url.removeprefix("http://"))
        for node, other in ((self.one, self.two), (self.two, self.one)):
            node.sets(f'etcd = "http://{self.ways[node].address}"')
            node.sets(f"etcd_lease_ms = {ETCD_LEASE_MS}")
            node.sets(f'peer = "{self.links[other].address}"')
        self.two.follows(self.links[self.one].address).spawn()
        self.one.start()
        self.two.await_caught_up()
        create_topic(self.one)
        until(lambda: self.in_sync() is True, "the pair in etcd")

    def in_sync(self) -> bool | None:
        """What etcd says of the pair, as node one or the other one knows it."""
        node = self.one if self.one.is_running else self.two
        found = node.pair()["coordinator"]
        return None if found is None else bool(found["in_sync"])


MakePair = Callable[[str], Pair]
