"""Lists and counts of pending timers are those that a model of them has, with their records."""

import random
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, cast, get_args
from unittest.mock import patch

import pytest

from _core.bytes.layout import AT_PHYS_OFFSET, FRAME_HEADER_SIZE, TIMER_ENTRY_SIZE
from appliance import timer_reader
from appliance.errors import DiskFullError, FindError
from appliance.find import Finder
from appliance.pending_timers import ListedTimer, TimerCounts, TimerPlace, TimerSelection
from appliance.timer_reader import UNREADABLE, TimerReader
from tests.support.harness.broker_harness import BrokerHarness, Stop, with_topic
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.retention.test_carried_timers import IDS, carried
from tests.unit.timers.test_cold_timers import cold_harness

ALL = TimerSelection()


def zeros(interval_count: int) -> "array[int]":
    return array("q", bytes(8 * (interval_count + 1)))


def listed(
    harness: BrokerHarness,
    selection: TimerSelection = ALL,
    *,
    limit: int = 10_000,
    after: TimerPlace | None = None,
) -> list[ListedTimer]:
    harness.load_timers()
    steps = harness.broker.timers.steps_of_list(selection, limit, after)
    return [timer for step in steps for timer in step]


def counted(
    harness: BrokerHarness, from_ms: int, step_ms: int, count: int, selection: TimerSelection = ALL
) -> TimerCounts:
    harness.load_timers()
    *_, last = harness.broker.timers.steps_of_count(selection, from_ms, step_ms, zeros(count))
    assert last is not None
    return last


def items(
    harness: BrokerHarness, *, has_values: bool = True, in_parts: bool = False, **request: Any
) -> list[Any]:
    """All that is pending, with its records."""
    timers = listed(harness, **request)
    places = {timer[3]: harness.broker.timers.partition_of(timer) for timer in timers}
    finder, part = cast(tuple[Finder, Any], harness.broker.begin_find())
    reader = TimerReader(
        part,
        finder.timer_place,
        cast(Any, places),
        has_values=has_values,
        is_checked=not in_parts,
    )
    try:
        return reader.read(timers, lambda: True)
    finally:
        part.close()
        harness.broker.key_index.end_search()


