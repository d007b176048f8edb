"""Carrying of visible records meets crashes, failing calls and damage: nothing kept is lost."""

import errno
import random
from collections.abc import Iterator
from typing import Final, Literal, get_args

import pytest

from appliance.errors import StorageError
from appliance.units import MS_PER_MINUTE, PAGE_SIZE_BYTES
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.carrying import (
    SEGMENT,
    carrier_of,
    carry,
    carry_and_free,
    frame_of,
    free_below,
    last_base,
    raw_records,
    sweep,
)
from tests.support.harness.checkpoints import crashed, rebuild, start, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.harness.crash_points import CrashPoints, ignore_call
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, delay

KEPT: Final = {"retention.ms": "-1"}
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)
How = Literal["once", "for good", "after half of it"]
BATCHES: Final = 8


def ready_to_carry(disk: SimFileSystem | None = None) -> BrokerHarness:
    """A broker with batches to keep in its first two segments, and three more segments."""
    harness = BrokerHarness(disk, config=small_config(completed_id_memory_ms=1))
    harness.create_topic("t")
    harness.create_topic("kept", 1, KEPT)
    for number in range(BATCHES):
        keep(harness, number)
        fill(harness, 0.2)
    fill(harness, 3)
    sweep(harness)
    harness.broker.topics.delete_records(harness.topic(), {0: harness.partition().next_offset})
    harness.flush()
    take_checkpoint(harness)
    return harness


def keep(harness: BrokerHarness, number: int) -> None:
    """Send one batch of two records, and a delayed one that is delivered."""
    values = [Record(b"%d" % number, timestamp_ms=number), Record(b"more", timestamp_ms=number)]
    assert harness.produce("kept", 0, values, codec=number % 2).error == 0
    assert harness.produce("kept", 0, [Record(b"late", headers=delay(1))]).error == 0
    assert harness.tick(1) == 1


def fill(harness: BrokerHarness, segments: float) -> None:
    target = harness.broker.wrote_pos + int(segments * SEGMENT)
    while harness.broker.wrote_pos < target:
        assert harness.produce("t", 0, [Record(b"x" * 4_000)]).error == 0


def places(harness: BrokerHarness) -> list[int]:
    """The log positions of the frames of the records that are kept."""
    partition = harness.partition(topic="kept")
    return [harness.position_of(partition, n) for n in range(partition.next_offset)]


def go_on(harness: BrokerHarness, cut: int) -> None:
    """Carry, free, and save the state that follows."""
    carrier = carrier_of(harness)
    carrier.begin(cut)
    for _ in range(50):
        job = carrier.step()
        harness.broker.commit()
        if job is not None:
            job.run()
            carrier.end(job)
        if carrier.is_done:
            break
    if carrier.is_done and carrier.blocked_at is None:
        harness.flush()
        free_below(harness, cut)
    harness.flush()
    checkpoints = harness.broker.checkpoints
    checkpoints.ask()
    job = checkpoints.step()
    while checkpoints.is_capturing:
        job = checkpoints.step()
    if job is not None:  # it gives up if units cannot be written
        job.run()
        checkpoints.end(job)


