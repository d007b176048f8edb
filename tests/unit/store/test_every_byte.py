"""Bits flip in every part of every file, and files are cut at every boundary.

No wrong byte is served. Below what was flushed the loss is what was damaged, above it everything
from there on; what can be rebuilt from the log costs nothing. The start or the first read, and
`latermq check`, report all of it, with the file and the offset.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.store.checkpoint import COPY_SIZE
from appliance.units import PAGE_SIZE_BYTES
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_run import USER_IDS
from tests.support.harness.damage_scenario import DamageScenario, Frame
from tests.support.simulator.sim_fs import SimFileSystem

CHECKPOINT: Final = DATA_DIR / "checkpoint"
PLACES_PER_PART: Final = 6
PLACES_PER_FILE: Final = 150
CUTS_PER_FILE: Final = 40
PARTS: Final = 4
GONE_ON_EVERY: Final = 5

UNREADABLE: Final = "cannot be read: Input/output error"

CHECKPOINT_SIZE: Final = 100
"""What is used of a copy."""


@pytest.fixture(scope="module")
def scenario() -> DamageScenario:
    return DamageScenario()


def spread(part: range, count: int) -> list[int]:
    """Up to `count` of a range, its first and its last among them."""
    if len(part) <= count:
        return list(part)
    return [part[number * (len(part) - 1) // (count - 1)] for number in range(count)]


def places_in(scenario: DamageScenario, part: int, parts: int) -> Iterator[tuple[Frame, str, int]]:
    """A share of all places to be hit: every byte of one header of each kind, else some."""
    kinds = set()
    for number, frame in enumerate(scenario.frames):
        is_first = frame.kind not in kinds
        kinds.add(frame.kind)
        if number % parts == part:
            for name, span in frame.parts().items():
                is_whole = is_first and (name == "header" or name.startswith("beginning"))
                for at in span if is_whole else spread(span, PLACES_PER_PART):
                    yield frame, name, at


@pytest.mark.parametrize("part", range(PARTS))
def test_a_flipped_bit_in_the_log_costs_its_frame(scenario: DamageScenario, part: int) -> None:
    for number, (frame, name, at) in enumerate(places_in(scenario, part, PARTS)):
        path, offset = scenario.place(frame.pos)
        disk = scenario.copy()
        disk.flip(path, offset + at, 1 << at % 8)
        reported = f"{path} at {offset} + {at}: {name} of {frame}"
        harness = check_lost(scenario, disk, range(frame.pos, frame.end), reported)
        if number % GONE_ON_EVERY == 0:
            check_going_on(scenario, harness, reported)


def check_lost(
    scenario: DamageScenario, disk: SimFileSystem, lost: range, reported: str
) -> BrokerHarness:
    """Start where some frames of the log are not what they were."""
    path, offset = scenario.place(lost.start)
    is_damage = scenario.flushed_without(lost) > lost.start
    if not is_damage:
        lost = range(lost.start, scenario.end)
    faults = scenario.check(disk)
    harness = scenario.start(disk)
    served, expected = scenario.served_by(harness), scenario.expected(lost)
    hit = [frame for frame in scenario.frames if frame.pos in lost]
    if any(frame.is_control for frame in hit):
        # A topic may be gone with its frame, and comes back with the next that names it.
        for place, records in served.items():
            assert records.items() <= scenario.served[place].items(), reported
    else:
        assert served == expected, reported
    if not is_damage:
        # What cannot be read is named also where nothing is known to be lost with it.
        assert {each.fault for each in harness.report.damage} <= {UNREADABLE}, reported
        return harness
    assert (path, offset) in [(fault.path, fault.offset) for fault in faults], (reported, faults)
    # Below the checkpoint nothing is read again unless somebody asks for it.
    read = [frame.pos for frame in hit if frame.pos >= harness.report.applied or frame.offsets]
    if lost.stop > harness.report.applied or expected != scenario.served:
        found = [(each.path, each.offset) for each in scenario.damage_found_by(harness)]
        assert scenario.place(min(read, default=lost.start)) in found, (reported, found)
    return harness


def check_going_on(scenario: DamageScenario, harness: BrokerHarness, reported: str) -> None:
    """Timers fire with the records that they had, or not at all.

    All that has an id and is still pending after 4 s recurs, as the runs make them.
    """
    harness.tick(4_000)
    for topic in harness.broker.topics.all():
        for user_id in USER_IDS:
            harness.cancel_timer(topic.name, user_id)
    harness.run_until_idle()
    before = scenario.served_by(harness)
    assert {value for place in before.values() for value in place.values()} <= scenario.values, (
        reported
    )
    assert scenario.served_by(harness.restart()) == before, reported


def test_a_segment_that_is_cut_at_any_boundary_loses_what_is_behind(
    scenario: DamageScenario,
) -> None:
    for frame in scenario.frames:
        base = frame.pos - frame.pos % scenario.segment_size
        segment_end = min(base + scenario.segment_size, scenario.end)
        cuts = {frame.pos + part.start + by for part in frame.parts().values() for by in (-1, 0, 1)}
        for cut in sorted(cut for cut in cuts if base < cut < frame.end):
            start = max(each.pos for each in scenario.frames if each.pos <= cut)
            disk = scenario.copy()
            disk.open(scenario.place(cut)[0]).truncate(cut - base)
            reported = f"cut at {cut}, in {frame}"
            check_cut(scenario, disk, range(start, segment_end), reported)


def check_cut(scenario: DamageScenario, disk: SimFileSystem, lost: range, reported: str) -> None:
    faults = scenario.check(disk)
    harness = scenario.start(disk, accepts_loss=True)
    is_damage = scenario.flushed_without(lost) > lost.start
    expected = scenario.expected(lost if is_damage else range(lost.start, scenario.end))
    served = scenario.served_by(harness)
    for place, records in expected.items():
        # A frame after what is lost may name the topic again.
        assert served.get(place, records) == records, reported
    path, offset = scenario.place(lost.start)
    if is_damage:
        # A file that ends with a frame may be whole: then another one is missing after it.
        assert lost.start in [fault.position for fault in faults], (reported, faults)
        found = [each for each in scenario.damage_found_by(harness) if each.path == path]
        assert min(each.offset for each in found) == offset, (reported, found)
    else:
        assert not harness.report.damage, reported


# What the disk cannot read


def pages_of(scenario: DamageScenario) -> Iterator[tuple[Path, int, range]]:
    """Each page of the log: its file, its offset there, and the frames that touch it."""
    for pos in range(0, scenario.end, PAGE_SIZE_BYTES):
        hit = [
            frame
            for frame in scenario.frames
            for part in frame.parts().values()
            if pos < frame.pos + part.stop and frame.pos + part.start < pos + PAGE_SIZE_BYTES
        ]
        path, offset = scenario.place(pos)
        # Nothing is lost with what a blank frame passes over.
        yield path, offset, range(hit[0].pos, hit[-1].end) if hit else range(0)


def test_a_page_that_cannot_be_read_costs_the_frames_that_touch_it(
    scenario: DamageScenario,
) -> None:
    """No start touches it through a map: that would end this process."""
    count = 0
    for path, offset, lost in pages_of(scenario):
        disk = scenario.copy()
        disk.spoil(path, offset, PAGE_SIZE_BYTES)
        reported = f"{path} at {offset}"
        unreadable = [
            (fault.path, fault.offset, fault.size, fault.found)
            for fault in scenario.check(disk)
            if fault.expected == "bytes that can be read"
        ]
        page = [(path, offset, PAGE_SIZE_BYTES, UNREADABLE)]
        # A check may read a bit of what a blank frame passes over.
        assert unreadable == page or (not lost and not unreadable), reported
        if lost:
            check_lost(scenario, disk, lost, reported)
            count += 1
    assert count > 10


def test_a_replay_of_the_whole_log_passes_over_a_page_that_cannot_be_read(
    scenario: DamageScenario,
) -> None:
    """There is no checkpoint. If the page can be read again by then, nothing is missing.

    A page behind the last frame that is known to have been flushed is named all the same.
    """
    for path, offset, lost in pages_of(scenario):
        disk = scenario.copy()
        disk.unlink(CHECKPOINT)
        disk.spoil(path, offset, PAGE_SIZE_BYTES)
        healed = disk.crashed("kept", random.Random(0))
        healed.repair(path)
        reported = f"{path} at {offset}"
        harness = scenario.start(disk)
        found = [(each.path, each.offset, each.fault) for each in harness.report.damage]
        marks = [frame.flushed for frame in scenario.frames if frame.pos >= lost.stop]
        if lost and max(marks, default=0) > lost.start:
            assert (*scenario.place(lost.start), UNREADABLE) in found, (reported, found)
        elif lost:
            assert found == [(path, offset, UNREADABLE)], (reported, found)
        else:
            assert UNREADABLE not in {fault for _, _, fault in found}, (reported, found)
        for place, records in scenario.served_by(harness).items():
            assert records.items() <= scenario.served[place].items(), reported
        assert scenario.is_whole(scenario.start(healed)), reported


# What can be rebuilt from the log


def test_flips_and_cuts_of_derived_files_cost_nothing(scenario: DamageScenario) -> None:
    newest = scenario.newest_files()
    for path, needed_size in scenario.derived_files().items():
        for at in spread(range(needed_size), PLACES_PER_FILE):
            disk = scenario.copy()
            disk.flip(path, at, 1 << at % 8)
            check_rebuilt(scenario, disk, path, f"{path} at {at}", is_named=path in newest)
        content = scenario.disk.files()[path]
        for size in sorted({0, 1, *spread(range(needed_size), CUTS_PER_FILE)}):
            if not any(content[size:needed_size]):
                break  # units end with zeros, which is what follows the end of their file
            disk = scenario.copy()
            disk.open(path).truncate(size)
            check_rebuilt(scenario, disk, path, f"{path} cut to {size}", is_named=path in newest)
        disk = scenario.copy()
        disk.unlink(path)
        check_rebuilt(scenario, disk, path, f"without {path}", is_named=path in newest)


def check_rebuilt(
    scenario: DamageScenario, disk: SimFileSystem, path: Path, reported: str, *, is_named: bool
) -> None:
    faults = scenario.check(disk)
    assert path in [fault.path for fault in faults], (reported, faults)
    harness = scenario.start(disk)
    assert bool(harness.report.rejected) == is_named, reported
    if is_named:
        assert str(path) in harness.report.rejected[0].detail, (reported, harness.report.rejected)
    assert scenario.is_whole(harness), reported


def test_flips_and_cuts_of_the_checkpoint_cost_nothing(scenario: DamageScenario) -> None:
    used = [*range(CHECKPOINT_SIZE), *range(COPY_SIZE, COPY_SIZE + CHECKPOINT_SIZE)]
    for at in used:
        disk = scenario.copy()
        disk.flip(CHECKPOINT, at, 1 << at % 8)
        assert CHECKPOINT in scenario.noted(disk), at
        harness = scenario.start(disk)
        assert harness.report.checkpoint > 0, at
        assert scenario.is_whole(harness), at
    for size in [*used, 2 * COPY_SIZE - 1]:
        disk = scenario.copy()
        disk.open(CHECKPOINT).truncate(size)
        assert scenario.is_whole(scenario.start(disk)), size


@pytest.mark.parametrize("name", ["abort", "lock"])
def test_what_is_in_the_other_files_does_not_matter(scenario: DamageScenario, name: str) -> None:
    disk = scenario.copy()
    disk.open(DATA_DIR / name, create=True).pwritev([b"\xff" * 5_000], 0)
    assert scenario.check(disk) == []
    assert scenario.is_whole(scenario.start(disk))
