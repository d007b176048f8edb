"""Builds a message in pieces, with arrays whose length is known only at their end.

Kafka puts the size of a message in front of it, and the number of items in front of each array. So
a message is held encoded until its end; the number of items is filled in. Layer 3; does no I/O.
"""

from typing import Final

from appliance.units import KIB
from compat.kafka.protocol.wire import Writer

ITEM_WORK: Final = KIB
"""The price of an item, such as a partition: about 8 microseconds. Each byte costs 1 more. Counted,
not measured, so that it does not depend on the machine."""

STEP_WORK: Final = 8 * KIB
"""The least work that `take_work` returns."""

CUT_BYTES: Final = 16 * KIB
"""Fewer bytes are no piece of their own."""


class PieceWriter(Writer):
    """A Writer whose message is a list of pieces.

    A piece is never changed again, so that no message is ever copied as a whole. Large values of
    bytes are pieces without a copy.

    Attributes:
        work: the price of the work since `take_work` returned it, without the bytes written.
    """

    __slots__ = ("_open", "_pieces", "_pieces_bytes", "_work_bytes", "work")

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._open: list[int] = []
        """Of each array that is being written, where its number of items belongs: the position in
        the data that is not cut yet, or ~index of the piece that is left empty for it."""
        self.work = 0
        self._work_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._pieces_bytes + len(self._data)

    def take_work(self) -> int:
        """Return the work since it was last returned, 0 if that was little.

        Each item counts ITEM_WORK, each byte 1.
        """
        size_bytes = self._pieces_bytes + len(self._data)
        work = self.work + size_bytes - self._work_bytes
        if work < STEP_WORK:
            return 0
        self.work, self._work_bytes = 0, size_bytes
        return work

    def octets(self, value: bytes | None, *, is_compact: bool, is_nullable: bool) -> None:
        if value is None or len(value) < CUT_BYTES:
            super().octets(value, is_compact=is_compact, is_nullable=is_nullable)
            return
        # A piece of its own that is not copied: what the members of a group sent may be megabytes.
        size = len(value)
        if is_compact:
            self.uvarint(size + 1)
        else:
            self.int32(size)
        self._cut()
        self._pieces.append(value)
        self._pieces_bytes += size

    def finish(self) -> bytes:
        return b"".join(self.finish_pieces()) if self._pieces else super().finish()

    def array_count(self, count: int | None, *, is_compact: bool, is_nullable: bool) -> None:
        self.work += ITEM_WORK * (count or 0)
        super().array_count(count, is_compact=is_compact, is_nullable=is_nullable)

    def begin_array(self) -> None:
        """Begin an array; its items follow, then `end_array`."""
        self._open.append(len(self._data))

    def end_array(self, count: int, *, is_compact: bool) -> None:
        """End the array that was begun last.

        Args:
            count: the number of its items.
            is_compact: how the number is written.
        """
        number = Writer()
        number.array_count(count, is_compact=is_compact, is_nullable=False)
        encoded = number.finish()
        place = self._open.pop()
        if place >= 0:
            self._data[place:place] = encoded
        else:
            self._pieces[~place] = encoded
            self._pieces_bytes += len(encoded)

    def cut(self) -> None:
        """Make a piece of what was written since the last one, if it is large enough."""
        if len(self._data) >= CUT_BYTES:
            self._cut()

    def finish_pieces(self) -> list[bytes]:
        """Return the message, and begin another."""
        assert not self._open
        self._cut()
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        return [piece for piece in pieces if piece]

    def _cut(self) -> None:
        start = 0
        for depth, place in enumerate(self._open):
            if place >= 0:
                self._pieces.append(bytes(self._data[start:place]))
                self._open[depth] = ~len(self._pieces)
                self._pieces.append(b"")
                start = place
        self._pieces.append(bytes(memoryview(self._data)[start:]))
        self._pieces_bytes += len(self._data)
        self._data = bytearray()
