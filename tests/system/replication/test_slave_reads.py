"""Consumers in the rack of the slave read from it, and go on when their node changes its role."""

import re
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.clients.client_runs import JAVA
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.system.replication.nodes import LIMIT_S, Node, await_equal, until
from tests.system.replication.test_promotion import CLIENT, TOPIC, Sender, create_topic

COUNT: Final = 400
SIZE_BYTES: Final = 5_000
"""Of a record; all are more than what one fetch of a partition returns."""

RACK: Final = "b"
RECORDS_BYTES: Final = COUNT * SIZE_BYTES


def make_pair(make_node: Callable[..., Node]) -> tuple[Node, Node]:
    """A master in rack a, and its slave in rack b, with records that both have."""
    one, two = make_node("one"), make_node("two")
    for node, rack in ((one, "a"), (two, RACK)):
        node.kafka, node.replication = free_address(), free_address()
        node.stands_in(rack)
    one.start()
    two.follows(one.replication).start()
    create_topic(one)
    send(one, two)
    return one, two


def send(one: Node, two: Node) -> None:
    """Let the master accept records, and wait until the slave has them."""
    sender = Sender(one)
    sender.send(COUNT, size_bytes=SIZE_BYTES)
    sender.finish()
    await_equal(one, two)


def make_consumer(address: str, rack: str) -> Consumer:
    settings: dict[str, Any] = {
        **CLIENT,
        "bootstrap.servers": address,
        "group.id": "g",
        "client.rack": rack,
        "fetch.wait.max.ms": 50,
        "fetch.message.max.bytes": 200_000,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    return consumer


def read(consumer: Consumer, count: int) -> int:
    """Read so many records; return the bytes of their values."""
    size_bytes = 0
    deadline_s = time.monotonic() + LIMIT_S
    while count > 0:
        assert time.monotonic() < deadline_s, f"{count} records do not come"
        for message in consumer.consume(100, timeout=0.1):
            if message.error() is None:
                count -= 1
                size_bytes += len(message.value() or b"")
    return size_bytes


def metrics_of(node: Node) -> dict[str, float]:
    """The metrics page of a node, by names with labels."""
    status, body = node.get("/metrics")
    assert status == 200
    lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in lines}


def sent_to_slave(master: Node) -> int:
    """How often the master sent a consumer to the slave because of its rack."""
    status, body = master.get("/metrics")
    assert status == 200
    found = re.search(rb'latermq_sent_to_slave_total\{reason="near"\} ([0-9.]+)', body)
    return 0 if found is None else int(float(found[1]))


def test_librdkafka_reads_from_the_slave_of_its_rack_and_goes_on_after_a_promotion(
    make_node: Callable[..., Node], shell: CommandLine
) -> None:
    one, two = make_pair(make_node)
    far = make_consumer(one.kafka, "c")
    assert read(far, COUNT) >= RECORDS_BYTES
    assert (two.pair()["read_bytes"], sent_to_slave(one)) == (0, 0)
    far.close()
    near = make_consumer(f"{one.kafka},{two.kafka}", RACK)
    assert read(near, COUNT) >= RECORDS_BYTES
    assert two.pair()["read_bytes"] >= RECORDS_BYTES
    assert sent_to_slave(one) >= 1
    of_slave = metrics_of(two)
    assert of_slave["latermq_replication_slave"] == of_slave["latermq_replication_streaming"] == 1
    assert of_slave["latermq_connections"] >= 1
    assert of_slave['latermq_requests_total{api="Fetch"}'] >= 1
    assert of_slave["latermq_sent_bytes_total"] >= RECORDS_BYTES
    assert two.get("/metrics/topics")[0] == 503
    send(one, two)
    assert read(near, COUNT) >= RECORDS_BYTES
    assert two.pair()["read_bytes"] >= 2 * RECORDS_BYTES
    one.kill()
    until(lambda: two.pair()["state"] == "waiting", "the loss of the master")
    two.promote(shell)
    sender = Sender(two)
    sender.send(COUNT, size_bytes=SIZE_BYTES)
    sender.finish()
    assert read(near, COUNT) >= RECORDS_BYTES
    near.close()


def test_java_reads_from_the_slave_of_its_rack(make_node: Callable[..., Node]) -> None:
    try:
        directory = find("java_4")
    except ClientMissingError as missing:
        pytest.skip(str(missing))
    one, two = make_pair(make_node)
    path = f"{directory}/jars/*:{directory}/classes"
    command = [*JAVA, "-cp", path, "RackReader", one.kafka, TOPIC, str(COUNT), RACK]
    done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) >= RECORDS_BYTES
    assert two.pair()["read_bytes"] >= RECORDS_BYTES
    assert sent_to_slave(one) >= 1
