"""How many records are due when is known without a look at them, and it is exact."""

import random
from collections import Counter
from typing import Any, get_args

import pytest

from appliance.admin.timer_listing import forecast_from
from appliance.pending_timers import TimerCounts, TimerSelection
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.timers.test_cold_timers import cold_harness
from tests.unit.timers.test_pending_timers import zeros

ALL = TimerSelection()
SECOND_MS, MINUTE_MS = MS_PER_SECOND, MS_PER_MINUTE


def forecast(harness: BrokerHarness, step_ms: int, count: int, from_ms: int | None = None) -> Any:
    """The counts from now on; None if timers would have to be looked at."""
    if from_ms is None:
        now_ms = harness.clock.wall_ms()
        from_ms = forecast_from(now_ms, step_ms, step_ms * count)
    return harness.broker.timers.forecast(from_ms, step_ms, count)


def expected(due_times_ms: list[int], like: TimerCounts) -> TimerCounts:
    slots = Counter((due_ms - like.from_at) // like.step_ms for due_ms in due_times_ms)
    size = len(like.counts)
    return TimerCounts(
        like.from_at,
        like.step_ms,
        [slots[slot] for slot in range(size)],
        sum(slots[slot] for slot in slots if slot < 0),
        sum(slots[slot] for slot in slots if slot >= size),
    )


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_forecasts_are_exact_through_all_that_becomes_of_timers(end: Stop) -> None:
    """Produced, replaced, cancelled, purged, delivered, and read again from the log."""
    rng = random.Random(5)
    harness = with_topic(2)
    harness.housekeep()
    pending: dict[bytes, int] = {}
    for number in range(400):
        name = b"%d" % rng.randrange(150)
        now_ms = harness.clock.wall_ms()
        if rng.random() < 0.2:
            harness.produce("t", 0, [Record(b"", headers=cancel(name))])
            pending.pop(name, None)
        else:
            delay_ms = rng.choice([700, 40_000, 3 * MS_PER_HOUR, 100 * MS_PER_DAY])
            delay_ms += rng.randrange(delay_ms)
            harness.produce("t", 0, [Record(b"v", headers=delay(delay_ms, name))])
            pending[name] = now_ms + delay_ms
        if number % 20 == 0:
            harness.tick(rng.choice([1, 900, 30_000, MS_PER_HOUR]))
            harness.housekeep()
            now_ms = harness.clock.wall_ms()
            pending = {name: due for name, due in pending.items() if due > now_ms}
    harness.flush()
    for harness_now in (harness, harness.reborn(end)):
        harness_now.clock.advance_ms(MINUTE_MS)  # seconds are counted from a whole minute on
        harness_now.housekeep()
        for step_ms, count in ((SECOND_MS, 3_600), (MINUTE_MS, 60), (MS_PER_DAY, 300)):
            found = forecast(harness_now, step_ms, count)
            assert found == expected(list(pending.values()), found)
            assert any(found.counts)


def test_other_intervals_are_counted_timer_by_timer() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"v", headers=delay(1_500))])
    harness.housekeep()
    now_ms = harness.clock.wall_ms()
    assert forecast(harness, SECOND_MS, 60).counts[1] == 1
    for from_ms, step_ms, count in (
        (now_ms, 500, 4),
        (now_ms + 1, SECOND_MS, 4),
        (now_ms, SECOND_MS, 49 * 3_600),
    ):
        assert forecast(harness, step_ms, count, from_ms) is None
        *_, found = harness.broker.timers.steps_of_count(ALL, from_ms, step_ms, zeros(count))
        assert found is not None
        assert found == expected([now_ms + 1_500], found)


def test_a_deleted_topic_leaves_no_count_behind() -> None:
    """Its due times are known to nobody: the others are counted again, from the next minute on."""
    harness = with_topic()
    harness.create_topic("gone")
    delays_ms = [90_000 + 1_000 * number for number in range(300)]
    for name in ("t", "gone"):
        for delay_ms in delays_ms:
            harness.produce(name, 0, [Record(b"v", headers=delay(delay_ms))])
    harness.housekeep()
    begin_ms = harness.clock.wall_ms()
    assert sum(forecast(harness, SECOND_MS, 600).counts) == 600
    harness.delete_topic("gone")
    assert forecast(harness, SECOND_MS, 600) is None
    *_, scanned = harness.broker.timers.steps_of_count(ALL, begin_ms, SECOND_MS, zeros(600))
    assert scanned is not None
    assert sum(scanned.counts) == 300
    harness.clock.advance_ms(MINUTE_MS)
    harness.housekeep()
    harness.clock.advance_ms(20_000)  # the first timers are due a little later
    harness.housekeep()
    found = forecast(harness, SECOND_MS, 600, begin_ms + 2 * MINUTE_MS)
    dues = [begin_ms + delay_ms for delay_ms in delays_ms]
    assert found == expected(dues, found)
    harness.tick(MS_PER_HOUR)
    assert len(harness.values("t")) == 300
    assert forecast(harness, MINUTE_MS, 60).before == 0


