"""A group of real clients on a real broker: a restart is not noticed.

tests/system/clients/test_rebalances.py has members that come, leave and crash.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.harness.appliance_process import CONFIG, ApplianceProcess, running_appliance

PARTITION_COUNT: Final = 12
LIMIT_S: Final = 120.0
MEMBER: Final[dict[str, Any]] = {
    "group.id": "g",
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 30_000,
    "heartbeat.interval.ms": 300,
    "auto.commit.interval.ms": 300,
    "partition.assignment.strategy": "range",
    "log_level": 0,
}

GROUPS: Final = """\
[groups]
initial_rebalance_delay_ms = 200
"""


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG + GROUPS)
    with running_appliance(tmp_path, ["--config", str(config)]) as running:
        yield running


def admin_of(appliance: ApplianceProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": appliance.kafka, "log_level": 0})


@pytest.fixture
def admin(appliance: ApplianceProcess) -> AdminClient:
    """A client of a broker with the topic `t`."""
    client = admin_of(appliance)
    client.create_topics([NewTopic("t", PARTITION_COUNT)])["t"].result()
    return client


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait until something holds, and say what there is if it never does."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what()
        time.sleep(0.05)


def shares(admin: AdminClient) -> dict[str, list[int]]:
    """The partitions of each member of the group `g`, none while it is not stable."""
    found: Any = admin.describe_consumer_groups(["g"])["g"].result()
    if found.state.name != "STABLE":
        return {}
    return {
        member.member_id: [each.partition for each in member.assignment.topic_partitions]
        for member in found.members
    }


def is_shared_by(admin: AdminClient, member_count: int) -> bool:
    """Return whether so many members have each partition once."""
    found = shares(admin)
    taken = sorted(partition for partitions in found.values() for partition in partitions)
    return len(found) == member_count and taken == list(range(PARTITION_COUNT))


class Member:
    """A client in the group `g`, in a thread.

    Attributes:
        rebalances: how often partitions were given or taken.
    """

    def __init__(self, address: str, seen: Counter[bytes], settings: dict[str, str]) -> None:
        self.rebalances = 0
        self._seen = seen
        self._is_over = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": address} | MEMBER | settings)
        self._consumer.subscribe(["t"], on_assign=self._count, on_revoke=self._count)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _count(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._seen[message.value() or b""] += 1
        self._consumer.close()

    def leave(self) -> None:
        """Commit and leave the group; it has ended when this returns."""
        self._is_over.set()
        self._thread.join()


class Feed:
    """Sends numbered records until asked to stop.

    Attributes:
        sent: how many.
    """

    def __init__(self, address: str) -> None:
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": address, "log_level": 0})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            self._producer.produce("t", str(self.sent), partition=self.sent % PARTITION_COUNT)
            self._producer.poll(0)
            self.sent += 1

    def stop(self) -> None:
        """Send no more; all is acknowledged when this returns."""
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(LIMIT_S) == 0


def test_a_restart_of_the_broker_costs_no_rebalance(
    appliance: ApplianceProcess, admin: AdminClient
) -> None:
    """Members keep their ids and partitions over kill -9, and read on where they were."""
    seen: Counter[bytes] = Counter()
    settings = ({}, {"group.instance.id": "i"}, {"client.id": "third"})
    members = [Member(appliance.kafka, seen, each) for each in settings]
    feed = Feed(appliance.kafka)
    until(lambda: is_shared_by(admin, len(members)), lambda: shares(admin))
    # The broker knows the shares before the members hear of them: given, taken, given.
    until(lambda: all(member.rebalances % 2 for member in members), lambda: shares(admin))
    before, rebalances = shares(admin), [member.rebalances for member in members]
    appliance.kill()
    appliance.start()
    sent = feed.sent
    until(lambda: seen[str(sent + 100).encode()] > 0, lambda: f"{len(seen)} of {feed.sent}")
    # An idle admin client of librdkafka 2.16 does not always find back to its broker.
    assert shares(admin_of(appliance)) == before
    assert [member.rebalances for member in members] == rebalances
    feed.stop()
    until(lambda: len(seen) == feed.sent, lambda: f"{len(seen)} of {feed.sent}")
    for member in members:
        member.leave()
