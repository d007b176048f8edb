"""Primitive types and headers: what is cut short, too long or no value at all is refused."""

from uuid import UUID

import pytest

from appliance.errors import RemoteProtocolError
from compat.kafka.protocol.wire import (
    ITEM_COUNT_MAX,
    STRING_SIZE_MAX_BYTES,
    Reader,
    Writer,
    read_key_and_version,
    read_request_header,
    response_header,
)

FIXED = b"\x00\x03\x00\x0c\x00\x00\x00\x2a"
"""Metadata, version 12, correlation id 42."""


def test_request_header_v1_ends_with_the_client_id() -> None:
    header, body_pos = read_request_header(FIXED + b"\x00\x02ab" + b"body", is_flexible=False)
    assert (header.api_key, header.api_version, header.correlation_id) == (3, 12, 42)
    assert header.client_id == "ab"
    assert body_pos == 12


def test_request_header_v2_has_a_client_id_that_is_not_compact_and_tags_that_are_skipped() -> None:
    tags = b"\x02" + b"\x00\x03xyz" + b"\xff\x01\x00"
    frame = FIXED + b"\x00\x02ab" + tags + b"body"
    header, body_pos = read_request_header(memoryview(frame), is_flexible=True)
    assert header.client_id == "ab"
    assert frame[body_pos:] == b"body"


@pytest.mark.parametrize("is_flexible", [False, True])
def test_client_id_may_be_null(is_flexible: bool) -> None:
    header, _ = read_request_header(FIXED + b"\xff\xff\x00", is_flexible=is_flexible)
    assert header.client_id is None


def test_header_that_is_cut_anywhere_is_refused() -> None:
    whole = FIXED + b"\x00\x02ab" + b"\x01\x05\x01z"
    read_request_header(whole, is_flexible=True)
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            read_request_header(whole[:size], is_flexible=True)


def test_key_and_version_are_read_without_knowing_the_version() -> None:
    assert read_key_and_version(b"\x00\x12\x7f\xff\x00\x00\x00\x01garbage") == (18, 32767, 1)


def test_response_header_of_api_versions_never_has_tags() -> None:
    assert response_header(3, 42, is_flexible=True) == b"\x00\x00\x00\x2a\x00"
    assert response_header(3, 42, is_flexible=False) == b"\x00\x00\x00\x2a"
    assert response_header(18, -1, is_flexible=True) == b"\xff\xff\xff\xff"


def test_every_type_survives_a_round_trip() -> None:
    writer = Writer()
    writer.boolean(True)
    writer.int8(-1)
    writer.int16(-(2**15))
    writer.int32(2**31 - 1)
    writer.int64(-(2**63))
    writer.uuid(UUID(int=5))
    writer.uuid(None)
    for value in (0, 127, 128, 300, 2**32 - 1):
        writer.uvarint(value)
    reader = Reader(writer.finish())
    assert reader.boolean() is True
    assert (reader.int8(), reader.int16()) == (-1, -(2**15))
    assert (reader.int32(), reader.int64()) == (2**31 - 1, -(2**63))
    assert (reader.uuid(), reader.uuid()) == (UUID(int=5), None)
    assert [reader.uvarint() for _ in range(5)] == [0, 127, 128, 300, 2**32 - 1]
    with pytest.raises(RemoteProtocolError):
        reader.int8()


@pytest.mark.parametrize("is_compact", [False, True])
def test_strings_bytes_and_counts_survive_a_round_trip_in_both_forms(is_compact: bool) -> None:
    writer = Writer()
    texts = (None, "", "ä" * 100, "x" * STRING_SIZE_MAX_BYTES)
    for text in texts:
        writer.string(text, is_compact=is_compact, is_nullable=True)
    for octets in (None, b"", bytes(200)):
        writer.octets(octets, is_compact=is_compact, is_nullable=True)
    for count in (None, 0):
        writer.array_count(count, is_compact=is_compact, is_nullable=True)
    reader = Reader(writer.finish())
    for text in texts:
        assert reader.string(is_compact=is_compact, is_nullable=True) == text
    for octets in (None, b"", bytes(200)):
        assert reader.octets(is_compact=is_compact, is_nullable=True) == octets
    for count in (None, 0):
        assert reader.array_count(is_compact=is_compact, is_nullable=True) == count


@pytest.mark.parametrize(
    ("is_compact", "data"),
    [
        (False, b"\xff\xff"),  # null where a string is required
        (True, b"\x00"),
        (False, b"\xff\xfe" + bytes(9)),  # size -2
        (False, b"\x00\x03ab"),
        (True, b"\x04ab"),
        (False, b"\x00\x01\xff"),  # not UTF-8
        (True, b"\x04\xed\xa0\x80"),  # half of a surrogate pair
        (True, b"\x81\x80\x02" + bytes(32768)),  # longer than any version can repeat
        (True, b"\xff\xff\xff\xff\xff\x00"),  # more than 32 bits
        (True, b"\xff\xff\xff\xff\x1f"),
        (True, b"\x80"),
    ],
)
def test_bad_strings_are_refused(is_compact: bool, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Reader(data).string(is_compact=is_compact, is_nullable=False)


@pytest.mark.parametrize(
    ("is_compact", "data"),
    [
        (False, b"\x7f\xff\xff\xff" + bytes(10)),
        (False, b"\x00\x00\x00\x0b" + bytes(10)),
        (False, b"\xff\xff\xff\xff" + bytes(10)),
        (False, b"\x80\x00\x00\x00" + bytes(10)),
        (True, b"\xff\xff\xff\xff\x0f" + bytes(10)),
        (True, b"\x0c" + bytes(10)),
        (True, b"\x00" + bytes(10)),
    ],
)
def test_array_counts_beyond_the_bytes_left_are_refused(is_compact: bool, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Reader(data).array_count(is_compact=is_compact, is_nullable=False)


def test_items_of_all_arrays_and_tags_together_are_bounded() -> None:
    data = ITEM_COUNT_MAX.to_bytes(4) + b"\x01\x05\x00" + bytes(ITEM_COUNT_MAX)
    reader = Reader(data)
    assert reader.array_count(is_compact=False, is_nullable=False) == ITEM_COUNT_MAX
    with pytest.raises(RemoteProtocolError, match="items"):
        reader.skip_tags()
    with pytest.raises(RemoteProtocolError, match="items"):
        Reader((ITEM_COUNT_MAX + 1).to_bytes(4) + bytes(ITEM_COUNT_MAX + 1)).array_count(
            is_compact=False, is_nullable=False
        )
