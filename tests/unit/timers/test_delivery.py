"""What is due is delivered once, in order, in chunks, whatever the clock and the disk do."""

import random
from typing import Final

import pytest

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, by_level, cancel, delay, deliver_at

HOUR_MS: Final = 3_600_000


@pytest.fixture
def harness() -> BrokerHarness:
    harness = BrokerHarness()
    harness.create_topic("t")
    return harness


def values(harness: BrokerHarness, topic: str = "t") -> list[bytes]:
    return [record.value for record in harness.fetch(topic, 0)]


def send(harness: BrokerHarness, *records: Record, topic: str = "t") -> None:
    assert harness.produce(topic, 0, records).error == 0


def test_delivery_is_by_millisecond_then_arrival_for_levels_and_times_alike(
    harness: BrokerHarness,
) -> None:
    due_ms = harness.clock.wall_ms() + 1_000
    send(
        harness,
        Record(b"1 level", headers=by_level(1)),
        Record(b"2 delay", headers=delay(1_000)),
        Record(b"0 sooner", headers=delay(999)),
        Record(b"3 instant", headers=deliver_at(due_ms)),
    )
    send(harness, Record(b"4 level", headers=by_level(1)), Record(b"5 delay", headers=delay(1_000)))
    assert harness.tick(998) == 0
    assert harness.tick(1) == 1
    assert values(harness) == [b"0 sooner"]
    assert harness.tick(1) == 5
    assert values(harness)[1:] == [b"1 level", b"2 delay", b"3 instant", b"4 level", b"5 delay"]


def test_the_wake_time_is_the_next_due_time(harness: BrokerHarness) -> None:
    now_ms = harness.clock.wall_ms()
    assert harness.broker.next_wake_ms() is None
    send(harness, Record(b"later", headers=delay(7_000)))
    assert harness.broker.next_wake_ms() == now_ms + 7_000
    send(harness, Record(b"sooner", headers=by_level(1)))
    assert harness.broker.next_wake_ms() == now_ms + 1_000


def test_a_replaced_timer_comes_once_with_its_new_content_and_time(harness: BrokerHarness) -> None:
    send(harness, Record(b"old", headers=delay(1_000, b"id")))
    send(harness, Record(b"new", headers=delay(2_000, b"id")))
    assert harness.tick(1_999) == 0
    assert harness.tick(1) == 1
    assert values(harness) == [b"new"]
    assert harness.timer_state("t", b"id")[0] == "delivered"


def test_a_replacement_without_delay_cancels_and_comes_now(harness: BrokerHarness) -> None:
    send(harness, Record(b"old", headers=delay(1_000, b"id")))
    send(harness, Record(b"now", headers=delay(0, b"id")))
    assert values(harness) == [b"now"]
    assert harness.tick(HOUR_MS) == 0


def test_a_cancelled_timer_never_comes(harness: BrokerHarness) -> None:
    send(harness, Record(b"x", headers=delay(1_000, b"id")), Record(b"y", headers=delay(1_000)))
    send(harness, Record(b"", headers=cancel(b"id")), Record(b"", headers=cancel(b"nothing")))
    assert harness.timer_state("t", b"id")[0] == "cancelled"
    harness.tick(HOUR_MS)
    assert values(harness) == [b"y"]


@pytest.mark.parametrize("end", ["delivered", "cancelled"])
def test_an_id_may_be_used_again(harness: BrokerHarness, end: str) -> None:
    send(harness, Record(b"one", headers=delay(1_000, b"id")))
    if end == "cancelled":
        send(harness, Record(b"", headers=cancel(b"id")))
    harness.tick(1_000)
    send(harness, Record(b"two", headers=delay(1_000, b"id")))
    assert harness.timer_state("t", b"id")[0] == "pending"
    harness = harness.crash("dropped", random.Random(0))
    harness.tick(1_000)
    assert values(harness)[-1] == b"two"
    assert harness.timer_state("t", b"id")[0] == "delivered"


def test_an_id_names_a_timer_of_one_topic(harness: BrokerHarness) -> None:
    harness.create_topic("u")
    send(harness, Record(b"t", headers=delay(10, b"id")))
    send(harness, Record(b"u", headers=delay(10, b"id")), topic="u")
    send(harness, Record(b"", headers=cancel(b"id")), topic="u")
    harness.tick(10)
    assert (values(harness), values(harness, "u")) == ([b"t"], [])


def test_a_fired_id_is_forgotten_after_a_day(harness: BrokerHarness) -> None:
    send(harness, Record(b"x", headers=delay(10, b"id")))
    harness.tick(10)
    harness.clock.advance_ms(24 * HOUR_MS - 1)
    assert harness.timer_state("t", b"id")[0] == "delivered"
    harness.clock.advance_ms(1)
    assert harness.timer_state("t", b"id")[0] == "unknown"


def test_a_clock_set_back_delays_and_loses_nothing(harness: BrokerHarness) -> None:
    send(harness, Record(b"a", headers=by_level(2)))
    harness.clock.step_ms(-HOUR_MS)
    send(harness, Record(b"b", headers=by_level(2)))  # due before what came before it in its level
    assert harness.tick(5_000) == 1
    assert values(harness) == [b"b"]
    assert harness.tick(HOUR_MS - 5_001) == 0
    assert harness.tick(5_001) == 1
    assert values(harness) == [b"b", b"a"]


