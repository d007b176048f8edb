"""Bits flip in every part of every file, and files are cut at every boundary.

No wrong byte is served. Below what was flushed the loss is what was damaged, above it everything
from there on; what can be made anew from the log costs nothing. All of it is told, with the file
and the offset, by the start or by the first read, and by `latermq check`.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.store.checkpoint import COPY_SIZE
from appliance.units import PAGE_SIZE_BYTES
from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR
from tests.support.damage_scene import Frame, Scene
from tests.support.sim_fs import SimFileSystem

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
def scene() -> Scene:
    return Scene()


def spread(part: range, count: int) -> list[int]:
    """Up to `count` of a range, its first and its last among them."""
    if len(part) <= count:
        return list(part)
    return [part[number * (len(part) - 1) // (count - 1)] for number in range(count)]


def places_in(scene: Scene, part: int, parts: int) -> Iterator[tuple[Frame, str, int]]:
    """A share of all places to be hit: every byte of one header of each kind, else some."""
    kinds = set()
    for number, frame in enumerate(scene.frames):
        is_first = frame.kind not in kinds
        kinds.add(frame.kind)
        if number % parts == part:
            for name, span in frame.parts().items():
                is_whole = is_first and (name == "header" or name.startswith("beginning"))
                for at in span if is_whole else spread(span, PLACES_PER_PART):
                    yield frame, name, at


@pytest.mark.parametrize("part", range(PARTS))
def test_a_flipped_bit_in_the_log_costs_its_frame(scene: Scene, part: int) -> None:
    for number, (frame, name, at) in enumerate(places_in(scene, part, PARTS)):
        path, offset = scene.place(frame.pos)
        disk = scene.copy()
        disk.flip(path, offset + at, 1 << at % 8)
        told = f"{path} at {offset} + {at}: {name} of {frame}"
        rig = check_lost(scene, disk, range(frame.pos, frame.end), told)
        if number % GONE_ON_EVERY == 0:
            check_going_on(scene, rig, told)


def check_lost(scene: Scene, disk: SimFileSystem, lost: range, told: str) -> BrokerRig:
    """Start where some frames of the log are not what they were."""
    path, offset = scene.place(lost.start)
    is_damage = scene.flushed_without(lost) > lost.start
    if not is_damage:
        lost = range(lost.start, scene.end)
    faults = scene.check(disk)
    rig = scene.start(disk)
    served, expected = scene.served_by(rig), scene.expected(lost)
    hit = [frame for frame in scene.frames if frame.pos in lost]
    if any(frame.is_control for frame in hit):
        # A topic may be gone with its frame, and comes back with the next that tells of it.
        for place, records in served.items():
            assert records.items() <= scene.served[place].items(), told
    else:
        assert served == expected, told
    if not is_damage:
        # What cannot be read is named also where nothing is known to be lost with it.
        assert {each.fault for each in rig.report.damage} <= {UNREADABLE}, told
        return rig
    assert (path, offset) in [(fault.path, fault.offset) for fault in faults], (told, faults)
    # Below the checkpoint nothing is read again unless somebody asks for it.
    if lost.stop > rig.report.applied or expected != scene.served:
        found = [(each.path, each.offset) for each in scene.told_by(rig)]
        assert (path, offset) in found, (told, found)
    return rig


def check_going_on(scene: Scene, rig: BrokerRig, told: str) -> None:
    """Timers fire with the records that they had, or not at all."""
    rig.run_until_idle()
    before = scene.served_by(rig)
    assert {value for place in before.values() for value in place.values()} <= scene.values, told
    assert scene.served_by(rig.restart()) == before, told


def test_a_segment_that_is_cut_at_any_boundary_loses_what_is_behind(scene: Scene) -> None:
    for frame in scene.frames:
        base = frame.pos - frame.pos % scene.segment_size
        segment_end = min(base + scene.segment_size, scene.end)
        cuts = {frame.pos + part.start + by for part in frame.parts().values() for by in (-1, 0, 1)}
        for cut in sorted(cut for cut in cuts if base < cut < frame.end):
            start = max(each.pos for each in scene.frames if each.pos <= cut)
            disk = scene.copy()
            disk.open(scene.place(cut)[0]).truncate(cut - base)
            told = f"cut at {cut}, in {frame}"
            check_cut(scene, disk, range(start, segment_end), told)


def check_cut(scene: Scene, disk: SimFileSystem, lost: range, told: str) -> None:
    faults = scene.check(disk)
    rig = scene.start(disk, accepts_loss=True)
    is_damage = scene.flushed_without(lost) > lost.start
    expected = scene.expected(lost if is_damage else range(lost.start, scene.end))
    served = scene.served_by(rig)
    for place, records in expected.items():
        # The topic may be told of again, if only behind what is lost.
        assert served.get(place, records) == records, told
    path, offset = scene.place(lost.start)
    if is_damage:
        # A file that ends with a frame may be whole: then another one is missing behind it.
        assert lost.start in [fault.position for fault in faults], (told, faults)
        found = [each for each in scene.told_by(rig) if each.path == path]
        assert min(each.offset for each in found) == offset, (told, found)
    else:
        assert not rig.report.damage, told


# What the disk cannot read


def pages_of(scene: Scene) -> Iterator[tuple[Path, int, range]]:
    """Each page of the log: its file, its offset there, and the frames that touch it."""
    for pos in range(0, scene.end, PAGE_SIZE_BYTES):
        hit = [
            frame
            for frame in scene.frames
            for part in frame.parts().values()
            if pos < frame.pos + part.stop and frame.pos + part.start < pos + PAGE_SIZE_BYTES
        ]
        path, offset = scene.place(pos)
        # Nobody reads what a blank frame passes over.
        yield path, offset, range(hit[0].pos, hit[-1].end) if hit else range(0)


def test_a_page_that_cannot_be_read_costs_the_frames_that_touch_it(scene: Scene) -> None:
    """No start touches it through a map: that would end this process."""
    count = 0
    for path, offset, lost in pages_of(scene):
        disk = scene.copy()
        disk.spoil(path, offset, PAGE_SIZE_BYTES)
        told = f"{path} at {offset}"
        unreadable = [
            (fault.path, fault.offset, fault.size, fault.found)
            for fault in scene.check(disk)
            if fault.expected == "bytes that can be read"
        ]
        assert unreadable == ([(path, offset, PAGE_SIZE_BYTES, UNREADABLE)] if lost else []), told
        if lost:
            check_lost(scene, disk, lost, told)
            count += 1
    assert count > 10


def test_a_replay_of_the_whole_log_passes_over_a_page_that_cannot_be_read(scene: Scene) -> None:
    """There is no checkpoint. If the page can be read again by then, nothing is missing.

    A page behind the last frame that is known to have been flushed is named all the same.
    """
    for path, offset, lost in pages_of(scene):
        disk = scene.copy()
        disk.unlink(CHECKPOINT)
        disk.spoil(path, offset, PAGE_SIZE_BYTES)
        healed = disk.crashed("kept", random.Random(0))
        healed.mend(path)
        told = f"{path} at {offset}"
        rig = scene.start(disk)
        found = [(each.path, each.offset, each.fault) for each in rig.report.damage]
        marks = [frame.flushed for frame in scene.frames if frame.pos >= lost.stop]
        if lost and max(marks, default=0) > lost.start:
            assert (*scene.place(lost.start), UNREADABLE) in found, (told, found)
        elif lost:
            assert found == [(path, offset, UNREADABLE)], (told, found)
        else:
            assert UNREADABLE not in {fault for _, _, fault in found}, (told, found)
        for place, records in scene.served_by(rig).items():
            assert records.items() <= scene.served[place].items(), told
        assert scene.is_whole(scene.start(healed)), told


# What can be made anew from the log


def test_flips_and_cuts_of_derived_files_cost_nothing(scene: Scene) -> None:
    newest = scene.newest_files()
    for path, needed_size in scene.derived_files().items():
        for at in spread(range(needed_size), PLACES_PER_FILE):
            disk = scene.copy()
            disk.flip(path, at, 1 << at % 8)
            check_made_anew(scene, disk, path, f"{path} at {at}", is_named=path in newest)
        content = scene.disk.files()[path]
        for size in sorted({0, 1, *spread(range(needed_size), CUTS_PER_FILE)}):
            if not any(content[size:needed_size]):
                break  # units end with zeros, which is what follows the end of their file
            disk = scene.copy()
            disk.open(path).truncate(size)
            check_made_anew(scene, disk, path, f"{path} cut to {size}", is_named=path in newest)
        disk = scene.copy()
        disk.unlink(path)
        check_made_anew(scene, disk, path, f"without {path}", is_named=path in newest)


def check_made_anew(
    scene: Scene, disk: SimFileSystem, path: Path, told: str, *, is_named: bool
) -> None:
    faults = scene.check(disk)
    assert path in [fault.path for fault in faults], (told, faults)
    rig = scene.start(disk)
    assert bool(rig.report.rejected) == is_named, told
    if is_named:
        assert str(path) in rig.report.rejected[0].detail, (told, rig.report.rejected)
    assert scene.is_whole(rig), told


def test_flips_and_cuts_of_the_checkpoint_cost_nothing(scene: Scene) -> None:
    used = [*range(CHECKPOINT_SIZE), *range(COPY_SIZE, COPY_SIZE + CHECKPOINT_SIZE)]
    for at in used:
        disk = scene.copy()
        disk.flip(CHECKPOINT, at, 1 << at % 8)
        assert CHECKPOINT in scene.noted(disk), at
        rig = scene.start(disk)
        assert rig.report.checkpoint > 0, at
        assert scene.is_whole(rig), at
    for size in [*used, 2 * COPY_SIZE - 1]:
        disk = scene.copy()
        disk.open(CHECKPOINT).truncate(size)
        assert scene.is_whole(scene.start(disk)), size


@pytest.mark.parametrize("name", ["abort", "lock"])
def test_what_is_in_the_other_files_does_not_matter(scene: Scene, name: str) -> None:
    disk = scene.copy()
    disk.open(DATA_DIR / name, create=True).pwritev([b"\xff" * 5_000], 0)
    assert scene.check(disk) == []
    assert scene.is_whole(scene.start(disk))
