"""Idempotent producers of three clients through a promotion and a hand-over: each record once.

They know a common address that moves, or the addresses of both nodes.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.system.kill9.idempotent_senders import (
    LIMIT_S,
    Sender,
    by_aiokafka,
    by_confluent,
    by_kafka_python,
    read_partition,
)
from tests.system.kill9.workload import create_topics
from tests.system.replication.nodes import Node, ProxyThread, until
from tests.system.replication.test_hand_over import hand_over, make_pair
from tests.system.replication.test_promotion import stop_and_check

COUNT: Final = 300
"""Sent by each at least, before the promotion and after it; all must be acknowledged."""

# kafka-python leaves the sockets of lost connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That the master is gone is what this is about; and a record of it would keep the sockets."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


@pytest.fixture
def pair(make_node: Callable[..., Node]) -> tuple[Node, Node]:
    """A master and a slave with sync replication, not started yet."""
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.kafka, node.replication = free_address(), free_address()
        node.mode = "sync"
    two.follows(one.replication)
    return one, two


def test_producers_of_three_clients_go_on_when_the_common_address_moves(
    pair: tuple[Node, Node], make_proxy: Callable[[str], ProxyThread], shell: CommandLine
) -> None:
    address = make_proxy(pair[0].kafka)
    for node in pair:
        node.advertises(address.address)
    go_through_a_promotion(pair, shell, address.address, lambda: address.lead_to(pair[1].kafka))


def test_producers_of_three_clients_go_on_with_the_addresses_of_both_nodes(
    pair: tuple[Node, Node], shell: CommandLine
) -> None:
    go_through_a_promotion(pair, shell, f"{pair[0].kafka},{pair[1].kafka}", lambda: None)


def test_producers_that_know_the_address_of_the_slave_alone_find_the_master(
    pair: tuple[Node, Node], shell: CommandLine
) -> None:
    go_through_a_promotion(pair, shell, pair[1].kafka, lambda: None)


def test_producers_of_three_clients_go_on_through_two_hand_overs(
    make_node: Callable[..., Node], shell: CommandLine
) -> None:
    one, two = make_pair(make_node, "sync")
    create_topics(one.kafka)
    senders = start_senders(f"{one.kafka},{two.kafka}")
    try:
        await_more(senders)
        for old, new in ((one, two), (two, one)):
            hand_over(old, new, shell)
            await_more(senders)
    finally:
        for sender in senders:
            sender.stop()
    check(senders, one)
    stop_and_check(shell, two, one)


def go_through_a_promotion(
    pair: tuple[Node, Node], shell: CommandLine, address: str, move: Callable[[], None]
) -> None:
    """Let three producers send while the master is killed and its slave promoted.

    Args:
        pair: master and slave.
        shell: runs commands.
        address: that the producers know.
        move: called after the promotion.
    """
    one, two = pair
    two.spawn()
    one.start()
    two.await_caught_up()
    create_topics(one.kafka)
    senders = start_senders(address)
    try:
        await_more(senders)
        one.kill()
        two.promote(shell)
        move()
        solo = shell.run(f"solo --slave-is-off --admin {two.admin}")
        assert solo.status == 0, solo.stderr
        await_more(senders)
    finally:
        for sender in senders:
            sender.stop()
    check(senders, two)
    stop_and_check(shell, two)


def start_senders(address: str) -> list[Sender]:
    """Start a producer of each client, each with a partition of its own."""
    clients = (by_confluent, by_kafka_python, by_aiokafka)
    senders = [Sender(client(address, index)) for index, client in enumerate(clients)]
    for sender in senders:
        sender.start()
    return senders


def check(senders: list[Sender], master: Node) -> None:
    """Each has an outcome, and its partition each record once and in order."""
    for index, sender in enumerate(senders):
        assert not sender.is_alive(), f"{sender.name} has no outcome after {LIMIT_S} s"
        assert sender.error is None, f"{sender.name}: {sender.error!r}"
        assert read_partition(master.kafka, index) == list(range(sender.count)), sender.name


def await_more(senders: list[Sender]) -> None:
    """Wait until each has sent COUNT more."""
    wanted = [sender.count + COUNT for sender in senders]
    until(
        lambda: all(each.count >= least for each, least in zip(senders, wanted, strict=True)),
        "what the clients send",
    )
    time.sleep(0.2)
