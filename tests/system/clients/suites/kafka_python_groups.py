"""Consumer groups, tried with kafka-python."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import NoError

from tests.system.clients.suites.harness import METADATA, wait_until
from tests.system.clients.suites.kafka_python_client import (
    SUITE,
    administrating,
    consuming,
    create,
    receive,
    receive_values,
    send_values,
)


@contextmanager
def joined(group: str, listener: Any = None, **settings: Any) -> Iterator[KafkaConsumer]:
    """A member that a thread of its own polls: one thread would let two of them wait in turns."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            consumer.poll(timeout_ms=200)

    with consuming(group, **settings) as consumer:
        consumer.subscribe([group], listener=listener)
        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield consumer
        finally:
            is_over.set()
            thread.join()


def wait_for_share(count: int, *members: KafkaConsumer) -> None:
    wait_until(
        lambda: all(len(member.assignment()) == count for member in members),
        f"every member has {count} partitions",
    )


def share_out(name: str, **settings: Any) -> None:
    """One member has all partitions, then shares them with a second, which leaves again."""
    create(name, 4)
    with joined(name, **settings) as first:
        wait_for_share(4, first)
        with joined(name, **settings) as second:
            wait_for_share(2, first, second)
            taken = {one.partition for one in (*first.assignment(), *second.assignment())}
            assert taken == {0, 1, 2, 3}
        wait_for_share(4, first)


@SUITE.feature
def subscribe(name: str) -> None:
    create(name, 3)
    for partition in range(3):
        send_values(name, b"%d" % partition, partition=partition)
    with consuming(name) as consumer:
        consumer.subscribe([name])
        assert sorted(receive_values(consumer, 3)) == [b"0", b"1", b"2"]


@SUITE.feature
def commit(name: str) -> None:
    create(name, 2)
    one, other = TopicPartition(name, 0), TopicPartition(name, 1)
    committed = OffsetAndMetadata(5, METADATA, -1)
    with consuming(name) as consumer:
        consumer.assign([one, other])
        consumer.commit({one: committed})
        assert consumer.committed(one, metadata=True) == committed
        assert consumer.committed(other) is None
    with administrating() as admin:
        assert admin.list_group_offsets([name]) == {name: {one: committed}}


def read_in_group(name: str) -> None:
    """Make a topic with three records and a group that has read them and left."""
    create(name)
    send_values(name, b"one", b"two", b"three")
    with consuming(name) as consumer:  # commits by itself when it is closed
        consumer.subscribe([name])
        receive(consumer, 3)


@SUITE.feature
def resume(name: str) -> None:
    read_in_group(name)
    send_values(name, b"four")
    with consuming(name) as consumer:
        consumer.subscribe([name])
        assert receive_values(consumer, 1) == [b"four"]


@SUITE.feature
def rebalance(name: str) -> None:
    share_out(name)


@SUITE.feature
def cooperative(name: str) -> None:
    share_out(name, partition_assignment_strategy=[CooperativeStickyAssignor])


class Revocations(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.count = 0

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.count += 1

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


@SUITE.feature
def static_member(name: str) -> None:
    create(name, 2)
    revocations = Revocations()
    with joined(name, revocations, group_instance_id="first") as first:
        with joined(name, group_instance_id="second") as second:
            wait_for_share(1, first, second)
            had = second.assignment()
        before = revocations.count
        with joined(name, group_instance_id="second") as second:
            wait_for_share(1, first, second)
            assert second.assignment() == had
        assert revocations.count == before


@SUITE.feature
def list_groups(name: str) -> None:
    create(name)
    with joined(name) as consumer, administrating() as admin:
        wait_for_share(1, consumer)
        (one,) = [group for group in admin.list_groups() if group["group_id"] == name]
        assert (one["protocol_type"], one["group_state"]) == ("consumer", "Stable"), one


@SUITE.feature
def describe_group(name: str) -> None:
    create(name)
    with joined(name, client_id="me") as consumer, administrating() as admin:
        wait_for_share(1, consumer)
        shown = admin.describe_groups([name])[name]
        assert (shown["group_state"], shown["protocol_data"]) == ("Stable", "range"), shown
        (member,) = shown["members"]
        assert (member["client_id"], member["client_host"]) == ("me", "/127.0.0.1")
        (assigned,) = member["member_assignment"]["assigned_partitions"]
        assert (assigned["topic"], assigned["partitions"]) == (name, [0])


@SUITE.feature
def set_offsets(name: str) -> None:
    read_in_group(name)
    one = TopicPartition(name, 0)
    with administrating() as admin:
        answer = admin.alter_group_offsets(name, {one: OffsetAndMetadata(1, "", -1)})
        assert answer == {one: NoError}
    with consuming(name) as consumer:
        consumer.subscribe([name])
        assert receive_values(consumer, 2) == [b"two", b"three"]


@SUITE.feature
def delete_offsets(name: str) -> None:
    read_in_group(name)
    one = TopicPartition(name, 0)
    with administrating() as admin:
        assert admin.list_group_offsets([name])[name][one].offset == 3
        assert admin.delete_group_offsets(name, [one]) == {one: NoError}
        assert admin.list_group_offsets([name]) == {name: {}}


@SUITE.feature
def delete_group(name: str) -> None:
    read_in_group(name)
    with administrating() as admin:
        assert admin.delete_groups([name]) == {name: "OK"}
        assert name not in [group["group_id"] for group in admin.list_groups()]
