"""Tags: what a frame and the units of its records say of the header `tags`."""

import functools
import struct
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from _core.bytes.layout import FRAME_FLAG_MIXED_TAGS
from _core.log.frames import read_header
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import DATA_DIR
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import Raw, make_batch

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


def last_frame(harness: BrokerHarness, kind: int = 1) -> dict[str, int]:
    """The header of the last frame of a kind."""
    (log,) = [harness.disk.files()[path] for path in harness.segment_paths()]
    at, found = 0, None
    while at < harness.broker.committed_pos:
        header = read_header(log[at:])
        found = header if header["kind"] == kind else found
        at += header["size"]
    assert found is not None
    return found


def reported(harness: BrokerHarness, kind: int = 1) -> tuple[int, bool]:
    """The tags of the last frame, and whether they differ."""
    header = last_frame(harness, kind)
    return header["tags"], bool(header["flags"] & FRAME_FLAG_MIXED_TAGS)


def produced(harness: BrokerHarness, records: list[Raw], *, codec: int = 0) -> tuple[int, bool]:
    WireClient(harness).produce("t", 0, make_batch(records, codec=codec))
    return reported(harness)


def test_the_hash_is_that_of_rocketmq() -> None:
    """Known values of String.hashCode."""
    assert [java_hash(tag) for tag in ("TagA", "hello", "polygenelubricants")] == [
        2598919,
        99162322,
        -(1 << 31),
    ]


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([["TagA"], ["TagA"]], (2598919, False)),
        ([["a", "TagA"]], (2598919, False)),  # the last of several headers counts
        ([["TagA"], ["ü"]], (mask_of("TagA", "ü"), True)),
        ([["TagA"], []], (mask_of("TagA"), True)),
        *(
            ([[no_text], []], (0, False))
            for no_text in (None, b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"a\xf0\x9f")
        ),
    ],
)
def test_a_frame_has_the_code_of_one_tag_or_a_mask_of_several(
    tags: list[list[str | bytes | None]], expected: tuple[int, bool], codec: int
) -> None:
    records = [
        Raw(headers=[(b"tag", b"other"), *(header for tag in each for header in tagged(tag))])
        for each in tags
    ]
    assert produced(with_topic(), records, codec=codec) == expected


@functools.cache
def shared_harness() -> BrokerHarness:
    return with_topic()


@settings(max_examples=60)
@given(tag=st.text(min_size=1, max_size=40))
@example(tag="\U0001f600 and \U0010ffff")
@example(tag="é߿ࠀ￿")
@example(tag="polygenelubricants")
def test_the_code_of_any_text_is_that_of_java(tag: str) -> None:
    assert produced(shared_harness(), [Raw(headers=tagged(tag))]) == (java_hash(tag), False)


def test_only_the_visible_records_of_a_split_batch_count() -> None:
    harness = with_topic()
    late = [(b"x-delay", b"60000")]
    records = [Raw(headers=tagged("TagA")), Raw(headers=[*tagged("later"), *late])]
    assert produced(harness, records) == (2598919, False)
    assert produced(harness, [Raw(headers=[*tagged("later"), *late])]) == (0, False)
    records = [Raw(headers=[*tagged("now"), (b"x-delay", b"0")]), records[1]]
    assert produced(harness, records) == (java_hash("now"), False)


def test_delivered_records_keep_their_tags() -> None:
    harness = with_topic()
    late = [(b"x-delay", b"60000")]
    produced(harness, [Raw(headers=[*tagged("later"), *late])])
    assert harness.tick(60_000) == 1
    assert reported(harness, 2) == (java_hash("later"), False)
    produced(harness, [Raw(headers=[*tagged("later"), *late]), Raw(headers=late)])
    assert harness.tick(60_000) == 2
    assert reported(harness, 2) == (mask_of("later"), True)


@pytest.mark.parametrize("has_files", [True, False])
def test_units_have_the_tags_of_their_frame_after_any_start(*, has_files: bool) -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"1", headers=(("tags", b"TagA"),))] * 2)
    harness.produce("t", 0, [Record(b"2")])
    harness.produce("t", 0, [Record(b"3", headers=(("tags", b"b"),)), Record(b"4")])
    codes = [2598919, 2598919, 0, mask_of("b"), mask_of("b")]
    assert units(harness) == codes
    harness.broker.close()
    if not has_files:
        for path in list(harness.disk.files()):
            if path.parent != DATA_DIR / "commitlog":
                harness.disk.unlink(path)
        harness = BrokerHarness(harness.disk, harness.clock)
        assert units(harness) == codes
        harness.broker.close()
    data = harness.disk.files()[DATA_DIR / "consumequeue" / "t" / "0" / ("0" * 20)]
    assert [code for _, _, code in struct.iter_unpack(">qiq", data)] == codes


def test_rebuilt_units_have_their_tags_too() -> None:
    harness = with_topic()
    for number in range(300):
        harness.produce("t", 0, [Record(b"%d" % number, headers=(("tags", b"TagA"),))])
    harness = harness.restart()
    path = DATA_DIR / "consumequeue" / "t" / "0" / ("0" * 20)
    whole = harness.disk.files()[path]
    harness.disk.open(path).pwritev([bytes(2000)], 0)
    assert len(harness.fetch("t", 0)) == 300
    assert harness.disk.files()[path] == whole


def units(harness: BrokerHarness) -> list[int]:
    partition = harness.partition()
    found = [partition.unit(offset) for offset in range(partition.next_offset)]
    return [unit[2] for unit in found if unit is not None]
