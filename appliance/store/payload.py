"""Reads and writes the payloads of control frames: fixed fields, then texts and bytes with a size.

docs/FORMAT.md says what is written where. A reader checks, then advances: whatever the bytes are,
it answers or raises CorruptionError. The log pads a payload with zeros to a multiple of eight, so
up to seven zero bytes may follow the last field, and nothing else. Layer 2; no I/O.
"""

import struct
from pathlib import Path
from typing import Any, Final

from _core.layout import FRAME_ALIGNMENT
from appliance.errors import CorruptionError

COUNT: Final = struct.Struct(">I")
SIZE: Final = struct.Struct(">H")
"""In front of a text or an id."""
LONG_SIZE: Final = struct.Struct(">I")
"""In front of bytes whose meaning is their owner's."""

NULL_SIZE: Final = 0xFFFF
"""The size of a text that is not there, which is not the same as an empty one."""


class PayloadReader:
    """One pass over a payload.

    Args:
        payload: the bytes behind a frame's header.
        what: the kind of frame, for errors, such as "a topic frame".
    """

    def __init__(self, payload: bytes, what: str) -> None:
        self._payload = payload
        self._what = what
        self._at = 0

    def error(self, expected: str, found: str) -> CorruptionError:
        """An error at the present place; the caller raises it."""
        return CorruptionError(
            Path("commitlog"), self._at, f"{expected} in the payload of {self._what}", found
        )

    def take(self, size: int) -> bytes:
        """The next `size` bytes.

        Raises:
            CorruptionError: fewer are left.
        """
        left = len(self._payload) - self._at
        if size > left:
            raise self.error(f"{size} bytes", f"{left}")
        self._at += size
        return self._payload[self._at - size : self._at]

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fixed fields.

        Raises:
            CorruptionError: fewer bytes are left.
        """
        return layout.unpack(self.take(layout.size))

    def check_count(self, count: int, size_min: int) -> None:
        """Refuse a count of items of at least `size_min` bytes each that cannot be there."""
        left = len(self._payload) - self._at
        if count * size_min > left:
            raise self.error(f"{count} items of at least {size_min} bytes", f"{left} bytes")

    def count(self, size_min: int) -> int:
        """The next count, of items of at least `size_min` bytes each."""
        count: int = self.fields(COUNT)[0]
        self.check_count(count, size_min)
        return count

    def chosen(self, value: int, allowed: range) -> int:
        """`value`, read a moment ago, if it is one of the numbers allowed."""
        if value not in allowed:
            raise self.error(f"a number from {allowed[0]} to {allowed[-1]}", str(value))
        return value

    def name(self) -> bytes:
        """The next id: any bytes, up to 65,534."""
        size: int = self.fields(SIZE)[0]
        if size == NULL_SIZE:
            raise self.error("an id or a text", "none")
        return self.take(size)

    def text_of(self, size: int) -> str:
        """The text in the next `size` bytes."""
        return self._decode(self.take(size))

    def text(self) -> str:
        """The next text.

        Raises:
            CorruptionError: it is not there, not whole or not UTF-8.
        """
        return self._decode(self.name())

    def optional_text(self) -> str | None:
        """The next text; None if it is left out."""
        size: int = self.fields(SIZE)[0]
        return None if size == NULL_SIZE else self._decode(self.take(size))

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error("text in UTF-8", str(error)) from error

    def octets(self) -> bytes:
        """The next bytes with a size of 32 bits."""
        size: int = self.fields(LONG_SIZE)[0]
        return self.take(size)

    def finish(self) -> None:
        """Nothing may follow but padding.

        Raises:
            CorruptionError: something does.
        """
        rest = self._payload[self._at :]
        if len(rest) >= FRAME_ALIGNMENT or any(rest):
            raise self.error("the end, and zeros up to a multiple of 8", f"{len(rest)} bytes")


def pack_name(name: bytes) -> bytes:
    """An id with its size. At most 65,534 bytes."""
    assert len(name) < NULL_SIZE
    return SIZE.pack(len(name)) + name


def pack_text(text: str | None) -> bytes:
    """A text in UTF-8 with its size, or the mark that there is none."""
    return SIZE.pack(NULL_SIZE) if text is None else pack_name(text.encode())


def pack_octets(data: bytes) -> bytes:
    """Bytes with a size of 32 bits."""
    return LONG_SIZE.pack(len(data)) + data
