"""A broker for months, with mixed retention, long timers and crashes: its log stays small.

`make soak` runs a year with 100,000 pending timers.
"""

import heapq
import random
import sys
from dataclasses import dataclass, field
from typing import Final, get_args

import pytest

from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from appliance.units import KIB, MIB, MS_PER_DAY, MS_PER_HOUR
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import crashed, rebuild, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Fetched, Producer, Record, cancel, deliver_at

STEP_MS: Final = 2 * MS_PER_HOUR
TOPICS: Final = {
    "six-hours": 6 * MS_PER_HOUR,
    "three-days": 72 * MS_PER_HOUR,
    "ninety-days": 90 * MS_PER_DAY,
    "for-ever": -1,
}
EVERY: Final = {"six-hours": 1, "three-days": 1, "ninety-days": 4, "for-ever": 12}
"""A batch of records every so many steps."""
LATER: Final = "three-days"
"""The topic of the timers."""
DELAY_MAX_MS: Final = 2 * 365 * MS_PER_DAY
STOPS: Final[tuple[Stop, ...]] = ("clean", *get_args(CrashMode))
BATCH: Final = 25

LOG_FACTOR: Final = 2.2
"""The log has at most this many times its live bytes, and two segments."""

RECORD_BYTES: Final = 236
"""A frame of one record besides its value: headers of frame and batch, and the record's own."""

TIMER_BYTES: Final = 150
"""A carried timer besides its value: an entry of a table, its id and three headers."""


@dataclass
class Kept:
    """What a topic should hold, by offset from 0 on."""

    values: list[bytes] = field(default_factory=list)
    visible_ms: list[int] = field(default_factory=list)
    first: int = 0
    """The first that is not certainly expired."""

    def live_bytes(self, now_ms: int, limit_ms: int) -> int:
        """Bytes of the records that have not expired."""
        while limit_ms >= 0 and self.first < len(self.values):
            if self.visible_ms[self.first] >= now_ms - limit_ms:
                break
            self.first += 1
        return sum(RECORD_BYTES + len(value) for value in self.values[self.first :])


