"""Tags: what a frame and the units of its records say of the header `tags`."""

import struct
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from _core.frames import read_header
from _core.layout import FRAME_FLAG_MIXED_TAGS
from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR
from tests.support.kafka_records import Record
from tests.support.raw_batch import Raw, make_batch
from tests.support.wire_client import WireClient

GZIP: Final = 1
MASK: Final = 1 << 62


def java_hash(text: str) -> int:
    """String.hashCode, over UTF-16 units."""
    data = text.encode("utf-16-be")
    code = 0
    for (unit,) in struct.iter_unpack(">H", data):
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def mask_of(*tags: str) -> int:
    return MASK | sum({1 << ((java_hash(tag) & 0xFFFFFFFF) % 62) for tag in tags})


def tagged(tag: str | bytes | None) -> list[tuple[bytes, bytes | None]]:
    return [(b"tags", tag.encode() if isinstance(tag, str) else tag)]


def rig_with_topic() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t")
    return rig


def last_frame(rig: BrokerRig, kind: int = 1) -> dict[str, int]:
    """The header of the last frame of a kind."""
    (log,) = [rig.disk.files()[path] for path in rig.segment_paths()]
    at, found = 0, None
    while at < rig.broker.committed_pos:
        header = read_header(log[at:])
        found = header if header["kind"] == kind else found
        at += header["size"]
    assert found is not None
    return found


def told(rig: BrokerRig, kind: int = 1) -> tuple[int, bool]:
    """The tags of the last frame, and whether they differ."""
    header = last_frame(rig, kind)
    return header["tags"], bool(header["flags"] & FRAME_FLAG_MIXED_TAGS)


def produced(rig: BrokerRig, records: list[Raw], *, codec: int = 0) -> tuple[int, bool]:
    WireClient(rig).produce("t", 0, make_batch(records, codec=codec))
    return told(rig)


def test_the_hash_is_that_of_rocketmq() -> None:
    """Known values of String.hashCode."""
    assert [java_hash(tag) for tag in ("TagA", "hello", "polygenelubricants")] == [
        2598919,
        99162322,
        -(1 << 31),
    ]


@pytest.mark.parametrize("codec", [0, GZIP])
def test_one_tag_of_all_records_is_told_by_its_code(codec: int) -> None:
    rig = rig_with_topic()
    records = [Raw(headers=tagged("TagA")), Raw(headers=[*tagged("TagA"), (b"h", b"v")])]
    assert produced(rig, records, codec=codec) == (2598919, False)


@pytest.mark.parametrize("codec", [0, GZIP])
def test_tags_that_differ_are_told_by_a_mask(codec: int) -> None:
    rig = rig_with_topic()
    records = [Raw(headers=tagged("TagA")), Raw(headers=tagged("ü"))]
    assert produced(rig, records, codec=codec) == (mask_of("TagA", "ü"), True)


def test_a_record_without_a_tag_among_others_makes_a_mask() -> None:
    rig = rig_with_topic()
    records = [Raw(headers=tagged("TagA")), Raw(), Raw(headers=[(b"tag", b"TagA")])]
    assert produced(rig, records) == (mask_of("TagA"), True)


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"a\xf0\x9f"])
def test_a_header_without_a_text_is_no_tag(value: bytes | None) -> None:
    rig = rig_with_topic()
    assert produced(rig, [Raw(headers=tagged(value))]) == (0, False)
    assert produced(rig, [Raw(headers=[(b"h", b"v")]), Raw()]) == (0, False)


def test_the_last_of_several_headers_counts() -> None:
    rig = rig_with_topic()
    assert produced(rig, [Raw(headers=[*tagged("a"), *tagged("TagA")])]) == (2598919, False)


@settings(max_examples=60)
@given(tag=st.text(min_size=1, max_size=40))
@example(tag="\U0001f600 and \U0010ffff")
@example(tag="é߿ࠀ￿")
@example(tag="polygenelubricants")
def test_the_code_of_any_text_is_that_of_java(tag: str) -> None:
    rig = rig_with_topic()
    assert produced(rig, [Raw(headers=tagged(tag))]) == (java_hash(tag), False)


def test_only_the_visible_records_of_a_split_batch_count() -> None:
    rig = rig_with_topic()
    late = [(b"x-delay", b"60000")]
    records = [Raw(headers=tagged("TagA")), Raw(headers=[*tagged("later"), *late])]
    assert produced(rig, records) == (2598919, False)
    assert produced(rig, [Raw(headers=[*tagged("later"), *late])]) == (0, False)
    records = [Raw(headers=[*tagged("now"), (b"x-delay", b"0")]), records[1]]
    assert produced(rig, records) == (java_hash("now"), False)


def test_delivered_records_keep_their_tags() -> None:
    rig = rig_with_topic()
    late = [(b"x-delay", b"60000")]
    produced(rig, [Raw(headers=[*tagged("later"), *late])])
    assert rig.tick(60_000) == 1
    assert told(rig, 2) == (java_hash("later"), False)
    produced(rig, [Raw(headers=[*tagged("later"), *late]), Raw(headers=late)])
    assert rig.tick(60_000) == 2
    assert told(rig, 2) == (mask_of("later"), True)


@pytest.mark.parametrize("has_files", [True, False])
def test_units_have_the_tags_of_their_frame_after_any_start(*, has_files: bool) -> None:
    rig = rig_with_topic()
    rig.produce("t", 0, [Record(b"1", headers=(("tags", b"TagA"),))] * 2)
    rig.produce("t", 0, [Record(b"2")])
    rig.produce("t", 0, [Record(b"3", headers=(("tags", b"b"),)), Record(b"4")])
    codes = [2598919, 2598919, 0, mask_of("b"), mask_of("b")]
    assert units(rig) == codes
    rig.broker.close()
    if not has_files:
        for path in list(rig.disk.files()):
            if path.parent != DATA_DIR / "commitlog":
                rig.disk.unlink(path)
        rig = BrokerRig(rig.disk, rig.clock)
        assert units(rig) == codes
        rig.broker.close()
    data = rig.disk.files()[DATA_DIR / "consumequeue" / "t" / "0" / ("0" * 20)]
    assert [code for _, _, code in struct.iter_unpack(">qiq", data)] == codes


def test_units_that_are_made_anew_have_their_tags_too() -> None:
    rig = rig_with_topic()
    for number in range(300):
        rig.produce("t", 0, [Record(b"%d" % number, headers=(("tags", b"TagA"),))])
    rig = rig.restart()
    path = DATA_DIR / "consumequeue" / "t" / "0" / ("0" * 20)
    whole = rig.disk.files()[path]
    rig.disk.open(path).pwritev([bytes(2000)], 0)
    assert len(rig.fetch("t", 0)) == 300
    assert rig.disk.files()[path] == whole


def units(rig: BrokerRig) -> list[int]:
    topic = rig.broker.find_topic("t")
    assert topic is not None
    partition = topic.partitions[0]
    found = [partition.unit(offset) for offset in range(partition.next_offset)]
    return [unit[2] for unit in found if unit is not None]
