"""Record batches: what kafka-python and the model build is read as they mean it, and no less."""

import random
import struct
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core.bytes.batch import batch_header, find_timestamp, highest_timestamp
from _core.bytes.layout import BATCH_AT_CRC, BATCH_HEADER_SIZE
from tests.support.oracles import frames_model as model

with warnings.catch_warnings():
    # It reads its definitions with a function that Python wants to retire.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

NOW = 1_767_225_600_000

HEADERS = st.lists(
    st.tuples(st.text("abcé", max_size=5), st.none() | st.binary(max_size=5)), max_size=3
)
OCTETS = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(st.integers(-(10**9), 10**12), OCTETS, OCTETS, HEADERS), min_size=1, max_size=20
)
Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def built(records: list[Record], *, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """A batch as kafka-python builds it, with timestamps after NOW."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=2**31 - 1,
    )
    for offset, (delta, key, value, headers) in enumerate(records):
        assert builder.append(offset, NOW + delta, key, value, headers) is not None
    return bytes(builder.build())


@settings(max_examples=60)
@given(
    records=RECORDS,
    producer=st.tuples(
        st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
    ),
)
def test_batches_of_kafka_python_are_read_as_it_reads_them(
    records: list[Record], producer: tuple[int, int, int]
) -> None:
    data = built(records, producer=producer)
    theirs = DefaultRecordBatch(data)
    header = batch_header(data)
    first = NOW + records[0][0]
    assert header == {
        "base_offset": 0,
        "length": len(data) - 12,
        "leader_epoch": 0,
        "magic": 2,
        "crc": theirs.crc,
        "attributes": 0,
        "last_delta": len(records) - 1,
        "base_timestamp": first,
        "max_timestamp": max(NOW + record[0] for record in records),
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "base_sequence": producer[2],
        "count": len(records),
    }
    section = data[BATCH_HEADER_SIZE:]
    stamps = [record.timestamp for record in theirs]
    for start in range(len(records) + 1):
        place = {"base_offset": 50, "base_timestamp": first, "start": 50 + start}
        for least in {-(2**63), *stamps, max(stamps) + 1}:
            found = find_timestamp(section, len(records), least=least, **place)
            reach = (n for n, stamp in enumerate(stamps) if n >= start and stamp >= least)
            number = next(reach, None)
            assert found == (None if number is None else (50 + number, stamps[number]))
        highest = highest_timestamp(section, len(records), **place)
        assert highest == max(stamps[start:], default=-1)


@settings(max_examples=30)
@given(records=RECORDS)
def test_model_builds_what_kafka_python_builds(records: list[Record]) -> None:
    """So that the frames the model makes hold batches that real clients understand."""
    batch = model.Batch(
        records=tuple(
            model.Record(
                timestamp=NOW + delta,
                key=key,
                value=value,
                headers=tuple((name.encode(), content) for name, content in headers),
            )
            for delta, key, value, headers in records
        )
    )
    assert batch.encode() == built(records)


SAMPLE: list[Record] = [
    (0, b"key", b"value", []),
    (70_000, None, b"v" * 100, [("h", b"x"), ("", None)]),
    (-5, b"", None, []),
    (2**40, b"k", b"", [("trace", b"0123456789")]),
]


def highest(data: bytes, count: int) -> int:
    """Look at all records."""
    return highest_timestamp(data, count, base_offset=0, base_timestamp=0, start=0)


def test_every_truncation_of_the_records_is_refused() -> None:
    records = built(SAMPLE)[BATCH_HEADER_SIZE:]
    assert highest(records, len(SAMPLE)) == 2**40
    for size in range(len(records)):
        with pytest.raises(ValueError, match=r"is malformed|no bytes"):
            highest(records[:size], len(SAMPLE))
        with pytest.raises(ValueError, match=r"is malformed|no bytes"):
            find_timestamp(
                records[:size], len(SAMPLE), base_offset=0, base_timestamp=0, start=0, least=2**50
            )


def test_fewer_bytes_than_a_header_are_refused() -> None:
    data = built(SAMPLE)
    for size in range(BATCH_HEADER_SIZE):
        with pytest.raises(ValueError, match="a batch header has 61 bytes"):
            batch_header(data[:size])
    assert batch_header(data[:BATCH_HEADER_SIZE]) == batch_header(data)


def test_more_records_than_there_are_is_refused_and_fewer_are_not_looked_at() -> None:
    records = built(SAMPLE)[BATCH_HEADER_SIZE:]
    with pytest.raises(ValueError, match="record 4 of 5 is malformed"):
        highest(records, 5)
    assert highest(records, 1) == 0
    assert highest(b"", 0) == -1


def record(body: bytes) -> bytes:
    return model.varint(len(body)) + body


def body(
    *, headers: bytes = model.varint(0), key: bytes = b"\x01", value: bytes = b"\x01"
) -> bytes:
    """A record's bytes: attributes, deltas 7 and 0, key, value and headers."""
    return b"\x00" + model.varint(7) + model.varint(0) + key + value + headers


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("length below zero", model.varint(-1) + body()),
        ("length of nothing", model.varint(0)),
        ("length beyond the bytes", model.varint(100) + body()),
        ("length of 63 bits", model.varint(2**62) + body()),
        ("length that never ends", b"\x80" * 20),
        ("key size below -1", record(body(key=model.varint(-2)))),
        ("key beyond the record", record(body(key=model.varint(50)))),
        ("value size below -1", record(body(value=model.varint(-2)))),
        ("value of 63 bits", record(body(value=model.varint(2**62)))),
        ("header count below zero", record(body(headers=model.varint(-1)))),
        ("more headers than bytes", record(body(headers=model.varint(2) + b"\x00\x01\x00"))),
        ("a count of headers whose double is no i64", record(body(headers=model.varint(2**62)))),
        ("the highest count of headers", record(body(headers=model.varint(2**63 - 1)))),
        ("bytes behind no headers", record(body() + b"\x00")),
        ("a varint of eleven bytes", record(b"\x00" + b"\x80" * 10 + b"\x00" + body()[2:])),
    ],
)
def test_a_record_that_is_not_sound_is_refused(what: str, data: bytes) -> None:
    assert highest(record(body()), 1) == 7
    with pytest.raises(ValueError, match="record 0 of 1 is malformed"):
        highest(data, 1)


