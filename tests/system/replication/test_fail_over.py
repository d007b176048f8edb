"""Fail-over by a real etcd: real processes, real clients, and faults of each part."""

import sys
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import ETCD, EtcdServer
from tests.system.kill9.workload import now_ms
from tests.system.replication.etcd_pair import ETCD_LEASE_MS, MakePair
from tests.system.replication.nodes import Node, await_equal, until
from tests.system.replication.test_promotion import (
    CLIENT,
    TOPIC,
    Sender,
    make_consumer,
    read_all,
    stop_and_check,
)
from tests.system.replication.test_sync_promotion import Watch

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")


class Trickle(threading.Thread):
    """Sends one record after the other to one node, whatever becomes of them.

    Attributes:
        acknowledged: values.
        last_ms: wall time of the last acknowledgement; 0 before.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self.last_ms = 0
        self._producer = Producer(
            {"bootstrap.servers": node.kafka, "message.timeout.ms": 1_000, "linger.ms": 0, **CLIENT}
        )
        self._stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            self._producer.produce(TOPIC, b"trickle %d" % number, on_delivery=self._note)
            self._producer.poll(0.02)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
            self.last_ms = now_ms()

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._producer.flush(5)


def await_promotion(node: Node, limit_s: float = 60.0) -> float:
    """Wait until a slave serves; return how long that takes, in seconds."""
    begin_s = time.monotonic()
    node.await_serving(limit_s=limit_s)
    return time.monotonic() - begin_s


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_slave_of_a_killed_master_serves_by_itself(
    *, mode: str, make_pair: MakePair, shell: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = make_pair(mode)
    one, two = pair.one, pair.two
    sender = Sender(one, two)
    watch = Watch(make_consumer(one, two))
    watch.start()
    at_once = sender.send(100)
    overdue = sender.send(200, delay_ms=1_500)
    later = sender.send(50, delay_ms=5_000)
    sender.finish()
    await_equal(one, two)
    killed_s, killed_ms = time.monotonic(), now_ms()
    one.kill()
    await_promotion(two)
    served_s = time.monotonic() - killed_s
    after = sender.send(1)
    sender.finish()
    acknowledged_s = time.monotonic() - killed_s
    count = len(at_once) + len(overdue) + len(later) + len(after)
    until(lambda: len(watch.seen) >= count, "what the reader reads")
    watch.stop()
    came = watch.at_ms
    assert not watch.problems
    assert Counter(read_all(two)) == Counter(sender.acknowledged)
    assert not [value for value, due in sender.due_ms.items() if came[value] < due]
    delivered_s = (min(came[value] for value in overdue) - killed_ms) / 1000
    assert acknowledged_s < 30, "not within any bound"
    one.follows(pair.links[two].address).start()
    await_equal(two, one)
    stop_and_check(shell, one, two)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{mode}, lease {ETCD_LEASE_MS} ms, kill -9: served after {served_s:.2f} s, "
            f"acknowledged after {acknowledged_s:.2f} s, delivered after {delivered_s:.2f} s\n"
        )


def test_nothing_stops_while_the_pair_hears_each_other_and_etcd_is_gone(
    make_pair: MakePair, etcd: EtcdServer, shell: CommandLine
) -> None:
    pair = make_pair("sync")
    one, two = pair.one, pair.two
    sender = Sender(one)
    etcd.stop()
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < 3 * ETCD_LEASE_MS / 1000:
        sender.send(10)
        sender.finish()  # each of them is acknowledged
    found = one.pair()["coordinator"]
    assert found["key_left_ms"] == 0
    assert found["standing"] == "master, has no key, hears its slave"
    assert "etcd does not answer" in found["problem"]
    done = shell.run(f"promote --admin {two.admin}")
    assert done.status != 0
    assert "etcd does not answer" in done.stderr
    etcd.start()
    until(lambda: one.pair()["coordinator"]["key_left_ms"] > 0, "the key of the master")
    done = shell.run(f"promote --admin {two.admin}")
    assert done.status != 0
    assert "node 1 has the key in etcd" in done.stderr
    await_equal(one, two)
    assert Counter(read_all(one)) == Counter(sender.acknowledged)
    stop_and_check(shell, two, one)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_master_that_hears_neither_its_slave_nor_etcd_acknowledges_nothing_after_the_promotion(
    *, mode: str, make_pair: MakePair, shell: CommandLine
) -> None:
    pair = make_pair(mode)
    one, two = pair.one, pair.two
    sender = Sender(one)
    sender.send(100)
    sender.finish()
    await_equal(one, two)
    alone = Trickle(one)
    alone.start()
    until(lambda: alone.last_ms > 0, "the first acknowledgement")
    # The slave's way to its master, and the master's way to ask it, and to etcd.
    for way in (pair.links[one], pair.links[two], pair.ways[one]):
        way.pause()
    await_promotion(two)
    served_ms = now_ms()
    other = Sender(two)
    other.send(50)
    other.finish()
    time.sleep(2 * ETCD_LEASE_MS / 1000)
    assert alone.last_ms < served_ms, "both nodes acknowledge"
    for way in (pair.links[one], pair.links[two], pair.ways[one]):
        way.resume()
    one.await_caught_up()
    alone.stop()
    assert one.pair()["role"] == "slave"
    await_equal(two, one)
    kept = Counter(read_all(two))
    assert not Counter(sender.acknowledged) - kept
    assert not Counter(other.acknowledged) - kept
    if mode == "sync":
        assert not Counter(alone.acknowledged) - kept
    stop_and_check(shell, one, two)


def test_a_sync_master_goes_on_alone_once_etcd_says_that_its_slave_is_not_promoted(
    make_pair: MakePair, shell: CommandLine
) -> None:
    pair = make_pair("sync")
    one, two = pair.one, pair.two
    pair.links[one].pause()
    pair.links[two].pause()

    until(lambda: one.pair()["state"] == "waiting", "the loss of the slave")
    done = shell.run(f"solo --admin {one.admin}")
    assert "etcd is being asked" in done.stderr
    until(lambda: one.pair()["solo"], "solo")
    assert one.pair()["coordinator"]["in_sync"] is False
    sender = Sender(one)
    sender.send(50)
    sender.finish()
    one.kill()
    time.sleep(2 * ETCD_LEASE_MS / 1000)
    found = two.pair()
    assert found["role"] == "slave", "it lacks what was acknowledged"
    assert found["coordinator"]["holder"] is None
    pair.links[one].resume()
    pair.links[two].resume()
    one.start()
    await_equal(one, two)
    assert Counter(read_all(one)) == Counter(sender.acknowledged)
    until(lambda: pair.in_sync() is True, "the slave in sync")
    stop_and_check(shell, two, one)
