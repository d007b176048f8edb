"""Each kind of damage is named with file, offset, and what was expected and found."""

import random
import struct
from pathlib import Path
from typing import Final

import pytest

from appliance.store.checkpoint import COPY_SIZE
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.sim_fs import SimFileSystem

ACCEPT, DELIVER = 1, 2
CHECKPOINT: Final = DATA_DIR / "checkpoint"
UNITS: Final = DATA_DIR / "consumequeue" / "orders" / "0" / ("0" * 20)


@pytest.fixture
def disk() -> SimFileSystem:
    return scenario.stopped()


def held_frame(disk: SimFileSystem) -> tuple[int, bytes]:
    """The first frame with a visible and a held batch, which lies in the first segment."""
    return scenario.find_frame(
        disk, lambda _, frame: frame[3] == ACCEPT and any(frame[68:72]) and any(frame[72:76])
    )


def test_what_a_broker_leaves_is_whole(disk: SimFileSystem) -> None:
    checked = scenario.check(disk)
    assert checked.faults == []
    assert checked.notes == []
    assert checked.report.is_clean
    assert checked.report.frames > 30
    assert (checked.report.units, checked.report.states) == (24, 1)
    assert scenario.check(scenario.killed()).faults == []


def spoil(disk: SimFileSystem, pos: int, offset: int, mask: int = 0x10) -> None:
    disk.flip(scenario.LOG / ("0" * 20), pos + offset, mask)


HEADER_FAULTS: Final = {
    0: "magic",
    3: "CRC32C",
    5: "sizes",
    20: "position",
    33: "CRC32C",
    140: "CRC32C",
    150: "CRC32C",
    170: "CRC32C",
}


@pytest.mark.parametrize("offset", HEADER_FAULTS)
def test_a_flipped_bit_in_header_or_tables(disk: SimFileSystem, offset: int) -> None:
    pos, frame = held_frame(disk)
    spoil(disk, pos, offset, 0x40)
    (fault, *_) = scenario.check(disk).faults
    assert (fault.path.name, fault.offset, fault.position) == ("0" * 20, pos, pos)
    assert fault.size == len(frame)
    assert fault.expected.startswith(f"a whole frame at log position {pos}")
    facts = {
        "magic": ("with magic 0x4c4d", "0x0c4d"),
        "sizes": ("a whole frame", "sizes that do not add up: size 4194"),
        "position": ("a whole frame", f"a frame of log position {pos + (0x40 << 24)}"),
        "CRC32C": ("of which header and tables have CRC32C 0x", "0x"),
    }
    expected, found = facts[HEADER_FAULTS[offset]]
    assert expected in fault.expected
    assert fault.found.startswith(found)


@pytest.mark.parametrize(("name", "size_at"), [("visible", 68), ("held", 72)])
def test_a_flipped_bit_in_a_batch(disk: SimFileSystem, name: str, size_at: int) -> None:
    pos, frame = held_frame(disk)
    tables, visible, held = struct.unpack_from(">iii", frame, 64)
    start = 160 + tables + (visible if name == "held" else 0)
    spoil(disk, pos, start + {"visible": visible, "held": held}[name] - 1)
    (fault,) = scenario.check(disk).faults
    assert fault.offset == pos
    stored = int.from_bytes(frame[start + 17 : start + 21], "big")
    assert fault.found.startswith(f"its {name} batch at byte {start} of the frame with CRC32C 0x")
    assert fault.found.endswith(f" instead of {stored:#010x}")


def test_padding_that_is_not_zero(disk: SimFileSystem) -> None:
    pos, frame = scenario.find_frame(
        disk, lambda _, frame: frame[3] == ACCEPT and sum(struct.unpack_from(">iii", frame, 64)) % 8
    )
    spoil(disk, pos, len(frame) - 1)
    (fault,) = scenario.check(disk).faults
    assert (fault.offset, fault.found) == (pos, "padding is not zero")


