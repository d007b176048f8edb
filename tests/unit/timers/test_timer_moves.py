"""A timer that is rescheduled is delivered once, by its new time, with the same record."""

import random
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core.paths.own_batch import encode_own
from appliance.errors import DiskFullError, FindError
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay
from tests.support.values.raw_batch import Raw, make_batch
from tests.unit.timers.test_held_back import PAUSED, change
from tests.unit.timers.test_pending_timers import items

BASE = {"x-accepted-at", "x-due-at", "x-due-id"}


def find(harness: BrokerHarness, user_id: bytes, topic: str = "t") -> tuple[Any, Any]:
    """The place of a pending timer, and its record."""
    timer = harness.broker.timers.listed(harness.topic(topic), user_id)
    assert timer is not None
    found = [each for each in items(harness) if each.get("id") == user_id]
    return timer, found[0]


def move(harness: BrokerHarness, user_id: bytes, due_ms: int | None, *, topic: str = "t") -> bool:
    """Move a timer, durably."""
    timer, record = find(harness, user_id, topic)
    is_moved = harness.broker.timer_moves.move(harness.topic(topic), user_id, timer, record, due_ms)
    harness.broker.commit()
    harness.flush()
    return is_moved


@pytest.mark.parametrize("by_ms", [-9_000, -1, 1, 60_000, 86_400_000])
@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_a_timer_comes_at_its_new_time_only(by_ms: int, end: Stop) -> None:
    harness = with_topic()
    headers = [*delay(10_000, b"id"), ("h", b"1"), ("null", b""), ("h", b"2")]
    harness.produce("t", 0, [Record(b"value", key=b"key", headers=tuple(headers))])
    due_ms = harness.clock.wall_ms() + 10_000
    harness.clock.advance_ms(500)
    assert move(harness, b"id", due_ms + by_ms)
    harness = harness.reborn(end)
    assert harness.broker.pending_timers == 1
    assert harness.timer_state("t", b"id") == ("pending", due_ms + by_ms, 0)
    harness.clock.advance_to_ms(due_ms + by_ms - 1)
    assert harness.deliver_all() == 0
    assert harness.tick(1) == 1
    (record,) = harness.fetch("t", 0)
    assert (record.key, record.value) == (b"key", b"value")
    own = [header for header in record.headers if header[0] not in BASE]
    assert own == [("h", b"1"), ("null", b""), ("h", b"2")]
    assert record.header("x-due-at") == b"%d" % (due_ms + by_ms)
    assert record.header("x-due-id") == b"id"
    assert harness.tick(100_000_000) == 0


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_a_timer_that_is_delivered_now_does_not_come_again(end: Stop) -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"v", headers=delay(10_000, b"id"))])
    assert move(harness, b"id", None)
    assert harness.values() == [b"v"]
    harness = harness.reborn(end)
    assert harness.timer_state("t", b"id")[0] == "delivered"
    assert harness.broker.pending_timers == 0
    assert harness.tick(100_000) == 0
    assert harness.values() == [b"v"]


def test_null_keys_values_and_the_timestamp_stay() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", 3)
    record = Record(None, headers=delay(5_000, b"\xff\x00"))
    assert harness.produce("t", 2, [record]).error == 0
    before = find(harness, b"\xff\x00")[1]
    assert move(harness, b"\xff\x00", harness.clock.wall_ms() + 7_000)
    after = find(harness, b"\xff\x00")[1]
    for name in ("key", "value", "timestamp", "partition"):
        assert before[name] == after[name]
    assert after["value"] is None
    assert harness.tick(7_000) == 1


@pytest.mark.parametrize("event", ["delivered", "cancelled", "replaced", "deleted"])
def test_what_happened_while_its_record_was_read_counts(event: str) -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"v", headers=delay(1_000, b"id"))])
    topic = harness.topic()
    timer, record = find(harness, b"id")
    match event:
        case "delivered":
            harness.tick(1_000)
        case "cancelled":
            harness.produce("t", 0, [Record(b"", headers=cancel(b"id"))])
        case "replaced":
            harness.produce("t", 0, [Record(b"w", headers=delay(1_000, b"id"))])
        case "deleted":
            harness.delete_topic("t")
    before = harness.broker.wrote_pos
    moves = harness.broker.timer_moves
    assert not moves.move(topic, b"id", timer, record, harness.clock.wall_ms() + 5_000)
    assert harness.broker.wrote_pos == before


