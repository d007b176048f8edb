"""A timer that is rescheduled by its place comes once, at its new time, as it was accepted."""

from typing import get_args

import pytest

from appliance.errors import DiskFullError, FindError
from appliance.offline.frame_items import Frame
from appliance.pending_timers import ListedTimer, TimerPlace
from appliance.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.checkpoints import rebuild
from tests.support.harness.tables import rows_of
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, delay
from tests.unit.retention.test_carried_timers import carried, run
from tests.unit.timers.test_levels import at_level, levels_of
from tests.unit.timers.test_pending_timers import listed
from tests.unit.timers.test_recurring import recurring


def move(harness: BrokerHarness, timer: ListedTimer, due_ms: int | None) -> TimerPlace | None:
    """Move a timer, durably."""
    topic = harness.broker.timers.find_partition(timer)
    assert topic is not None
    finder, part = harness.broker.begin_find()
    pos = finder.timer_place(timer[1])
    frame = part.frame_at(pos)
    part.close()
    harness.broker.key_index.end_search()
    assert frame is not None
    held = Frame(pos, memoryview(frame)).timer(*timer[1:3])
    assert held is not None
    place = harness.broker.timer_moves.move_placed(
        topic.topic, timer, held.get("id", b""), frame, due_ms
    )
    harness.broker.commit()
    harness.flush()
    return place


@pytest.mark.parametrize("by_ms", [-9_000, -1, 1, 60_000, MS_PER_DAY])
@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_a_timer_without_an_id_comes_at_its_new_time_only(by_ms: int, end: Stop) -> None:
    harness = with_topic()
    headers = [*delay(10_000), ("h", b"1"), ("null", b""), ("h", b"2")]
    others = [Record(b"before", headers=delay(10_000)), Record(b"after", headers=delay(10_000))]
    record = Record(b"value", key=b"key", headers=tuple(headers))
    harness.produce("t", 0, [others[0], record, others[1]])
    due_ms = harness.clock.wall_ms() + 10_000
    harness.clock.advance_ms(500)
    place = move(harness, listed(harness)[1], due_ms + by_ms)
    assert place is not None
    harness = harness.reborn(end)
    assert sorted(timer[0] for timer in listed(harness)) == sorted([due_ms, due_ms, due_ms + by_ms])
    assert place in [timer[:3] for timer in listed(harness)]
    harness.clock.advance_to_ms(max(due_ms, due_ms + by_ms))
    assert harness.deliver_all() == 3
    order = [b"value", b"before", b"after"] if by_ms < 0 else [b"before", b"after", b"value"]
    assert harness.values() == order
    (moved,) = [each for each in harness.fetch("t", 0) if each.value == b"value"]
    own = [header for header in moved.headers if not header[0].startswith("x-")]
    assert (moved.key, own) == (b"key", [("h", b"1"), ("null", b""), ("h", b"2")])
    assert moved.header("x-due-at") == b"%d" % (due_ms + by_ms)
    assert moved.header("x-accepted-at") == b"%d" % (due_ms - 10_000)
    assert harness.tick(MS_PER_DAY) == 0


def test_a_timer_is_delivered_now() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"v", headers=delay(MS_PER_DAY))])
    assert move(harness, listed(harness)[0], None)
    assert harness.tick(0) == 1
    assert harness.values() == [b"v"]


def test_a_timer_keeps_its_id_and_leaves_its_level() -> None:
    harness = with_topic()
    harness.produce("t", 0, [at_level(9, b"id")])
    due_ms = harness.clock.wall_ms() + MS_PER_DAY
    assert move(harness, listed(harness)[0], due_ms)
    for harness_now in (harness, harness.restart()):
        assert harness_now.timer_state("t", b"id") == ("pending", due_ms, 0)
        assert levels_of(harness_now) == {9: (1, 1, 0)}
    harness = harness_now
    harness.cancel_timer("t", b"id")
    assert harness.tick(MS_PER_DAY) == 0


def test_a_timer_is_moved_again_and_again_through_carries() -> None:
    harness = carried()
    for number in range(3):
        for timer in listed(harness):
            assert move(harness, timer, timer[0] + 1_000)
        harness.produce("t", 0, [Record(bytes(4_000))] * 20)
        run(harness, 4 * MS_PER_HOUR)
        harness = rebuild(harness, harness.disk) if number % 2 else harness.restart()
        assert len(listed(harness)) == 3
    first = [harness.partition(index).next_offset for index in (0, 1)]
    harness.tick(60 * MS_PER_DAY)
    found = [[each.value for each in harness.fetch("t", i, first[i])] for i in (0, 1)]
    assert found == [[b"later", b"unnamed"], [b"other"]]


def test_what_left_its_place_is_not_moved() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"%d" % n, headers=delay(1_000, b"%d" % n)) for n in range(3)])
    timers = listed(harness)
    harness.cancel_timer("t", b"0")
    assert move(harness, timers[1], harness.clock.wall_ms() + 5_000)
    for timer in timers[:2]:
        assert move(harness, timer, harness.clock.wall_ms() + 9_000) is None
        assert timer not in listed(harness)
    assert harness.tick(1_000) == 1
    assert move(harness, timers[2], harness.clock.wall_ms()) is None
    assert harness.tick(10_000) == 1
    assert harness.values() == [b"2", b"1"]


def test_a_recurring_timer_keeps_its_instants() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"v", headers=recurring("0 2 * * *"))])
    (timer,) = listed(harness)
    with pytest.raises(FindError, match="it recurs, so it keeps its instants"):
        move(harness, timer, timer[0] + 1)
    assert listed(harness) == [timer]


def test_a_due_time_too_far_ahead_is_refused() -> None:
    harness = with_topic(settings={"delay.max.ms": "1000"})
    harness.produce("t", 0, [Record(b"v", headers=delay(1_000))])
    (timer,) = listed(harness)
    with pytest.raises(FindError, match=r"more than delay\.max\.ms = 1000 ms ahead"):
        move(harness, timer, timer[0] + 1)
    assert listed(harness) == [timer]


def test_a_full_disk_changes_nothing() -> None:
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    for number in range(30):
        harness.produce("t", 0, [Record(b"%d" % number + bytes(2_000), headers=delay(9_000))])
    disk.free = 1_000
    while harness.produce("t", 0, [Record(bytes(3_000))]).error == 0:
        pass
    before = listed(harness)
    moved = 0

    def move_all() -> None:
        nonlocal moved
        for timer in before:
            move(harness, timer, timer[0] + 1)
            moved += 1

    with pytest.raises(DiskFullError, match="nothing was changed: the broker's disk is full"):
        move_all()
    assert len(listed(harness)) == 30
    disk.free = 1 << 30
    harness.clock.advance_ms(1_000)  # until it is looked at again
    assert move(harness, before[moved], before[moved][0] + 1)
    assert harness.tick(10_000) == 30


def test_the_tables_have_both_times_of_a_moved_timer() -> None:
    """The first one as cancelled, and the second one as pending."""
    harness = with_topic()
    harness.produce("t", 0, [Record(b"v", headers=delay(1_000))])
    due_ms = harness.clock.wall_ms() + 5_000
    assert move(harness, listed(harness)[0], due_ms)
    harness.broker.close()
    rows = rows_of(harness.disk, "timers")
    assert [(row["delay_state"], row["due_at"]) for row in rows] == [
        ("cancelled", due_ms - 4_000),
        ("pending", due_ms),
    ]