class Year:
    """One broker, its producers and consumers, and what they know."""

    def __init__(self, seed: int, timer_count: int) -> None:
        self.rng = random.Random(seed)
        self.segment = 64 * KIB if timer_count < 10_000 else MIB
        config = small_config(
            segment_size_bytes=self.segment,
            retention_check_interval_ms=MS_PER_HOUR,
            completed_id_memory_ms=MS_PER_HOUR,
        )
        self.harness = BrokerHarness(config=config)
        for topic, limit_ms in TOPICS.items():
            self.harness.create_topic(topic, 1, {"retention.ms": str(limit_ms)})
        self.kept = {topic: Kept() for topic in TOPICS}
        self.due: list[tuple[int, int, bytes, bytes]] = []
        """A heap of timers: when due, number, value, user id."""
        self.pending: dict[bytes, bytes] = {}
        """User id to value."""
        self.pending_bytes = 0
        self.number = self.turns = self.committed = 0
        self.carried = self.appended = 0
        self.worst = 0.0
        while self.number < timer_count:
            self.schedule(min(BATCH, timer_count - self.number))

    # Clients

    def schedule(self, count: int, user_id: bytes | None = None) -> None:
        """Schedule timers in one batch; one with an id replaces the pending timer of that id."""
        now_ms = self.harness.clock.wall_ms()
        records = []
        for _ in range(count):
            self.number += 1
            name = user_id or b"id-%d" % self.number
            value = b"timer-%d-" % self.number + bytes(self.rng.randrange(60))
            due_ms = now_ms + self.rng.randrange(1_000, DELAY_MAX_MS)
            records.append(Record(value, headers=deliver_at(due_ms, name)))
            self.forget(name)
            self.pending[name] = value
            self.pending_bytes += TIMER_BYTES + len(value)
            heapq.heappush(self.due, (due_ms, self.number, value, name))
        assert self.harness.produce(LATER, 0, records).error == 0

    def forget(self, name: bytes) -> None:
        value = self.pending.pop(name, None)
        if value is not None:
            self.pending_bytes -= TIMER_BYTES + len(value)

    def send(self) -> None:
        """Produce, and sometimes repeat a batch as after a lost answer."""
        self.turns += 1
        for topic, every in EVERY.items():
            if self.turns % every:
                continue
            self.number += 1
            value = b"%s-%d-" % (topic.encode(), self.number) + bytes(self.rng.randrange(1_500))
            producer = Producer(7, 0, self.turns // every)
            sent = self.harness.produce(topic, 0, [Record(value)], producer)
            self.note_visible(topic, [value])
            assert (sent.error, sent.base_offset) == (0, len(self.kept[topic].values) - 1)
            if self.rng.random() < 0.1:
                again = self.harness.produce(topic, 0, [Record(value)], producer)
                assert (again.error, again.base_offset) == (0, sent.base_offset)

    def note_visible(self, topic: str, values: list[bytes]) -> None:
        kept = self.kept[topic]
        kept.values += values
        kept.visible_ms += [self.harness.clock.wall_ms()] * len(values)

    def change_timers(self) -> None:
        """Cancel one, replace one, schedule some."""
        names = list(self.pending) if len(self.pending) < 1_000 else None
        for act in ("cancel", "replace"):
            name = b"id-%d" % self.rng.randrange(1, self.number) if names is None else None
            if name is None and names:
                name = self.rng.choice(names)
            if name is None or name not in self.pending:
                continue
            if act == "cancel":
                assert (
                    self.harness.produce(LATER, 0, [Record(b"", headers=cancel(name))]).error == 0
                )
                self.forget(name)
            else:
                self.schedule(1, name)
        self.schedule(1 + self.rng.randrange(2))

    def commit(self) -> None:
        self.committed += 1
        topic_id = self.harness.topic("for-ever").topic_id
        self.harness.broker.groups.commit_offsets(
            [
                OffsetEntry(
                    op=OFFSET_COMMITTED,
                    group=f"g{self.committed % 3}",
                    topic_id=topic_id,
                    partition=0,
                    offset=self.committed,
                    commit_ms=self.harness.clock.wall_ms(),
                )
            ]
        )

    # Time

    def step(self) -> None:
        self.send()
        if self.rng.random() < 0.5:
            self.change_timers()
        self.commit()
        self.harness.tick(STEP_MS)
        self.note_due()
        for _ in range(4):
            self.harness.housekeep()
            self.harness.flush()
            if self.harness.broker.checkpoints._is_due():
                take_checkpoint(self.harness)
        self.check_size()

    def note_due(self) -> None:
        """What became due was delivered in this order, all of it and nothing else."""
        now_ms = self.harness.clock.wall_ms()
        values = []
        while self.due and self.due[0][0] <= now_ms:
            _, _, value, name = heapq.heappop(self.due)
            if self.pending.get(name) == value:
                self.forget(name)
                values.append(value)
        first = len(self.kept[LATER].values)
        self.note_visible(LATER, values)
        found = self.harness.fetch(LATER, 0, first) if values else []
        assert [each.value for each in found] == values
        assert self.harness.partition(topic=LATER).next_offset == len(self.kept[LATER].values)

    def check_size(self) -> None:
        """The log has little more than what lives; a crash takes up to six hours of age."""
        log = self.harness.broker.log
        now_ms = self.harness.clock.wall_ms()
        live_bytes = self.pending_bytes + sum(
            self.kept[topic].live_bytes(now_ms, limit_ms) for topic, limit_ms in TOPICS.items()
        )
        size = log.pointers.wrote - log.start_pos
        self.worst = max(self.worst, (size - 2 * self.segment) / live_bytes)
        assert size <= LOG_FACTOR * live_bytes + 2 * self.segment

    def restart(self, number: int) -> None:
        """Stop or crash, start again, and read all that is kept."""
        harness = self.harness
        self.carried += harness.broker.head_freer.carried_bytes
        self.harness = harness = harness.reborn(self.rng.choice(STOPS), seed=number)
        assert harness.report.damage == ()
        assert harness.broker._store.state.projections.due.pending == len(self.pending)

    def check_kept(self) -> None:
        """Every record that has not expired is there, with its offset."""
        for topic, kept in self.kept.items():
            start = self.harness.partition(topic=topic).start_offset
            assert start <= kept.first
            found: list[Fetched] = self.harness.fetch(topic, 0, start)
            assert [each.offset for each in found] == list(range(start, len(kept.values)))
            assert [each.value for each in found] == kept.values[start:]


def test_a_log_holds_at_most_twice_what_lives(
    days: int, timers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    year = Year(days, timers)
    for number in range(days):
        for _ in range(MS_PER_DAY // STEP_MS):
            year.step()
        year.restart(number)
        if number % 5 == 0:
            year.check_kept()
    year.check_kept()
    harness = year.harness
    entries = [entry for g in range(3) for entry in harness.broker.groups.offsets(f"g{g}").values()]
    assert sorted(entry.offset for entry in entries) == list(
        range(year.committed - 2, year.committed + 1)
    )
    wrote = harness.broker.wrote_pos
    with capsys.disabled():
        sys.stdout.write(
            f"\n{days} days: {wrote / MIB:.0f} MiB appended, write amplification "
            f"{wrote / (wrote - year.carried):.2f}, log at most {year.worst:.2f} times its live "
            f"bytes, {len(year.pending)} timers pending\n"
        )
    alone = rebuild(harness, crashed(harness))
    assert sorted(alone.topics_digest()) == sorted(harness.topics_digest())
    assert alone.broker._store.state.projections.due.pending == len(year.pending)
    year.harness = alone
    year.check_kept()
    year.step()