def test_a_frame_that_lies_elsewhere(disk: SimFileSystem) -> None:
    pos, frame = held_frame(disk)
    disk.open(scenario.LOG / ("0" * 20)).pwritev([frame], pos + len(frame))
    faults = scenario.check(disk).faults
    assert faults[0].offset == pos + len(frame)
    assert faults[0].found == f"a frame of log position {pos}"


def test_pages_of_zeros_in_the_middle(disk: SimFileSystem) -> None:
    second = scenario.segments(disk)[1]
    disk.open(second).pwritev([bytes(8192)], 8192)
    faults = scenario.check(disk).faults
    assert {fault.path for fault in faults} == {second}
    assert [fault.offset for fault in faults] == sorted(fault.offset for fault in faults)
    first = faults[0]
    assert first.size is not None
    assert first.offset <= 8192
    assert faults[-1].offset + (faults[-1].size or 0) >= 16_384


def test_a_segment_that_is_missing(disk: SimFileSystem) -> None:
    second = scenario.segments(disk)[1]
    disk.unlink(second)
    fault = scenario.check(disk).faults[0]
    assert (fault.path, fault.offset, fault.size) == (second, 0, scenario.SEGMENT_SIZE)
    assert fault.expected == "the segment that continues at log position 65536"
    assert fault.found == "no such file"


def test_a_segment_that_was_cut(disk: SimFileSystem) -> None:
    first = scenario.segments(disk)[0]
    content = disk.files()[first]
    disk.open(first).truncate(len(content) - 4096)
    (fault, *_) = scenario.check(disk).faults
    assert fault.path == first
    assert fault.offset < len(content) - 4096


@pytest.mark.parametrize("name", ["0" * 19 + "8", "9" * 20])
def test_a_segment_of_an_impossible_position(disk: SimFileSystem, name: str) -> None:
    """It is reported, and nothing of it is taken for a part of the log."""
    file = disk.open(scenario.LOG / name, create=True)
    file.pwritev([random.Random(1).randbytes(5_000)], 0)
    checked = scenario.check(disk)
    (fault,) = checked.fault_rows
    assert fault[0] == name
    assert fault[3] == f"the name {name!r}"
    assert checked.report.frames > 30


def test_a_file_that_is_no_segment(disk: SimFileSystem) -> None:
    disk.open(scenario.LOG / "notes.txt", create=True)
    assert scenario.check(disk).fault_rows == [
        ("notes.txt", 0, "a segment named by 20 digits", "the name 'notes.txt'")
    ]


def test_a_part_that_the_disk_cannot_read(disk: SimFileSystem) -> None:
    second = scenario.segments(disk)[1]
    disk.spoil(second, 20_000, 10)
    faults = scenario.check(disk).faults
    unreadable = faults[0]
    assert (unreadable.path, unreadable.offset, unreadable.size) == (second, 16_384, 4096)
    assert unreadable.expected == "bytes that can be read"
    assert unreadable.found == "cannot be read: Input/output error"
    assert all(fault.path == second for fault in faults)
    assert len(faults) > 1, "the frames in it are damaged as well"


# Torn or damaged


def test_a_torn_tail_is_no_fault() -> None:
    harness = scenario.play()
    flushed = harness.broker.flushed_pos
    harness.send_produce("orders", 0, [scenario.Record(b"w" * 3000)])
    disk = harness.disk.crashed("kept", random.Random(1))
    path = scenario.segments(disk)[-1]
    offset = flushed - int(path.name)
    disk.flip(path, offset + 200, 1)
    checked = scenario.check(disk)
    assert checked.faults == []
    (note,) = checked.notes
    assert (note.path, note.offset) == (path, offset)
    assert "torn tail of about 3" in note.text
    assert checked.report.end == flushed


def test_what_is_torn_below_the_flushed_mark_of_the_checkpoint_is_damage(
    disk: SimFileSystem,
) -> None:
    """After a clean stop the checkpoint knows where the log ended."""
    path = scenario.segments(disk)[-1]
    checked = scenario.check(disk)
    last, _ = scenario.find_frame(
        disk,
        lambda pos, frame: pos + len(frame) == checked.report.end,
    )
    size = checked.report.end - last
    disk.open(path).pwritev([bytes(size)], last - int(path.name))
    (fault, *_) = scenario.check(disk).faults
    assert (fault.path, fault.offset, fault.size) == (path, last - int(path.name), size)
    assert fault.found == "0x0000"


