"""Encodes a record batch of one record, format 2 of Kafka's message format. Layer 3; no I/O.

Produced batches are never decoded to be encoded again: this is for what the broker itself sends.
"""

import struct
from collections.abc import Sequence
from typing import Final

from _core.bytes.crc32c import crc32c

Header = tuple[bytes, bytes | None]
"""Name and value."""

_BEFORE_CRC: Final = struct.Struct(">qiib")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_MAGIC: Final = 2
_NO_PRODUCER: Final = -1


def encode_record_batch(
    key: bytes | None, value: bytes | None, headers: Sequence[Header], timestamp_ms: int
) -> bytes:
    """Return a batch of one record, not compressed, as a producer without idempotence sends it.

    Args:
        key, value: of the record; None for null.
        headers: in their order.
        timestamp_ms: epoch ms, or -1 for none.
    """
    parts = [b"\x00", _varint(0), _varint(0), _octets(key), _octets(value), _varint(len(headers))]
    for name, text in headers:
        parts += [_octets(name), _octets(text)]
    record = b"".join(parts)
    producer = (_NO_PRODUCER,) * 3
    body = _AFTER_CRC.pack(0, 0, timestamp_ms, timestamp_ms, *producer, 1) + (
        _varint(len(record)) + record
    )
    size = _BEFORE_CRC.size - 12 + 4 + len(body)
    return _BEFORE_CRC.pack(0, size, -1, _MAGIC) + struct.pack(">I", crc32c(body)) + body


def _octets(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a zigzag varint."""
    rest = number << 1 if number >= 0 else -(number << 1) - 1
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
