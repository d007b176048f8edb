"""A few Kafka requests as bytes, for clients that are plain sockets.

One version of each, whose answers are easy to parse. Pure.
"""

import struct
from collections.abc import Sequence
from typing import Final

from _core.bytes.crc32c import crc32c

_CLIENT_ID: Final = b"perf"
_HEADER: Final = struct.Struct(">hhih")
_BATCH: Final = struct.Struct(">qiibI")
_BATCH_TAIL: Final = struct.Struct(">hiqqqhii")


def produce_request(
    topic: str, partition: int, values: Sequence[bytes], *, acks: int = -1
) -> bytes:
    """Return a Produce request, version 3, of one uncompressed batch of records without keys."""
    batch = record_batch(values)
    body = struct.pack(">hhii", -1, acks, 30_000, 1)
    body += _string(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    return _framed(0, 3, body)


def produce_error(payload: bytes, topic: str) -> int:
    """Return the error code of the one partition in the answer to such a request."""
    # Correlation id, count of topics, name, count of partitions, partition.
    (error,) = struct.unpack_from(">h", payload, 4 + 4 + 2 + len(topic) + 4 + 4)
    return int(error)


def fetch_request(topic: str, partition: int) -> bytes:
    """Return a Fetch request, version 4, of everything from the first record on."""
    body = struct.pack(">iiiibi", -1, 0, 1, 1 << 30, 0, 1)
    body += _string(topic) + struct.pack(">iiqi", 1, partition, 0, 1 << 30)
    return _framed(1, 4, body)


def api_versions_request() -> bytes:
    """Return an ApiVersions request, version 0."""
    return _framed(18, 0, b"")


def record_batch(values: Sequence[bytes]) -> bytes:
    """Return an uncompressed batch of records without keys and headers, all with timestamp 0."""
    records = b"".join(_record(index, value) for index, value in enumerate(values))
    tail = _BATCH_TAIL.pack(0, len(values) - 1, 0, 0, -1, -1, -1, len(values)) + records
    return _BATCH.pack(0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


def _record(index: int, value: bytes) -> bytes:
    body = b"\x00" + varint(0) + varint(index) + varint(-1) + varint(len(value)) + value
    body += varint(0)
    return varint(len(body)) + body


def varint(value: int) -> bytes:
    """Encode a zigzag varint of a record."""
    rest = value << 1 ^ value >> 63
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _framed(key: int, version: int, body: bytes) -> bytes:
    header = _HEADER.pack(key, version, 7, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body