# What follows from the log


def test_a_wrong_unit(disk: SimFileSystem) -> None:
    unit = disk.files()[UNITS][40:60]
    disk.flip(UNITS, 47, 0x08)
    position, size = struct.unpack_from(">qi", unit)
    assert scenario.check(disk).fault_rows == [
        (
            "0" * 20,
            40,
            f"the unit position {position} size {size} tags 0 of offset 2",
            f"the unit position {position ^ 8} size {size} tags 0",
        )
    ]


def test_wrong_units_in_a_row_are_reported_once(disk: SimFileSystem) -> None:
    disk.open(UNITS).pwritev([b"\xee" * 100], 40)
    (fault,) = scenario.check(disk).faults
    assert (fault.path, fault.offset, fault.size) == (UNITS, 40, 100)


def test_units_that_cannot_be_read(disk: SimFileSystem) -> None:
    disk.spoil(UNITS, 0, 1)
    (fault,) = scenario.check(disk).faults
    assert (fault.path, fault.offset) == (UNITS, 0)
    assert "EIO" in fault.found


@pytest.mark.parametrize("place", [0, 1])
def test_a_copy_of_the_checkpoint_that_is_not_whole(disk: SimFileSystem, place: int) -> None:
    disk.flip(CHECKPOINT, place * COPY_SIZE + 20, 1)
    faults = scenario.check(disk).fault_rows
    assert faults[0] == (
        "checkpoint",
        place * COPY_SIZE,
        "a whole copy of the checkpoint",
        "one whose magic, version, positions or CRC are wrong",
    )


def test_a_torn_copy_after_a_crash_is_a_note() -> None:
    disk = scenario.killed()
    disk.open(CHECKPOINT).pwritev([b"\x01" * 512], 0)
    checked = scenario.check(disk)
    assert checked.faults == []
    assert [(note.path, note.offset) for note in checked.notes] == [(CHECKPOINT, 0)]


def test_a_checkpoint_of_another_log(disk: SimFileSystem) -> None:
    """Nothing that it says counts; what it says of the end would hide most of this log."""
    harness = scenario.BrokerHarness()
    harness.broker.close()
    other = harness.disk.files()[CHECKPOINT]
    disk.open(CHECKPOINT).pwritev([other], 0)
    checked = scenario.check(disk)
    (fault,) = checked.faults
    assert fault.path == CHECKPOINT
    assert fault.offset % COPY_SIZE == 32
    assert fault.expected.startswith("the cluster of the log, ")
    assert fault.found == harness.broker.cluster_id
    assert checked.report.end > 100_000


# Any damage at all


def flip_somewhere(disk: SimFileSystem, rng: random.Random) -> tuple[Path, int]:
    files = [path for path in disk.files() if path.parent == scenario.LOG]
    path = rng.choice(files)
    written = len(disk.files()[path].rstrip(b"\x00"))
    offset = rng.randrange(written)
    disk.flip(path, offset, 1 << rng.randrange(8))
    return path, offset


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_bit_of_the_log_is_missed(disk: SimFileSystem, seed: int) -> None:
    path, offset = flip_somewhere(disk, random.Random(seed))
    faults = scenario.check(disk).faults
    in_blank = frame_kind_at(disk, path, offset) == 11
    if in_blank and not faults:
        return  # what follows the header of a blank frame is not looked at
    spans = [(fault.offset, fault.size or 1) for fault in faults if fault.path == path]
    assert any(start <= offset < start + size for start, size in spans), (path, offset, faults)


def frame_kind_at(disk: SimFileSystem, path: Path, offset: int) -> int:
    """The kind of the frame that an offset of a segment is in; its header may be wrong."""
    pristine = scenario.stopped().files()[path]
    at = 0
    while True:
        size = int.from_bytes(pristine[at + 4 : at + 8], "big")
        if at + size > offset:
            return pristine[at + 3] if offset - at >= 160 else 0
        at += size
