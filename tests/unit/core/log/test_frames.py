"""A frame is trusted only if every byte of it is the one that was written, in its place."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core.log.frames import FAULTS, check, read_header
from tests.support.docs import golden_frames as golden
from tests.support.docs.format_doc import bytes_of
from tests.support.oracles import frames_model as model

START_MS = golden.START_MS
MASKS = (0x01, 0x80, 0xFF)


def golden_frame(name: str) -> tuple[bytes, int]:
    """A golden frame, with all that a blank one covers, and its position."""
    data = bytes_of(golden.golden_path(name).read_text().splitlines())
    return data + bytes(read_header(data)["size"] - len(data)), golden.FRAMES[name].position


def flipped(data: bytes, at: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= mask
    return bytes(changed)


def regions(data: bytes) -> dict[str, range]:
    """The bytes of a frame by what checks them."""
    header = read_header(data)
    tables_end = model.HEADER_SIZE + header["tables_size"]
    visible_end = tables_end + header["visible_size"]
    held_end = visible_end + header["held_size"]
    start = model.BATCH_CRC_START
    return {
        "header and tables": range(tables_end),
        "start of visible": range(tables_end, min(tables_end + start, visible_end)),
        "rest of visible": range(min(tables_end + start, visible_end), visible_end),
        "start of held": range(visible_end, min(visible_end + start, held_end)),
        "rest of held": range(min(visible_end + start, held_end), held_end),
        "padding": range(held_end, len(data) if header["kind"] != model.BLANK else held_end),
    }


every_frame = pytest.mark.parametrize(
    "name", [name for name, frame in golden.FRAMES.items() if not frame.is_reserved]
)
RULE_AT = 0x125
"""Where the rule is in `accept_recurring`."""
NEWER = "written by a newer latermq"


# Whatever changes is noticed


@every_frame
def test_every_flipped_byte_is_noticed_and_is_damage(name: str) -> None:
    """Also in the version: a flipped bit must not make the broker believe in a newer latermq."""
    data, pos = golden_frame(name)
    assert check(data, pos) == "whole"
    expected = {
        "header and tables": None,
        "start of visible": "CRC of header and tables differs",
        "rest of visible": "length, CRC or offsets of a batch differ",
        "start of held": "CRC of header and tables differs",
        "rest of held": "length, CRC or offsets of a batch differ",
        "padding": "padding is not zero",
    }
    for region, places in regions(data).items():
        for at in places:
            for mask in (1 << bit for bit in range(8)) if at < model.HEADER_SIZE else MASKS:
                fault = check(flipped(data, at, mask), pos)
                assert fault not in ("whole", NEWER), (region, at, mask)
                assert expected[region] in (None, fault), (region, at, mask, fault)


@every_frame
def test_every_truncation_is_noticed(name: str) -> None:
    data, pos = golden_frame(name)
    for size in range(len(data)):
        assert check(data[:size], pos) != "whole", size


@every_frame
def test_what_follows_a_frame_is_not_looked_at(name: str) -> None:
    data, pos = golden_frame(name)
    assert check(data + b"\xff" * 8, pos) == "whole"


@every_frame
def test_a_frame_of_another_place_is_noticed(name: str) -> None:
    data, pos = golden_frame(name)
    for elsewhere in (pos - 8, pos + 8, pos + 2**30, -1, 2**63 - 1):
        assert check(data, elsewhere) == "frame of another position"


def test_what_a_blank_frame_covers_is_not_looked_at() -> None:
    data, pos = golden_frame("blank")
    assert (
        check(data[: model.HEADER_SIZE] + b"\xff" * (len(data) - model.HEADER_SIZE), pos) == "whole"
    )


# A right CRC does not make a wrong frame whole


def resealed(data: bytes, changes: dict[int, bytes]) -> bytes:
    """The frame with other bytes and the CRC that belongs to them."""
    changed = bytearray(data)
    for at, value in changes.items():
        changed[at : at + len(value)] = value
    sizes = struct.unpack_from(">iii", changed, 64)
    start = model.HEADER_SIZE
    covered = bytes(changed[:156])
    for size, limit in zip(sizes, (2**31, 21, 21), strict=True):
        covered += bytes(changed[start : start + max(0, min(size, limit))])
        start += max(size, 0)
    changed[156:160] = struct.pack(">I", model.crc32c(covered))
    return bytes(changed)


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


@pytest.mark.parametrize(
    ("name", "changes", "fault"),
    [
        ("accept_split", {0: b"LN"}, "no frame magic"),
        ("accept_split", {2: b"\x00"}, "no frame magic"),
        ("accept_split", {2: b"\x02"}, NEWER),
        ("blank", {2: b"\xff"}, NEWER),
        ("accept_split", {3: b"\x00"}, "unknown kind"),
        ("accept_split", {4: i32(152)}, "sizes do not add up"),
        ("accept_split", {4: i32(-8)}, "sizes do not add up"),
        ("accept_split", {4: i32(428)}, "sizes do not add up"),
        ("accept_split", {4: i32(432)}, "sizes do not add up"),
        ("accept_split", {4: i32(2**31 - 8)}, "sizes do not add up"),
        ("accept_split", {52: i32(-1)}, "sizes do not add up"),
        ("accept_split", {56: i32(-1)}, "sizes do not add up"),
        ("accept_split", {60: i32(-1)}, "sizes do not add up"),
        ("accept_split", {64: i32(-8)}, "sizes do not add up"),
        ("accept_split", {64: i32(60), 68: i32(76)}, "sizes do not add up"),
        ("accept_split", {64: i32(2**31 - 8), 68: i32(2**31 - 1)}, "sizes do not add up"),
        ("accept_split", {68: i32(60), 72: i32(137)}, "sizes do not add up"),
        ("accept_split", {68: i32(137), 72: i32(60)}, "sizes do not add up"),
        ("accept_split", {68: i32(-1)}, "sizes do not add up"),
        ("accept_split", {68: i32(64), 72: i32(133)}, "length, CRC or offsets of a batch differ"),
        ("accept_split", {44: i32(999)}, "length, CRC or offsets of a batch differ"),
        ("accept_verbatim", {52: i32(2**31 - 1)}, "length, CRC or offsets of a batch differ"),
        ("deliver", {52: i32(2)}, "length, CRC or offsets of a batch differ"),
        ("topic", {64: i32(16), 72: i32(104)}, "sizes do not add up"),
        ("blank", {64: i32(8)}, "sizes do not add up"),
        ("accept_split", {56: i32(2)}, "a table entry is out of range"),
        ("accept_split", {56: i32(2**31 - 1)}, "a table entry is out of range"),
        ("accept_split", {60: i32(1)}, "a table entry is out of range"),
        ("accept_split", {160 + 16: i64(-1)}, "a table entry is out of range"),
        ("accept_split", {160 + 16: i64(2**48)}, "a table entry is out of range"),
        ("accept_split", {160 + 32: i32(356)}, "a table entry is out of range"),
        ("accept_split", {160 + 32: i32(358)}, "a table entry is out of range"),
        ("accept_split", {160 + 32: i32(-1)}, "a table entry is out of range"),
        ("accept_split", {160 + 36: i32(65)}, "a table entry is out of range"),
        ("accept_split", {160 + 36: i32(-1)}, "a table entry is out of range"),
        ("accept_split", {160 + 14: b"\x01"}, "a table entry is out of range"),
        ("accept_named", {160 + 40: i32(159)}, "a table entry is out of range"),
        ("accept_named", {160 + 40: i32(284)}, "a table entry is out of range"),
        ("accept_named", {160 + 40: i32(-4)}, "a table entry is out of range"),
        ("accept_named", {224 + 5: b"\xff"}, "a table entry is out of range"),
        ("accept_named", {224 + 16: i32(0)}, "a table entry is out of range"),
        ("deliver", {56: i32(2)}, "a table entry is out of range"),
        ("deliver", {56: i32(2**31 - 1)}, "a table entry is out of range"),
        ("deliver", {60: i32(1)}, "a table entry is out of range"),
        ("deliver", {160 + 12: b"\x09"}, "a table entry is out of range"),
        ("cancel", {160 + 12: b"\x20"}, "a table entry is out of range"),
        ("deliver", {160 + 13: b"\x01"}, "a table entry is out of range"),
        ("accept_recurring", {160 + 14: b"\x00"}, "a table entry is out of range"),
        ("accept_recurring", {160 + 56: i32(159)}, "a table entry is out of range"),
        ("accept_recurring", {160 + 60: b"\x00\x0b"}, "a table entry is out of range"),
        ("accept_recurring", {160 + 60: b"\x00\x1b"}, "a table entry is out of range"),
        ("accept_recurring", {RULE_AT + 1: b"\x0a"}, "a table entry is out of range"),
        ("accept_recurring", {RULE_AT + 2: b"\xff"}, "a table entry is out of range"),
        ("accept_recurring", {160 + 44: i32(7)}, "whole"),
        ("deliver_recurring", {60: i32(0)}, "a table entry is out of range"),
        ("deliver_recurring", {60: i32(2)}, "a table entry is out of range"),
        ("deliver_recurring", {160 + 13: b"\x00"}, "a table entry is out of range"),
        ("deliver_recurring", {192 + 13: b"\x01"}, "a table entry is out of range"),
        ("deliver_recurring", {224 + 16: i64(-1)}, "a table entry is out of range"),
        ("deliver_recurring", {224 + 32: i32(400)}, "a table entry is out of range"),
        ("cancel_moved", {72: i32(0)}, "sizes do not add up"),
        ("topic", {56: i32(1)}, "a table entry is out of range"),
        ("accept_split", {136: i32(-1)}, "sizes do not add up"),
        ("cancel", {136: i32(0)}, "whole"),
        ("carried_records", {160: i64(0)}, "whole"),
        ("carried_records", {160: i64(-1)}, "a table entry is out of range"),
        ("carried_records", {160: i64(24_576)}, "a table entry is out of range"),
        ("carried_records", {56: i32(1)}, "a table entry is out of range"),
        ("carried_records", {40: i64(-1)}, "sizes do not add up"),
        ("carried_records", {136: i32(-1)}, "sizes do not add up"),
        ("carried_records", {40: i64(41)}, "length, CRC or offsets of a batch differ"),
        ("carried_records", {52: i32(3)}, "length, CRC or offsets of a batch differ"),
        ("carry_timers", {56: i32(0)}, "a table entry is out of range"),
        ("carry_timers", {56: i32(3)}, "a table entry is out of range"),
        ("carry_timers", {60: i32(1)}, "a table entry is out of range"),
        ("carry_timers", {160 + 32: i32(8)}, "a table entry is out of range"),
        ("carry_timers", {68: i32(64), 72: i32(8)}, "sizes do not add up"),
        ("carried_records", {44: i32(41)}, "length, CRC or offsets of a batch differ"),
        ("accept_split", {136: i32(1)}, "length, CRC or offsets of a batch differ"),
        (
            "accept_split",
            {24: i64(golden.FIRST_FRAME_POS + 1)},
            "flushed mark above its own position",
        ),
        ("accept_split", {24: i64(golden.FIRST_FRAME_POS)}, "whole"),
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(
    name: str, changes: dict[int, bytes], fault: str
) -> None:
    data, pos = golden_frame(name)
    assert resealed(data, {}) == data
    assert check(resealed(data, changes), pos) == fault


@pytest.mark.parametrize("part", ["visible", "held"])
def test_a_batch_whose_length_is_another_than_its_place_is_refused(part: str) -> None:
    data, pos = golden_frame("accept_split")
    at = regions(data)[f"start of {part}"][0] + 8
    length = int.from_bytes(data[at : at + 4], "big")
    for wrong in (length - 1, length + 1, 0, -1, 2**31 - 1):
        fault = check(resealed(data, {at: i32(wrong)}), pos)
        assert fault == "length, CRC or offsets of a batch differ"


def test_a_newer_frame_is_believed_only_where_it_can_be_one() -> None:
    """All that is looked at are the fields that no version moves."""
    data, pos = golden_frame("accept_split")
    newer = resealed(data, {2: b"\x07", 3: b"\x63", 52: i32(-1), 134: b"\xff\xff"})
    assert check(newer, pos) == NEWER
    assert check(newer, pos + 8) == "frame of another position"
    assert check(newer[:-1], pos) == "sizes do not add up"
    assert check(flipped(newer, 30, 1), pos) == "CRC of header and tables differs"
    for changes in ({64: i32(-8)}, {68: i32(-1)}, {72: i32(20)}, {68: i32(2**31 - 1)}):
        assert check(resealed(newer, changes), pos) == "sizes do not add up"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("accept_split", {3: b"\x63"}),
        ("accept_split", {3: b"\xff"}),
        ("topic", {3: b"\x0e"}),
        *(("topic", {135: bytes([1 << bit])}) for bit in (0, 1, 3, 4, 5, 6, 7)),
        ("accept_split", {160 + 13: b"\x01"}),
        ("accept_split", {160 + 44: i32(1)}),
        ("accept_split", {160 + 48: i32(2)}),
        ("accept_split", {160 + 52: i32(0)}),
        ("accept_named", {224 + 4: b"\x03"}),
        ("deliver", {160 + 13: b"\x04"}),
        ("cancel", {160 + 13: b"\x04"}),
        ("accept_recurring", {160 + 13: b"\x05"}),
        ("accept_recurring", {RULE_AT: b"\x04"}),
        ("accept_recurring", {RULE_AT: b"\x00"}),
        ("accept_recurring", {160 + 48: i32(2)}),
        ("deliver", {160 + 20: i32(2)}),
        *((name, {}) for name, frame in golden.FRAMES.items() if frame.is_reserved),
    ],
)
def test_what_this_version_does_not_know_is_newer_if_the_crc_is_right(
    name: str, changes: dict[int, bytes]
) -> None:
    data, pos = golden_frame(name)
    frame = resealed(data, changes)
    assert check(frame, pos) == NEWER
    assert check(flipped(frame, 33, 1), pos) == "CRC of header and tables differs"


@pytest.mark.parametrize("kind", [*range(14, 18), 9, 21, 200])
def test_an_optional_frame_of_an_unknown_kind_is_whole(kind: int) -> None:
    frame = model.Frame(kind=kind, flags=model.OPTIONAL, tables=bytes(8), timer_count=9)
    data = frame.encode()
    assert check(data, 0) == "whole"
    assert check(resealed(data, {134: b"\x00"}), 0) == NEWER
    assert check(resealed(data, {135: b"\x08"}), 0) == NEWER, "a flag that must be known"
    assert check(flipped(data, 165, 1), 0) == "CRC of header and tables differs"


@pytest.mark.parametrize("bit", range(8, 15))
def test_a_flag_of_the_high_byte_may_be_unknown(bit: int) -> None:
    data, pos = golden_frame("accept_split")
    assert check(resealed(data, {134: bytes([1 << bit - 8])}), pos) == "whole"


def test_every_fault_has_a_text_of_its_own() -> None:
    assert len(set(FAULTS.values())) == len(FAULTS)


def test_nothing_is_no_frame() -> None:
    assert check(b"", 0) == "no frame magic"
    assert check(bytes(4096), 0) == "no frame magic"


@settings(max_examples=300)
@given(data=st.binary(max_size=400))
def test_no_bytes_are_whole_by_chance(data: bytes) -> None:
    assert check(data, 0) != "whole"
    assert check(b"LM\x01\x01" + data, 0) != "whole"


# Headers are read as they were written

I32 = st.integers(0, 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=60)
@given(
    fields=st.fixed_dictionaries(
        {
            "position": st.integers(0, 2**62),
            "epoch": I32,
            "topic_id": I32,
            "flushed": st.integers(-(2**63), 0),
            "store_time": I64,
            "base_offset": I64,
            "partition": st.integers(-1, 2**31 - 1),
            "record_count": I32,
            "min_timestamp": I64,
            "max_timestamp": I64,
            "running_max": I64,
            "min_due_time": I64,
            "max_due_time": I64,
            "producer_id": I64,
            "first_sequence": I32,
            "last_sequence": I32,
            "producer_epoch": st.integers(-1, 2**15 - 1),
            "flags": st.sampled_from([0, 4, 0x100, 0xFF04]),
            "last_delta": st.integers(-1, 2**31 - 1),
            "tags": I64,
        }
    )
)
def test_header_fields_are_read_as_the_model_wrote_them(fields: dict[str, Any]) -> None:
    frame = model.Frame(kind=model.PRODUCER, tables=bytes(8), **fields)
    data = frame.encode()
    assert check(data, frame.position) == "whole"
    header = read_header(data)
    names = {
        "store_time": "store_time_ms",
        "min_due_time": "min_due_ms",
        "max_due_time": "max_due_ms",
    }
    for name, value in fields.items():
        assert header[names.get(name, name)] == value, name
    assert header["size"] == len(data)
    assert (header["tables_size"], header["visible_size"], header["held_size"]) == (8, 0, 0)


def test_fewer_bytes_than_a_header_are_refused() -> None:
    with pytest.raises(ValueError, match="160 bytes, got 159"):
        read_header(bytes(159))
