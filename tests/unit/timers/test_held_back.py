"""Topics that are paused, or deliver only so many a second, hold back what is due in order."""

import random
from array import array
from collections import Counter, defaultdict, deque
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from _core.timers.due_list import DueList
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import IncrementalAlterConfigsResponse
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay
from tests.support.values.topic_requests import DELETE, SET, TOPIC, incremental_request
from tests.unit.timers.test_cold_timers import cold_harness, numbers
from tests.unit.timers.test_pending_timers import counted, items, listed, purge

PAUSED = "delay.paused"
RATE = "delay.max.per.second"
SPREAD = "delay.spread.ms"


def change(harness: BrokerHarness, name: str, value: str | None, *, topic: str = "t") -> None:
    """Set or remove a setting of a topic."""
    step = (name, DELETE, None) if value is None else (name, SET, value)
    request = incremental_request([(TOPIC, topic, [step])])
    answer = harness._ask(harness.send(request, 1, IncrementalAlterConfigsResponse))
    assert answer.responses[0].error_code == 0, answer


def send(harness: BrokerHarness, count: int, delay_ms: int = 1_000, *, topic: str = "t") -> None:
    """Send records "0", "1" ... due one ms after the other."""
    for number in range(count):
        headers = delay(delay_ms + number)
        assert harness.produce(topic, 0, [Record(b"%d" % number, headers=headers)]).error == 0


def send_together(harness: BrokerHarness, count: int, due_ms: int) -> None:
    """Send records "0", "1" ... due at one instant, epoch ms."""
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        headers = delay(due_ms - harness.clock.wall_ms())
        records = [Record(b"%d" % number, headers=headers) for number in numbers]
        assert harness.produce("t", 0, records).error == 0


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_paused_topic_delivers_nothing_and_others_go_on() -> None:
    harness = with_topic()
    harness.create_topic("u")
    send(harness, 5)
    send(harness, 5, topic="u")
    change(harness, PAUSED, "true")
    assert harness.tick(2_000) == 5
    assert (harness.values(), harness.values("u")) == ([], values(5))
    assert harness.broker.pending_timers == harness.broker.gauges(0).held_timers == 5
    assert harness.broker.next_wake_ms() is None
    assert harness.produce("t", 0, [Record(b"now")]).error == 0
    assert harness.values() == [b"now"]


def test_what_was_held_comes_in_order_once_the_topic_goes_on() -> None:
    harness = with_topic(config=small_config(delivery_chunk_records=8))
    change(harness, PAUSED, "true")
    send(harness, 50)
    harness.tick(2_000)
    send(harness, 1, 5_000)
    change(harness, PAUSED, None)
    assert harness.broker.next_wake_ms() == harness.clock.wall_ms()
    assert harness.deliver_all() == 50
    assert harness.values() == values(50)
    assert harness.broker.gauges(0).held_timers == 0
    assert harness.tick(5_000) == 1


def test_timers_that_are_due_while_the_held_ones_leave_come_after_them() -> None:
    harness = with_topic(config=small_config(delivery_chunk_records=4))
    change(harness, PAUSED, "true")
    send(harness, 20)
    harness.tick(2_000)
    for number in range(20, 40):
        harness.produce("t", 0, [Record(b"%d" % number, headers=delay(1))])
    change(harness, PAUSED, "false")
    harness.clock.advance_ms(1)
    assert harness.deliver_all() == 40
    assert harness.values() == values(40)


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_a_pause_outlives_the_broker_and_loses_nothing(end: Stop) -> None:
    harness = with_topic()
    send(harness, 10)
    change(harness, PAUSED, "true")
    harness.tick(5_000)
    harness = harness.reborn(end)
    assert harness.tick(5_000) == 0
    assert harness.broker.pending_timers == 10
    change(harness, PAUSED, "false")
    assert harness.deliver_all() == 10
    assert harness.values() == values(10)
    harness = harness.reborn(end)
    assert harness.tick(5_000) == 0
    assert harness.values() == values(10)


