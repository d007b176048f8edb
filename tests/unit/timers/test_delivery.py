"""What is due is delivered once, in order, in chunks, whatever the clock and the disk do."""

import random
from typing import Final

import pytest

from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, by_level, cancel, delay

HOUR_MS: Final = 3_600_000


@pytest.fixture
def harness() -> BrokerHarness:
    return with_topic()


def send(harness: BrokerHarness, *records: Record, topic: str = "t") -> None:
    assert harness.produce(topic, 0, records).error == 0


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
    assert harness.values()[-1] == b"two"
    assert harness.timer_state("t", b"id")[0] == "delivered"


def test_a_clock_set_back_delays_and_loses_nothing(harness: BrokerHarness) -> None:
    send(harness, Record(b"a", headers=by_level(2)))
    harness.clock.step_ms(-HOUR_MS)
    send(harness, Record(b"b", headers=by_level(2)))  # due before what came before it in its level
    assert harness.tick(5_000) == 1
    assert harness.values() == [b"b"]
    assert harness.tick(HOUR_MS - 5_001) == 0
    assert harness.tick(5_001) == 1
    assert harness.values() == [b"b", b"a"]


def test_a_clock_set_back_over_delivered_timers_delivers_none_twice(harness: BrokerHarness) -> None:
    send(harness, *(Record(b"%d" % n, headers=delay(n + 1)) for n in range(10)))
    harness.tick(5)
    harness.clock.step_ms(-HOUR_MS)
    harness = harness.crash("dropped", random.Random(0))
    assert harness.tick(0) == 0
    harness.clock.step_ms(2 * HOUR_MS)
    assert harness.tick(0) == 5
    assert harness.values() == [b"%d" % n for n in range(10)]


def test_a_clock_set_forward_brings_out_what_is_due_oldest_first(harness: BrokerHarness) -> None:
    send(harness, *(Record(b"%d" % n, headers=delay(1_000 - n)) for n in range(10)))
    harness.clock.step_ms(HOUR_MS)
    assert harness.deliver_all() == 10
    assert harness.values() == [b"%d" % n for n in reversed(range(10))]


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
    assert (harness.values(), harness.values("u")) == ([b"new"], [b"other"])


def test_a_burst_goes_out_in_chunks_and_in_order() -> None:
    harness = with_topic(config=small_config(delivery_chunk_records=10))
    for first in range(0, 95, 19):
        send(harness, *(Record(b"%02d" % (first + n), headers=delay(50)) for n in range(19)))
    harness.clock.advance_ms(50)
    deliveries = [harness.deliver_once() for _ in range(10)]
    assert [each.count for each in deliveries] == [10] * 9 + [5]
    assert [each.has_more for each in deliveries] == [True] * 9 + [False]
    harness.flush()
    assert harness.values() == [b"%02d" % n for n in range(95)]


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
    assert harness.values()[-20:] == [b"%02d" % n for n in range(20)]


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
    delivered = harness.values()
    assert delivered[-20:] == [b"%02d" % n * 150 for n in range(20)]
    assert harness.restart().values() == delivered
