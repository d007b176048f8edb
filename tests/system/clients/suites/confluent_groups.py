"""Consumer groups, tried with confluent-kafka."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from tests.system.clients.suites.confluent_client import (
    ADMIN,
    SUITE,
    consuming,
    create,
    receive,
    send_values,
    values_of,
)
from tests.system.clients.suites.harness import LIMIT_S, METADATA, wait_until


def join(consumer: Consumer, topic: str) -> None:
    consumer.subscribe([topic])
    wait_for_share(lambda share: share > 0, consumer)


def wait_for_share(is_right: Callable[[int], bool], *consumers: Consumer) -> None:
    """Poll all of them until each has a right number of partitions."""

    def have_it() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return all(is_right(len(consumer.assignment())) for consumer in consumers)

    wait_until(have_it, "every member has its partitions")


def share_out(name: str, **settings: Any) -> None:
    """One member has all partitions, then shares them with a second, which leaves again."""
    create(name, 4)
    with consuming(name, **settings) as first:
        join(first, name)
        assert len(first.assignment()) == 4
        with consuming(name, **settings) as second:
            second.subscribe([name])
            wait_for_share(lambda share: share == 2, first, second)
            taken = {one.partition for one in (*first.assignment(), *second.assignment())}
            assert taken == {0, 1, 2, 3}
        wait_for_share(lambda share: share == 4, first)


@SUITE.feature
def subscribe(name: str) -> None:
    create(name, 3)
    for partition in range(3):
        send_values(name, b"%d" % partition, partition=partition)
    with consuming(name) as consumer:
        consumer.subscribe([name])
        assert sorted(values_of(receive(consumer, 3))) == [b"0", b"1", b"2"]


@SUITE.feature
def commit(name: str) -> None:
    create(name, 2)
    with consuming(name) as consumer:
        committed = TopicPartition(name, 0, 5, METADATA)
        consumer.commit(offsets=[committed], asynchronous=False)
        asked = [TopicPartition(name, 0), TopicPartition(name, 1)]
        found, missing = consumer.committed(asked, LIMIT_S)
        assert (found.offset, found.metadata) == (5, METADATA)
        assert missing.offset < 0
    group = ConsumerGroupTopicPartitions(name)
    (answer,) = ADMIN.list_consumer_group_offsets([group]).values()
    (listed,) = answer.result(LIMIT_S).topic_partitions
    assert (listed.topic, listed.partition, listed.offset) == (name, 0, 5)


@SUITE.feature
def resume(name: str) -> None:
    create(name)
    send_values(name, b"one", b"two", b"three")
    with consuming(name) as consumer:  # commits by itself when it is closed
        consumer.subscribe([name])
        receive(consumer, 3)
    send_values(name, b"four")
    with consuming(name) as consumer:
        consumer.subscribe([name])
        assert values_of(receive(consumer, 1)) == [b"four"]


@SUITE.feature
def rebalance(name: str) -> None:
    share_out(name)


@SUITE.feature
def cooperative(name: str) -> None:
    share_out(name, partition_assignment_strategy="cooperative-sticky")


@SUITE.feature
def static_member(name: str) -> None:
    create(name, 2)
    revoked: list[Any] = []
    with consuming(name, group_instance_id="first") as first:
        first.subscribe([name], on_revoke=lambda _consumer, parts: revoked.append(parts))
        with consuming(name, group_instance_id="second") as second:
            second.subscribe([name])
            wait_for_share(lambda share: share == 1, first, second)
            had = second.assignment()
        revoked.clear()
        with consuming(name, group_instance_id="second") as second:
            second.subscribe([name])
            wait_for_share(lambda share: share == 1, first, second)
            assert second.assignment() == had
        assert not revoked


def empty_group(name: str) -> None:
    """A topic with records, and a group that has read them and left."""
    create(name)
    send_values(name, b"one", b"two", b"three")
    with consuming(name) as consumer:
        consumer.subscribe([name])
        receive(consumer, 3)


@SUITE.feature
def list_groups(name: str) -> None:
    create(name)
    with consuming(name) as consumer:
        join(consumer, name)
        listed = ADMIN.list_consumer_groups().result(LIMIT_S)
        (one,) = [group for group in listed.valid if group.group_id == name]
        assert one.state.name == "STABLE", one.state


@SUITE.feature
def describe_group(name: str) -> None:
    create(name)
    with consuming(name, client_id="me") as consumer:
        join(consumer, name)
        (answer,) = ADMIN.describe_consumer_groups([name]).values()
        shown = answer.result(LIMIT_S)
        assert (shown.state.name, shown.partition_assignor) == ("STABLE", "range")
        (member,) = shown.members
        assert (member.client_id, member.host) == ("me", "/127.0.0.1")
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic, assigned.partition) == (name, 0)


@SUITE.feature
def set_offsets(name: str) -> None:
    empty_group(name)
    wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 1)])
    (answer,) = ADMIN.alter_consumer_group_offsets([wanted]).values()
    answer.result(LIMIT_S)
    with consuming(name) as consumer:
        consumer.subscribe([name])
        assert values_of(receive(consumer, 2)) == [b"two", b"three"]


@SUITE.feature
def delete_group(name: str) -> None:
    empty_group(name)
    (answer,) = ADMIN.delete_consumer_groups([name]).values()
    answer.result(LIMIT_S)
    listed = ADMIN.list_consumer_groups().result(LIMIT_S)
    assert name not in [group.group_id for group in listed.valid]