def test_lists_and_counts_are_those_of_the_producers() -> None:
    rng = random.Random(7)
    harness = BrokerHarness()
    harness.create_topic("a", 2)
    harness.create_topic("b")
    pending: list[tuple[int, str, int, bytes]] = []
    for number in range(300):
        topic, partition = rng.choice([("a", 0), ("a", 1), ("b", 0)])
        delays = [rng.choice([5, 5_000, rng.randrange(1, 10**9)]) for _ in range(rng.randint(1, 4))]
        values = [b"%d.%d" % (number, at) for at in range(len(delays))]
        records = [Record(v, headers=delay(d)) for v, d in zip(values, delays, strict=True)]
        harness.produce(topic, partition, records)
        now_ms = harness.clock.wall_ms()
        pending += [(now_ms + d, topic, partition, v) for v, d in zip(values, delays, strict=True)]
        harness.clock.advance_ms(1)
    pending.sort(key=lambda timer: timer[0])
    for harness_now in (harness, harness.restart()):
        found = [
            (each["due"], each["topic"], each["partition"], each["value"])
            for each in items(harness_now)
        ]
        assert found == pending
        with patch.object(timer_reader, "WHOLE_BYTES", 0):
            assert items(harness_now, in_parts=True) == items(harness_now)
        middle = pending[150][0]
        of_a = TimerSelection(topic="a", partition=1, due=(middle, middle + 10**8))
        assert [each["value"] for each in items(harness_now, selection=of_a)] == [
            value
            for due, topic, partition, value in pending
            if (topic, partition) == ("a", 1) and middle <= due < middle + 10**8
        ]
        for selection in (ALL, TimerSelection(topic="a"), TimerSelection(topic="b", partition=0)):
            dues = [due for due, topic, _, _ in pending if selection.topic in (None, topic)]
            steps = Counter((due - middle) // 10**7 for due in dues)
            counts = counted(harness_now, middle, 10**7, 20, selection)
            assert counts.counts == [steps[at] for at in range(20)]
            assert counts.before == sum(due < middle for due in dues)
            assert counts.after == sum(due >= middle + 20 * 10**7 for due in dues)


def test_pages_go_on_where_they_ended_though_timers_left_meanwhile() -> None:
    harness = with_topic()
    for number in range(10):
        harness.produce("t", 0, [Record(b"%d" % number, headers=delay(1_000 * (number + 1)))])
    first = listed(harness, limit=4)
    assert len(first) == 4
    assert harness.tick(6_000) == 6
    after = first[-1][:3]
    rest = items(harness, after=after)
    assert [each["value"] for each in rest] == [b"6", b"7", b"8", b"9"]


def test_cancelled_replaced_and_deleted_timers_are_not_listed() -> None:
    harness = with_topic()
    harness.create_topic("other")
    harness.produce("t", 0, [Record(b"a", headers=delay(1_000, b"a"))])
    harness.produce("t", 0, [Record(b"b", headers=delay(1_000, b"b"))])
    harness.produce("other", 0, [Record(b"c", headers=delay(1_000))])
    harness.produce("t", 0, [Record(b"", headers=cancel(b"a"))])
    harness.produce("t", 0, [Record(b"b2", headers=delay(2_000, b"b"))])
    harness.delete_topic("other")
    (item,) = items(harness)
    assert (item["value"], item["id"], item["due"]) == (b"b2", b"b", listed(harness)[0][0])
    assert sum(counted(harness, 0, 1 << 40, 2).counts) == 1


def test_a_carried_timer_is_listed_where_it_is_now() -> None:
    harness = carried()
    found = items(harness)
    assert [each["value"] for each in found] == [b"later", b"other", b"unnamed"]
    assert [each["due"] for each in found] == sorted(each["due"] for each in found)
    assert found[0]["id"] == IDS[0]
    assert all(each["position"] > each["accept_position"] for each in found)
    assert all(each["stored_at"] < harness.clock.wall_ms() for each in found)
    with patch.object(timer_reader, "WHOLE_BYTES", 0):
        assert items(harness, in_parts=True) == found


def test_what_waits_for_the_disk_is_listed_and_counted_as_overdue() -> None:
    harness = cold_harness(count=3)
    harness.clock.advance_ms(5_000)
    assert harness.broker.deliver_due().cold
    assert harness.broker.gauges(0).waiting_timers == 3
    due = [timer[0] for timer in listed(harness)]
    assert len(due) == 3
    assert due == sorted(due)
    assert listed(harness, TimerSelection(topic="hot")) == []
    assert len(listed(harness, limit=2)) == 2
    assert counted(harness, harness.clock.wall_ms(), 1_000, 1).before == 3


def test_a_timer_that_cannot_be_read_says_so() -> None:
    harness = cold_harness(count=2)
    path = harness.segment_paths()[0]
    harness.disk.spoil(path, harness.disk.files()[path].index(b"0 ") + 3_000, 1)
    bad, good = items(harness)
    assert bad["problem"] == UNREADABLE
    assert (bad["topic"], bad["due"]) == ("cold", listed(harness)[0][0])
    assert good["value"].startswith(b"1 ")


def with_large_frame() -> tuple[BrokerHarness, Path, int]:
    """A broker with five timers in a frame of 70 KB, its segment and where the frame begins."""
    config = small_config(
        segment_size_bytes=8 << 20,
        batch_size_max_bytes=100_000,
        record_size_max_bytes=20_000,
        decompressed_size_max_bytes=200_000,
    )
    harness = BrokerHarness(config=config)
    harness.create_topic("t")
    rng = random.Random(1)
    records = [
        Record(rng.randbytes(14_000), key=b"key-%d" % n, headers=delay(1_000 + n, b"id-%d" % n))
        for n in range(5)
    ]
    assert harness.produce("t", 0, records).error == 0
    place = items(harness)[0]["position"]
    path = harness.segment_paths()[0]
    return harness, path, place


def keys(harness: BrokerHarness, *, in_parts: bool) -> list[bytes | None]:
    """Of all timers; None for those that cannot be read."""
    return [each.get("key") for each in items(harness, has_values=False, in_parts=in_parts)]


def test_a_list_without_values_reads_little_of_a_large_frame() -> None:
    harness, path, _ = with_large_frame()
    assert keys(harness, in_parts=True) == [b"key-%d" % number for number in range(5)]
    other = harness.disk.files()[path].index(b"key-1") + 10_000
    harness.disk.spoil(path, other, 1)
    # The record of one cannot be read, so all of the frame is, and that has no valid checksum.
    assert keys(harness, in_parts=True) == [b"key-0", None, b"key-2", b"key-3", b"key-4"]
    assert keys(harness, in_parts=False) == [None] * 5
    assert purge(harness) == 0
    harness.disk.repair(path)
    assert keys(harness, in_parts=True) == keys(harness, in_parts=False)
    assert purge(harness) == 5


@pytest.mark.parametrize("what", ["entry", "due", "record", "position", "rule"])
def test_parts_of_a_frame_that_do_not_fit_are_never_shown(what: str) -> None:
    harness, path, place = with_large_frame()
    octets = harness.disk.files()[path]
    record = octets.index(b"key-1")
    entry = place + FRAME_HEADER_SIZE + TIMER_ENTRY_SIZE
    at = {
        "entry": entry + 11,
        "due": entry + 23,
        "record": record - 1,
        "position": place + AT_PHYS_OFFSET + 7,
        "rule": entry + 61,
    }[what]
    file = harness.disk.open(path)
    file.pwritev([bytes([octets[at] ^ 0x0B])], at)
    found = keys(harness, in_parts=True)
    assert found[1] is None
    assert set(found) <= {None, *(b"key-%d" % number for number in range(5))}
    assert keys(harness, in_parts=False) == [None] * 5
    file.pwritev([octets[at : at + 1]], at)
    assert keys(harness, in_parts=True) == [b"key-%d" % number for number in range(5)]
    assert harness.tick(2_000) == 5


def test_what_was_read_of_a_segment_that_is_gone_is_not_shown() -> None:
    harness, path, _ = with_large_frame()
    exists, reads = harness.disk.exists, []

    def is_there(asked: Path) -> bool:
        if asked == path:
            reads.append(asked)
        return exists(asked) and (asked != path or len(reads) < 2)

    with patch.object(harness.disk, "exists", is_there):
        assert keys(harness, in_parts=True) == [None] * 5
    assert len(reads) == 3
    assert None not in keys(harness, in_parts=True)


def test_values_come_only_on_demand() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"value", key=b"k", headers=delay(1_000))])
    (item,) = items(harness, has_values=False)
    assert item["key"] == b"k"
    assert not {"value", "headers"} & item.keys()


