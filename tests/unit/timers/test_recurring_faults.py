"""Recurring records through crashes, carries, damage and a full disk: each instant comes once.

The random walks print their seed, which repeats them.
"""

import random
from typing import Final, get_args

import pytest

from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.checkpoints import crashed, rebuild, take_checkpoint
from tests.support.harness.tables import rows_of
from tests.support.simulator.sim_fs import CrashMode
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.retention.test_freeing import (
    SEGMENT,
    broker,
    check_restarts,
    fill,
    run,
    start_pos,
)
from tests.unit.timers.test_recurring import HOURLY, MINUTE, accept, due_times, recurring
from tests.unit.timers.test_retry_faults import check_whole

STOPS: Final[tuple[Stop, ...]] = ("clean", *get_args(CrashMode))


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("is_saved", [False, True])
def test_each_instant_comes_once_across_every_stop(how: Stop, is_saved: bool) -> None:
    harness = with_topic()
    accept(harness)
    for count in range(1, 5):
        harness = harness.reborn(how, count)
        assert harness.tick(MINUTE) == 1
        if is_saved:
            take_checkpoint(harness)
        check_whole(harness)
        assert due_times(harness) == [number * MINUTE for number in range(1, count + 1)]
    assert harness.timer_state("t", b"id") == ("pending", START_MS + 5 * MINUTE, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_delivery_that_is_not_durable_is_there_with_the_next_occurrence_or_not_at_all(
    seed: int,
) -> None:
    harness = with_topic()
    accept(harness)
    harness.produce("t", 0, [Record(b"other", b"k", delay(MINUTE))])
    harness.clock.advance_ms(MINUTE)
    harness.deliver_once()
    harness = harness.crash("torn", random.Random(seed))
    assert len(due_times(harness)) == len(due_times(harness, b"other"))
    check_whole(harness)
    harness.deliver_all()
    assert due_times(harness) == due_times(harness, b"other") == [MINUTE]
    assert harness.timer_state("t", b"id") == ("pending", START_MS + 2 * MINUTE, 0)
    assert harness.tick(MINUTE) == 1


@pytest.mark.parametrize("seed", range(10))
def test_an_occurrence_that_is_moved_is_moved_whole_or_not_at_all(seed: int) -> None:
    harness = with_topic()
    accept(harness, cron=HOURLY, missed="none")
    harness.clock.advance_ms(MS_PER_HOUR + 5 * MINUTE)
    harness.deliver_once()
    harness = harness.crash("torn", random.Random(seed))
    check_whole(harness)
    harness.deliver_all()
    assert harness.tick(55 * MINUTE) == 1
    assert due_times(harness) == [2 * MS_PER_HOUR]


# Carried occurrences


def free(harness: BrokerHarness) -> None:
    """Write four segments, and let them go as far as nothing needs them."""
    before = start_pos(harness)
    fill(harness, 4)
    run(harness, 4 * MS_PER_HOUR)
    assert start_pos(harness) >= before + 3 * SEGMENT


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("carries", [1, 2])
@pytest.mark.parametrize("delivered", [0, 2])
def test_an_occurrence_is_carried_with_its_rule(
    is_saved: bool, carries: int, delivered: int
) -> None:
    """From the frame that accepted it, from one that set it anew, and from a carry frame."""
    harness = broker()
    harness.create_topic("t")
    daily = "0 12 * * *"
    accept(harness, b"v", cron=daily, zone="Etc/GMT-1", missed="all")
    harness.produce("t", 0, [Record(b"later", b"k", delay(30 * MS_PER_DAY, b"later"))])
    if delivered:
        assert harness.tick(delivered * MS_PER_DAY) == delivered
    if is_saved:
        take_checkpoint(harness)
    for _ in range(carries):
        free(harness)
    check_restarts(harness)
    harness = harness.reborn("kept")
    harness = rebuild(harness, crashed(harness))
    (rule,) = [each for each in pending(harness) if "cron" in each]
    shown = {name: rule[name] for name in ("cron", "zone", "missed", "occurrence", "id")}
    assert shown == {
        "cron": daily,
        "zone": "Etc/GMT-1",
        "missed": "all",
        "occurrence": delivered,
        "id": b"id",
    }
    rows = rows_of(crashed(harness), "timers", columns=("delay_state", "cron", "zone", "missed"))
    (row,) = [each for each in rows if each["delay_state"] == "pending" and each["cron"]]
    assert [row[name] for name in ("cron", "zone", "missed")] == [daily, "Etc/GMT-1", "all"]
    due_ms = START_MS + delivered * MS_PER_DAY + 11 * MS_PER_HOUR
    assert harness.timer_state("t", b"id")[:2] == ("pending", due_ms)
    for count in range(1, 4):
        harness.clock.advance_to_ms(due_ms + (count - 1) * MS_PER_DAY)
        assert harness.deliver_all() == 1
        start = harness.partition().start_offset
        last = harness.fetch("t", 0, start)[-1]
        assert (last.key, last.value) == (b"k", b"v")
        assert last.header("x-due-at") == b"%d" % (due_ms + (count - 1) * MS_PER_DAY)
    check_whole(harness)


def pending(harness: BrokerHarness) -> list[dict[str, object]]:
    from tests.unit.timers.test_pending_timers import items

    return items(harness)


# A full disk, cold records and damage


@pytest.mark.parametrize("missed", ["once", "none"])
def test_on_a_full_disk_an_occurrence_waits_for_room(missed: str) -> None:
    harness = with_topic()
    large = bytes(6_000)
    accept(harness, large, cron=HOURLY, missed=missed)
    while harness.broker.wrote_pos % SEGMENT < SEGMENT - 5_000:
        harness.produce("t", 0, [Record(bytes(2_000))])
    harness.clock.advance_ms(MS_PER_HOUR + 5 * MINUTE)
    room, harness.disk.free = harness.disk.free, 0
    for _ in range(3):
        assert harness.deliver_all() == 0
        harness.clock.advance_ms(MINUTE)
    assert harness.broker._deliver.disk_full
    assert harness.timer_state("t", b"id") == ("pending", START_MS + MS_PER_HOUR, 0)
    harness.disk.free = room
    harness.tick(MINUTE)
    assert due_times(harness, large) == ([MS_PER_HOUR] if missed == "once" else [])
    assert harness.timer_state("t", b"id") == ("pending", START_MS + 2 * MS_PER_HOUR, 0)
    check_whole(harness)
    harness.clock.advance_to_ms(START_MS + 2 * MS_PER_HOUR)
    assert harness.deliver_all() == 1


def test_cold_occurrences_come_in_their_order() -> None:
    harness = with_topic()
    for number in range(3):
        accept(harness, b"%d" % number, user_id=b"%d" % number)
        harness.produce("t", 0, [Record(b"d%d" % number, b"k", delay(MINUTE))])
    for _ in range(2):
        harness.make_cold()
        harness.tick(MINUTE)
    order = [b"0", b"d0", b"1", b"d1", b"2", b"d2", b"0", b"1", b"2"]
    assert harness.values() == order


@pytest.mark.parametrize("missed", ["all", "once"])
def test_a_record_that_waits_for_the_disk_is_not_overtaken_and_overtakes_none(missed: str) -> None:
    """While missed instants catch up, each comes in the order of due times."""
    harness = with_topic(2)
    for due_ms in (90_000, 150_000, 210_000, 300_000):
        for partition in (0, 1):
            large = Record(b"%d" % due_ms, bytes(3_000), delay(due_ms))
            harness.produce("t", partition, [large])
    harness.make_cold()
    accept(harness, missed=missed)
    harness.clock.advance_ms(5 * MINUTE)
    harness.deliver_all()
    found = [int(each.header("x-due-at") or b"") - START_MS for each in harness.fetch("t", 0)]
    ticks = [1, 2, 3, 4, 5] if missed == "all" else [1]
    assert found == sorted([*(MINUTE * n for n in ticks), 90_000, 150_000, 210_000, 300_000])
    assert harness.values("t", 1) == [b"90000", b"150000", b"210000", b"300000"]
    assert harness.broker.pending_timers == 1


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_delivery_does_not_end_or_double_a_recurrence(damaged: int) -> None:
    """The record that it held is lost, and `check` says so; the instants that follow come once."""
    harness = with_topic()
    accept(harness)
    places = []
    for _ in range(3):
        harness.tick(MINUTE)
        places.append(harness.broker.wrote_pos - 100)
    accept(harness, b"after", user_id=b"other")
    disk = crashed(harness)
    disk.flip(harness.segment_paths()[0], places[damaged], 1)
    assert len(offline_scenario.check(disk).faults) == 1
    harness = BrokerHarness(disk, harness.clock, harness.config)
    assert len(harness.report.damage) == 1
    found = [MINUTE, 2 * MINUTE, 3 * MINUTE]
    del found[damaged]
    assert due_times(harness) == found
    # That of the last one is pending again, and comes late.
    assert harness.broker.pending_timers == 2
    for _ in range(3):
        harness.tick(MINUTE)
    again = [3 * MINUTE, 5 * MINUTE, 6 * MINUTE] if damaged == 2 else []
    assert due_times(harness) == found + (again or [4 * MINUTE, 5 * MINUTE, 6 * MINUTE])
    assert due_times(harness, b"after") == [4 * MINUTE, 5 * MINUTE, 6 * MINUTE]
    harness.cancel_timer("t", b"id")
    harness.flush()
    harness = harness.restart()
    assert harness.tick(MINUTE) == 1
    assert harness.broker.pending_timers == 1


# Random walks


class Walk:
    """A broker, the recurring records that it accepted, and what must have come of them."""

    PERIODS: Final = {
        "* * * * *": MS_PER_MINUTE,
        "*/20 * * * * *": 20_000,
        HOURLY: MS_PER_HOUR,
        "0 */6 * * *": 6 * MS_PER_HOUR,
        "0 0 * * *": MS_PER_DAY,
    }

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = broker()
        self.harness.create_topic("t", 2)
        self.number = 0
        self.live: dict[bytes, tuple[bytes, int, int]] = {}
        """Value, partition and period of what recurs, by id."""
        self.next_due: dict[bytes, int] = {}
        self.plain: dict[bytes, int] = {}
        self.wanted: list[tuple[bytes, int, int]] = []
        """Value, partition and due time of what has come, in no order."""

    def now(self) -> int:
        return self.harness.clock.wall_ms()

    def accept(self) -> None:
        cron = self.rng.choice(list(self.PERIODS))
        period = self.PERIODS[cron]
        user_id, partition = b"%d" % self.rng.randrange(5), self.rng.randrange(2)
        self.number += 1
        value = b"r%d" % self.number
        batch = [Record(value, b"k", recurring(cron, user_id=user_id, missed="all"))]
        if self.rng.random() < 0.5:
            self.number += 1
            wait_ms = self.rng.choice([20_000, MS_PER_MINUTE, MS_PER_DAY])
            batch.insert(self.rng.randrange(2), Record(b"d%d" % self.number, b"k", delay(wait_ms)))
            self.plain[b"d%d" % self.number] = self.now() + wait_ms
        assert self.harness.produce("t", partition, batch).error == 0
        self.live[user_id] = (value, partition, period)
        self.next_due[user_id] = self.now() - self.now() % period + period

    def cancel(self) -> None:
        user_id = b"%d" % self.rng.randrange(5)
        if self.rng.random() < 0.5:
            self.harness.produce("t", 0, [Record(b"", headers=cancel(user_id))])
        else:
            self.harness.cancel_timer("t", user_id)
            self.harness.flush()
        self.live.pop(user_id, None)
        self.next_due.pop(user_id, None)

    def deliver(self) -> None:
        """Let the broker deliver what is due, and note what that is."""
        self.harness.deliver_all()
        for user_id, (value, partition, period) in self.live.items():
            while self.next_due[user_id] <= self.now():
                self.wanted.append((value, partition, self.next_due[user_id]))
                self.next_due[user_id] += period

    def check(self) -> None:
        kept_ms = self.now() - MS_PER_HOUR
        found: list[tuple[bytes, int, int]] = []
        for partition in self.harness.topic().partitions:
            records = self.harness.fetch("t", partition.index, partition.start_offset)
            found += [
                (each.value, partition.index, int(each.header("x-due-at") or -1))
                for each in records
                if each.value[:1] == b"r"
            ]
        assert len(found) == len(set(found))
        assert set(found) <= set(self.wanted)
        assert {each for each in self.wanted if each[2] > kept_ms} <= set(found)
        plain = sum(due_ms > self.now() for due_ms in self.plain.values())
        assert self.harness.broker.pending_timers == len(self.live) + plain
        for user_id, due_ms in self.next_due.items():
            assert self.harness.timer_state("t", user_id)[:2] == ("pending", due_ms)

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.3:
            self.accept()
        elif what < 0.4:
            self.cancel()
        elif what < 0.7:
            self.harness.clock.advance_ms(
                self.rng.choice([1, 20_000, MS_PER_MINUTE, 10 * MS_PER_MINUTE])
            )
        elif what < 0.75:
            fill(self.harness, 1.5)
            run(self.harness, MS_PER_HOUR)
        elif what < 0.85:
            take_checkpoint(self.harness)
        else:
            self.harness = self.harness.reborn(self.rng.choice(STOPS), self.rng.randrange(99))
        self.deliver()
        self.check()


@pytest.mark.parametrize("seed", range(12))
def test_each_instant_comes_once_whatever_happens(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(40):
        walk.step()
    assert offline_scenario.check(crashed(walk.harness)).faults == []
    check_whole(walk.harness)
    walk.harness = rebuild(walk.harness, crashed(walk.harness))
    walk.harness.clock.advance_ms(MS_PER_HOUR)
    walk.deliver()
    walk.check()
    assert walk.number > 5
