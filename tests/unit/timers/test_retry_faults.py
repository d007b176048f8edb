"""Retried records through crashes, carries and deletions: each attempt comes once, or is pending.

The random walks print their seed, which repeats them.
"""

import random
from typing import Final, get_args

import pytest

from appliance.units import MS_PER_HOUR
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import DERIVED, PATHS, crashed, rebuild, take_checkpoint
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Headers, Record, delay
from tests.unit.retention.test_freeing import (
    SEGMENT,
    broker,
    check_restarts,
    fill,
    run,
    start_pos,
)

STOPS: Final[tuple[Stop, ...]] = ("clean", *get_args(CrashMode))
LONG_MS: Final = 30 * 24 * MS_PER_HOUR


def failed(value: bytes, *headers: tuple[str, bytes], group: bytes = b"g") -> Record:
    return Record(value, b"k", (("x-retry-group", group), *headers))


def long(value: bytes, group: bytes = b"g") -> Record:
    """A record that comes again in a month."""
    return failed(value, *delay(LONG_MS), group=group)


def values(harness: BrokerHarness, topic: str, partition: int = 0) -> list[bytes]:
    start = harness.partition(partition, topic).start_offset
    return [each.value for each in harness.fetch(topic, partition, start)]


def check_whole(harness: BrokerHarness) -> None:
    """A start with the saved state and one from the log alone agree; `check` finds nothing."""
    disk = crashed(harness)
    assert offline_scenario.check(disk).faults == []
    alone = rebuild(harness, disk)
    loaded = BrokerHarness(disk, harness.clock, harness.config)
    assert alone.broker.pending_timers == harness.broker.pending_timers
    assert alone.topics_digest() == harness.topics_digest()
    assert alone.digest().pending == loaded.digest().pending


@pytest.mark.parametrize("how", STOPS)
def test_an_accepted_retry_survives_every_stop(how: Stop) -> None:
    harness = BrokerHarness()
    harness.create_topic("t", 2)
    batch = [Record(b"now"), failed(b"again"), failed(b"dead", ("x-retry-attempt", b"16"))]
    assert harness.produce("t", 1, batch).error == 0
    check_whole(harness)
    harness = harness.reborn(how)
    assert harness.tick(9_999) == 1
    assert values(harness, "g.dlq", 1) == [b"dead"]
    harness = harness.reborn(how, 2)
    assert harness.tick(1) == 1
    harness = harness.reborn(how, 3)
    check_whole(harness)
    assert [values(harness, name, 1) for name in ("t", "g.retry", "g.dlq")] == [
        [b"now"],
        [b"again"],
        [b"dead"],
    ]
    assert harness.tick(LONG_MS) == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_that_is_not_durable_is_there_whole_or_not_at_all(seed: int) -> None:
    harness = BrokerHarness()
    harness.create_topic("t", 1)
    harness.send_produce("t", 0, [Record(b"now"), failed(b"again"), failed(b"h", group=b"h")])
    harness.broker.commit()
    harness = harness.crash("torn", random.Random(seed))
    seen = len(values(harness, "t"))
    assert harness.tick(10_000) == 2 * seen
    check_whole(harness)


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_pending_retry_is_carried_with_the_others_of_its_frame(is_saved: bool) -> None:
    harness = broker()
    harness.create_topic("t", 2)
    own = Record(b"own", headers=delay(LONG_MS))
    harness.produce("t", 1, [long(b"g"), own, long(b"h", b"h"), failed(b"soon")])
    if is_saved:
        take_checkpoint(harness)
    fill(harness, 4)
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    assert harness.broker.pending_timers == 3
    check_restarts(harness)
    harness = harness.reborn("kept")
    fill(harness, 4)
    run(harness, 6 * MS_PER_HOUR)
    harness = rebuild(harness, crashed(harness))
    harness.tick(LONG_MS)
    found = {name: values(harness, name, 1) for name in ("t", "g.retry", "h.retry")}
    assert {name: each[-1:] for name, each in found.items()} == {
        "t": [b"own"],
        "g.retry": [b"g"],
        "h.retry": [b"h"],
    }
    assert harness.broker.pending_timers == 0


@pytest.mark.parametrize("how", STOPS)
def test_a_retry_outlives_the_topic_that_it_came_from(how: Stop) -> None:
    harness = broker()
    harness.create_topic("t", 2)
    harness.create_topic("u", 1)
    harness.produce("t", 1, [long(b"g"), Record(b"own", headers=delay(5)), long(b"h", b"h")])
    harness.delete_topic("t")
    assert harness.broker.pending_timers == 2
    check_whole(harness)
    harness = harness.reborn(how)
    assert harness.broker.pending_timers == 2
    fill(harness, 4, "u")
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    check_restarts(harness)
    harness = rebuild(harness, crashed(harness))
    assert harness.tick(LONG_MS) == 2
    assert (values(harness, "g.retry", 1), values(harness, "h.retry", 1)) == ([b"g"], [b"h"])


