"""A slave is promoted: what recurs goes on with it, each instant once, and replies are there."""

import json
import time

from confluent_kafka import Producer, TopicPartition

from tests.support.harness.command_line import CommandLine
from tests.system.replication.nodes import LIMIT_S, Node, await_equal
from tests.system.replication.test_promotion import (
    CLIENT,
    TOPIC,
    MakeNode,
    create_topic,
    make_consumer,
    stop_and_check,
)

Headers = list[tuple[str, bytes]]


def send(node: Node, *wishes: Headers) -> None:
    """Send records; they are acknowledged when this returns."""
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True, **CLIENT})
    for wish in wishes:
        producer.produce(TOPIC, b"v", headers=wish, partition=0)
    assert producer.flush(LIMIT_S) == 0


def instants(node: Node, count: int) -> list[int]:
    """Wait for so many deliveries of the recurring record; return when they were due, in s."""
    consumer = make_consumer(node)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    due: list[int] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(due) < count:
        assert time.monotonic() < deadline_s, f"only {due}"
        for message in consumer.consume(100, timeout=0.1):
            assert message.error() is None
            due.append(int(dict(message.headers() or [])["x-due-at"]) // 1_000)
    consumer.close()
    return due


def replies(node: Node) -> list[str]:
    consumer = make_consumer(node)
    consumer.assign([TopicPartition("said", 0, 0)])
    message = consumer.poll(LIMIT_S)
    assert message is not None
    more = consumer.poll(0.5)
    consumer.close()
    found = [each for each in (message, more) if each is not None]
    return [json.loads(each.value() or b"")["outcome"] for each in found]


def test_what_recurs_and_what_is_answered_goes_on_with_the_slave(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    send(
        one,
        [("x-cron", b"* * * * * *"), ("x-cron-missed", b"all"), ("x-deliver-id", b"tick")],
        [("x-delay", b"1h"), ("x-deliver-id", b"order")],
    )
    before = instants(one, 2)
    send(one, [("x-deliver-cancel", b"order"), ("x-deliver-reply", b"said")])
    await_equal(one, two)
    one.kill()
    two.promote(shell)
    after = instants(two, len(before) + 3)
    assert after == list(range(before[0], before[0] + len(after)))
    assert replies(two) == ["cancelled"]
    assert two.get_json(f"/api/v1/topics/{TOPIC}/timers/order")[1]["state"] == "cancelled"
    send(two, [("x-deliver-cancel", b"tick"), ("x-deliver-reply", b"said")])
    two.stop()
    two.start()
    assert replies(two) == ["cancelled", "cancelled"]
    assert two.get_json(f"/api/v1/topics/{TOPIC}/timers/tick")[1]["state"] == "cancelled"
    stop_and_check(shell, two)
