"""What is due is delivered once, in order, in chunks, whatever the clock and the disk do."""

import random
from typing import Final

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.kafka_records import Record, by_level, cancel, delay, deliver_at
from tests.support.sim_fs import SimFileSystem

HOUR_MS: Final = 3_600_000


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t")
    return rig


def values(rig: BrokerRig, topic: str = "t") -> list[bytes]:
    return [record.value for record in rig.fetch(topic, 0)]


def send(rig: BrokerRig, *records: Record, topic: str = "t") -> None:
    assert rig.produce(topic, 0, records).error == 0


def test_delivery_is_by_millisecond_then_arrival_for_levels_and_times_alike(rig: BrokerRig) -> None:
    due_ms = rig.clock.wall_ms() + 1_000
    send(
        rig,
        Record(b"1 level", headers=by_level(1)),
        Record(b"2 delay", headers=delay(1_000)),
        Record(b"0 sooner", headers=delay(999)),
        Record(b"3 instant", headers=deliver_at(due_ms)),
    )
    send(rig, Record(b"4 level", headers=by_level(1)), Record(b"5 delay", headers=delay(1_000)))
    assert rig.tick(998) == 0
    assert rig.tick(1) == 1
    assert values(rig) == [b"0 sooner"]
    assert rig.tick(1) == 5
    assert values(rig)[1:] == [b"1 level", b"2 delay", b"3 instant", b"4 level", b"5 delay"]


def test_the_wake_time_is_the_next_due_time(rig: BrokerRig) -> None:
    now_ms = rig.clock.wall_ms()
    assert rig.broker.next_wake_ms() is None
    send(rig, Record(b"later", headers=delay(7_000)))
    assert rig.broker.next_wake_ms() == now_ms + 7_000
    send(rig, Record(b"sooner", headers=by_level(1)))
    assert rig.broker.next_wake_ms() == now_ms + 1_000


def test_a_replaced_timer_comes_once_with_its_new_content_and_time(rig: BrokerRig) -> None:
    send(rig, Record(b"old", headers=delay(1_000, b"id")))
    send(rig, Record(b"new", headers=delay(2_000, b"id")))
    assert rig.tick(1_999) == 0
    assert rig.tick(1) == 1
    assert values(rig) == [b"new"]
    assert rig.timer_state("t", b"id")[0] == "delivered"


def test_a_replacement_without_delay_withdraws_and_comes_now(rig: BrokerRig) -> None:
    send(rig, Record(b"old", headers=delay(1_000, b"id")))
    send(rig, Record(b"now", headers=delay(0, b"id")))
    assert values(rig) == [b"now"]
    assert rig.tick(HOUR_MS) == 0


def test_a_cancelled_timer_never_comes(rig: BrokerRig) -> None:
    send(rig, Record(b"x", headers=delay(1_000, b"id")), Record(b"y", headers=delay(1_000)))
    send(rig, Record(b"", headers=cancel(b"id")), Record(b"", headers=cancel(b"nothing")))
    assert rig.timer_state("t", b"id")[0] == "cancelled"
    rig.tick(HOUR_MS)
    assert values(rig) == [b"y"]


@pytest.mark.parametrize("end", ["delivered", "cancelled"])
def test_an_id_may_be_used_again(rig: BrokerRig, end: str) -> None:
    send(rig, Record(b"one", headers=delay(1_000, b"id")))
    if end == "cancelled":
        send(rig, Record(b"", headers=cancel(b"id")))
    rig.tick(1_000)
    send(rig, Record(b"two", headers=delay(1_000, b"id")))
    assert rig.timer_state("t", b"id")[0] == "pending"
    rig = rig.crash("dropped", random.Random(0))
    rig.tick(1_000)
    assert values(rig)[-1] == b"two"
    assert rig.timer_state("t", b"id")[0] == "delivered"


def test_an_id_names_a_timer_of_one_topic(rig: BrokerRig) -> None:
    rig.create_topic("u")
    send(rig, Record(b"t", headers=delay(10, b"id")))
    send(rig, Record(b"u", headers=delay(10, b"id")), topic="u")
    send(rig, Record(b"", headers=cancel(b"id")), topic="u")
    rig.tick(10)
    assert (values(rig), values(rig, "u")) == ([b"t"], [])


def test_a_fired_id_is_forgotten_after_a_day(rig: BrokerRig) -> None:
    send(rig, Record(b"x", headers=delay(10, b"id")))
    rig.tick(10)
    rig.clock.advance_ms(24 * HOUR_MS - 1)
    assert rig.timer_state("t", b"id")[0] == "delivered"
    rig.clock.advance_ms(1)
    assert rig.timer_state("t", b"id")[0] == "unknown"


def test_a_clock_set_back_delays_and_loses_nothing(rig: BrokerRig) -> None:
    send(rig, Record(b"a", headers=by_level(2)))
    rig.clock.step_ms(-HOUR_MS)
    send(rig, Record(b"b", headers=by_level(2)))  # due before what came before it in its level
    assert rig.tick(5_000) == 1
    assert values(rig) == [b"b"]
    assert rig.tick(HOUR_MS - 5_001) == 0
    assert rig.tick(5_001) == 1
    assert values(rig) == [b"b", b"a"]


