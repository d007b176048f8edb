"""Record batches built byte by byte, so that each field can be made wrong on its own.

Source: the message format chapter of Apache Kafka's documentation. Shares no code with `_core`.
"""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard
from aiokafka.record.util import calc_crc32c

from tests.support.simulator.virtual_clock import START_MS

CREATED_MS: Final = START_MS - 1000
"""The producer's time of the first record, by default."""

HEADER_SIZE: Final = 61
CRC_START: Final = 21

CODECS: Final = range(5)
NONE, GZIP, SNAPPY, LZ4, ZSTD = CODECS

RawHeaders = Sequence[tuple[bytes, bytes | None]]


def varint(number: int) -> bytes:
    """A zigzag varint."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _nullable(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


@dataclass(frozen=True, slots=True)
class Raw:
    """A record; `offset_delta` and `header_count` follow from the batch if None."""

    value: bytes | None = b"v"
    key: bytes | None = None
    headers: RawHeaders = ()
    timestamp_delta: int = 0
    offset_delta: int | None = None
    header_count: int | None = None

    def encode(self, index: int) -> bytes:
        """The bytes of the record at `index` of its batch."""
        delta = index if self.offset_delta is None else self.offset_delta
        count = len(self.headers) if self.header_count is None else self.header_count
        body = b"".join(
            [
                b"\x00",
                varint(self.timestamp_delta),
                varint(delta),
                _nullable(self.key),
                _nullable(self.value),
                varint(count),
                *(_nullable(name) + _nullable(value) for name, value in self.headers),
            ]
        )
        return varint(len(body)) + body


def records_of(records: Sequence[Raw]) -> bytes:
    """The record section, uncompressed."""
    return b"".join(record.encode(index) for index, record in enumerate(records))


def compress(codec: int, data: bytes) -> bytes:
    """The record section as a producer compresses it."""
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == LZ4:
        return bytes(lz4.frame.compress(data))
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    return data


def make_batch(
    records: Sequence[Raw] | bytes,
    *,
    codec: int = NONE,
    count: int | None = None,
    **fields: Any,
) -> bytes:
    """A batch whose header is correct, except for the `fields` that a test sets.

    Args:
        records: the records, or the raw record section (`count` is then required).
        codec: 0 to 7; sets the attributes, and compresses what is given as records.
        count: the record count.
        fields: base_offset, length, leader_epoch, magic, crc, attributes, last_delta,
            base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence.
    """
    if isinstance(records, bytes):
        section, timestamp_deltas = records, [0]
        assert count is not None
    else:
        section = compress(codec, records_of(records))
        timestamp_deltas = [record.timestamp_delta for record in records] or [0]
    count = len(records) if count is None else count
    base_timestamp = fields.get("base_timestamp", CREATED_MS)
    body = (
        struct.pack(
            ">hiqqqhii",
            fields.get("attributes", codec),
            fields.get("last_delta", count - 1),
            base_timestamp,
            fields.get("max_timestamp", base_timestamp + max(timestamp_deltas)),
            fields.get("producer_id", -1),
            fields.get("producer_epoch", -1),
            fields.get("base_sequence", -1),
            count,
        )
        + section
    )
    head = struct.pack(
        ">qiibI",
        fields.get("base_offset", 0),
        fields.get("length", 9 + len(body)),
        fields.get("leader_epoch", -1),
        fields.get("magic", 2),
        fields.get("crc", calc_crc32c(body)),
    )
    return head + body


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of a fetched batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int


def split_batches(data: bytes) -> list[tuple[BatchHeader, bytes]]:
    """The whole batches of a fetched record section; nothing may be left over."""
    found = []
    start = 0
    while start < len(data):
        header = BatchHeader(*struct.unpack_from(">qiibIhiqqqhii", data, start))
        end = start + 12 + header.length
        assert end <= len(data), "the last batch is cut short"
        assert header.crc == calc_crc32c(data[start + CRC_START : end])
        found.append((header, data[start:end]))
        start = end
    return found
