"""What Produce refuses: Kafka's code, a sentence that names the limit or fault, nothing stored."""

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from appliance.config.config import Config
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import PAIR, TWO, VERSIONS, next_offset
from tests.support.clients.wire_client import WireClient, framed
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.values.raw_batch import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Raw,
    compress,
    make_batch,
    records_of,
)
from tests.support.values.record_requests import produce_request

# What is wrong with a batch

INVALID, CORRUPT = ErrorCode.invalid_record, ErrorCode.corrupt_message
UNSUPPORTED = ErrorCode.unsupported_compression_type

NO_BATCH = "a record batch has at least 61 bytes, got"
NOT_ONE = "exactly one record batch is expected per partition"
MISFIT = "invalid record count"
DELTAS = "the offset deltas of a batch must be 0, 1, 2, ..."
NOT_WHOLE = "the record is malformed: its lengths do not add up"

WRONG_BATCHES: list[tuple[str, bytes | None, int, str]] = [
    ("null", None, INVALID, f"{NO_BATCH} 0"),
    ("empty", b"", INVALID, f"{NO_BATCH} 0"),
    ("short", PAIR[:60], INVALID, f"{NO_BATCH} 60"),
    ("cut", PAIR[:-1], INVALID, NOT_ONE),
    ("two batches", PAIR + PAIR, INVALID, NOT_ONE),
    ("a byte behind the batch", PAIR + b"\x00", INVALID, NOT_ONE),
    ("length of no batch", make_batch(TWO, length=48), CORRUPT, NOT_ONE),
    ("negative length", make_batch(TWO, length=-1), CORRUPT, NOT_ONE),
    ("highest length", make_batch(TWO, length=2**31 - 1), INVALID, NOT_ONE),
    ("lowest length", make_batch(TWO, length=-(2**31)), CORRUPT, NOT_ONE),
    ("magic 0", make_batch(TWO, magic=0), INVALID, "message format 0 is not supported"),
    ("magic 1", make_batch(TWO, magic=1), INVALID, "message format 1 is not supported"),
    ("magic 3", make_batch(TWO, magic=3), CORRUPT, "message format 3 is not supported"),
    ("CRC", make_batch(TWO, crc=0), CORRUPT, "the CRC of the batch does not match"),
    ("no records", make_batch([]), INVALID, MISFIT),
    ("count above", make_batch(TWO, count=3, last_delta=1), INVALID, MISFIT),
    ("count below", make_batch(TWO, count=1, last_delta=1), INVALID, MISFIT),
    ("last delta", make_batch(TWO, last_delta=2), INVALID, MISFIT),
    (
        "more records than an encoder can put there",
        make_batch(TWO, count=64 * len(make_batch(TWO)) + 1, last_delta=64 * len(make_batch(TWO))),
        INVALID,
        "the maximum is 64 per byte",
    ),
    ("negative count", make_batch(TWO, count=-1, last_delta=-2), INVALID, MISFIT),
    ("control batch", make_batch(TWO, attributes=32), INVALID, "control batches"),
    ("transaction", make_batch(TWO, attributes=16), INVALID, "transactions are not supported yet"),
    ("LogAppendTime", make_batch(TWO, attributes=8), ErrorCode.invalid_timestamp, "LogAppendTime"),
    ("codec 5", make_batch(TWO, attributes=5), UNSUPPORTED, "compression type 5"),
    ("codec 7", make_batch(TWO, attributes=7), UNSUPPORTED, "compression type 7"),
]

# Attributes, timestamp and offset delta, no key, value `v`, one header: its name has the length -1.
NAMELESS = bytes.fromhex("14 00 00 00 01 0276 02 01 0278")

WRONG_RECORDS: list[tuple[str, Sequence[Raw] | bytes, int, int, str]] = [
    ("first delta", [Raw(offset_delta=1), Raw()], 2, 0, DELTAS),
    ("later delta", [Raw(), Raw(), Raw(offset_delta=1)], 3, 2, DELTAS),
    ("fewer records", records_of(TWO), 3, 2, NOT_WHOLE),
    ("more records", records_of([*TWO, Raw()]), 2, 1, "bytes follow the last record"),
    ("a byte behind", records_of(TWO) + b"\x00", 2, 1, "bytes follow the last record"),
    ("a byte less", records_of(TWO)[:-1], 2, 1, NOT_WHOLE),
    ("header count above", [Raw(), Raw(headers=[(b"h", b"")], header_count=2)], 2, 1, NOT_WHOLE),
    ("header count below", [Raw(headers=[(b"h", b"")], header_count=0)], 1, 0, NOT_WHOLE),
    ("header count negative", [Raw(header_count=-1)], 1, 0, NOT_WHOLE),
    ("huge header count", [Raw(header_count=2**40)], 1, 0, NOT_WHOLE),
    ("header without name", NAMELESS, 1, 0, NOT_WHOLE),
    ("huge timestamp", [Raw(), Raw(timestamp_delta=2**61)], 2, 1, "more than 61 bits"),
    ("huge past", [Raw(timestamp_delta=-(2**63))], 1, 0, "more than 61 bits"),
    ("huge record", b"\xfe\xff\xff\xff\x0f" + records_of(TWO), 2, 0, NOT_WHOLE),
    ("negative record", b"\x01" + records_of(TWO), 2, 0, NOT_WHOLE),
    ("endless varint", b"\xff" * 12, 1, 0, NOT_WHOLE),
]


