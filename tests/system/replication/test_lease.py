"""The master of a real sync pair acknowledges while its slave answers, and not a moment longer."""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.system.replication.nodes import LEASE_MS, Node, ProxyThread, until
from tests.system.replication.test_promotion import CLIENT, TOPIC, create_topic, read_all

AFTER_APPEND = KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND

MakeNode = Callable[..., Node]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one record: its error, 0 for an acknowledgement, and when it came."""

    value: bytes
    error: int
    at_s: float


class Asker:
    """Sends to one node and retries nothing: each outcome is the node's first answer.

    Attributes:
        outcomes: in the order in which they came.
    """

    def __init__(self, node: Node, acks: str) -> None:
        self.outcomes: list[Outcome] = []
        self._numbers = itertools.count()
        self._acks = acks
        self._producer = Producer(
            {
                "bootstrap.servers": node.kafka,
                "acks": acks,
                "retries": 0,
                "linger.ms": 0,
                "message.timeout.ms": 30_000,
                **CLIENT,
            }
        )

    def send(self) -> None:
        value = b"%s-%d" % (self._acks.encode(), next(self._numbers))
        self._producer.produce(TOPIC, value, partition=0, on_delivery=self._note)
        self._producer.poll(0)

    def ask(self) -> int:
        """Send one, wait for its outcome, and return its error."""
        self.send()
        assert self._producer.flush(30) == 0
        return self.outcomes[-1].error

    def finish(self) -> None:
        """Wait for all outcomes."""
        assert self._producer.flush(30) == 0

    def _note(self, error: KafkaError | None, message: Message) -> None:
        code = 0 if error is None else error.code()
        self.outcomes.append(Outcome(message.value() or b"", code, time.monotonic()))


class Pair:
    """A sync pair with a proxy between its nodes."""

    def __init__(self, make_node: MakeNode, make_proxy: Callable[[str], ProxyThread]) -> None:
        self.master, self.slave = make_node("one"), make_node("two")
        for node in (self.master, self.slave):
            node.mode = "sync"
            node.kafka, node.replication = free_address(), free_address()
        self.proxy = make_proxy(self.master.replication)
        self.slave.follows(self.proxy.address).spawn()
        self.master.start()
        self.slave.await_caught_up()
        create_topic(self.master)

    def lease_left_ms(self) -> int:
        return int(self.master.pair()["lease_left_ms"])


def leader_of(node: Node) -> tuple[int, int]:
    """The leader of the topic's partition as a client hears it, and the error of that."""
    found = AdminClient({"bootstrap.servers": node.kafka, **CLIENT}).list_topics(TOPIC, timeout=30)
    partition = found.topics[TOPIC].partitions[0]
    error = partition.error
    return partition.leader, 0 if error is None else error.code()


@pytest.fixture
def pair(make_node: MakeNode, make_proxy: Callable[[str], ProxyThread]) -> Pair:
    return Pair(make_node, make_proxy)


def test_one_is_acknowledged_while_a_slave_is_slow_and_nobody_without_a_lease(pair: Pair) -> None:
    one, every = Asker(pair.master, "1"), Asker(pair.master, "all")
    assert (one.ask(), every.ask()) == (0, 0)
    pair.proxy.pause(to_slave=False)  # the slave has all, and its answers do not come
    every.send()
    until(lambda: pair.lease_left_ms() < LEASE_MS, "the time of a lease")
    error = one.ask()
    if pair.lease_left_ms():  # else this machine was too slow to ask in time
        assert error == 0
        assert not [each for each in every.outcomes[1:] if each.error == 0]
    until(lambda: pair.lease_left_ms() == 0, "the end of the lease")
    every.finish()
    assert every.outcomes[-1].error == AFTER_APPEND
    assert one.ask() == every.ask() == KafkaError.NOT_ENOUGH_REPLICAS
    assert leader_of(pair.master) == (-1, KafkaError.LEADER_NOT_AVAILABLE)
    assert "nothing is acknowledged" in pair.master.pair()["promise"]
    assert b"latermq_replication_lease_seconds 0.0" in pair.master.get("/metrics")[1]
    pair.proxy.resume()
    until(lambda: pair.master.pair()["state"] == "streaming", "the slave's return")
    assert (one.ask(), every.ask()) == (0, 0)
    assert leader_of(pair.master) == (1, 0)
    pair.master.await_logged("has no lease")