def test_a_list_ends_soon_when_it_must_and_is_never_empty() -> None:
    harness = with_topic()
    for _ in range(200):
        harness.produce("t", 0, [Record(b"v", headers=delay(1_000))])
    timers = listed(harness)
    finder, part = harness.broker.begin_find()
    places = {timers[0][3]: ("t", 0)}
    reader = TimerReader(part, finder.timer_place, places, has_values=True)
    assert 0 < len(reader.read(timers, lambda: False)) < 200
    assert len(reader.read(timers, lambda: True)) == 200
    part.close()
    harness.broker.key_index.end_search()


def purge(harness: BrokerHarness, selection: TimerSelection = ALL) -> int:
    timers = listed(harness, selection)
    read = zip(timers, items(harness, selection=selection), strict=True)
    return harness.broker.timers.purge(
        [
            (timer, item.get("id", b""), item.get("level", 0))
            for timer, item in read
            if "problem" not in item
        ]
    )


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_what_is_purged_is_never_delivered_whatever_happens(end: Stop) -> None:
    harness = BrokerHarness()
    harness.create_topic("t", 2)
    harness.create_topic("other")
    for number in range(40):
        names = [b"%d" % number] if number % 3 else []
        for topic, index in (("t", number % 2), ("other", 0)):
            records = [Record(b"%d" % number, headers=delay(1_000 * number + 1_000, *names))]
            harness.produce(topic, index, records)
    begin_ms = listed(harness)[0][0]
    chosen = TimerSelection(topic="t", due=(begin_ms + 10_000, begin_ms + 30_000))
    assert purge(harness, chosen) == 20
    assert purge(harness, chosen) == 0
    assert harness.timer_state("t", b"10")[0] == "cancelled"
    assert harness.timer_state("other", b"10")[0] == "pending"
    harness.flush()
    harness = harness.reborn(end)
    assert harness.broker.pending_timers == 60
    assert harness.timer_state("t", b"10")[0] == "cancelled"
    harness.produce("t", 0, [Record(b"again", headers=delay(1_000, b"10"))])
    harness.tick(100_000)
    kept = {number for number in range(40) if not 10 <= number < 30}
    assert {int(v) for i in (0, 1) for v in harness.values("t", i) if v != b"again"} == kept
    assert len(harness.values("other")) == 40
    assert harness.values("t").count(b"again") == 1


