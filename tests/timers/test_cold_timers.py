"""Timers whose records are not in memory hold up nobody, and only what is whole is delivered."""

import random
from pathlib import Path

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.kafka_records import Record, delay

COLD_COUNT = 300


def log_path(rig: BrokerRig) -> Path:
    return rig.segment_paths()[0]


def read_by_another_process(rig: BrokerRig) -> None:
    """All pages of the log are in the page cache, and nobody has checked them."""
    file = rig.disk.open(log_path(rig), writable=False)
    file.will_need(0, file.size())


def values(rig: BrokerRig, topic: str, partition: int = 0) -> list[bytes]:
    return [record.value or b"" for record in rig.fetch(topic, partition)]


def cold_rig(*, partitions: int = 1, count: int = 3, first_ms: int = 1_000) -> BrokerRig:
    """A broker with timers of 7,900 bytes, due one ms after the other, all on the disk alone."""
    rig = BrokerRig(config=small_config(segment_size_bytes=8 << 20))
    rig.create_topic("cold", partitions)
    rig.create_topic("hot")
    for index in range(count):
        value = b"%d " % index + random.Random(index).randbytes(7_900)
        headers = delay(first_ms + index)
        rig.produce("cold", index % partitions, [Record(value, headers=headers)])
    rig = rig.restart()
    rig.make_cold()
    return rig


def numbers(rig: BrokerRig, partition: int = 0) -> list[int]:
    return [int(value.split(b" ")[0]) for value in values(rig, "cold", partition)]


def place_of(rig: BrokerRig, index: int) -> int:
    """An offset in the middle of a timer's record."""
    value = random.Random(index).randbytes(7_900)
    return rig.disk.files()[log_path(rig)].index(value) + 3_950


def later(rig: BrokerRig, duration_ms: int) -> int:
    """What the housekeeping does after a while; how many were delivered."""
    rig.clock.advance_ms(duration_ms)
    rig.broker.housekeep()
    return rig.deliver_all()


def test_rot_that_another_process_made_resident_is_not_delivered() -> None:
    """A copy of it in a batch of its own would have a CRC that is right."""
    rig = cold_rig()
    rig.disk.flip(log_path(rig), place_of(rig, 1), 4)
    read_by_another_process(rig)
    assert rig.tick(2_000) == 2
    assert numbers(rig) == [0, 2]
    assert rig.broker.gauges(0).unreadable_timers == 1
    assert len(rig.broker.damage) == 1


def test_a_timer_whose_sector_heals_is_delivered_late() -> None:
    rig = cold_rig()
    rig.disk.spoil(log_path(rig), place_of(rig, 1), 1)
    assert rig.tick(2_000) == 2
    assert rig.broker.next_wake_ms() is None
    assert later(rig, 999) == 0
    rig.disk.mend(log_path(rig))
    assert later(rig, 1) == 1
    assert numbers(rig) == [0, 2, 1]
    assert rig.broker.pending_timers == rig.broker.gauges(0).unreadable_timers == 0
    assert rig.broker.damage == []
    rig = rig.restart()
    assert rig.tick(10_000) == 0


def test_a_timer_that_cannot_be_read_is_tried_more_and_more_seldom() -> None:
    rig = cold_rig(count=1)
    rig.disk.spoil(log_path(rig), place_of(rig, 0), 1)
    assert rig.tick(2_000) == 0
    tries = []
    for second in range(1, 130):
        rig.disk.reads = 0
        assert later(rig, 1_000) == 0
        if rig.disk.reads:
            tries.append(second)
    assert tries == [1, 3, 7, 15, 31, 63, 123]
    assert rig.broker.pending_timers == 1
    assert len(rig.broker.damage) == 1


