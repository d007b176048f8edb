"""What RocketMQ's tests of its timers ask, and what they do not: each behaviour by its name.

Upstream: TimerMessageStoreTest, ScheduleMessageServiceTest. Not upstream: a kill amid a slot, a
long downtime, retention against pending timers, 100,000 in one slot. Levels that change are in
test_levels.py, cancels after a relocation in tests/unit/retention/test_carried_timers.py, refused
requests in tests/unit/kafka/test_delay_headers.py.
"""

import random
from typing import Final, get_args

import pytest

from appliance.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.checkpoints import PATHS
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay

STOPS: Final = ("clean", *get_args(CrashMode))


def held(delay_ms: int, value: bytes = b"v", user_id: bytes | None = None) -> Record:
    return Record(value, headers=delay(delay_ms, *([] if user_id is None else [user_id])))


def test_ten_topics_of_five_timers_each_show_them_until_they_are_delivered() -> None:
    harness = BrokerHarness()
    names = [f"topic-{number}" for number in range(10)]
    for name in names:
        harness.create_topic(name)
        due_ms = harness.clock.wall_ms() + 4_000
        for number in range(5):
            absolute = Record(b"%d" % number, headers=[("x-deliver-at", b"%d" % due_ms)])
            record = absolute if number % 2 else held(4_000, b"%d" % number)
            harness.produce(name, 0, [record])
    timers = harness.broker.timers
    parts = {name: harness.partition(topic=name) for name in names}
    assert [timers.count_of(part) for part in parts.values()] == [5] * 10
    assert harness.tick(3_999) == 0
    assert harness.tick(1) == 50
    assert [timers.count_of(part) for part in parts.values()] == [0] * 10
    for name in names:
        assert harness.values(name) == [b"%d" % number for number in range(5)]


def test_a_delivery_that_fails_for_an_hour_is_made_once_there_is_room() -> None:
    """RocketMQ drops a message after three failed puts."""
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    for number in range(200):
        harness.produce("t", 0, [held(1_000, b"%d" % number + bytes(2_000))])
    disk.free = 0
    while harness.produce("t", 0, [Record(bytes(3_000))]).error == 0:
        pass
    written = len(harness.values())
    for _ in range(60):
        harness.tick(60_000)
    delivered = harness.values()[written:]
    assert len(delivered) + harness.broker.pending_timers == 200
    assert harness.broker.pending_timers > 0  # the reserve did not do for all of them
    disk.free = 1 << 30
    harness.tick(1_000)
    found = [int(value.rstrip(b"\0")) for value in harness.values()[written:]]
    assert found == list(range(200))


def test_a_cancel_takes_one_timer_of_its_topic_and_no_other() -> None:
    harness = with_topic()
    harness.create_topic("other")
    for name in ("t", "other"):
        harness.produce(name, 0, [held(1_000, b"%d" % n, b"key-%d" % n) for n in range(5)])
    harness.produce("t", 0, [Record(b"", headers=cancel(b"key-2"))])
    harness.produce("t", 0, [Record(b"", headers=cancel(b"never-sent"))])
    harness.tick(1_000)
    assert harness.values() == [b"0", b"1", b"3", b"4"]
    assert harness.values("other") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_timer_that_is_due_already_comes_at_once() -> None:
    harness = with_topic()
    past_ms = harness.clock.wall_ms() - 1
    record = Record(b"v", headers=[("x-deliver-at", b"%d" % past_ms)])
    assert harness.produce("t", 0, [record] * 10).base_offset == 0
    assert harness.values() == [b"v"] * 10


