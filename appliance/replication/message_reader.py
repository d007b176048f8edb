"""Cuts the bytes of a connection between the nodes into messages. Layer 3; does no I/O."""

from collections.abc import Collection

from appliance.errors import RemoteProtocolError
from appliance.replication.wire import BODY_SIZES, HEADER, POS, Data, MessageType


class MessageReader:
    """Cuts the bytes of a connection into messages.

    It holds at most one control message that is not whole. The bytes of a DATA are passed on as
    they come, in parts, mostly without a copy.
    """

    __slots__ = ("_at", "_buffer", "_chunk", "_data_pos", "_rest")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._chunk = b""
        self._at = 0
        self._data_pos = 0
        self._rest = 0
        """Bytes of the present DATA that are still to come."""

    @property
    def held_bytes(self) -> int:
        """Bytes of a message that is not whole."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> None:
        """Add what arrived, after `next_message` has returned None or raised."""
        self._chunk, self._at = chunk, 0

    def next_message(
        self, expected: Collection[MessageType]
    ) -> tuple[MessageType, bytes] | Data | None:
        """Return type and body of the next whole message, or a part of a DATA.

        Args:
            expected: the types that may come next.

        Returns:
            None if there is nothing more in what was fed.

        Raises:
            RemoteProtocolError: the next message has another type, or no size of its type.
        """
        if self._rest:
            return self._next_part()
        if not self._gather(HEADER.size):
            return None
        length, number = HEADER.unpack_from(self._buffer)
        kind = next((each for each in expected if each == number), None)
        if kind is None:
            names = " or ".join(each.name for each in expected) or "nothing"
            raise RemoteProtocolError(f"a message of type {number} in place of {names}")
        least, most = BODY_SIZES[kind]
        size = length - 1
        if not least <= size <= most:
            raise RemoteProtocolError(f"a {kind.name} of {size} bytes; it has {least} to {most}")
        is_data = kind is MessageType.DATA
        if not self._gather(HEADER.size + (POS.size if is_data else size)):
            return None
        body = bytes(self._buffer[HEADER.size :])
        self._buffer.clear()
        if not is_data:
            return kind, body
        (self._data_pos,) = POS.unpack(body)
        self._rest = size - POS.size
        return self._next_part()

    def _gather(self, size: int) -> bool:
        """Have `size` bytes of the present message in the buffer, if they are there."""
        missing = size - len(self._buffer)
        if missing > 0:
            taken = self._chunk[self._at : self._at + missing]
            self._buffer += taken
            self._at += len(taken)
        return len(self._buffer) >= size

    def _next_part(self) -> Data | None:
        # A slice of all bytes is no copy.
        part = self._chunk[self._at : self._at + self._rest]
        if not part:
            return None
        data = Data(pos=self._data_pos, data=part)
        self._at += len(part)
        self._data_pos += len(part)
        self._rest -= len(part)
        return data
