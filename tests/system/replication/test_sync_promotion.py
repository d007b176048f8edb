"""With sync replication a master is killed under load, its slave promoted, and nothing is lost.

The roles change in each round, and the old master comes back as the slave. A producer and a reader
that know both addresses go on through all of it. `make soak ROUNDS=n` does it n times.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.system.kill9.workload import now_ms
from tests.system.replication.nodes import (
    LIMIT_S,
    Node,
    ProxyThread,
    await_equal,
    until,
)
from tests.system.replication.test_promotion import (
    TOPIC,
    Sender,
    create_topic,
    epoch_of,
    make_consumer,
    read_all,
    stop_and_check,
)

DELAY_S = 0.02
"""Of all that passes between the nodes: without it the slave has almost all that the master has."""

MakeNode = Callable[..., Node]


class Load(threading.Thread):
    """Sends all the time, some of it delayed."""

    def __init__(self, sender: Sender, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._sender, self._rng = sender, rng
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._sender.send(self._rng.randrange(1, 20))
            self._sender.send(self._rng.randrange(3), delay_ms=self._rng.randrange(50, 3_000))
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Watch(threading.Thread):
    """Reads all the time, from the beginning.

    Attributes:
        seen: values by offset.
        at_ms: when each value came first.
        problems: an offset that has something else than before.
    """

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, bytes] = {}
        self.at_ms: dict[bytes, int] = {}
        self.problems: list[str] = []
        self._consumer = consumer
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    self._note(message)

    def _note(self, message: Message) -> None:
        offset, value = message.offset(), message.value() or b""
        assert offset is not None
        self.at_ms.setdefault(value, now_ms())
        if self.seen.setdefault(offset, value) != value:
            self.problems.append(f"{offset} had {self.seen[offset]!r}, and has {value!r}")

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._consumer.close()


def test_nothing_that_a_sync_pair_acknowledged_or_showed_is_lost_by_promotions(
    *,
    rounds: int,
    make_node: MakeNode,
    make_proxy: Callable[[str], ProxyThread],
    shell: CommandLine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    sys.stderr.write(f"seed {seed}\n")
    rng = random.Random(seed)
    master, slave = make_node("one"), make_node("two")
    for node in (master, slave):
        node.mode = "sync"
        node.kafka, node.replication = free_address(), free_address()
    ways = {node: make_proxy(node.replication) for node in (master, slave)}
    for way in ways.values():
        way.delay(DELAY_S)
    slave.follows(ways[master].address).spawn()
    master.start()
    slave.await_caught_up()
    create_topic(master)
    sender, watch = Sender(master, slave), Watch(make_consumer(master, slave))
    load = Load(sender, rng)
    load.start()
    watch.start()
    epochs = [epoch_of(master)]
    for _ in range(max(2, rounds // 3)):
        time.sleep(rng.uniform(0.3, 1.5))
        master.kill()
        slave.promote(shell)
        epochs.append(epoch_of(slave))
        time.sleep(rng.uniform(0, 0.5))
        master.follows(ways[slave].address).start()
        master, slave = slave, master
        until(lambda node=master: not node.pair()["solo"], "the slave, for the master")
    load.stop()
    sender.finish()
    time.sleep(max(0, max(sender.due_ms.values()) - now_ms()) / 1000 + 0.1)
    until(lambda: master.get_json("/api/v1/status")[1]["pending_timers"] == 0, "the last timers")
    await_equal(master, slave)
    final = read_all(master)
    until(lambda: len(watch.seen) >= len(final), "what the reader reads", LIMIT_S)
    watch.stop()

    assert Counter(final) == Counter(sender.acknowledged)
    assert not watch.problems
    assert dict(enumerate(final)) == watch.seen
    early = {value for value, due in sender.due_ms.items() if watch.at_ms[value] < due}
    assert not early
    assert epochs == sorted(set(epochs))
    assert [epoch % 2 for epoch in epochs] == [(number + 1) % 2 for number in range(len(epochs))]
    stop_and_check(shell, slave, master)
    with capsys.disabled():
        sys.stdout.write(
            f"\na sync pair, seed {seed}: {len(epochs) - 1} promotions, {len(final)} records\n"
        )