def test_held_timers_are_listed_counted_cancelled_and_purged() -> None:
    harness = with_topic()
    harness.create_topic("u")
    change(harness, PAUSED, "true")
    for number in range(9):
        headers = delay(1_000 * (number + 1), b"%d" % number)
        harness.produce("t", 0, [Record(b"%d" % number, headers=headers)])
    send(harness, 2, 3_500, topic="u")
    harness.tick(5_500)
    assert [each["value"] for each in items(harness)] == values(9)
    assert [timer[0] for timer in listed(harness, limit=3)] == [
        each["due"] for each in items(harness)[:3]
    ]
    after = listed(harness, limit=2)[-1][:3]
    assert [each["value"] for each in items(harness, after=after, limit=4)] == values(6)[2:]
    first_ms = listed(harness)[0][0]
    assert counted(harness, first_ms, 1_000, 10).counts == [1] * 9 + [0]
    harness.produce("t", 0, [Record(b"", headers=cancel(b"1"))])
    harness.produce("t", 0, [Record(b"later", headers=delay(60_000, b"2"))])
    assert harness.timer_state("t", b"1")[0] == "cancelled"
    found = [each["value"] for each in items(harness)]
    assert found == [b"0", b"3", b"4", b"5", b"6", b"7", b"8", b"later"]
    assert purge(harness) == 8
    change(harness, PAUSED, "false")
    assert harness.tick(100_000) == 0
    assert harness.broker.gauges(0).held_timers == 0
    assert harness.values() == []


def test_held_timers_are_counted_in_steps() -> None:
    harness = with_topic()
    change(harness, PAUSED, "true")
    send(harness, 30)
    harness.tick(2_000)
    due = DueList(harness.broker.timers._projections.due, 0)
    counts, reached, steps = array("q", bytes(8 * 2)), -1, 0
    while (reached := due.count(counts, 1 << 50, reached, 8)) >= 0:
        steps += 1
    assert list(counts) == [30, 0]
    assert steps >= 3


def test_a_topic_that_is_deleted_while_it_is_paused_leaves_nothing() -> None:
    harness = with_topic()
    change(harness, PAUSED, "true")
    send(harness, 10)
    harness.tick(2_000)
    harness.delete_topic("t")
    assert harness.broker.pending_timers == 0
    harness.create_topic("t")
    send(harness, 1)
    assert harness.tick(2_000) == 1
    assert harness.broker.gauges(0).held_timers == 0
    assert harness.values() == values(1)


def test_memory_of_cancelled_timers_that_are_held_comes_back() -> None:
    harness = with_topic(config=small_config(delivery_chunk_records=10_000))
    harness.create_topic("u")
    change(harness, PAUSED, "true")
    for first in range(0, 6_000, 100):
        records = [Record(b"v", headers=delay(1_000, b"%d" % (first + n))) for n in range(100)]
        assert harness.produce("t", 0, records).error == 0
    harness.tick(2_000)
    due = harness.broker.timers._projections.due
    assert (due.held_count, due.pending) == (6_000, 6_000)
    for first in range(0, 6_000, 100):
        records = [Record(b"", headers=cancel(b"%d" % (first + n))) for n in range(100)]
        harness.produce("t", 0, records)
    assert due.pending == 0
    before = due.memory_bytes
    for _ in range(20):
        send(harness, 1, 1, topic="u")
        harness.tick(2)
    assert max(due.held_count, due.cancelled_count) <= 1_024
    assert due.memory_bytes < 0.6 * before


def test_cold_timers_of_a_paused_topic_wait_and_come_in_order() -> None:
    harness = cold_harness(count=5)
    harness.clock.advance_ms(5_000)
    cold = harness.broker.deliver_due().cold
    assert harness.broker.gauges(0).waiting_timers == 5
    change(harness, PAUSED, "true", topic="cold")
    harness.read_cold(cold, is_delivery=True)
    assert harness.deliver_all() == 0
    assert harness.broker.gauges(0).held_timers == 5
    assert numbers(harness) == []
    change(harness, PAUSED, "false", topic="cold")
    assert harness.deliver_all() == 5
    assert numbers(harness) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("setting", [(PAUSED, "false"), (RATE, "100000")])