@pytest.mark.parametrize("at", [0, 1, 2])
def test_timers_whose_saved_state_is_damaged_are_read_from_the_log(at: int) -> None:
    """At its head, in its rows, at its end; also what a newer state says is left out then."""
    harness = with_topic()
    for number in range(250):
        harness.produce("t", 0, [held(1_000 + number, b"%d" % number, b"id-%d" % number)])
    harness.produce("t", 0, [Record(b"", headers=cancel(b"id-17"))])
    harness.broker.close()
    damaged = 0
    for directory in (PATHS.timer, PATHS.index):
        for path in [each for each in harness.disk.files() if each.parent == directory]:
            size = len(harness.disk.files()[path])
            harness.disk.flip(path, (0, size // 2, size - 1)[at], 1)
            damaged += 1
    assert damaged >= 2
    harness = BrokerHarness(harness.disk, harness.clock, harness.config)
    assert harness.report.rejected
    assert harness.tick(2_000) == 249
    assert harness.values() == [b"%d" % number for number in range(250) if number != 17]


def test_a_timer_of_a_year_is_written_twice_in_all() -> None:
    """When it is accepted and when it is delivered; RocketMQ rolls it over 184 times."""
    harness = with_topic()
    harness.produce("t", 0, [held(365 * MS_PER_DAY, bytes(4_000))])
    begun = harness.broker.wrote_pos
    for _ in range(365):
        harness.tick(MS_PER_DAY - 1)
        harness.housekeep()
        assert harness.broker.wrote_pos == begun
        harness.clock.advance_ms(1)
    assert harness.tick(0) == 1
    assert 4_000 < harness.broker.wrote_pos - begun < 4_700


@pytest.mark.parametrize("end", STOPS)
def test_a_kill_amid_a_slot_delivers_each_timer_of_it_once(end: Stop) -> None:
    harness = with_topic(config=small_config(delivery_chunk_records=100))
    for start in range(0, 1_000, 50):
        numbers = range(start, start + 50)
        harness.produce("t", 0, [held(1_000, b"%d" % number) for number in numbers])
    harness.clock.advance_ms(1_000)
    for kills in range(5):
        harness.deliver_once()
        if kills % 2:
            harness.flush()
        harness = harness.reborn(end, kills)
    assert 0 < harness.broker.pending_timers < 1_000
    harness.tick(0)
    assert harness.values() == [b"%d" % number for number in range(1_000)]


def test_after_a_month_without_a_broker_all_come_oldest_first() -> None:
    """RocketMQ loses what was due more than seven days before its start."""
    harness = with_topic()
    days = list(range(40))
    random.Random(3).shuffle(days)
    for day in days:
        harness.produce("t", 0, [held(day * MS_PER_DAY + 5_000, b"%d" % day)])
    harness.broker.close()
    harness.clock.advance_ms(30 * MS_PER_DAY)
    harness = BrokerHarness(harness.disk, harness.clock, harness.config)
    assert harness.tick(0) == 30
    assert harness.values() == [b"%d" % day for day in range(30)]
    harness.tick(10 * MS_PER_DAY)
    assert harness.values() == [b"%d" % day for day in range(40)]


def test_retention_takes_no_timer_that_is_pending() -> None:
    harness = BrokerHarness(config=small_config(retention_time_ms=MS_PER_HOUR))
    harness.create_topic("t", settings={"retention.ms": "1000"})
    harness.produce("t", 0, [held(72 * MS_PER_HOUR, b"kept", b"id")])
    for _ in range(71):
        harness.produce("t", 0, [Record(bytes(8_000))] * 2)
        harness.tick(MS_PER_HOUR)
        harness.housekeep()
    assert harness.timer_state("t", b"id")[0] == "pending"
    end = harness.partition().next_offset
    assert harness.tick(MS_PER_HOUR) == 1
    assert [each.value for each in harness.fetch("t", 0, end)] == [b"kept"]


def test_a_hundred_thousand_of_one_ms_come_in_chunks_and_in_order() -> None:
    """Between two chunks others are served."""
    harness = with_topic()
    count = 100_000
    for start in range(0, count, 200):
        records = [held(600_000, b"%d" % number) for number in range(start, start + 200)]
        assert harness.produce("t", 0, records).error == 0
    harness.create_topic("other")
    harness.clock.advance_ms(600_000)
    chunks = []
    while harness.broker.timers.is_any_due(harness.clock.wall_ms()):
        chunks.append(harness.deliver_once().count)
        assert harness.produce("other", 0, [Record(b"between")]).error == 0
    assert sum(chunks) == count
    assert max(chunks) < count // 2
    assert harness.values() == [b"%d" % number for number in range(count)]
    assert len(harness.values("other")) == len(chunks)
