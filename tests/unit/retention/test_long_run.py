"""Weeks of a broker with mixed retention, timers, restarts and crashes, whose log stays small."""

import random
from dataclasses import dataclass, field
from typing import Final, get_args

import pytest

from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import rebuild, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Producer, Record, cancel, delay

DAYS: Final = 20
STEP_MS: Final = 20 * MS_PER_MINUTE
DELAY_MAX_MS: Final = 36 * MS_PER_HOUR
TOPICS: Final = {"six": 6 * MS_PER_HOUR, "three": 72 * MS_PER_HOUR}
STOPS: Final[tuple[Stop, ...]] = ("clean", *get_args(CrashMode))

KEPT_DAYS: Final = 7
"""A timer may wait for 1.5 days, and its record is kept for three. A crash costs up to six hours of
the age that records have gained."""


@dataclass
class Expectation:
    """What was sent, and what a consumer has read."""

    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    due: dict[bytes, int] = field(default_factory=dict)
    """By value of a record that was not read yet: when it is due, epoch ms."""
    names: dict[bytes, bytes] = field(default_factory=dict)
    """By timer id that was not cancelled: the value."""


class LongRun:
    """One broker, driven for weeks."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = BrokerHarness(config=small_config(retention_check_interval_ms=MS_PER_HOUR))
        for topic, limit_ms in TOPICS.items():
            self.harness.create_topic(topic, 1, {"retention.ms": str(limit_ms)})
        self.harness.create_topic("quiet", 2)
        self.expected = Expectation()
        self.count = 0
        self.turns = 0
        self.committed = 0

    def day(self) -> None:
        for _ in range(MS_PER_DAY // STEP_MS):
            self.send()
            self.pass_time()
            self.read()

    def send(self) -> None:
        harness, rng, expected = self.harness, self.rng, self.expected
        now_ms = harness.clock.wall_ms()
        for topic in TOPICS:
            self.count += 1
            value = b"%s-%d-" % (topic.encode(), self.count) + bytes(1_500)
            producer = Producer(7, 0, self.turns)
            assert harness.produce(topic, 0, [Record(value)], producer).error == 0
            expected.due[value] = now_ms
        self.turns += 1
        wait_ms = rng.randrange(1_000, DELAY_MAX_MS)
        self.count += 1
        value, user_id = b"timer-%d" % self.count, b"id-%d" % self.count
        later = Record(value, headers=delay(wait_ms, user_id))
        assert harness.produce("three", 0, [later]).error == 0
        expected.due[value] = now_ms + wait_ms
        expected.names[user_id] = value
        if rng.random() < 0.3:
            name, value = rng.choice(list(expected.names.items()))
            if expected.due.get(value, 0) > now_ms:
                assert harness.produce("three", 0, [Record(b"", headers=cancel(name))]).error == 0
                del expected.due[value], expected.names[name]

    def pass_time(self) -> None:
        harness = self.harness
        harness.tick(STEP_MS)
        self.committed += 1
        entry = OffsetEntry(
            op=OFFSET_COMMITTED,
            group="g",
            topic_id=harness.topic("quiet").topic_id,
            partition=0,
            offset=self.committed,
            commit_ms=harness.clock.wall_ms(),
        )
        harness.broker.groups.commit_offsets([entry])
        harness.flush()
        harness.housekeep()
        if harness.broker.checkpoints._is_due():
            take_checkpoint(harness)

    def read(self) -> None:
        """Read what is new: each record once, in order, and none before it is due."""
        expected, now_ms = self.expected, self.harness.clock.wall_ms()
        for topic in TOPICS:
            partition = self.harness.partition(topic=topic)
            while expected.offsets[topic] < partition.visible_offset:
                assert partition.start_offset <= expected.offsets[topic]
                for record in self.harness.fetch(topic, 0, expected.offsets[topic]):
                    assert record.offset == expected.offsets[topic]
                    expected.offsets[topic] += 1
                    assert expected.due.pop(record.value) <= now_ms

    def check_overdue(self) -> None:
        now_ms = self.harness.clock.wall_ms()
        assert not [value for value, due_ms in self.expected.due.items() if due_ms <= now_ms]


@pytest.mark.parametrize("seed", range(2))
def test_a_log_holds_what_is_kept_and_little_more_for_weeks(seed: int) -> None:
    run = LongRun(seed)
    ends: list[int] = []
    for number in range(DAYS):
        run.day()
        run.check_overdue()
        ends.append(run.harness.broker.wrote_pos)
        run.harness = run.harness.reborn(run.rng.choice(STOPS), seed=number)
        start_pos, segment = run.harness.broker.log.start_pos, run.harness.config.segment_size_bytes
        assert run.harness.report.damage == ()
        assert dict(run.harness.broker.groups.offsets("g"))
        if number >= KEPT_DAYS:
            assert start_pos > ends[number - KEPT_DAYS] - 2 * segment
    assert run.harness.broker.log.start_pos > ends[0]
    alone = rebuild(run.harness, run.harness.disk.crashed("kept", random.Random(0)))
    assert sorted(alone.topics_digest()) == sorted(run.harness.topics_digest())
    (entry,) = alone.broker.groups.offsets("g").values()
    assert entry.offset == run.committed