def test_a_clock_set_back_over_delivered_timers_delivers_none_twice(harness: BrokerHarness) -> None:
    send(harness, *(Record(b"%d" % n, headers=delay(n + 1)) for n in range(10)))
    harness.tick(5)
    harness.clock.step_ms(-HOUR_MS)
    harness = harness.crash("dropped", random.Random(0))
    assert harness.tick(0) == 0
    harness.clock.step_ms(2 * HOUR_MS)
    assert harness.tick(0) == 5
    assert values(harness) == [b"%d" % n for n in range(10)]


def test_a_clock_set_forward_brings_out_what_is_due_oldest_first(harness: BrokerHarness) -> None:
    send(harness, *(Record(b"%d" % n, headers=delay(1_000 - n)) for n in range(10)))
    harness.clock.step_ms(HOUR_MS)
    assert harness.deliver_all() == 10
    assert values(harness) == [b"%d" % n for n in reversed(range(10))]


def test_timers_of_a_deleted_topic_never_come_not_even_into_its_namesake(
    harness: BrokerHarness,
) -> None:
    harness.create_topic("u")
    send(harness, Record(b"old", headers=delay(1_000, b"id")))
    send(harness, Record(b"other", headers=delay(1_000)), topic="u")
    harness.delete_topic("t")
    harness.create_topic("t")
    harness = harness.crash("dropped", random.Random(0))
    assert harness.timer_state("t", b"id")[0] == "unknown"
    send(harness, Record(b"new", headers=delay(1_000)))
    assert harness.tick(1_000) == 2
    assert (values(harness), values(harness, "u")) == ([b"new"], [b"other"])


def test_a_burst_goes_out_in_chunks_and_in_order() -> None:
    harness = BrokerHarness(config=small_config(delivery_chunk_records=10))
    harness.create_topic("t")
    for first in range(0, 95, 19):
        send(harness, *(Record(b"%02d" % (first + n), headers=delay(50)) for n in range(19)))
    harness.clock.advance_ms(50)
    deliveries = [harness.deliver_once() for _ in range(10)]
    assert [each.count for each in deliveries] == [10] * 9 + [5]
    assert [each.has_more for each in deliveries] == [True] * 9 + [False]
    harness.flush()
    assert values(harness) == [b"%02d" % n for n in range(95)]


def test_cold_records_are_read_before_they_are_delivered(harness: BrokerHarness) -> None:
    send(harness, Record(b"a", headers=delay(10)), Record(b"b", headers=delay(20)))
    harness = harness.crash("kept", random.Random(0))
    harness.disk.evict(harness.config.data_dir / "commitlog" / ("0" * 20))
    harness.clock.advance_ms(10)
    delivery = harness.broker.deliver_due()
    assert (delivery.count, delivery.has_more) == (0, False)
    assert delivery.cold
    assert harness.broker.deliver_due().cold == [], "they are being read"
    harness.read_cold(delivery.cold, is_delivery=True)
    assert harness.deliver_all() == 1
    assert harness.tick(10) == 1
    assert values(harness) == [b"a", b"b"]


# Full disk


def full_harness(size: int = 1) -> BrokerHarness:
    """A broker with 20 timers of so many times two bytes, on a disk that refused its last batch."""
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    send(harness, *(Record(b"%02d" % n * size, headers=delay(1_000)) for n in range(20)))
    disk.free = 1_000
    while True:
        answer = harness.produce("t", 0, [Record(b"fill" * 400)])
        if answer.error:
            assert answer.error == 56, "it must be an error that clients try again"
            return harness


def test_a_full_disk_refuses_new_records_and_still_delivers_due_ones() -> None:
    harness = full_harness()
    assert harness.tick(1_000) == 20
    assert values(harness)[-20:] == [b"%02d" % n for n in range(20)]


def test_service_goes_on_once_there_is_room_again() -> None:
    harness = full_harness()
    harness.disk.free = 1 << 30
    harness.clock.advance_ms(1_000)
    assert harness.produce("t", 0, [Record(b"again")]).error == 0
    assert harness.deliver_all() == 20
    assert harness.broker.pending_timers == 0


def test_timers_that_find_no_room_wait_and_come_later_in_order() -> None:
    harness = full_harness(size=150)
    harness.clock.advance_ms(1_000)
    for _ in range(10):
        harness.deliver_once()
        harness.clock.advance_ms(200)
    harness.flush()
    left = harness.broker.pending_timers
    assert 0 < left <= 20, "the reserve of this test has become large enough"
    assert harness.broker.next_wake_ms() == harness.clock.wall_ms()  # tried again, but not at once
    harness.disk.free = 1 << 30
    assert harness.deliver_all() == left
    delivered = values(harness)
    assert delivered[-20:] == [b"%02d" % n * 150 for n in range(20)]
    assert values(harness.restart()) == delivered