@pytest.mark.parametrize("how", STOPS)
def test_a_retry_goes_with_the_topic_that_it_was_to_come_to(how: Stop) -> None:
    """And is not delivered into a new topic of that name."""
    harness = broker()
    harness.create_topic("t", 2)
    harness.produce("t", 1, [long(b"g"), long(b"h", b"h")])
    harness.delete_topic("g.retry")
    assert harness.broker.pending_timers == 1
    check_whole(harness)
    harness = harness.reborn(how)
    harness.create_topic("g.retry", 2)
    fill(harness, 4)
    run(harness, 6 * MS_PER_HOUR)
    check_restarts(harness)
    harness = rebuild(harness, crashed(harness))
    assert harness.tick(LONG_MS) == 1
    assert (values(harness, "g.retry", 1), values(harness, "h.retry", 1)) == ([], [b"h"])


def test_many_groups_are_carried_though_no_segment_declares_them_all() -> None:
    """Their timers are then carried in more frames."""
    harness = broker()
    harness.create_topic("t", 60)
    groups = [b"g%d" % number for number in range(24)]
    for group in groups:
        assert harness.produce("t", 1, [long(group, group)]).error == 0
        harness.clock.advance_ms(1_000)
    fill(harness, 4)
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    harness = rebuild(harness, crashed(harness))
    assert harness.tick(LONG_MS) == len(groups)
    assert all(values(harness, f"{group.decode()}.retry", 1) == [group] for group in groups)


def test_a_retry_whose_topic_frame_rotted_is_recovered_with_the_topic() -> None:
    """As a record of such a topic is."""
    harness = BrokerHarness()
    harness.create_topic("t", 1)
    harness.create_topic("g.retry", 1)
    topic_id = harness.topic("g.retry").topic_id
    place = harness.broker.wrote_pos - 100
    assert harness.produce("t", 0, [Record(b"now"), failed(b"again")]).error == 0
    path = harness.segment_paths()[0]
    disk = crashed(harness)
    disk.flip(path, place, 1)
    for directory in DERIVED:
        disk.remove_tree(directory)
    disk.unlink(PATHS.checkpoint)
    harness = BrokerHarness(disk, harness.clock, harness.config)
    assert len(harness.report.damage) == 1
    assert values(harness, "t") == [b"now"]
    assert harness.tick(10_000) == 1
    assert values(harness, f"recovered-topic-{topic_id}") == [b"again"]


class Walk:
    """A broker, what it accepted for a retry, and what must have come of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = broker()
        for topic in ("t", "u"):
            self.harness.create_topic(topic, 2)
        self.number = 0
        self.wanted: dict[tuple[str, int, bytes], int] = {}
        """Due time by topic, partition and value."""

    def fail(self) -> None:
        """Produce some records back, in one batch with others."""
        topic, partition = self.rng.choice("tu"), self.rng.randrange(2)
        batch = [Record(b"plain")]
        for _ in range(self.rng.randrange(1, 4)):
            self.number += 1
            value, group = b"%d" % self.number, self.rng.choice(["g", "h"])
            before = self.rng.choice([0, 1, 15, 16])
            due_ms = self.harness.clock.wall_ms()
            headers: Headers = (("x-retry-attempt", b"%d" % before),)
            target = f"{group}.dlq"
            if before < 16:
                wait_ms = {0: 10_000, 1: 30_000, 15: 7_200_000}[before]
                if self.rng.random() < 0.3:
                    wait_ms = self.rng.randrange(1, LONG_MS)
                    headers = (*headers, *delay(wait_ms))
                due_ms += wait_ms
                target = f"{group}.retry"
            self.wanted[target, partition, value] = due_ms
            batch.append(failed(value, *headers, group=group.encode()))
        self.rng.shuffle(batch)
        assert self.harness.produce(topic, partition, batch).error == 0

    def check(self) -> None:
        """What is due has come once, in its partition, not early; all else is pending."""
        found: dict[tuple[str, int, bytes], int] = {}
        for topic in self.harness.broker.topics.all():
            for partition in topic.partitions if topic.name not in "tu" else ():
                start = partition.start_offset
                for each in self.harness.fetch(topic.name, partition.index, start):
                    key = (topic.name, partition.index, each.value)
                    assert key not in found
                    found[key] = int(each.header("x-due-at") or b"-1")
        now_ms = self.harness.clock.wall_ms()
        kept_ms = now_ms - MS_PER_HOUR
        due = {key: at for key, at in self.wanted.items() if at <= now_ms}
        assert found.items() <= due.items()
        assert {key for key, at in due.items() if at > kept_ms} <= found.keys()
        assert self.harness.broker.pending_timers == len(self.wanted) - len(due)

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.5:
            self.fail()
        elif what < 0.7:
            self.harness.tick(self.rng.choice([1, 10_000, 30_000, MS_PER_HOUR]))
        elif what < 0.8:
            fill(self.harness, 1.5)
            run(self.harness, 2 * MS_PER_HOUR)
        elif what < 0.9:
            take_checkpoint(self.harness)
        else:
            self.harness.deliver_all()
            self.harness = self.harness.reborn(self.rng.choice(STOPS), self.rng.randrange(99))
        self.harness.deliver_all()
        self.check()


@pytest.mark.parametrize("seed", range(6))
def test_each_attempt_comes_once_whatever_happens(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(40):
        walk.step()
    assert offline_scenario.check(crashed(walk.harness)).faults == []
    walk.harness = rebuild(walk.harness, crashed(walk.harness))
    walk.harness.tick(LONG_MS)
    walk.check()
    assert walk.number > 20