def test_a_timer_that_cannot_be_read_can_be_cancelled_and_deleted_with_its_topic() -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    for name in (b"a", b"b"):
        headers = [*delay(1_000), ("x-deliver-id", name)]
        rig.produce("t", 0, [Record(bytes(7_000), headers=headers)])
    rig = rig.restart()
    rig.make_cold()
    rig.disk.spoil(log_path(rig), 0, 1 << 16)
    assert rig.tick(1_000) == 0
    assert rig.broker.gauges(0).unreadable_timers == 2
    assert rig.cancel_timer("t", b"a")[0] == "cancelled"
    assert rig.broker.pending_timers == 1
    rig.delete_topic("t")
    assert rig.broker.pending_timers == 0
    rig.disk.mend(log_path(rig))
    assert later(rig, 2_000) == 0
    assert rig.broker.gauges(0).unreadable_timers == 0


def test_timers_in_memory_do_not_wait_for_those_on_the_disk() -> None:
    rig = cold_rig(count=COLD_COUNT)
    rig.clock.advance_ms(2_000)
    rig.produce("hot", 0, [Record(b"hot", headers=delay(1))])
    rig.clock.advance_ms(1)
    found = []
    while True:
        delivery = rig.broker.deliver_due()
        found.append(delivery)
        if not delivery.has_more:
            break
    rig.broker.flush()
    assert values(rig, "hot") == [b"hot"]
    assert numbers(rig) == []
    (read,) = [each.cold for each in found if each.cold]
    rig.read_cold(read, is_delivery=True)
    assert rig.deliver_all() == COLD_COUNT
    assert numbers(rig) == list(range(COLD_COUNT))


def test_a_partition_keeps_its_order_while_some_of_it_is_cold() -> None:
    """What is in memory waits behind what is due earlier in its partition, and nowhere else."""
    rig = cold_rig(partitions=2, count=4)
    rig.clock.advance_ms(2_000)
    headers = delay(1)
    rig.produce("cold", 0, [Record(b"100 hot", headers=headers)])
    rig.clock.advance_ms(1)
    first = rig.broker.deliver_due()
    assert first.count == 0
    rig.produce("hot", 0, [Record(b"x", headers=headers)])
    rig.clock.advance_ms(1)
    assert rig.broker.deliver_due().count == 1
    rig.read_cold(first.cold, is_delivery=True)
    assert rig.deliver_all() == 5
    assert numbers(rig, 0) == [0, 2, 100]
    assert numbers(rig, 1) == [1, 3]


@pytest.mark.parametrize("seed", range(10))
def test_any_mix_of_cold_and_hot_is_delivered_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    rig = cold_rig(partitions=3, count=60)
    expected: list[list[int]] = [[n for n in range(60) if n % 3 == part] for part in range(3)]
    number = 1_000
    reading: list[int] = []
    for _ in range(80):
        choice = rng.random()
        if choice < 0.3:
            part = rng.randrange(3)
            record = Record(b"%d hot" % number, headers=delay(3_000))
            rig.produce("cold", part, [record])
            expected[part].append(number)
            number += 1
        elif choice < 0.5 and reading:
            rig.read_cold(reading, is_delivery=True)  # type: ignore[arg-type]
            reading = []
        elif choice < 0.6:
            rig.make_cold()
        else:
            rig.clock.advance_ms(rng.choice((1, 10, 200)))
            cold = rig.broker.deliver_due().cold
            reading = cold or reading
            rig.broker.flush()
    if reading:
        rig.read_cold(reading, is_delivery=True)  # type: ignore[arg-type]
    rig.clock.advance_ms(10_000)
    rig.deliver_all()
    assert [numbers(rig, part) for part in range(3)] == expected, f"seed {seed}"
    assert rig.broker.pending_timers == rig.broker.gauges(0).waiting_timers == 0


def test_frames_are_read_ahead_in_the_order_of_the_log() -> None:
    rig = cold_rig(count=20, first_ms=5_000)  # two seconds of which are over
    assert rig.broker.look_ahead(2_900) == []
    places = rig.broker.look_ahead(3_100)
    assert places == sorted(places)
    assert len(places) == 20
    rig.read_cold(places)
    assert rig.broker.look_ahead(3_100) == []
    rig.disk.reads = 0
    rig.clock.advance_ms(4_000)
    assert rig.broker.deliver_due().count == 20
    assert rig.disk.reads == 0
