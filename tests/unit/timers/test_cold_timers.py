"""Timers whose records are not in memory hold up nobody, and only what is whole is delivered."""

import random
from pathlib import Path

import pytest

from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record, delay

COLD_COUNT = 300


def log_path(harness: BrokerHarness) -> Path:
    return harness.segment_paths()[0]


def read_by_another_process(harness: BrokerHarness) -> None:
    """All pages of the log are in the page cache, and nobody has checked them."""
    file = harness.disk.open(log_path(harness), writable=False)
    file.will_need(0, file.size())


def cold_harness(*, partitions: int = 1, count: int = 3, first_ms: int = 1_000) -> BrokerHarness:
    """A broker with timers of 7,900 bytes, due one ms after the other, all on the disk alone."""
    harness = BrokerHarness(config=small_config(segment_size_bytes=8 << 20))
    harness.create_topic("cold", partitions)
    harness.create_topic("hot")
    for index in range(count):
        value = b"%d " % index + random.Random(index).randbytes(7_900)
        headers = delay(first_ms + index)
        harness.produce("cold", index % partitions, [Record(value, headers=headers)])
    harness = harness.restart()
    harness.make_cold()
    return harness


def numbers(harness: BrokerHarness, partition: int = 0) -> list[int]:
    return [int(value.split(b" ")[0]) for value in harness.values("cold", partition)]


def place_of(harness: BrokerHarness, index: int) -> int:
    """An offset in the middle of a timer's record."""
    value = random.Random(index).randbytes(7_900)
    return harness.disk.files()[log_path(harness)].index(value) + 3_950


def later(harness: BrokerHarness, duration_ms: int) -> int:
    """What the housekeeping does after a while; how many were delivered."""
    harness.clock.advance_ms(duration_ms)
    harness.broker.housekeep()
    return harness.deliver_all()


def test_rot_that_another_process_made_resident_is_not_delivered() -> None:
    """A copy of it in a batch of its own would have a CRC that is right."""
    harness = cold_harness()
    harness.disk.flip(log_path(harness), place_of(harness, 1), 4)
    read_by_another_process(harness)
    assert harness.tick(2_000) == 2
    assert numbers(harness) == [0, 2]
    assert harness.broker.gauges(0).unreadable_timers == 1
    assert len(harness.broker.damage) == 1


def test_a_timer_whose_sector_heals_is_delivered_late() -> None:
    harness = cold_harness()
    harness.disk.spoil(log_path(harness), place_of(harness, 1), 1)
    assert harness.tick(2_000) == 2
    assert harness.broker.next_wake_ms() is None
    assert later(harness, 999) == 0
    harness.disk.repair(log_path(harness))
    assert later(harness, 1) == 1
    assert numbers(harness) == [0, 2, 1]
    assert harness.broker.pending_timers == harness.broker.gauges(0).unreadable_timers == 0
    assert harness.broker.damage == []
    harness = harness.restart()
    assert harness.tick(10_000) == 0


def test_a_timer_that_cannot_be_read_is_tried_more_and_more_seldom() -> None:
    harness = cold_harness(count=1)
    harness.disk.spoil(log_path(harness), place_of(harness, 0), 1)
    assert harness.tick(2_000) == 0
    tries = []
    for second in range(1, 130):
        harness.disk.reads = 0
        assert later(harness, 1_000) == 0
        if harness.disk.reads:
            tries.append(second)
    assert tries == [1, 3, 7, 15, 31, 63, 123]
    assert len(harness.broker.damage) == 1
    assert harness.restart().broker.pending_timers == 1


