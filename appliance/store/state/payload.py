"""Reads and writes the payloads of control frames: fixed fields, then texts and bytes with a size.

docs/FORMAT.md describes the layouts. A reader checks, then advances: for any bytes, it returns a
value or raises CorruptionError. The log pads a payload with zeros to a multiple of eight, so up to
seven zero bytes may follow the last field, and nothing else. Layer 2; no I/O.
"""

import struct
from pathlib import Path
from typing import Any, Final

from _core.bytes.layout import FRAME_ALIGNMENT
from appliance.errors import CorruptionError

COUNT: Final = struct.Struct(">I")
SIZE: Final = struct.Struct(">H")
"""Precedes a text or an id."""
LONG_SIZE: Final = struct.Struct(">I")
"""Precedes opaque bytes."""

NULL_SIZE: Final = 0xFFFF
"""The size of a null text, which differs from an empty one."""


class PayloadReader:
    """One pass over a payload.

    Args:
        payload: the bytes after a frame's header.
        what: the kind of frame, for errors, such as "a topic frame".
    """

    def __init__(self, payload: bytes, what: str) -> None:
        self._payload = payload
        self._what = what
        self._at = 0

    def error(self, expected: str, found: str) -> CorruptionError:
        """Return an error at the current place; the caller raises it."""
        return CorruptionError(
            Path("commitlog"), self._at, f"{expected} in the payload of {self._what}", found
        )

    def take(self, size: int) -> bytes:
        """Read the next `size` bytes.

        Raises:
            CorruptionError: fewer are left.
        """
        left = len(self._payload) - self._at
        if size > left:
            raise self.error(f"{size} bytes", f"{left}")
        self._at += size
        return self._payload[self._at - size : self._at]

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the next fixed fields.

        Raises:
            CorruptionError: fewer bytes are left.
        """
        return layout.unpack(self.take(layout.size))

    def check_count(self, count: int, size_min: int) -> None:
        """Raise CorruptionError if `count` items of at least `size_min` bytes each do not fit."""
        left = len(self._payload) - self._at
        if count * size_min > left:
            raise self.error(f"{count} items of at least {size_min} bytes", f"{left} bytes")

    def count(self, size_min: int) -> int:
        """Read the next count, of items of at least `size_min` bytes each."""
        count: int = self.fields(COUNT)[0]
        self.check_count(count, size_min)
        return count

    def chosen(self, value: int, allowed: range) -> int:
        """Return `value`, just read; raise CorruptionError if it is not allowed."""
        if value not in allowed:
            raise self.error(f"a number from {allowed[0]} to {allowed[-1]}", str(value))
        return value

    def name(self) -> bytes:
        """Read the next id: up to 65,534 arbitrary bytes."""
        size: int = self.fields(SIZE)[0]
        if size == NULL_SIZE:
            raise self.error("an id or a text", "none")
        return self.take(size)

    def text_of(self, size: int) -> str:
        """Read the next `size` bytes as a text."""
        return self._decode(self.take(size))

    def text(self) -> str:
        """Read the next text.

        Raises:
            CorruptionError: it is null, incomplete or not UTF-8.
        """
        return self._decode(self.name())

    def optional_text(self) -> str | None:
        """Read the next text; None if it is null."""
        size: int = self.fields(SIZE)[0]
        return None if size == NULL_SIZE else self._decode(self.take(size))

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error("text in UTF-8", str(error)) from error

    def octets(self) -> bytes:
        """Read the next bytes with a 32-bit size."""
        size: int = self.fields(LONG_SIZE)[0]
        return self.take(size)

    def finish(self) -> None:
        """Check that only padding follows.

        Raises:
            CorruptionError: other bytes follow.
        """
        rest = self._payload[self._at :]
        if len(rest) >= FRAME_ALIGNMENT or any(rest):
            raise self.error("the end, and zeros up to a multiple of 8", f"{len(rest)} bytes")


def pack_name(name: bytes) -> bytes:
    """Encode an id of at most 65,534 bytes with its size."""
    assert len(name) < NULL_SIZE
    return SIZE.pack(len(name)) + name


def pack_text(text: str | None) -> bytes:
    """Encode a text in UTF-8 with its size, or a null text."""
    return SIZE.pack(NULL_SIZE) if text is None else pack_name(text.encode())


def pack_octets(data: bytes) -> bytes:
    """Encode bytes with a 32-bit size."""
    return LONG_SIZE.pack(len(data)) + data
