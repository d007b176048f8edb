"""A slave is promoted: everything that it had is served on, and the old master comes back."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.system.kill9.workload import now_ms
from tests.system.replication.nodes import LIMIT_S, Node, ProxyThread, await_equal

TOPIC: Final = "t"
GROUP: Final = "g"
CLIENT: Final[dict[str, Any]] = {
    "log_level": 0,  # that brokers go away is what the tests are about
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "retry.backoff.ms": 20,
}

MakeNode = Callable[..., Node]


class Sender:
    """An idempotent producer that knows both nodes.

    Attributes:
        acknowledged: values, in the order of their outcomes.
        due_ms: of each delayed value, when it is due.
        errors: of the others.
    """

    def __init__(self, *nodes: Node) -> None:
        self.acknowledged: list[bytes] = []
        self.due_ms: dict[bytes, int] = {}
        self.errors: list[str] = []
        self._numbers = itertools.count()
        servers = ",".join(node.kafka for node in nodes)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,  # how long is a matter of the machine
                "linger.ms": 2,
                "batch.num.messages": 20,
                "batch.size": 200_000,
                **CLIENT,
            }
        )

    def send(self, count: int, delay_ms: int | None = None, size_bytes: int = 1) -> list[bytes]:
        """Send records of that size or a bit more; return their values, whose outcomes follow."""
        values = [b"%d" % next(self._numbers) + bytes(size_bytes - 1) for _ in range(count)]
        headers = [] if delay_ms is None else [("x-delay", b"%d" % delay_ms)]
        for value in values:
            if delay_ms is not None:
                self.due_ms[value] = now_ms() + delay_ms
            self._producer.produce(
                TOPIC, value, partition=0, headers=headers, on_delivery=self._note
            )
            self._producer.poll(0)
        return values

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.errors.append(str(error))

    def finish(self) -> None:
        """Wait for all outcomes; each must be an acknowledgement."""
        assert self._producer.flush(LIMIT_S) == 0, "no outcome"
        assert not self.errors


def create_topic(node: Node) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, **CLIENT})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        future.result(timeout=30)


def make_consumer(*nodes: Node) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": ",".join(node.kafka for node in nodes),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
            **CLIENT,
        }
    )


def read(consumer: Consumer, count: int) -> dict[bytes, int]:
    """Read so many records; return the time at which each value came."""
    found: dict[bytes, int] = {}
    deadline_s = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"only {len(found)} of {count} records come"
        for message in consumer.consume(500, timeout=0.1):
            if message.error() is None:
                value = message.value() or b""
                assert value not in found, f"{value!r} came twice"
                found[value] = now_ms()
    return found


def read_all(node: Node) -> list[bytes]:
    """Everything that a node serves."""
    consumer = make_consumer(node)
    try:
        end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)[1]
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes] = []
        deadline_s = time.monotonic() + LIMIT_S
        while len(found) < end:
            assert time.monotonic() < deadline_s
            messages = consumer.consume(500, timeout=0.1)
            found += [message.value() or b"" for message in messages if message.error() is None]
        return found
    finally:
        consumer.close()


def epoch_of(node: Node) -> int:
    return int(node.get_json("/api/v1/status")[1]["epoch"])


def test_clients_go_on_with_the_slave_after_its_promotion(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    first_epoch = epoch_of(one)
    two.kafka = free_address()  # clients know it before the slave serves them
    two.follows(one.replication).start()

    sender = Sender(one, two)
    consumer = make_consumer(one, two)
    consumer.subscribe([TOPIC])
    at_once = sender.send(200)
    delivered = sender.send(30, delay_ms=100)
    sender.finish()
    came = read(consumer, len(at_once) + len(delivered))
    assert set(came) == {*at_once, *delivered}
    consumer.commit(asynchronous=False)
    later = sender.send(50, delay_ms=4_000)
    overdue = sender.send(50, delay_ms=1_000)
    sender.finish()
    await_equal(one, two)

    one.kill()
    time.sleep(max(0, sender.due_ms[overdue[-1]] - now_ms() + 100) / 1000)
    two.promote(shell)
    after = sender.send(100)
    sender.finish()
    came |= read(consumer, len(overdue) + len(later) + len(after))
    consumer.close()

    assert set(came) == set(sender.acknowledged)
    assert Counter(read_all(two)) == Counter(sender.acknowledged)
    early = {value: due - came[value] for value, due in sender.due_ms.items() if came[value] < due}
    assert not early, "these came so many ms before they were due"
    assert epoch_of(two) > first_epoch
    assert epoch_of(two) % 2 == 0
    assert two.pair()["role"] == "master"
    # With the same command line it is the master after a restart too.
    two.stop()
    two.start()
    assert two.pair()["role"] == "master"

    one.follows(two.replication).start()
    await_equal(two, one)
    assert not list(one.data_dir.glob("diverged/*")), "it had nothing of its own"
    stop_and_check(shell, one, two)


def test_the_old_master_keeps_its_tail_aside_and_follows_and_back_again(
    make_node: MakeNode, make_proxy: Callable[[str], ProxyThread], shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    kept = _diverge(one, two, make_proxy, shell)
    assert epoch_of(two) % 2 == 0
    kept += _diverge(two, one, make_proxy, shell)
    assert Counter(read_all(one)) == Counter(kept)
    assert epoch_of(one) % 2 == 1
    stop_and_check(shell, one, two)


def _diverge(
    master: Node,
    slave: Node,
    make_proxy: Callable[[str], ProxyThread],
    shell: CommandLine,
) -> list[bytes]:
    """Fail over without the master's tail, and bring it back; return what survives."""
    if slave.is_running:
        slave.stop()
    proxy = make_proxy(master.replication)
    slave.follows(proxy.address).start()
    sender = Sender(master)
    kept = sender.send(100)
    sender.finish()
    common = await_equal(master, slave)

    proxy.pause()
    sender.send(150)
    sender.send(20, delay_ms=3_600_000)
    sender.finish()
    end = master.end()
    tail = master.log(common, end)
    master.kill()
    slave.promote(shell)
    sender = Sender(slave)
    kept += sender.send(80)
    sender.finish()

    before = set(master.data_dir.glob("diverged/*"))
    master.follows(slave.replication).start()
    await_equal(slave, master)
    (path,) = set(master.data_dir.glob("diverged/*")) - before
    assert path.read_bytes() == tail
    return kept


def stop_and_check(shell: CommandLine, *nodes: Node) -> None:
    """Stop all, and fail if anything is wrong with what they leave."""
    for node in nodes:
        node.stop()
    for node in nodes:
        node.check(shell)
        assert "Traceback" not in node.stderr_path.read_text()