def test_a_timer_that_cannot_be_read_can_be_cancelled_and_deleted_with_its_topic() -> None:
    harness = with_topic()
    for name in (b"a", b"b"):
        headers = [*delay(1_000), ("x-deliver-id", name)]
        harness.produce("t", 0, [Record(bytes(7_000), headers=headers)])
    harness = harness.restart()
    harness.make_cold()
    harness.disk.spoil(log_path(harness), 0, 1 << 16)
    assert harness.tick(1_000) == 0
    assert harness.broker.gauges(0).unreadable_timers == 2
    assert harness.cancel_timer("t", b"a")[0] == "cancelled"
    assert harness.broker.pending_timers == 1
    harness.delete_topic("t")
    assert harness.broker.pending_timers == 0
    harness.disk.repair(log_path(harness))
    assert later(harness, 2_000) == 0
    assert harness.broker.gauges(0).unreadable_timers == 0


def test_timers_in_memory_do_not_wait_for_those_on_the_disk() -> None:
    harness = cold_harness(count=COLD_COUNT)
    harness.clock.advance_ms(2_000)
    harness.produce("hot", 0, [Record(b"hot", headers=delay(1))])
    harness.clock.advance_ms(1)
    found = []
    while True:
        delivery = harness.broker.deliver_due()
        found.append(delivery)
        if not delivery.has_more:
            break
    harness.broker.flush()
    assert harness.values("hot") == [b"hot"]
    assert numbers(harness) == []
    (read,) = [each.cold for each in found if each.cold]
    harness.read_cold(read, is_delivery=True)
    assert harness.deliver_all() == COLD_COUNT
    assert numbers(harness) == list(range(COLD_COUNT))


def test_a_partition_keeps_its_order_while_some_of_it_is_cold() -> None:
    """What is in memory waits after what is due earlier in its partition, and nowhere else."""
    harness = cold_harness(partitions=2, count=4)
    harness.clock.advance_ms(2_000)
    headers = delay(1)
    harness.produce("cold", 0, [Record(b"100 hot", headers=headers)])
    harness.clock.advance_ms(1)
    first = harness.broker.deliver_due()
    assert first.count == 0
    harness.produce("hot", 0, [Record(b"x", headers=headers)])
    harness.clock.advance_ms(1)
    assert harness.broker.deliver_due().count == 1
    harness.read_cold(first.cold, is_delivery=True)
    assert harness.deliver_all() == 5
    assert numbers(harness, 0) == [0, 2, 100]
    assert numbers(harness, 1) == [1, 3]


@pytest.mark.parametrize("seed", range(10))
def test_any_mix_of_cold_and_hot_is_delivered_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    harness = cold_harness(partitions=3, count=60)
    expected: list[list[int]] = [[n for n in range(60) if n % 3 == part] for part in range(3)]
    number = 1_000
    reading: list[int] = []
    for _ in range(80):
        choice = rng.random()
        if choice < 0.3:
            part = rng.randrange(3)
            record = Record(b"%d hot" % number, headers=delay(3_000))
            harness.produce("cold", part, [record])
            expected[part].append(number)
            number += 1
        elif choice < 0.5 and reading:
            harness.read_cold(reading, is_delivery=True)  # type: ignore[arg-type]
            reading = []
        elif choice < 0.6:
            harness.make_cold()
        else:
            harness.clock.advance_ms(rng.choice((1, 10, 200)))
            cold = harness.broker.deliver_due().cold
            reading = cold or reading
            harness.broker.flush()
    if reading:
        harness.read_cold(reading, is_delivery=True)  # type: ignore[arg-type]
    harness.clock.advance_ms(10_000)
    harness.deliver_all()
    assert [numbers(harness, part) for part in range(3)] == expected, f"seed {seed}"
    assert harness.broker.pending_timers == harness.broker.gauges(0).waiting_timers == 0


def test_frames_are_read_ahead_in_the_order_of_the_log() -> None:
    harness = cold_harness(count=20, first_ms=5_000)  # two seconds of which are over
    assert harness.broker.look_ahead(2_900) == []
    places = harness.broker.look_ahead(3_100)
    assert places == sorted(places)
    assert len(places) == 20
    harness.read_cold(places)
    assert harness.broker.look_ahead(3_100) == []
    harness.disk.reads = 0
    harness.clock.advance_ms(4_000)
    assert harness.broker.deliver_due().count == 20
    assert harness.disk.reads == 0