@pytest.mark.parametrize(
    ("batch", "code", "sentence"),
    [case[1:] for case in WRONG_BATCHES],
    ids=[case[0] for case in WRONG_BATCHES],
)
def test_wrong_batch_is_refused(
    client: WireClient, batch: bytes | None, code: int, sentence: str
) -> None:
    """With Kafka's code, a sentence and no record's index, and nothing is stored."""
    part = client.produce("t", 0, batch)
    assert part.error_code == code
    assert sentence in part.error_message
    assert part.record_errors == []
    assert next_offset(client) == 0
    assert client.produce("t", 0, PAIR).base_offset == 0


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize(
    ("records", "count", "index", "sentence"),
    [case[1:] for case in WRONG_RECORDS],
    ids=[case[0] for case in WRONG_RECORDS],
)
def test_wrong_record_is_refused_with_its_index(
    client: WireClient,
    records: Sequence[Raw] | bytes,
    count: int,
    index: int,
    sentence: str,
    *,
    codec: int,
) -> None:
    """Also if one has to decompress the batch to see it."""
    section = records if isinstance(records, bytes) else records_of(records)
    batch = make_batch(compress(codec, section), count=count, attributes=codec)
    part = client.produce("t", 0, batch)
    assert part.error_code == ErrorCode.invalid_record
    (error,) = part.record_errors
    assert error.batch_index == index
    assert sentence in error.batch_index_error_message
    assert next_offset(client) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_zstd_needs_version_7(client: WireClient, version: int) -> None:
    part = client.produce("t", 0, make_batch(TWO, codec=ZSTD), version=version)
    assert part.error_code == (0 if version >= 7 else ErrorCode.unsupported_compression_type)
    assert next_offset(client) == (2 if version >= 7 else 0)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compression_is_refused_for_good(client: WireClient, codec: int) -> None:
    """Its CRC is right, so the producer made it so: clients send a corrupt batch for ever."""
    batch = make_batch(compress(codec, records_of(TWO))[:-3], count=2, attributes=codec)
    part = client.produce("t", 0, batch)
    assert part.error_code == ErrorCode.invalid_record
    assert "damaged" in part.error_message
    assert next_offset(client) == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_to_a_batch_is_refused_or_harmless(client: WireClient, seed: int) -> None:
    """Only bytes outside of the CRC may change: base offset and leader epoch, which are ours."""
    rng = random.Random(seed)
    batch = make_batch([Raw(b"a", headers=[(b"x-delay", b"0")]), Raw(b"b")])
    for _ in range(150):
        at, mask = rng.randrange(len(batch)), rng.randrange(1, 256)
        damaged = bytearray(batch)
        damaged[at] ^= mask
        part = client.produce("t", 0, bytes(damaged))
        is_ours = at < 8 or 12 <= at < 16
        assert (part.error_code == 0) == is_ours, f"seed {seed}, byte {at}, mask {mask}"
    assert set(client.harness.values()) <= {b"a", b"b"}


# Limits


def test_batch_limit_is_named(client: WireClient) -> None:
    """A batch of exactly the limit is accepted."""
    limit = client.harness.config.batch_size_max_bytes
    overhead = len(make_batch([Raw(bytes(limit - 200))])) - (limit - 200)
    largest = make_batch([Raw(bytes(limit - overhead))])
    assert len(largest) == limit
    part = client.produce("t", 0, make_batch([Raw(bytes(limit - overhead + 1))]))
    assert part.error_code == ErrorCode.message_too_large
    assert part.error_message == f"the batch has {limit + 1} bytes; max.message.bytes is {limit}"
    assert client.produce("t", 0, largest).error_code == 0


def test_topic_lowers_the_batch_limit(client: WireClient) -> None:
    client.harness.create_topic("small", 1, {"max.message.bytes": str(len(PAIR))})
    assert client.produce("small", 0, PAIR).error_code == 0
    part = client.produce("small", 0, make_batch([*TWO, Raw(b"")]))
    assert part.error_code == ErrorCode.message_too_large
    assert part.error_message.endswith(f"max.message.bytes is {len(PAIR)}")


def test_batch_of_several_zstd_frames_is_stored_as_it_came(client: WireClient) -> None:
    records = records_of(TWO)
    packed = b"".join(compress(ZSTD, part) for part in (records[:5], records[5:]))
    batch = make_batch(packed, count=2, attributes=ZSTD)
    assert client.produce("t", 0, batch).error_code == 0
    assert client.fetch_records("t", 0).endswith(packed)


