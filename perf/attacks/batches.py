"""Record batches: small on the wire and large once they are unpacked. Pure."""

import struct
import zlib
from functools import cache
from random import Random
from typing import Final

import numpy
import zstandard

from _core.bytes.crc32c import crc32c
from perf.wire import varint

GZIP: Final = 1
ZSTD: Final = 4
_HEAD: Final = struct.Struct(">qiibI")
_TAIL: Final = struct.Struct(">hiqqqhii")


def batch(
    records: bytes,
    count: int,
    *,
    codec: int = 0,
    max_ms: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
) -> bytes:
    """A batch whose records are encoded, and compressed if `codec` says so; first time 0."""
    epoch = 0 if producer_id >= 0 else -1
    tail = _TAIL.pack(codec, count - 1, 0, max_ms, producer_id, epoch, sequence, count) + records
    return _HEAD.pack(0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


def record(
    index: int, value: bytes, headers: tuple[tuple[bytes, bytes], ...] = (), *, after_ms: int = 0
) -> bytes:
    """One record without key."""
    of = b"".join(varint(len(n)) + n + varint(len(v)) + v for n, v in headers)
    body = b"\0" + varint(after_ms) + varint(index) + varint(-1) + varint(len(value)) + value
    body += varint(len(headers)) + of
    return varint(len(body)) + body


def plain(values: list[bytes]) -> bytes:
    """An uncompressed batch."""
    return batch(b"".join(record(i, value) for i, value in enumerate(values)), len(values))


def minimal_records(count: int) -> bytes:
    """Records without key, value and headers, the last one a ms later than the others."""
    parts, begin = [], 0
    for width in range(1, 5):
        end = min(count - 1, 1 << (7 * width - 1))
        if begin >= end:
            continue
        index = numpy.arange(begin, end, dtype=numpy.uint32) << 1
        rows = numpy.zeros((end - begin, width + 6), dtype=numpy.uint8)
        rows[:, 0] = 2 * (width + 5)  # the length, as a varint of this sign
        for place in range(width):
            more = 0x80 if place < width - 1 else 0
            rows[:, 3 + place] = (index >> (7 * place)) & 0x7F | more
        rows[:, 3 + width] = 1  # no key
        rows[:, 4 + width] = 0  # an empty value
        rows[:, 5 + width] = 0  # no headers
        parts.append(rows.tobytes())
        begin = end
    return b"".join(parts) + record(count - 1, b"", after_ms=1)


@cache
def many_records(count: int) -> bytes:
    """A batch of minimal records, compressed with Zstandard."""
    return batch(_zstd(minimal_records(count)), count, codec=ZSTD, max_ms=1)


@cache
def unpacks_to(size: int, *, codec: int = ZSTD, random_bytes: int = 0) -> bytes:
    """A batch of records of 1 MB of zeros that unpack to almost `size` bytes.

    The first one begins with so many random bytes, so the batch is larger than those.
    """
    count = max(1, size // 1_000_100)
    value = bytes(min(1_000_000, size - 100))
    first = Random(1).randbytes(random_bytes) + value[random_bytes:]
    records = b"".join(record(index, value if index else first) for index in range(count))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = _zstd(records) if codec == ZSTD else packer.compress(records) + packer.flush()
    return batch(packed, count, codec=codec)


@cache
def frames_of(size: int, frame_bytes: int) -> bytes:
    """A batch that unpacks to `size` bytes in Zstandard frames of `frame_bytes` each."""
    packer = zstandard.ZstdCompressor(level=1)
    records = record(0, bytes(size))
    pieces = range(0, len(records), frame_bytes)
    packed = b"".join(packer.compress(records[at : at + frame_bytes]) for at in pieces)
    return batch(packed, 1, codec=ZSTD)


@cache
def many_headers(count: int) -> bytes:
    """A batch of one record with that many empty headers, compressed with Zstandard."""
    body = b"\0\0\0" + varint(-1) + varint(0) + varint(count) + b"\x02h\0" * count
    return batch(_zstd(varint(len(body)) + body), 1, codec=ZSTD)


def delayed_records(count: int, prefix: str, delay_ms: int) -> bytes:
    """A batch of records without value that are held back, each with an id of its own."""
    delay = (b"x-delay", b"%d" % delay_ms)
    records = b"".join(
        record(i, b"", (delay, (b"x-deliver-id", f"{prefix}-{i}".encode()))) for i in range(count)
    )
    return batch(_zstd(records), count, codec=ZSTD)


@cache
def delayed_zeros(count: int) -> bytes:
    """A batch of records of 1 MB of zeros that are held back for an hour."""
    value = bytes(1_000_000)
    headers = ((b"x-delay", b"3600000"),)
    return batch(
        _zstd(b"".join(record(i, value, headers) for i in range(count))), count, codec=ZSTD
    )


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)