def test_random_bytes_are_refused_or_read_within_their_bounds() -> None:
    """Under LATERMQ_DEBUG=1 a read beyond the buffer would stop the process."""
    rng = random.Random(7)
    whole = built(SAMPLE)[BATCH_HEADER_SIZE:]
    outcomes: dict[str, int] = {"read": 0, "refused": 0}
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert highest(bytes(data), len(SAMPLE)) >= -1
            outcomes["read"] += 1
        except ValueError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def test_crc_of_a_header_is_the_one_of_the_batch() -> None:
    data = built(SAMPLE)
    (crc,) = struct.unpack_from(">I", data, BATCH_AT_CRC)
    fields: dict[str, Any] = batch_header(data)
    assert fields["crc"] == crc == model.crc32c(data[21:])


def varint(value: int, padding: int = 0) -> bytes:
    """A zigzag varint, with as many bytes more than it needs."""
    raw = value << 1 ^ value >> 63
    found = bytearray()
    while raw >= 0x80:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    found.append(raw)
    for _ in range(padding):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


def taken(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return its value and where it ends."""
    raw = shift = 0
    while shift < 70:
        raw |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            raw &= 2**64 - 1
            return raw >> 1 ^ -(raw & 1), at
        shift += 7
    raise IndexError


def deltas(section: bytes) -> tuple[int, int]:
    """What the first record of a section says: offset and timestamp, or an IndexError."""
    length, at = taken(section, 0)
    if not 0 <= length <= len(section) - at:
        raise IndexError
    record = section[at : at + length]
    _ = record[0]
    timestamp, at = taken(record, 1)
    offset, at = taken(record, at)
    for _ in range(2):
        size, at = taken(record, at)
        if size < -1 or max(size, 0) > len(record) - at:
            raise IndexError
        at += max(size, 0)
    count, at = taken(record, at)
    if not 0 <= count <= (len(record) - at) // 2 or (count == 0 and at != len(record)):
        raise IndexError
    return offset, timestamp


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 63, 64, 8191, 8192, 2**20 - 1, 2**20, 2**27 - 1, 2**27, 2**40]),
    st.integers(0, 2**40),
)
PADDINGS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=6, max_size=6)


@settings(max_examples=300)
@given(data=st.data(), timestamp=NUMBERS, offset=NUMBERS, paddings=PADDINGS)
def test_a_record_is_the_same_whatever_follows_it_and_however_its_numbers_are_written(
    data: st.DataObject, timestamp: int, offset: int, paddings: list[int]
) -> None:
    key = data.draw(st.none() | st.binary(max_size=70))
    value = data.draw(st.none() | st.binary(max_size=70))
    headers = data.draw(st.integers(0, 3))
    body = b"\0" + varint(timestamp, paddings[0]) + varint(offset, paddings[1])
    for octets, padding in ((key, paddings[2]), (value, paddings[3])):
        body += varint(-1 if octets is None else len(octets), padding) + (octets or b"")
    body += varint(headers, paddings[4]) + b"\x02a\x01" * headers
    record = bytearray(varint(len(body), paddings[5]) + body)
    damage = data.draw(
        st.lists(st.tuples(st.integers(0, len(record) - 1), st.integers(0, 255)), max_size=2)
    )
    for at, octet in damage:
        record[at] = octet
    section = bytes(record) + data.draw(st.binary(max_size=40))
    try:
        expected = deltas(section)
    except IndexError:
        with pytest.raises(ValueError, match="malformed"):
            find_timestamp(section, 1, base_offset=0, base_timestamp=0, start=0, least=0)
        return
    found = find_timestamp(section, 1, base_offset=0, base_timestamp=0, start=0, least=0)
    assert found == (expected if min(expected) >= 0 else None)