def test_a_short_pause_of_many_cold_timers_keeps_their_order(setting: tuple[str, str]) -> None:
    harness = cold_harness(count=600)
    harness.clock.advance_ms(5_000)
    cold = harness.broker.deliver_due().cold
    harness.read_cold(cold, is_delivery=True)
    change(harness, PAUSED, "true", topic="cold")
    harness.broker.deliver_due()  # some were read, others were not
    change(harness, PAUSED, None, topic="cold")
    change(harness, *setting, topic="cold")
    assert harness.deliver_all() + harness.run_until_idle() <= 600
    assert numbers(harness) == list(range(600))
    assert harness.broker.gauges(0).waiting_timers == harness.broker.pending_timers == 0


def test_timers_that_are_due_one_after_the_other_are_not_spread() -> None:
    harness = with_topic()
    change(harness, SPREAD, "60000")
    send(harness, 1, 1_000)
    harness.produce("t", 0, [Record(b"1", headers=delay(2_000))])
    begin_ms = harness.clock.wall_ms()
    assert list(deliveries(harness, 100_000)) == [begin_ms + 1_000, begin_ms + 2_000]


def test_a_full_disk_keeps_the_order_of_what_is_released() -> None:
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    change(harness, PAUSED, "true")
    for number in range(20):
        harness.produce("t", 0, [Record(b"%02d" % number * 150, headers=delay(1_000 + number))])
    harness.tick(2_000)
    disk.free = 1_000
    while not harness.produce("t", 0, [Record(b"fill" * 400)]).error:
        pass
    disk.free = 1 << 30
    change(harness, PAUSED, "false")
    disk.free = 1_000
    for _ in range(10):
        harness.deliver_once()
        harness.clock.advance_ms(200)
    assert harness.broker.pending_timers > 0
    disk.free = 1 << 30
    harness.deliver_all()
    assert harness.values()[-20:] == [b"%02d" % number * 150 for number in range(20)]


# So many a second


def deliveries(harness: BrokerHarness, duration_ms: int) -> dict[int, int]:
    """Wake when the broker asks for it; return how many were delivered at each instant."""
    found: dict[int, int] = {}
    end_ms = harness.clock.wall_ms() + duration_ms
    while (wake_ms := harness.broker.next_wake_ms()) is not None and wake_ms <= end_ms:
        harness.clock.advance_to_ms(max(wake_ms, harness.clock.wall_ms()))
        count = harness.deliver_all()
        found[harness.clock.wall_ms()] = found.get(harness.clock.wall_ms(), 0) + count
        assert harness.broker.next_wake_ms() != harness.clock.wall_ms(), "it spins"
    return found


def most_in_a_second(found: dict[int, int]) -> int:
    return max(sum(n for at, n in found.items() if begin <= at < begin + 1_000) for begin in found)


@pytest.mark.parametrize("rate", [1, 3, 7, 50, 333, 1_000, 5_000])
def test_no_second_has_more_deliveries_than_a_topic_allows(rate: int) -> None:
    harness = with_topic()
    change(harness, RATE, str(rate))
    count = min(4 * rate, 5_000)
    send_together(harness, count, harness.clock.wall_ms() + 1_000)
    found = deliveries(harness, 20_000)
    assert sum(found.values()) == count
    assert 0.99 * rate <= most_in_a_second(found) <= rate
    # As fast as it may: the last one is not later than an even pace makes it, and 2 percent.
    assert max(found) - min(found) <= 1_000 * count / rate * 1.02 + 1
    assert harness.values() == values(count)


def test_a_topic_below_its_rate_is_on_time() -> None:
    harness = with_topic()
    change(harness, RATE, "100")
    for number in range(50):
        harness.produce("t", 0, [Record(b"%d" % number, headers=delay(1_000 + 10 * number))])
    begin_ms = harness.clock.wall_ms()
    due = {begin_ms + 1_000 + 10 * number: 1 for number in range(50)}
    assert {at: n for at, n in deliveries(harness, 10_000).items() if n} == due


def test_a_pace_that_was_slow_or_of_a_later_clock_holds_nobody_for_long() -> None:
    harness = with_topic()
    change(harness, RATE, "1")
    send(harness, 4)
    harness.clock.step_ms(3_600_000)
    assert sum(deliveries(harness, 1_500).values()) == 2
    harness.clock.step_ms(-3_500_000)
    # By the pace of the later clock the third would go after most of an hour.
    assert harness.broker.next_wake_ms() <= harness.clock.wall_ms() + 1_000
    change(harness, RATE, "1000")
    assert sum(deliveries(harness, 10).values()) == 2
    assert harness.values() == values(4)


