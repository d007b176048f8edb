"""The primitive types of the Kafka protocol, and the headers of requests and responses.

Reader and Writer process one message without knowing its type. Reader is the only code that parses
the bytes of a control-plane request: it checks each length and count against the bytes left before
it reads or allocates anything, and raises RemoteProtocolError if they do not fit.

    request  = api_key int16, api_version int16, correlation_id int32, client_id string or null
               [, tags], body
    response = correlation_id int32 [, tags], body

The parts in brackets belong to flexible versions (request header v2, response header v1).
`client_id` has an int16 length in both. A response to ApiVersions never has tags: a client must be
able to read it before it knows the broker's versions. The connection handles the int32 size in
front of every message.
Layer 3; does no I/O.
"""

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from appliance.errors import RemoteProtocolError

API_VERSIONS_KEY: Final = 18

STRING_SIZE_MAX_BYTES: Final = 32767
"""The maximum of the int16 length in non-flexible versions. Kafka has the same limit for compact
strings, so every name in a request fits into a response of the same version."""

ITEM_COUNT_MAX: Final = 100_000
"""Array items and tagged fields in one request, including nested ones. An item can be 1 byte on the
wire and some hundred bytes as an object, so the size of the frame alone would not bound memory and
time. Kafka has no such limit; clients send hundreds."""

TAG_COUNT_MAX: Final = 1_000
"""Tagged fields of one structure, which are skipped in one step. Clients send a few."""