@pytest.mark.parametrize("step_ms", [-MS_PER_DAY, 10 * MS_PER_DAY])
def test_forecasts_are_exact_after_a_step_of_the_clock(step_ms: int) -> None:
    harness = with_topic()
    dues = []
    for hours in range(24):
        delay_ms = hours * MS_PER_HOUR + 5_000
        dues.append(harness.clock.wall_ms() + delay_ms)
        harness.produce("t", 0, [Record(b"v", headers=delay(delay_ms))])
    harness.housekeep()
    harness.clock.step_ms(step_ms)
    for _ in range(2):
        harness.clock.advance_ms(MINUTE_MS)
        harness.housekeep()
    for interval_ms, count in ((SECOND_MS, 40 * 3_600), (MINUTE_MS, 1_000)):
        found = forecast(harness, interval_ms, count)
        assert found == expected(dues, found)
    harness.tick(1)
    late = sum(due_ms <= harness.clock.wall_ms() for due_ms in dues)
    assert (late, forecast(harness, MINUTE_MS, 60).before) == (24 if step_ms > 0 else 0, 0)


def test_a_forecast_from_now_on_begins_where_the_counts_are_known() -> None:
    now_ms = 1_767_225_723_456
    assert forecast_from(now_ms, MINUTE_MS, MS_PER_HOUR) == 1_767_225_723_000
    assert forecast_from(now_ms, MINUTE_MS, 48 * MS_PER_HOUR) == 1_767_225_720_000
    assert forecast_from(now_ms, MINUTE_MS, MS_PER_HOUR, now_ms + MINUTE_MS) == 1_767_225_720_000
    assert forecast_from(now_ms, 1_500, 48 * MS_PER_HOUR) == now_ms


def test_the_backlog_of_deliveries_is_what_is_late_and_not_held_back() -> None:
    harness = with_topic()
    harness.create_topic("held", settings={"delay.paused": "true"})
    for name in ("t", "held"):
        for _ in range(3):
            harness.produce(name, 0, [Record(b"v", headers=delay(2_000))])
    harness.housekeep()
    gauges = harness.broker.gauges(0)
    assert (gauges.dequeue_backlog, gauges.dequeue_backlog_seconds) == (0, 0)
    assert gauges.next_due_seconds == harness.clock.wall_ms() / MS_PER_SECOND + 2
    harness.clock.advance_ms(5_500)
    gauges = harness.broker.gauges(0)
    assert (gauges.dequeue_backlog, gauges.dequeue_backlog_seconds) == (6, 3.5)
    assert harness.tick(0) == 3
    gauges = harness.broker.gauges(0)
    assert (gauges.held_timers, gauges.dequeue_backlog) == (3, 0)
    assert gauges.dequeue_backlog_seconds == 0


def test_what_waits_for_the_disk_is_in_the_backlog() -> None:
    harness = cold_harness(count=3)
    harness.housekeep()
    harness.clock.advance_ms(5_000)
    assert harness.broker.deliver_due().cold
    gauges = harness.broker.gauges(0)
    assert (gauges.waiting_timers, gauges.dequeue_backlog) == (3, 3)


def test_what_waits_for_the_disk_is_not_counted_while_others_are_counted_again() -> None:
    """A walk does not find it; when it is delivered no count may fall."""
    harness = cold_harness(count=3)
    harness.create_topic("gone")
    harness.produce("gone", 0, [Record(b"v", headers=delay(90_000))])
    harness.produce("hot", 0, [Record(b"v", headers=delay(90_000))])
    harness.clock.advance_ms(5_000)
    cold = harness.broker.deliver_due().cold
    harness.delete_topic("gone")
    harness.housekeep()
    minute_ms = harness.clock.wall_ms() + MINUTE_MS
    minute_ms -= minute_ms % MINUTE_MS
    found = forecast(harness, SECOND_MS, 100, minute_ms)
    assert (found.before, sum(found.counts)) == (3, 1)
    harness.read_cold(cold, is_delivery=True)
    assert harness.deliver_all() == 3
    found = forecast(harness, SECOND_MS, 100, minute_ms)
    assert (found.before, sum(found.counts)) == (0, 1)