def check(harness: BrokerHarness, expected: bytes) -> None:
    """A started broker serves what was kept, and goes on."""
    assert harness.report.damage == ()
    assert raw_records(harness, "kept") == expected
    assert harness.produce("kept", 0, [Record(b"after")]).error == 0
    assert raw_records(harness, "kept").startswith(expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_at_any_call_of_a_pass_costs_nothing(mode: CrashMode) -> None:
    disk = CrashPoints()
    harness = ready_to_carry(disk)
    expected, cut = raw_records(harness, "kept"), last_base(harness)
    rng = random.Random(11)
    starts = set()

    def observe() -> None:
        observer, disk.observer = disk.observer, ignore_call
        left = disk.crashed(mode, rng)
        started = BrokerHarness(left.crashed("kept", rng), harness.clock, harness.config)
        starts.add(started.broker.log.start_pos)
        check(started, expected)
        check(rebuild(harness, left), expected)
        disk.observer = observer

    disk.observer = observe
    go_on(harness, cut)
    disk.observer = ignore_call
    assert starts == {0, cut}
    assert min(places(harness)) > cut
    check(harness, expected)


def calls_of(prepared: BrokerHarness, cut: int) -> int:
    """How many calls a pass makes if none fails."""
    harness = start(prepared, crashed(prepared))
    before = harness.disk.calls
    go_on(harness, cut)
    assert harness.broker.log.start_pos == cut
    return harness.disk.calls - before


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failing_call_of_a_pass_costs_nothing(code: int, how: How) -> None:
    prepared = ready_to_carry()
    expected, cut = raw_records(prepared, "kept"), last_base(prepared)
    ends = {
        play(prepared, number, OSError(code, "injected"), how)
        for number in range(1, calls_of(prepared, cut) + 1)
    }
    assert expected == raw_records(prepared, "kept")
    assert "fatal" in ends
    assert "played" in ends


def play(prepared: BrokerHarness, number: int, error: OSError, how: How) -> str:
    """Let a call fail; return how it ended after all that must hold was checked."""
    expected, cut = raw_records(prepared, "kept"), last_base(prepared)
    harness = start(prepared, crashed(prepared))
    disk = harness.disk
    disk.fail_at(
        disk.calls + number,
        error,
        sticky=how == "for good",
        short_write=how == "after half of it",
    )
    try:
        go_on(harness, cut)
    except StorageError:
        end = "fatal"
    else:
        end = "played"
        disk.heal()
        check(start(prepared, crashed(harness)), expected)
    disk.heal()
    for mode in MODES:
        left = disk.crashed(mode, random.Random(number))
        check(rebuild(prepared, left), expected)
        check(start(prepared, left), expected)
    return end


def batches_of(harness: BrokerHarness) -> Iterator[tuple[int, int]]:
    """(first offset, log position) of each batch that is kept."""
    known = -1
    for offset, pos in enumerate(places(harness)):
        if pos != known:
            known = pos
            yield offset, pos


def values(harness: BrokerHarness) -> list[bytes]:
    return [each.value for each in harness.fetch("kept", 0)]


def test_an_unreadable_record_keeps_its_segment_until_it_can_be_read() -> None:
    harness = ready_to_carry()
    expected = raw_records(harness, "kept")
    cut = last_base(harness)
    pos = list(batches_of(harness))[7][1]
    path, at = harness.broker.log.path_of(pos)
    harness.make_cold()
    harness.disk.spoil(path, at, 64)
    sweep(harness)
    carrier = carry(harness, cut)
    # A whole page cannot be read, of which frames before have a part.
    assert carrier.blocked_at is not None
    assert pos - PAGE_SIZE_BYTES - 4_200 < carrier.blocked_at <= pos
    lowest = min(places(harness))
    assert carrier.blocked_at <= lowest <= pos
    # The next pass begins and ends there.
    sweep(harness)
    before = carrier.carried_bytes
    assert carry(harness, cut).blocked_at == lowest
    assert carrier.carried_bytes == before
    harness.disk.repair(path)
    carry_and_free(harness, cut)
    harness.make_cold()
    assert raw_records(harness, "kept") == expected
    check(rebuild(harness, crashed(harness)), expected)


def test_an_unreadable_frame_that_nobody_needs_delays_a_pass_only_once() -> None:
    harness = ready_to_carry()
    expected = raw_records(harness, "kept")
    cut = last_base(harness)
    first, second = (pos for _, pos in list(batches_of(harness))[5:7])
    assert second - first > 3 * PAGE_SIZE_BYTES
    path, at = harness.broker.log.path_of((first + second) // 2)
    harness.make_cold()
    harness.disk.spoil(path, at, 64)
    sweep(harness)
    blocked = carry(harness, cut).blocked_at
    assert blocked is not None
    assert first < blocked < second
    sweep(harness)
    assert harness.broker.retention.kept_from > blocked
    carry_and_free(harness, cut)
    assert raw_records(harness, "kept") == expected


def test_damage_that_a_start_found_does_not_block_a_pass() -> None:
    harness = ready_to_carry()
    offset, pos = list(batches_of(harness))[4]
    lost = len({n for n, place in enumerate(places(harness)) if place == pos})
    path, at = harness.broker.log.path_of(pos)
    disk = crashed(harness)
    disk.flip(path, at + 100, 1)
    before = values(harness)
    harness = rebuild(harness, disk)
    assert len(harness.report.damage) == 1
    rest = before[:offset] + before[offset + lost :]
    assert values(harness) == rest
    carry_and_free(harness)
    assert values(harness) == rest
    keep(harness, 99)
    rest = values(harness)
    for started in (rebuild(harness, crashed(harness)), harness.restart()):
        assert started.report.damage == ()
        assert values(started) == rest
        assert started.partition(topic="kept").start_offset == 0


@pytest.mark.parametrize("when", ["both places", "carried place alone"])
@pytest.mark.parametrize("number", [0, 5, 2 * BATCHES - 1])
def test_damage_of_a_carried_frame_is_reported_and_consumers_pass_it(
    when: str, number: int
) -> None:
    harness = ready_to_carry()
    before, end = values(harness), harness.partition(topic="kept").next_offset
    cut = last_base(harness)
    if when == "both places":
        carry(harness, cut)
        harness.flush()
    else:
        carry_and_free(harness, cut)
    take_checkpoint(harness)
    offset, pos = list(batches_of(harness))[number]
    lost = len([place for place in places(harness) if place == pos])
    path, at = harness.broker.log.path_of(pos)
    rest = before[:offset] + before[offset + lost :]

    harness.make_cold()
    disk = crashed(harness)
    disk.flip(path, at + 190, 1)
    loaded, alone = start(harness, disk), rebuild(harness, disk)
    # As long as the log has the earlier place, the records are found there.
    left = before if when == "both places" else rest
    assert values(loaded) == left
    assert loaded.broker.damage
    assert len(alone.report.damage) == 1
    assert values(alone) == left
    for started in (loaded, alone):
        partition = started.partition(topic="kept")
        assert partition.start_offset == 0
        assert partition.next_offset >= end
        assert started.produce("kept", 0, [Record(b"after")]).error == 0
        assert values(started)[-1] == b"after"
        again = started.restart()
        assert values(again) == [*left, b"after"]
        fill(again, 2)
        sweep(again)
        if started is loaded:
            # Damage that no replay has seen is met once by a pass; a record there keeps its place.
            assert carry(again, last_base(again)).blocked_at == pos
            sweep(again)
            if when == "carried place alone":
                assert again.broker.retention.kept_from == pos
                continue
        carry_and_free(again)
        assert values(again) == [*left, b"after"]


def test_an_earlier_place_that_is_found_again_is_kept_and_carried_again() -> None:
    harness = ready_to_carry()
    before, cut = values(harness), last_base(harness)
    carry(harness, cut)
    harness.flush()
    take_checkpoint(harness)
    sweep(harness)
    assert harness.broker.retention.kept_from > cut
    offset, pos = list(batches_of(harness))[5]
    original = frame_of(harness, "kept", offset)[1]
    path, at = harness.broker.log.path_of(pos)
    disk = crashed(harness)
    disk.flip(path, at + 190, 1)
    harness = start(harness, disk)
    sweep(harness)
    assert harness.broker.retention.kept_from > cut
    assert values(harness) == before
    sweep(harness)
    assert harness.broker.retention.kept_from == original
    carry_and_free(harness, cut)
    harness.make_cold()
    assert values(harness) == before


def test_damage_while_frames_are_carried_loses_nothing_else() -> None:
    harness = ready_to_carry()
    cut = last_base(harness)
    before = values(harness)
    batches = list(batches_of(harness))
    offset, pos = batches[10]
    path, at = harness.broker.log.path_of(pos)
    calls = 0

    def between() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            harness.disk.spoil(path, at, 64)

    harness.make_cold()
    carrier = carry(harness, cut, between)
    assert carrier.blocked_at is not None
    moved = places(harness)
    assert min(moved[:offset]) > cut
    assert carrier.blocked_at <= pos == moved[offset]
    harness.disk.repair(path)
    harness.clock.advance_ms(2 * MS_PER_MINUTE)
    assert values(harness) == before


def test_offsets_lost_before_a_pass_are_passed_after_it() -> None:
    """A run of lost offsets names the next whole frame, which is carried and freed."""
    harness = ready_to_carry()
    offset, pos = list(batches_of(harness))[4]
    lost = len([place for place in places(harness) if place == pos])
    path, at = harness.broker.log.path_of(pos)
    disk = crashed(harness)
    disk.flip(path, at + 100, 1)
    harness = rebuild(harness, disk)
    take_checkpoint(harness)
    runs = harness.partition(topic="kept").runs.overlapping(0, 100)
    assert [(first, end) for first, end, _, size, _ in runs if size < 0][:1] == [
        (offset, offset + lost)
    ]
    rest = values(harness)
    for number in range(2):
        carry_and_free(harness)
        harness.make_cold()
        assert values(harness) == rest
        assert len(harness.broker.damage) <= 1 - number  # what the first start found
        harness = harness.reborn("kept" if number else "clean", number)
        assert values(harness) == rest
        fill(harness, 1)