_UVARINT_SIZE_MAX_BYTES: Final = 5
_NO_UUID: Final = UUID(int=0)

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class Reader:
    """Reads one message from front to back.

    Every method returns the next value, and raises RemoteProtocolError if the remaining bytes do
    not contain one.

    Attributes:
        pos: the position of the next byte to read.
    """

    __slots__ = ("_data", "_items_left", "pos")

    def __init__(self, data: bytes | bytearray | memoryview, pos: int = 0) -> None:
        self._data = memoryview(data)
        self.pos = pos
        self._items_left = ITEM_COUNT_MAX

    @property
    def item_count(self) -> int:
        """The items of all arrays so far."""
        return ITEM_COUNT_MAX - self._items_left

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes without copying them."""
        end = self.pos + size
        if size < 0 or end > len(self._data):
            raise RemoteProtocolError(
                f"expected {size} bytes at byte {self.pos} of a message of {len(self._data)} bytes"
            )
        taken = self._data[self.pos : end]
        self.pos = end
        return taken

    def boolean(self) -> bool:
        return self.take(1)[0] != 0

    def int8(self) -> int:
        return int.from_bytes(self.take(1), signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), signed=True)

    def uuid(self) -> UUID | None:
        """A topic id; the zero id means none and is returned as None."""
        value = UUID(bytes=bytes(self.take(16)))
        return None if value == _NO_UUID else value

    def uvarint(self) -> int:
        """An unsigned 32-bit number, 7 bits per byte, lowest first."""
        value = 0
        for index in range(_UVARINT_SIZE_MAX_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> 32:
                    break
                return value
        raise RemoteProtocolError(f"the varint before byte {self.pos} has more than 32 bits")

    def string(self, *, is_compact: bool, is_nullable: bool) -> str | None:
        """Text after its size: an int16, or if compact a varint of size + 1; size -1 is null."""
        size = self.uvarint() - 1 if is_compact else self.int16()
        if size < 0:
            self._check_null(size, is_nullable)
            return None
        if size > STRING_SIZE_MAX_BYTES:
            raise RemoteProtocolError(
                f"a string has {size} bytes: the maximum is {STRING_SIZE_MAX_BYTES}"
            )
        taken = self.take(size)
        try:
            return str(taken, "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a string is not UTF-8: {error.reason}") from None

    def octets(self, *, is_compact: bool, is_nullable: bool) -> bytes | None:
        """Bytes after their size: an int32, or if compact a varint of size + 1; size -1 is null."""
        size = self.uvarint() - 1 if is_compact else self.int32()
        if size < 0:
            self._check_null(size, is_nullable)
            return None
        return bytes(self.take(size))

    def array_count(self, *, is_compact: bool, is_nullable: bool) -> int | None:
        """The number of items: an int32, or if compact a varint of count + 1; -1 is null.

        The count is at most the number of bytes left, because every item has at least one byte.
        The sum of all counts so far is at most ITEM_COUNT_MAX.
        """
        count = self.uvarint() - 1 if is_compact else self.int32()
        if count < 0:
            self._check_null(count, is_nullable)
            return None
        bytes_left = len(self._data) - self.pos
        if count > bytes_left:
            raise RemoteProtocolError(
                f"an array has {count} items: more than the {bytes_left} bytes left"
            )
        self._take_items(count)
        return count

    def skip_tags(self) -> None:
        """Skip tagged fields: in this protocol, unknown ones are not an error."""
        count = self.uvarint()
        if count > TAG_COUNT_MAX:
            raise RemoteProtocolError(
                f"a structure has {count} tagged fields: the maximum is {TAG_COUNT_MAX}"
            )
        self._take_items(count)
        for _ in range(count):
            self.uvarint()
            self.take(self.uvarint())

    def _take_items(self, count: int) -> None:
        self._items_left -= count
        if self._items_left < 0:
            raise RemoteProtocolError(
                f"the request has more than {ITEM_COUNT_MAX} items: split the request"
            )

    def _check_null(self, size: int, is_nullable: bool) -> None:
        if size < -1:
            raise RemoteProtocolError(f"the size before byte {self.pos} is negative: {size}")
        if not is_nullable:
            raise RemoteProtocolError(f"the value before byte {self.pos} must not be null")


class Writer:
    """Builds one message from front to back; the counterpart of Reader.

    Values come from the broker, so one that does not fit its type is a programming error:
    struct.error or AssertionError.
    """

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def finish(self) -> bytes:
        """Return the message."""
        return bytes(self._data)

    def raw(self, encoded: bytes) -> None:
        """Append bytes that are already encoded."""
        self._data += encoded

    def boolean(self, value: bool) -> None:
        self._data.append(1 if value else 0)

    def int8(self, value: int) -> None:
        self._data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self._data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self._data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self._data += _INT64.pack(value)

    def uuid(self, value: UUID | None) -> None:
        self._data += (_NO_UUID if value is None else value).bytes

    def uvarint(self, value: int) -> None:
        assert 0 <= value < 1 << 32
        while value >= 0x80:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)

    def string(self, value: str | None, *, is_compact: bool, is_nullable: bool) -> None:
        encoded = None if value is None else value.encode()
        assert encoded is not None or is_nullable
        size = -1 if encoded is None else len(encoded)
        assert size <= STRING_SIZE_MAX_BYTES
        if is_compact:
            self.uvarint(size + 1)
        else:
            self.int16(size)
        self._data += encoded or b""

    def octets(self, value: bytes | None, *, is_compact: bool, is_nullable: bool) -> None:
        assert value is not None or is_nullable
        size = -1 if value is None else len(value)
        if is_compact:
            self.uvarint(size + 1)
        else:
            self.int32(size)
        self._data += value or b""

    def array_count(self, count: int | None, *, is_compact: bool, is_nullable: bool) -> None:
        assert count is not None or is_nullable
        value = -1 if count is None else count
        if is_compact:
            self.uvarint(value + 1)
        else:
            self.int32(value)

    def no_tags(self) -> None:
        """End a structure of a flexible version."""
        self._data.append(0)


def read_key_and_version(frame: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """Read the first fields of a request, which are the same in every version.

    Args:
        frame: a request without the int32 size in front of it.

    Returns:
        api_key, api_version, correlation_id.

    Raises:
        RemoteProtocolError: the frame is too short.
    """
    reader = Reader(frame)
    return reader.int16(), reader.int16(), reader.int32()


def read_request_header(
    frame: bytes | bytearray | memoryview, *, is_flexible: bool
) -> tuple[RequestHeader, int]:
    """Read the header of a request.

    Args:
        frame: a request without the int32 size in front of it.
        is_flexible: this version of this API has header v2, with tags, instead of v1.

    Returns:
        The header, and the position of the body in the frame.

    Raises:
        RemoteProtocolError: the header is truncated or malformed.
    """
    reader = Reader(frame)
    header = RequestHeader(
        api_key=reader.int16(),
        api_version=reader.int16(),
        correlation_id=reader.int32(),
        client_id=reader.string(is_compact=False, is_nullable=True),
    )
    if is_flexible:
        reader.skip_tags()
    return header, reader.pos


def response_header(api_key: int, correlation_id: int, *, is_flexible: bool) -> bytes:
    """Encode the header of a response.

    Args:
        api_key: of the request.
        correlation_id: of the request, int32.
        is_flexible: this version of this API is flexible; its header is v1, except for ApiVersions.

    Returns:
        4 or 5 bytes.
    """
    tags = b"\0" if is_flexible and api_key != API_VERSIONS_KEY else b""
    return _INT32.pack(correlation_id) + tags
