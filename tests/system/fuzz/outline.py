"""What a Produce request asks for, read without _core: is it whole, and how many batches has it.

Source: the protocol guide of Apache Kafka.
"""

from dataclasses import dataclass
from typing import Final

VERSIONS: Final = range(3, 12)
FIRST_FLEXIBLE: Final = 9


@dataclass(frozen=True, slots=True)
class ProduceOutline:
    """A Produce request.

    Args:
        acks: what the client waits for; None if the request is malformed.
        batch_count: fields of records in it; 0 if it is malformed.
    """

    acks: int | None
    batch_count: int


class _NotWhole(Exception):
    pass


class _Walker:
    def __init__(self, data: bytes, pos: int) -> None:
        self._data = data
        self._pos = pos
        self.is_flexible = False

    def skip(self, size: int) -> bytes:
        end = self._pos + size
        if size < 0 or end > len(self._data):
            raise _NotWhole
        taken = self._data[self._pos : end]
        self._pos = end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.skip(width), "big", signed=True)

    def uvarint(self) -> int:
        value = 0
        for index in range(10):
            byte = self.skip(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF
        raise _NotWhole

    def size(self, width: int) -> int:
        return self.uvarint() - 1 if self.is_flexible else self.number(width)

    def text(self, *, is_nullable: bool) -> None:
        size = self.size(2)
        if size < (-1 if is_nullable else 0):
            raise _NotWhole
        self.skip(max(size, 0))

    def tags(self) -> None:
        if not self.is_flexible:
            return
        for _ in range(self.uvarint()):
            self.uvarint()
            self.skip(self.uvarint())


def outline_of(frame: bytes) -> ProduceOutline | None:
    """Read a request without its size; None if it is not one of Produce that is served."""
    walker = _Walker(frame, 8)
    version = int.from_bytes(frame[2:4], "big", signed=True)
    if frame[:2] != b"\0\0" or version not in VERSIONS:
        return None
    try:
        walker.text(is_nullable=True)  # client id, never compact
        walker.is_flexible = version >= FIRST_FLEXIBLE
        walker.tags()
        walker.text(is_nullable=True)  # transactional id
        acks = walker.number(2)
        walker.skip(4)
        batch_count = 0
        for _ in range(max(walker.size(4), 0)):
            walker.text(is_nullable=False)
            for _ in range(max(walker.size(4), 0)):
                walker.skip(4)
                walker.skip(max(walker.size(4), 0))
                walker.tags()
                batch_count += 1
            walker.tags()
        walker.tags()
    except _NotWhole:
        return ProduceOutline(None, 0)
    return ProduceOutline(acks, batch_count)
