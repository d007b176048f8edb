"""Groups of real clients on a real broker: nothing is lost, and a restart is not noticed."""

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.harness.appliance_process import CONFIG, ApplianceProcess, running_appliance
from tests.unit.groups.real_members import (
    AiokafkaMember,
    KcatMember,
    LibrdkafkaMember,
    RealMember,
    Seen,
)

PARTITION_COUNT: Final = 12
MEMBER_COUNT: Final = 10
ROUNDS: Final = 12
LIMIT_S: Final = 120.0
SEED: Final = 11_001
"""Of all that happens by chance; when it happens is up to the machine."""

GROUPS: Final = """\
[groups]
session_timeout_min_ms = 1000
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
    members = [
        LibrdkafkaMember(
            appliance.kafka,
            "g",
            "t",
            lambda value: seen.update([value]),
            **{"session.timeout.ms": 30_000} | extra,
        )
        for extra in ({}, {"group.instance.id": "i"}, {"client.id": "third"})
    ]
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


class Crowd:
    """Members that come and go by chance.

    Attributes:
        members: those that are there.
    """

    def __init__(self, address: str, rng: random.Random, seen: Seen) -> None:
        self.members: list[RealMember] = []
        self._address = address
        self._rng = rng
        self._seen = seen
        kinds: list[Callable[..., RealMember]] = [LibrdkafkaMember, AiokafkaMember]
        self._kinds = kinds + [KcatMember] * (2 if shutil.which("kcat") else 0)

    def begin(self) -> None:
        """One more comes."""
        make = self._rng.choice(self._kinds)
        self.members.append(make(self._address, "g", "t", self._seen))

    def make_trouble(self) -> None:
        """One leaves, is killed, or stalls for longer than its session; another one joins."""
        member = self._rng.choice(self.members)
        if isinstance(member, KcatMember):
            # It does not leave: at SIGTERM it drops what it was given and commits it all the same.
            trouble = self._rng.choice(("crash", "freeze"))
        else:
            trouble = "leave"
        if trouble == "freeze":
            assert isinstance(member, KcatMember)
            member.freeze()
            threading.Timer(self._rng.uniform(0.5, 4.0), member.thaw).start()
            return
        self.members.remove(member)
        if trouble == "crash":
            assert isinstance(member, KcatMember)
            member.crash()
        else:
            member.leave()
        if self._rng.random() < 0.8 or len(self.members) < 2:
            self.begin()

    def leave(self) -> None:
        """All go."""
        for member in self.members:
            member.leave()


@pytest.mark.timeout(900)
def test_members_join_leave_and_crash_and_nothing_is_lost(
    appliance: ApplianceProcess, admin: AdminClient
) -> None:
    """Afterwards all that are left share the partitions, and nobody has one twice."""
    rng = random.Random(SEED)
    seen: Counter[bytes] = Counter()
    crowd = Crowd(appliance.kafka, rng, lambda value: seen.update([value]))
    feed = Feed(appliance.kafka)
    for _ in range(MEMBER_COUNT):
        crowd.begin()
    until(lambda: is_shared_by(admin, MEMBER_COUNT), lambda: shares(admin))
    for _ in range(ROUNDS):
        time.sleep(rng.uniform(0.1, 1.5))
        crowd.make_trouble()
    until(lambda: is_shared_by(admin, len(crowd.members)), lambda: shares(admin))
    feed.stop()
    values = {str(number).encode() for number in range(feed.sent)}
    until(lambda: values <= set(seen), lambda: f"missing {sorted(values - set(seen))[:20]}")
    assert set(seen) == values
    crowd.leave()
