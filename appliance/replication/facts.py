"""What a node says of itself beyond its log: the fields at the end of HELLO and WELCOME.

A field is u8 tag | u16 length | bytes, big-endian. Fields come in ascending order of their tags,
each tag at most once. A receiver skips a tag that it does not know: a node may say more than its
peer understands. Layer 3; does no I/O.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from appliance.config.setting import Address, parse_address
from appliance.errors import RemoteProtocolError
from appliance.model import Endpoint

FIELD_COUNT_MAX: Final = 32
FIELDS_SIZE_MAX_BYTES: Final = 4_096
"""All fields of one message, with their heads."""

ADDRESS_SIZE_MAX_BYTES: Final = 300

TERM_MAX: Final = (1 << 62) - 1


class Role(IntEnum):
    """What a node is at this moment."""

    MASTER = 1
    SLAVE = 2
    COMPARING = 3
    """A master that serves nobody yet, because it compares its log with the other node's."""
    REPAIRING = 4
    """A slave whose log is damaged, and that asks its master for these parts of it alone."""


class Tag(IntEnum):
    """The first byte of a field."""

    TERM = 1
    ENDPOINT = 2
    LEASE = 3
    REPLICATION = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node says of itself.

    Attributes:
        term: of the pair, as this node knows it: it grows with each change of the master. 0: it
            knows none yet.
        role: what it is in that term.
        endpoint: where Kafka clients reach it; None if it does not say.
        lease_ms: of a master: how long an answered BEAT lets it acknowledge; 0: it needs no lease.
            Of a slave: the longest lease that its promotion would wait for.
        listen: where it waits for a slave when it is the master; None if it will not. Its host may
            be a wildcard.
    """

    term: int = 0
    role: Role = Role.SLAVE
    endpoint: Endpoint | None = None
    lease_ms: int = 0
    listen: Address | None = None


NO_FACTS: Final = Facts()

_HEAD: Final = Struct(">BH")
_TERM: Final = Struct(">qB")
_ENDPOINT: Final = Struct(">HB")
_LEASE: Final = Struct(">I")

HOST_SIZE_MAX_BYTES: Final = 255
RACK_SIZE_MAX_BYTES: Final = 255


def encode_facts(facts: Facts) -> bytes:
    """Return the fields of a message."""
    fields = {
        Tag.TERM: _TERM.pack(facts.term, facts.role),
        Tag.LEASE: _LEASE.pack(facts.lease_ms),
    }
    if facts.endpoint is not None:
        fields[Tag.ENDPOINT] = _encode_endpoint(facts.endpoint)
    if facts.listen is not None:
        fields[Tag.REPLICATION] = str(facts.listen).encode()[:ADDRESS_SIZE_MAX_BYTES]
    data = b"".join(_HEAD.pack(tag, len(fields[tag])) + fields[tag] for tag in sorted(fields))
    assert len(data) <= FIELDS_SIZE_MAX_BYTES
    return data


def decode_facts(data: bytes) -> Facts:
    """Decode the fields at the end of a message.

    Raises:
        RemoteProtocolError: they are not whole, too many, not in order, or one contradicts itself.
    """
    fields = _split(data)
    term, role = 0, int(Role.SLAVE)
    if Tag.TERM in fields:
        term, role = _unpack(_TERM, Tag.TERM, fields[Tag.TERM])
    if not 0 <= term <= TERM_MAX or role not in tuple(Role):
        raise RemoteProtocolError(f"a node of role {role} in term {term}")
    endpoint = None
    if Tag.ENDPOINT in fields:
        endpoint = _decode_endpoint(fields[Tag.ENDPOINT])
    lease_ms = 0
    if Tag.LEASE in fields:
        (lease_ms,) = _unpack(_LEASE, Tag.LEASE, fields[Tag.LEASE])
    listen = _decode_address(fields.get(Tag.REPLICATION))
    return Facts(term=term, role=Role(role), endpoint=endpoint, lease_ms=lease_ms, listen=listen)


def _encode_endpoint(endpoint: Endpoint) -> bytes:
    rack, host = endpoint.rack.encode(), endpoint.host.encode()
    assert len(rack) <= RACK_SIZE_MAX_BYTES
    assert 0 < len(host) <= HOST_SIZE_MAX_BYTES
    return _ENDPOINT.pack(endpoint.port, len(rack)) + rack + host


def _decode_endpoint(data: bytes) -> Endpoint:
    if len(data) < _ENDPOINT.size:
        raise RemoteProtocolError(f"an address for clients of {len(data)} bytes")
    port, rack_size = _ENDPOINT.unpack_from(data)
    rack, host = data[_ENDPOINT.size :][:rack_size], data[_ENDPOINT.size + rack_size :]
    if len(rack) != rack_size or not 0 < len(host) <= HOST_SIZE_MAX_BYTES or port == 0:
        raise RemoteProtocolError("an address for clients that cannot be")
    try:
        return Endpoint(host=host.decode(), port=port, rack=rack.decode())
    except UnicodeDecodeError:
        raise RemoteProtocolError("an address for clients that is no text") from None


def _decode_address(data: bytes | None) -> Address | None:
    if data is None:
        return None
    try:
        return parse_address(data[: ADDRESS_SIZE_MAX_BYTES + 1].decode("ascii"))
    except ValueError as error:
        raise RemoteProtocolError(f"an address that is none: {error}") from error


def _split(data: bytes) -> dict[int, bytes]:
    if len(data) > FIELDS_SIZE_MAX_BYTES:
        raise RemoteProtocolError(f"fields of {len(data)} bytes; at most {FIELDS_SIZE_MAX_BYTES}")
    fields: dict[int, bytes] = {}
    at, last = 0, -1
    while at < len(data):
        if len(data) - at < _HEAD.size or len(fields) == FIELD_COUNT_MAX:
            raise RemoteProtocolError("fields that are not whole, or too many")
        tag, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if tag <= last or len(data) - at < size:
            raise RemoteProtocolError(f"field {tag} is not in order, or not whole")
        fields[tag] = data[at : at + size]
        at, last = at + size, tag
    return fields


def _unpack(form: Struct, tag: Tag, data: bytes) -> tuple[int, ...]:
    if len(data) != form.size:
        raise RemoteProtocolError(f"field {tag.name} of {len(data)} bytes; it has {form.size}")
    return form.unpack(data)