def test_what_left_or_changed_since_it_was_listed_is_not_purged() -> None:
    harness = with_topic()
    for number, name in enumerate((b"due", b"replaced", b"cancelled", b"stays")):
        harness.produce("t", 0, [Record(name, headers=delay(1_000 * (number + 1), name))])
    harness.produce("t", 0, [Record(b"unnamed", headers=delay(1_000))])
    timers, found = listed(harness), items(harness)
    assert harness.tick(1_000) == 2
    harness.produce("t", 0, [Record(b"new", headers=delay(2_000, b"replaced"))])
    harness.cancel_timer("t", b"cancelled")
    read = [(timer, each.get("id", b""), 0) for timer, each in zip(timers, found, strict=True)]
    assert harness.broker.timers.purge(read) == 1
    harness.tick(10_000)
    assert harness.values() == [b"due", b"unnamed", b"new"]


def test_timers_of_one_millisecond_are_purged_among_others_of_it() -> None:
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.create_topic("other")
    for _ in range(3):
        for name in ("t", "other"):
            records = [Record(b"%d" % at, headers=delay(1_000)) for at in range(200)]
            harness.produce(name, 0, records)
    assert purge(harness, TimerSelection(topic="t")) == 600
    assert harness.tick(1_000) == 600
    assert harness.values("t") == []
    assert len(harness.values("other")) == 600


def test_a_full_disk_leaves_what_it_cannot_cancel() -> None:
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    for number in range(20):
        headers = delay(1_000, b"%d" % number + bytes(200))
        harness.produce("t", 0, [Record(b"x", headers=headers)])
    disk.free = 1_000
    while harness.produce("t", 0, [Record(b"fill" * 10)]).error == 0:
        pass
    with pytest.raises(DiskFullError, match="not all were cancelled: the broker's disk is full"):
        purge(harness)
    assert harness.broker.pending_timers == 20
    disk.free = 1 << 30
    assert purge(harness, TimerSelection(topic="t", due=(0, 1))) == 0
    assert harness.tick(1_000) == 20


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (TimerSelection(topic="nosuch"), "there is no topic 'nosuch'"),
        (TimerSelection(topic="t", partition=9), "t/9 does not exist: 1 partitions"),
    ],
)
def test_what_does_not_exist_is_named(selection: TimerSelection, said: str) -> None:
    harness = with_topic()
    with pytest.raises(FindError, match=said):
        listed(harness, selection)
    with pytest.raises(FindError, match=said):
        counted(harness, 0, 1, 1, selection)