@pytest.mark.parametrize(("count", "spread_ms"), [(7, 1_000), (100, 50), (2_000, 1_000)])
def test_what_is_due_at_once_is_spread_evenly_and_in_order(count: int, spread_ms: int) -> None:
    harness = with_topic()
    change(harness, SPREAD, str(spread_ms))
    due_ms = harness.clock.wall_ms() + 5_000
    send_together(harness, count, due_ms)
    found = deliveries(harness, 10_000)
    assert sum(found.values()) == count
    assert min(found) == due_ms
    assert max(found) <= due_ms + spread_ms
    # No tenth of the time has more than its share, and the timer at its edge.
    step_ms = spread_ms // 10
    for begin_ms in range(due_ms, due_ms + spread_ms, step_ms):
        share = sum(n for at, n in found.items() if begin_ms <= at < begin_ms + step_ms)
        assert abs(share - count / 10) <= max(2, count / spread_ms + 1)
    assert harness.values() == values(count)


def test_bursts_that_overlap_are_spread_together_and_none_is_later_than_its_time() -> None:
    harness = with_topic()
    change(harness, SPREAD, "1000")
    begin_ms = harness.clock.wall_ms()
    due = {}
    for number in range(600):
        delay_ms = (1_000, 1_500, 1_900)[number // 200]
        headers = delay(begin_ms + delay_ms - harness.clock.wall_ms())
        harness.produce("t", 0, [Record(b"%d" % number, headers=headers)])
        due[number] = begin_ms + delay_ms
    at = []
    for at_ms, count in deliveries(harness, 10_000).items():
        at += [at_ms] * count
    assert all(due[number] <= at[number] <= due[number] + 1_000 for number in range(600))
    assert max(at.count(at_ms) for at_ms in set(at)) <= 3
    assert harness.values() == values(600)


def test_a_trickle_beside_a_burst_leaves_no_lump_at_its_end() -> None:
    harness = with_topic()
    change(harness, SPREAD, "10000")
    due_ms = harness.clock.wall_ms() + 5_000
    send_together(harness, 1_000, due_ms)
    for number in range(60):
        harness.produce("t", 0, [Record(b"trickle", headers=delay(5_000 + 250 * number))])
    found = deliveries(harness, 40_000)
    assert sum(found.values()) == 1_060
    by_step = Counter()
    for at, count in found.items():
        by_step[at // 500] += count
    most = max(by_step.values())
    assert most <= 75, "an even pace is 50 in half a second, and the trickle"
    assert max(found.values()) <= 20, "of a thousand"


def test_late_turns_of_the_loop_do_not_fall_behind() -> None:
    harness = with_topic()
    change(harness, SPREAD, "2000")
    send_together(harness, 1_000, harness.clock.wall_ms() + 1_000)
    harness.clock.advance_ms(1_000)
    counts = []
    while harness.broker.pending_timers:
        counts.append(harness.deliver_all())
        harness.clock.advance_ms(7)
    assert len(counts) >= 2_000 // 7 - 2
    assert max(counts) <= 6, "3.5 are due in each turn"


def test_a_lone_timer_of_a_topic_with_a_spread_is_on_time() -> None:
    harness = with_topic()
    change(harness, SPREAD, "10000")
    for number in range(5):
        harness.produce("t", 0, [Record(b"%d" % number, headers=delay(1_000 + 20_000 * number))])
    begin_ms = harness.clock.wall_ms()
    assert list(deliveries(harness, 100_000)) == [begin_ms + 1_000 + 20_000 * n for n in range(5)]


def test_a_spread_and_a_rate_hold_together() -> None:
    harness = with_topic()
    change(harness, SPREAD, "1000")
    change(harness, RATE, "10")
    harness.produce("t", 0, [Record(b"%d" % number, headers=delay(100)) for number in range(50)])
    found = deliveries(harness, 10_000)
    assert sum(found.values()) == 50
    assert most_in_a_second(found) == 10


def test_nothing_that_is_held_comes_early_after_a_clock_set_back() -> None:
    harness = with_topic()
    change(harness, PAUSED, "true")
    send(harness, 5)
    harness.tick(2_000)
    harness.clock.step_ms(-1_500)
    change(harness, PAUSED, "false")
    assert harness.deliver_all() == 0
    assert harness.broker.next_wake_ms() == harness.clock.wall_ms() + 500
    assert sum(deliveries(harness, 600).values()) == 5
    assert harness.values() == values(5)


@pytest.mark.parametrize("is_late", [False, True])
def test_cold_timers_obey_a_rate_also_one_that_is_set_while_they_wait(is_late: bool) -> None:
    harness = cold_harness(count=300)
    if is_late:
        harness.clock.advance_ms(5_000)
        harness.read_cold(harness.broker.deliver_due().cold, is_delivery=True)
        assert harness.broker.gauges(0).waiting_timers > 50
    change(harness, RATE, "50", topic="cold")
    found = deliveries(harness, 10_000)
    assert sum(found.values()) == 300
    assert most_in_a_second(found) == 50
    assert numbers(harness) == list(range(300))
    assert sum(harness.broker._deliver.lateness) == 0


def test_later_timers_do_not_pass_those_that_wait_for_the_disk_when_a_rate_is_set() -> None:
    harness = cold_harness(count=40)
    harness.clock.advance_ms(5_000)
    cold = harness.broker.deliver_due().cold
    change(harness, RATE, "100000", topic="cold")
    for number in range(40, 60):
        harness.produce("cold", 0, [Record(b"%d x" % number, headers=delay(1))])
    harness.clock.advance_ms(1)
    for _ in range(3):
        harness.broker.deliver_due()  # the new ones are in memory
    harness.read_cold(cold, is_delivery=True)
    harness.deliver_all()
    harness.run_until_idle()
    assert numbers(harness) == list(range(60))


def test_a_topic_whose_next_record_is_being_read_does_not_keep_the_broker_busy() -> None:
    harness = cold_harness(count=3)
    change(harness, RATE, "1000", topic="cold")
    harness.clock.advance_ms(5_000)
    delivery = harness.broker.deliver_due()
    assert delivery.cold
    assert not delivery.has_more
    assert harness.broker.next_wake_ms() is None
    assert harness.broker.gauges(0).held_timers == 3
    harness.read_cold(delivery.cold, is_delivery=True)
    assert harness.deliver_all() == 3


def test_an_unreadable_timer_does_not_hold_up_the_topic() -> None:
    harness = cold_harness(count=5)
    change(harness, RATE, "1000", topic="cold")
    path = harness.segment_paths()[0]
    harness.disk.spoil(path, harness.disk.files()[path].index(b"1 ") + 3_000, 1)
    harness.clock.advance_ms(5_000)
    harness.deliver_all()
    harness.run_until_idle()
    assert numbers(harness) == [0, 2, 3, 4]
    assert harness.broker.gauges(0).unreadable_timers == harness.broker.pending_timers == 1


def test_the_lateness_that_a_topic_asks_for_is_not_counted() -> None:
    harness = with_topic()
    change(harness, PAUSED, "true")
    send(harness, 3)
    harness.tick(3_600_000)
    change(harness, PAUSED, "false")
    harness.deliver_all()
    assert sum(harness.broker._deliver.lateness) == 0


@pytest.mark.parametrize("value", ["-2", "1000001", "x", ""])
def test_a_rate_out_of_range_is_refused(value: str) -> None:
    harness = with_topic()
    request = incremental_request([(TOPIC, "t", [(RATE, SET, value)])])
    answer = harness._ask(harness.send(request, 1, IncrementalAlterConfigsResponse))
    assert answer.responses[0].error_code == 40
    assert RATE in answer.responses[0].error_message


class HeldBackMachine(RuleBasedStateMachine):
    """Random timers, pauses and rates: each is delivered once, in order, and never in a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = BrokerHarness(config=small_config(delivery_chunk_records=5))
        self.topics = ("a", "b")
        self.pending: dict[tuple[str, int], list[tuple[int, int, bytes]]] = defaultdict(list)
        self.delivered: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.paused: set[str] = set()
        self.limited: set[str] = set()
        self.spread_out: set[str] = set()
        self.number = 0
        for topic in self.topics:
            self.harness.create_topic(topic, 2)

    @rule(
        topic=st.sampled_from("ab"),
        index=st.integers(0, 1),
        delays=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    )
    def produce(self, topic: str, index: int, delays: list[int]) -> None:
        now_ms = self.harness.clock.wall_ms()
        records = []
        for delay_ms in delays:
            self.number += 1
            value = b"%d" % self.number
            records.append(Record(value, headers=delay(delay_ms, value)))
            self.pending[topic, index].append((now_ms + delay_ms, self.number, value))
        assert self.harness.produce(topic, index, records).error == 0

    @rule(topic=st.sampled_from("ab"), chosen=st.randoms(use_true_random=False))
    def cancel(self, topic: str, chosen: random.Random) -> None:
        index = chosen.randrange(2)
        if self.pending[topic, index]:
            timer = chosen.choice(self.pending[topic, index])
            self.pending[topic, index].remove(timer)
            self.harness.produce(topic, index, [Record(b"", headers=cancel(timer[2]))])

    @rule(topic=st.sampled_from("ab"))
    def pause(self, topic: str) -> None:
        change(self.harness, PAUSED, "true", topic=topic)
        self.paused.add(topic)

    @rule(topic=st.sampled_from("ab"))
    def go_on(self, topic: str) -> None:
        change(self.harness, PAUSED, None, topic=topic)
        self.paused.discard(topic)

    @rule(topic=st.sampled_from("ab"), rate=st.sampled_from([None, "1", "20", "300"]))
    def limit(self, topic: str, rate: str | None) -> None:
        change(self.harness, RATE, rate, topic=topic)
        (self.limited.discard if rate is None else self.limited.add)(topic)

    @rule(topic=st.sampled_from("ab"), spread_ms=st.sampled_from([None, "5", "200"]))
    def spread(self, topic: str, spread_ms: str | None) -> None:
        change(self.harness, SPREAD, spread_ms, topic=topic)
        (self.spread_out.discard if spread_ms is None else self.spread_out.add)(topic)

    @rule(duration_ms=st.integers(0, 400))
    def tick(self, duration_ms: int) -> None:
        self.harness.tick(duration_ms)
        self._compare()

    @rule(duration_ms=st.integers(0, 400))
    def deliver_a_chunk(self, duration_ms: int) -> None:
        self.harness.clock.advance_ms(duration_ms)
        self.harness.deliver_once()
        self.harness.flush()
        self._compare(is_complete=False)

    @rule(how=st.sampled_from(["clean", *get_args(CrashMode)]))
    def stop(self, how: Stop) -> None:
        self.harness = self.harness.reborn(how)

    def _compare(self, *, is_complete: bool = True) -> None:
        now_ms = self.harness.clock.wall_ms()
        for (topic, index), timers in self.pending.items():
            known = self.delivered[topic, index]
            found = self.harness.values(topic, index)
            assert found[: len(known)] == known
            new = found[len(known) :]
            timers.sort()
            due = deque(value for due_ms, _, value in timers if due_ms <= now_ms)
            assert new == list(due)[: len(new)]
            if topic in self.paused:
                assert not new
            elif topic not in self.limited | self.spread_out and is_complete:
                assert len(new) == len(due)
            known += new
            del timers[: len(new)]

    @invariant()
    def pending_counts_agree(self) -> None:
        expected = sum(map(len, self.pending.values()))
        assert self.harness.broker.pending_timers == expected
        assert len(listed(self.harness)) == expected

    def teardown(self) -> None:
        for topic in self.topics:
            change(self.harness, PAUSED, None, topic=topic)
            change(self.harness, RATE, None, topic=topic)
            change(self.harness, SPREAD, None, topic=topic)
        self.paused.clear()
        self.limited.clear()
        self.spread_out.clear()
        self.tick(1_000)
        assert self.harness.broker.pending_timers == 0


TestHeldBack: Any = HeldBackMachine.TestCase
TestHeldBack.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