@pytest.mark.parametrize("acks", ["1", "all"])
def test_a_stopped_master_that_goes_on_acknowledges_nothing(pair: Pair, acks: str) -> None:
    """The answers of the slave wait in its socket, so that it has all that an answer waits for."""
    asker, every = Asker(pair.master, acks), Asker(pair.master, "all")
    assert asker.ask() == 0
    pair.proxy.pause(to_slave=False)
    every.send()
    until(lambda: pair.slave.pair()["durable"] >= pair.master.end(), "the slave's disk")
    pair.master.send_signal(signal.SIGSTOP)
    try:
        pair.proxy.resume()
        for _ in range(20):
            asker.send()
        time.sleep(3 * LEASE_MS / 1000)
        pair.proxy.pause()  # it gets no new lease
        asker._producer.poll(0)
        went_on_s = time.monotonic()
    finally:
        pair.master.send_signal(signal.SIGCONT)
    asker.finish()
    every.finish()
    late = [each for each in (*asker.outcomes, *every.outcomes) if each.at_s > went_on_s]
    assert len(late) >= 20
    assert not [each for each in late if each.error == 0]


def test_a_master_cut_off_is_silent_when_its_slave_serves(pair: Pair, shell: CommandLine) -> None:
    master, slave = pair.master, pair.slave
    askers = [Asker(master, "1"), Asker(master, "all")]
    stopping = threading.Event()

    def load() -> None:
        while not stopping.is_set():
            for asker in askers:
                asker.send()
            time.sleep(0.002)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        until(lambda: len(askers[1].outcomes) > 50, "some acknowledgements")
        wait_ms = slave.pair()["promotion_wait_ms"]
        assert wait_ms > LEASE_MS // 2
        begin_s = time.monotonic()
        done = shell.run(f"promote --admin {slave.admin}")
        assert done.status == 0, done.stderr
        served_s = time.monotonic()
        assert "waits up to " in done.stdout
        assert served_s - begin_s > LEASE_MS / 1000
        time.sleep(0.5)
    finally:
        stopping.set()
        loading.join()
    for asker in askers:
        asker.finish()
    slave.await_serving()
    outcomes = [each for asker in askers for each in asker.outcomes]
    acknowledged = [each for each in outcomes if each.error == 0]
    assert max(each.at_s for each in acknowledged) < served_s, "two masters acknowledge"
    assert {each.error for each in outcomes} <= {
        0,
        KafkaError.NOT_ENOUGH_REPLICAS,
        AFTER_APPEND,
    }
    kept = set(read_all(slave))
    assert {each.value for each in acknowledged if each.value.startswith(b"all")} <= kept


def test_solo_is_an_act_of_somebody_who_says_that_the_slave_is_off(
    pair: Pair, shell: CommandLine
) -> None:
    command = f"solo --admin {pair.master.admin}"
    assert "stop it first" in shell.run(f"{command} --slave-is-off").stderr
    pair.slave.kill()
    until(lambda: pair.master.pair()["state"] == "waiting", "the loss of the slave")
    refused = shell.run(command)
    assert refused.status == 1
    assert "two masters" in refused.stderr
    assert "--slave-is-off" in refused.stderr
    assert not pair.master.pair()["solo"]
    assert shell.run(f"{command} --slave-is-off").status == 0
    every = Asker(pair.master, "all")
    assert every.ask() == 0
    assert pair.master.pair()["lease_left_ms"] is None
    pair.slave.start()
    until(lambda: not pair.master.pair()["solo"], "the end of solo")
    assert every.ask() == 0
    until(lambda: pair.lease_left_ms() > 0, "the lease")
