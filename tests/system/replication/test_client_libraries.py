"""Idempotent producers of three clients through a promotion: no duplicate, no gap, in order."""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.harness.command_line import CommandLine
from tests.system.kill9.idempotent_senders import (
    LIMIT_S,
    Sender,
    by_aiokafka,
    by_confluent,
    by_kafka_python,
    read_partition,
)
from tests.system.kill9.workload import create_topics
from tests.system.replication.nodes import Node, ProxyThread, free_address, until
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


def test_producers_of_three_clients_go_on_when_the_common_address_moves(
    make_node: Callable[..., Node], make_proxy: Callable[[str], ProxyThread], shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.kafka, node.replication = free_address(), free_address()
    address = make_proxy(one.kafka)
    for node in (one, two):
        node.mode = "sync"
        node.advertises(address.address)
    two.follows(one.replication).spawn()
    one.start()
    two.await_caught_up()
    create_topics(one.kafka)
    clients = (by_confluent, by_kafka_python, by_aiokafka)
    senders = [Sender(client(address.address, index)) for index, client in enumerate(clients)]
    for sender in senders:
        sender.start()
    try:
        await_more(senders)
        one.kill()
        two.promote(shell)
        address.lead_to(two.kafka)
        solo = shell.run(f"solo --admin {two.admin}")
        assert solo.status == 0, solo.stderr
        await_more(senders)
    finally:
        for sender in senders:
            sender.stop()
    for index, sender in enumerate(senders):
        assert not sender.is_alive(), f"{sender.name} has no outcome after {LIMIT_S} s"
        assert sender.error is None, f"{sender.name}: {sender.error!r}"
        assert read_partition(two.kafka, index) == list(range(sender.count)), sender.name
    stop_and_check(shell, two)


def await_more(senders: list[Sender]) -> None:
    """Wait until each has sent COUNT more."""
    wanted = [sender.count + COUNT for sender in senders]
    until(
        lambda: all(each.count >= least for each, least in zip(senders, wanted, strict=True)),
        "what the clients send",
    )
    time.sleep(0.2)