def test_a_clock_set_back_over_delivered_timers_delivers_none_twice(rig: BrokerRig) -> None:
    send(rig, *(Record(b"%d" % n, headers=delay(n + 1)) for n in range(10)))
    rig.tick(5)
    rig.clock.step_ms(-HOUR_MS)
    rig = rig.crash("dropped", random.Random(0))
    assert rig.tick(0) == 0
    rig.clock.step_ms(2 * HOUR_MS)
    assert rig.tick(0) == 5
    assert values(rig) == [b"%d" % n for n in range(10)]


def test_a_clock_set_forward_brings_out_what_is_due_oldest_first(rig: BrokerRig) -> None:
    send(rig, *(Record(b"%d" % n, headers=delay(1_000 - n)) for n in range(10)))
    rig.clock.step_ms(HOUR_MS)
    assert rig.deliver_all() == 10
    assert values(rig) == [b"%d" % n for n in reversed(range(10))]


def test_timers_of_a_deleted_topic_never_come_not_even_into_its_namesake(rig: BrokerRig) -> None:
    rig.create_topic("u")
    send(rig, Record(b"old", headers=delay(1_000, b"id")))
    send(rig, Record(b"other", headers=delay(1_000)), topic="u")
    rig.delete_topic("t")
    rig.create_topic("t")
    rig = rig.crash("dropped", random.Random(0))
    assert rig.timer_state("t", b"id")[0] == "unknown"
    send(rig, Record(b"new", headers=delay(1_000)))
    assert rig.tick(1_000) == 2
    assert (values(rig), values(rig, "u")) == ([b"new"], [b"other"])


def test_a_burst_goes_out_in_chunks_and_in_order() -> None:
    rig = BrokerRig(config=small_config(delivery_chunk_records=10))
    rig.create_topic("t")
    for first in range(0, 95, 19):
        send(rig, *(Record(b"%02d" % (first + n), headers=delay(50)) for n in range(19)))
    rig.clock.advance_ms(50)
    deliveries = [rig.deliver_once() for _ in range(10)]
    assert [each.count for each in deliveries] == [10] * 9 + [5]
    assert [each.has_more for each in deliveries] == [True] * 9 + [False]
    rig.flush()
    assert values(rig) == [b"%02d" % n for n in range(95)]


def test_cold_records_are_read_before_they_are_delivered(rig: BrokerRig) -> None:
    send(rig, Record(b"a", headers=delay(10)), Record(b"b", headers=delay(20)))
    rig = rig.crash("kept", random.Random(0))
    rig.disk.evict(rig.config.data_dir / "commitlog" / ("0" * 20))
    rig.clock.advance_ms(10)
    delivery = rig.broker.deliver_due()
    assert (delivery.count, delivery.has_more) == (0, False)
    assert delivery.cold
    assert rig.broker.deliver_due().cold == [], "they are being read"
    rig.read_cold(delivery.cold, is_delivery=True)
    assert rig.deliver_all() == 1
    assert rig.tick(10) == 1
    assert values(rig) == [b"a", b"b"]


# Full disk


def full_rig(size: int = 1) -> BrokerRig:
    """A broker with 20 timers of so many times two bytes, on a disk that refused its last batch."""
    disk = SimFileSystem()
    rig = BrokerRig(disk)
    rig.create_topic("t")
    send(rig, *(Record(b"%02d" % n * size, headers=delay(1_000)) for n in range(20)))
    disk.free = 1_000
    while True:
        answer = rig.produce("t", 0, [Record(b"fill" * 400)])
        if answer.error:
            assert answer.error == 56, "it must be an error that clients try again"
            return rig


def test_a_full_disk_refuses_new_records_and_still_delivers_due_ones() -> None:
    rig = full_rig()
    assert rig.tick(1_000) == 20
    assert values(rig)[-20:] == [b"%02d" % n for n in range(20)]


def test_service_goes_on_once_there_is_room_again() -> None:
    rig = full_rig()
    rig.disk.free = 1 << 30
    rig.clock.advance_ms(1_000)
    assert rig.produce("t", 0, [Record(b"again")]).error == 0
    assert rig.deliver_all() == 20
    assert rig.broker.pending_timers == 0


def test_timers_that_find_no_room_wait_and_come_later_in_order() -> None:
    rig = full_rig(size=150)
    rig.clock.advance_ms(1_000)
    for _ in range(10):
        rig.deliver_once()
        rig.clock.advance_ms(200)
    rig.flush()
    left = rig.broker.pending_timers
    assert 0 < left <= 20, "the reserve of this test has become large enough"
    assert rig.broker.next_wake_ms() == rig.clock.wall_ms()  # tried again, but not at once
    rig.disk.free = 1 << 30
    assert rig.deliver_all() == left
    delivered = values(rig)
    assert delivered[-20:] == [b"%02d" % n * 150 for n in range(20)]
    assert values(rig.restart()) == delivered