def test_a_due_time_that_is_too_late_and_a_topic_without_delays_are_refused() -> None:
    harness = with_topic()
    harness.create_topic("short", 1, {"delay.max.ms": "60000", "delay.invalid": "pass"})
    for topic in ("t", "short"):
        harness.produce(topic, 0, [Record(b"v", headers=delay(1_000, b"id"))])
    now_ms = harness.clock.wall_ms()
    with pytest.raises(FindError, match=r"delay\.max\.ms = 60000 ms"):
        move(harness, b"id", now_ms + 60_001, topic="short")
    with pytest.raises(FindError, match=r"delay\.max\.ms"):
        move(harness, b"id", now_ms + 4_000 * 86_400_000)
    change(harness, "delay.headers", "off")
    with pytest.raises(FindError, match=r"delay\.headers=off"):
        move(harness, b"id", now_ms + 5_000)
    assert harness.tick(1_000) == 2


def test_a_batch_limit_that_was_lowered_is_named() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(bytes(4_000), headers=delay(1_000, b"id"))])
    change(harness, "max.message.bytes", "1000")
    with pytest.raises(FindError, match=r"max\.message\.bytes"):
        move(harness, b"id", None)
    assert harness.tick(1_000) == 1


def test_a_full_disk_changes_nothing() -> None:
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"v", headers=delay(1_000, b"id"))])
    found = find(harness, b"id")
    disk.free = 1_000
    while not harness.produce("t", 0, [Record(b"fill" * 400)]).error:
        pass
    with pytest.raises(DiskFullError):
        harness.broker.timer_moves.move(harness.topic(), b"id", *found, None)
    disk.free = 1 << 30
    assert harness.tick(1_000) == 1
    assert harness.values()[-1] == b"v"


def test_a_timer_of_a_paused_topic_that_is_due_can_be_moved_and_delivered() -> None:
    harness = with_topic()
    change(harness, PAUSED, "true")
    for name in (b"a", b"b", b"c"):
        harness.produce("t", 0, [Record(name, headers=delay(1_000, name))])
    assert harness.tick(2_000) == 0
    assert move(harness, b"a", None)
    assert harness.values() == [b"a"]
    assert move(harness, b"b", harness.clock.wall_ms() + 5_000)
    change(harness, PAUSED, "false")
    assert harness.deliver_all() == 1
    assert harness.tick(5_000) == 1
    assert harness.values() == [b"a", b"c", b"b"]


def test_timers_are_moved_at_random_and_each_comes_once_in_the_order_of_its_time() -> None:
    rng = random.Random(11)
    harness = with_topic()
    due: dict[bytes, int] = {}
    for number in range(60):
        name = b"%d" % number
        delay_ms = rng.randrange(1_000, 50_000)
        harness.produce("t", 0, [Record(name, headers=delay(delay_ms, name))])
        due[name] = harness.clock.wall_ms() + delay_ms
    for _ in range(150):
        name = rng.choice(list(due))
        if harness.timer_state("t", name)[0] == "pending":
            due[name] = harness.clock.wall_ms() + rng.randrange(1, 50_000)
            assert move(harness, name, due[name])
        harness.tick(rng.randrange(200))
        if rng.random() < 0.05:
            harness = harness.reborn(rng.choice(get_args(CrashMode)))
    harness.tick(100_000)
    values = harness.values()
    assert sorted(values) == sorted(due)
    times = [due[value] for value in values]
    assert times == sorted(times)


HEADER_LISTS = st.lists(
    st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=300)), max_size=5
)


@settings(max_examples=200, deadline=None)
@given(
    key=st.none() | st.binary(max_size=300),
    value=st.none() | st.binary(max_size=300),
    headers=HEADER_LISTS,
    timestamp_ms=st.integers(-1, 1 << 45),
)
def test_a_batch_is_what_a_producer_sends(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]],
    timestamp_ms: int,
) -> None:
    expected = make_batch([Raw(value, key=key, headers=headers)], base_timestamp=timestamp_ms)
    assert encode_own(key, value, headers, timestamp_ms) == expected