def test_topic_raises_the_batch_limit(client: WireClient) -> None:
    limit = client.harness.config.batch_size_max_bytes
    client.harness.create_topic("large", 1, {"max.message.bytes": str(limit + 1000)})
    batch = make_batch([Raw(bytes(limit // 2)), Raw(bytes(limit // 2))])
    assert client.produce("t", 0, batch).error_code == ErrorCode.message_too_large
    assert client.produce("large", 0, batch).error_code == 0
    assert client.fetch_records("large", 0, limit=1)[61:] == batch[61:]


def test_records_and_headers_are_as_large_as_kafka_allows() -> None:
    """Kafka limits the batch as sent, and nothing else."""
    names = ("header_count_max", "header_size_max_bytes", "record_size_max_bytes")
    limits = {name: getattr(Config(), name) for name in (*names, "batch_size_max_bytes")}
    sizes = {"decompressed_size_max_bytes": 16 << 20, "segment_size_bytes": 128 << 20}
    sizes["request_size_max_bytes"] = 32 << 20
    client = WireClient(with_topic(config=small_config(**limits, **sizes)))
    many = Raw(headers=[(b"", None)] * 300_000)
    assert client.produce("t", 0, make_batch([many])).error_code == 0
    large = Raw(headers=[(b"h", bytes(1_000_000))])
    assert client.produce("t", 0, make_batch([large])).error_code == 0
    record = Raw(bytes(10 << 20))
    assert client.produce("t", 0, make_batch([record], codec=ZSTD)).error_code == 0
    assert next_offset(client) == 3


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_header_and_record_limits_are_named(codec: int) -> None:
    """At the limit accepted, above it refused with the index."""
    config = small_config(header_count_max=3, header_size_max_bytes=100, record_size_max_bytes=1000)
    client = WireClient(with_topic(config=config))
    # One byte for the count of headers, two for the lengths of each.
    fits = [Raw(headers=[(b"h", None)] * 3), Raw(headers=[(b"h", bytes(95))]), Raw(bytes(1000 - 9))]
    too_much = [
        (Raw(headers=[(b"h", None)] * 4), "the record has 4 headers; limits.header_count_max is 3"),
        (
            Raw(headers=[(b"h", bytes(96))]),
            "the record's headers have 101 bytes; limits.header_size_max_bytes is 100",
        ),
        (Raw(bytes(1001 - 9)), "the record has 1001 bytes; limits.record_size_max_bytes is 1000"),
    ]
    assert client.produce("t", 0, make_batch(fits, codec=codec)).error_code == 0
    for record, sentence in too_much:
        part = client.produce("t", 0, make_batch([*fits, record], codec=codec))
        assert part.error_code == ErrorCode.invalid_record
        assert part.error_message == sentence
        assert [error.batch_index for error in part.record_errors] == [3]
    assert next_offset(client) == 3


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_bomb_is_refused_in_little_memory(client: WireClient, codec: int) -> None:
    """The limit is named, and what is taken follows the limit and not what the batch unpacks to."""
    limit = client.harness.config.decompressed_size_max_bytes
    unpacked = {SNAPPY: 150_000, LZ4: 1_900_000}.get(codec, 4_000_000)
    bomb = make_batch(compress(codec, bytes(unpacked)), count=1, attributes=codec)
    tracemalloc.start()
    try:
        part = client.produce("t", 0, bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert part.error_code == ErrorCode.message_too_large
    assert f"to more than {limit} bytes" in part.error_message
    assert "limits.decompressed_size_max_bytes" in part.error_message
    assert peak < 500_000
    assert next_offset(client) == 0


def test_full_disk_is_reported_and_nothing_is_half_stored(client: WireClient) -> None:
    """What was refused can be sent again when there is room."""
    big = make_batch([Raw(bytes(8000))])
    client.harness.disk.free = 0
    stored = 0
    for _ in range(40):
        part = client.produce("t", 0, big)
        if part.error_code:
            break
        stored += 1
    assert part.error_code == ErrorCode.kafka_storage_error
    assert part.error_message.startswith("the broker's disk is full")
    assert "free space on it" in part.error_message
    assert 0 < stored == next_offset(client)
    assert client.harness.broker.gauges(0).disk_full
    client.harness.disk.free = 1 << 30
    client.harness.clock.advance_ms(60_000)
    assert client.produce("t", 0, big).base_offset == stored
    assert not client.harness.broker.gauges(0).disk_full


@pytest.mark.parametrize("version", VERSIONS)
def test_malformed_request_closes_the_connection(client: WireClient, version: int) -> None:
    """Cut anywhere in the body, with a right size in front of it; its first batch is not stored."""
    whole: Any = framed(produce_request([("t", [(0, PAIR), (1, PAIR)])]), version, 1)
    for size in range(len(whole) - 5, 30, -7):
        stored = next_offset(client)
        other = WireClient(client.harness)
        other.send_bytes((size - 4).to_bytes(4, "big") + whole[4:size])
        if other.session.close_reason is None:
            # Cut after the last partition, where nothing has to follow.
            assert size >= len(whole) - 4, size
        else:
            assert other.session.close_reason == "malformed Produce request"
            client.harness.flush()
            assert (other.take(), next_offset(client)) == (b"", stored)
