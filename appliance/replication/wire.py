"""The messages between master and slave: encode, decode, authenticate.

A message is u32 length | u8 type | body, big-endian; the length counts type and body. The body of
each type is drawn in docs/REPLICATION.md. A length is checked before anything is kept because of
it: by the type, and by what the receiver expects at all. Layer 3; does no I/O.
"""

import hmac
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Final

from appliance.errors import RemoteProtocolError
from appliance.log_text import quoted
from appliance.replication.facts import (
    FIELDS_SIZE_MAX_BYTES,
    NO_FACTS,
    Facts,
    Role,
    decode_facts,
    encode_facts,
)
from appliance.replication.logs import NO_CLUSTER, NO_POS
from appliance.units import KIB, MIB

MAGIC: Final = b"LMQR"
VERSION: Final = 1
"""Of the protocol. Both ends have the same one."""

NONCE_SIZE: Final = 32
MAC_SIZE: Final = 32
NO_MAC: Final = bytes(MAC_SIZE)

SECRET_SIZE_MIN_BYTES: Final = 16
"""Who connects to a slave in the master's place can try short secrets at leisure."""

CONTROL_SIZE_MAX_BYTES: Final = 64 * KIB
DATA_SIZE_MAX_BYTES: Final = MIB
"""Bytes of the log in one message."""

EPOCH_COUNT_MAX: Final = 4_096
"""In a HELLO, which has the newest ones: a start is one epoch, and older ones hardly matter."""

READ_SIZE_MAX_BYTES: Final = 60 * KIB
"""Bytes of the slave's log in one BYTES, which a receiver keeps until it is whole."""

REFUSAL_SIZE_MAX_BYTES: Final = 1_000
"""Of the text of a refusal."""


class MessageType(IntEnum):
    """The byte after the length."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED = 4
    DATA = 5
    BEAT = 6
    ACK = 7
    PREPARE = 8
    READY = 9
    YIELD = 10
    TAKEN = 11
    READ = 12
    BYTES = 13
    REQUEST = 14
    SUPPLY = 15


class RefusalCode(IntEnum):
    """Why a master refuses a slave."""

    WRONG_SECRET = 1
    OTHER_VERSION = 2
    OTHER_FORMAT = 3
    OTHER_CLUSTER = 4
    OTHER_SEGMENT_SIZE = 5
    SAME_NODE = 6
    OTHER_SLAVE = 7
    NEWER_TERM = 8
    AHEAD = 9
    SHORT_LEASE = 10


OPEN_CODES: Final = frozenset({RefusalCode.WRONG_SECRET, RefusalCode.OTHER_VERSION})
"""Refusals without a HMAC and without a text: the slave has not shown that it knows the secret."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The master's first message."""

    version: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the slave is, and which log it has.

    Attributes:
        epochs: the newest EPOCH_COUNT_MAX epochs of its log and their starts, ascending.
        facts: what else it says of itself.
    """

    cluster: bytes
    node: int
    format_version: int
    segment_size_bytes: int
    start_pos: int
    end_pos: int
    last_pos: int
    last_crc: int
    epochs: tuple[tuple[int, int], ...]
    facts: Facts = NO_FACTS


@dataclass(frozen=True, slots=True)
class Welcome:
    """Who the master is, and where the stream begins.

    Attributes:
        common_pos: up to there the logs are equal; `start_pos` if they share nothing.
        acknowledges_received: the master may have acknowledged what it lost since in a power cut.
        facts: what else it says of itself.
    """

    cluster: bytes
    node: int
    epoch: int
    segment_size_bytes: int
    start_pos: int
    end_pos: int
    common_pos: int
    acknowledges_received: bool = False
    facts: Facts = NO_FACTS


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no stream.

    Attributes:
        code: a RefusalCode, or one that this version does not know.
        text: for a person.
    """

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of the log: a DATA, or a part of one."""

    pos: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Beat:
    """Where the master's log is, and when it was there.

    Attributes:
        visible_pos: what consumers of the master may read, at most `committed_pos`.
        time_ms: of the master's own clock; an acknowledgement returns it.
    """

    start_pos: int
    committed_pos: int
    flushed_pos: int
    visible_pos: int
    epoch: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Ack:
    """What the slave has.

    Attributes:
        received_pos: the end of what it appended; 0 before the stream begins.
        durable_pos: the end of what it flushed; 0 if it does not know yet.
        time_ms: of the last BEAT that it received before it sent this; 0 before the first.
    """

    received_pos: int
    durable_pos: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Yield:
    """The master hands over: it serves nobody any more.

    Attributes:
        term: that the slave begins.
        end_pos: of the log, all of which the slave has on its disk.
    """

    term: int
    end_pos: int


HEADER: Final = Struct(">IB")
"""Before each body: the length, which counts type and body, and the type."""

_CHALLENGE: Final = Struct(f">4sH{NONCE_SIZE}s")
_HELLO_HEAD: Final = Struct(f">H{NONCE_SIZE}s")
_HELLO: Final = Struct(">16sBHqqqqII")
_EPOCH: Final = Struct(">iq")
_WELCOME: Final = Struct(">16sBiqqqq?")
_CODE: Final = Struct(">H")
POS: Final = Struct(">q")
"""Before the bytes in a DATA or BYTES."""

_BEAT: Final = Struct(">qqqqqq")
_ACK: Final = Struct(">qqq")
_TERM: Final = Struct(">q")
_YIELD: Final = Struct(">qq")
_READ: Final = Struct(">qI")

_HELLO_SIZE_MIN: Final = _HELLO_HEAD.size + MAC_SIZE + _HELLO.size
_REFUSED_SIZE_MIN: Final = MAC_SIZE + _CODE.size

BODY_SIZES: Final[dict[MessageType, tuple[int, int]]] = {
    MessageType.CHALLENGE: (_CHALLENGE.size, _CHALLENGE.size),
    MessageType.HELLO: (
        _HELLO_SIZE_MIN,
        _HELLO_SIZE_MIN + EPOCH_COUNT_MAX * _EPOCH.size + FIELDS_SIZE_MAX_BYTES,
    ),
    MessageType.WELCOME: (
        MAC_SIZE + _WELCOME.size,
        MAC_SIZE + _WELCOME.size + FIELDS_SIZE_MAX_BYTES,
    ),
    MessageType.REFUSED: (_REFUSED_SIZE_MIN, _REFUSED_SIZE_MIN + REFUSAL_SIZE_MAX_BYTES),
    MessageType.DATA: (POS.size + 1, POS.size + DATA_SIZE_MAX_BYTES),
    MessageType.BEAT: (_BEAT.size, _BEAT.size),
    MessageType.ACK: (_ACK.size, _ACK.size),
    MessageType.PREPARE: (_TERM.size, _TERM.size),
    MessageType.READY: (_TERM.size, _TERM.size),
    MessageType.YIELD: (_YIELD.size, _YIELD.size),
    MessageType.TAKEN: (_TERM.size, _TERM.size),
    MessageType.READ: (_READ.size, _READ.size),
    MessageType.BYTES: (POS.size + 1, POS.size + READ_SIZE_MAX_BYTES),
    MessageType.REQUEST: (_READ.size, _READ.size),
    MessageType.SUPPLY: (POS.size + 1, POS.size + READ_SIZE_MAX_BYTES),
}
"""The least and the most bytes of each body."""

assert all(
    most <= CONTROL_SIZE_MAX_BYTES
    for kind, (_, most) in BODY_SIZES.items()
    if kind != MessageType.DATA
)


def encode_challenge(nonce: bytes) -> bytes:
    """Return a CHALLENGE of this version."""
    return _message(MessageType.CHALLENGE, _CHALLENGE.pack(MAGIC, VERSION, nonce))


def decode_challenge(body: bytes) -> Challenge:
    """Decode a body of the right size.

    Raises:
        RemoteProtocolError: it is none of this protocol.
    """
    magic, version, nonce = _CHALLENGE.unpack(body)
    if magic != MAGIC:
        raise RemoteProtocolError("the peer is no master of latermq")
    return Challenge(version=version, nonce=nonce)


def encode_hello(
    hello: Hello, *, nonce: bytes, secret: bytes, master_nonce: bytes, version: int = VERSION
) -> bytes:
    """Return a HELLO that shows that its sender knows the secret and answers this CHALLENGE."""
    head = _HELLO_HEAD.pack(version, nonce)
    rest = _HELLO.pack(
        hello.cluster,
        hello.node,
        hello.format_version,
        hello.segment_size_bytes,
        hello.start_pos,
        hello.end_pos,
        hello.last_pos,
        hello.last_crc,
        len(hello.epochs),
    )
    rest += b"".join(_EPOCH.pack(*each) for each in hello.epochs) + encode_facts(hello.facts)
    mac = _mac_of_slave(secret, master_nonce, head, rest)
    return _message(MessageType.HELLO, head + mac + rest)


def hello_version(body: bytes) -> int:
    """Return the version of the protocol; all else in a HELLO depends on it."""
    version: int = _HELLO_HEAD.unpack_from(body)[0]
    return version


def decode_hello(body: bytes, *, secret: bytes, master_nonce: bytes) -> tuple[Hello, bytes] | None:
    """Decode a body of this version and of an allowed size.

    Returns:
        The message and the slave's nonce; None if the sender does not know the secret.

    Raises:
        RemoteProtocolError: the sender knows the secret and contradicts itself.
    """
    _, nonce = _HELLO_HEAD.unpack_from(body)
    head, rest = body[: _HELLO_HEAD.size], body[_HELLO_HEAD.size + MAC_SIZE :]
    mac = body[_HELLO_HEAD.size : _HELLO_HEAD.size + MAC_SIZE]
    if not hmac.compare_digest(mac, _mac_of_slave(secret, master_nonce, head, rest)):
        return None
    cluster, node, version, segment_size, start, end, last, crc, count = _HELLO.unpack_from(rest)
    end_of_epochs = _HELLO.size + count * _EPOCH.size
    if count > EPOCH_COUNT_MAX or len(rest) < end_of_epochs:
        raise RemoteProtocolError(f"a HELLO of {len(body)} bytes with {count} epochs")
    epochs = _EPOCH.iter_unpack(rest[_HELLO.size : end_of_epochs])
    hello = Hello(
        cluster=cluster,
        node=node,
        format_version=version,
        segment_size_bytes=segment_size,
        start_pos=start,
        end_pos=end,
        last_pos=last,
        last_crc=crc,
        epochs=tuple((epoch, pos) for epoch, pos in epochs),
        facts=decode_facts(rest[end_of_epochs:]),
    )
    _check_hello(hello)
    return hello, nonce


def _check_hello(hello: Hello) -> None:
    is_ascending = all(
        epoch < next_epoch and start < next_start
        for (epoch, start), (next_epoch, next_start) in zip(
            hello.epochs, hello.epochs[1:], strict=False
        )
    )
    is_empty = hello.last_pos == NO_POS
    is_sound = (
        hello.node in (1, 2)
        and hello.segment_size_bytes > 0
        and 0 <= hello.start_pos <= hello.end_pos
        and (hello.start_pos == hello.end_pos) == is_empty
        and (is_empty or hello.start_pos <= hello.last_pos < hello.end_pos)
        and (hello.cluster != NO_CLUSTER or is_empty)
        and not (hello.epochs and is_empty)
        and is_ascending
        and all(epoch > 0 and 0 <= start < hello.end_pos for epoch, start in hello.epochs)
    )
    if not is_sound:
        raise RemoteProtocolError("a HELLO that contradicts itself")


def encode_welcome(welcome: Welcome, *, secret: bytes, slave_nonce: bytes) -> bytes:
    """Return a WELCOME that shows that its sender knows the secret and answers this HELLO."""
    rest = _WELCOME.pack(
        welcome.cluster,
        welcome.node,
        welcome.epoch,
        welcome.segment_size_bytes,
        welcome.start_pos,
        welcome.end_pos,
        welcome.common_pos,
        welcome.acknowledges_received,
    ) + encode_facts(welcome.facts)
    mac = _mac_of_master(secret, slave_nonce, MessageType.WELCOME, rest)
    return _message(MessageType.WELCOME, mac + rest)


def decode_welcome(body: bytes, *, secret: bytes, slave_nonce: bytes) -> Welcome:
    """Decode a body of an allowed size.

    Raises:
        RemoteProtocolError: the sender does not know the secret, or contradicts itself.
    """
    mac, rest = body[:MAC_SIZE], body[MAC_SIZE:]
    expected = _mac_of_master(secret, slave_nonce, MessageType.WELCOME, rest)
    if not hmac.compare_digest(mac, expected):
        raise RemoteProtocolError("the master does not know the secret")
    welcome = replace(
        Welcome(*_WELCOME.unpack_from(rest)), facts=decode_facts(rest[_WELCOME.size :])
    )
    is_sound = (
        (welcome.cluster != NO_CLUSTER or welcome.facts.role is Role.COMPARING)
        and welcome.node in (1, 2)
        and 0 <= welcome.start_pos <= welcome.common_pos <= welcome.end_pos
    )
    if not is_sound:
        raise RemoteProtocolError("a WELCOME that contradicts itself")
    return welcome


def encode_refused(refused: Refused, *, secret: bytes, slave_nonce: bytes) -> bytes:
    """Return a REFUSED; one of OPEN_CODES has neither HMAC nor text."""
    if refused.code in OPEN_CODES:
        return _message(MessageType.REFUSED, NO_MAC + _CODE.pack(refused.code))
    rest = _CODE.pack(refused.code) + refused.text.encode()[:REFUSAL_SIZE_MAX_BYTES]
    mac = _mac_of_master(secret, slave_nonce, MessageType.REFUSED, rest)
    return _message(MessageType.REFUSED, mac + rest)


def decode_refused(body: bytes, *, secret: bytes, slave_nonce: bytes) -> Refused:
    """Decode a body of an allowed size.

    Raises:
        RemoteProtocolError: the sender does not know the secret, and says more than such a one may.
    """
    mac, rest = body[:MAC_SIZE], body[MAC_SIZE:]
    (code,) = _CODE.unpack_from(rest)
    text = rest[_CODE.size :].decode(errors="replace")
    if code in OPEN_CODES and mac == NO_MAC and not text:
        return Refused(code, text)
    expected = _mac_of_master(secret, slave_nonce, MessageType.REFUSED, rest)
    if not hmac.compare_digest(mac, expected):
        raise RemoteProtocolError("a REFUSED of somebody who does not know the secret")
    return Refused(code, text)


def refusal_text(refused: Refused) -> str:
    """Return a refusal for a line of the log."""
    known = next((each for each in RefusalCode if each == refused.code), None)
    name = f"code {refused.code}" if known is None else known.name.lower().replace("_", " ")
    return f"refused: {name}{' ' + quoted(refused.text) if refused.text else ''}"


def encode_data_head(pos: int, size: int) -> bytes:
    """Return what stands before `size` bytes of the log, 1 to DATA_SIZE_MAX_BYTES, in a DATA."""
    assert 1 <= size <= DATA_SIZE_MAX_BYTES
    return HEADER.pack(1 + POS.size + size, MessageType.DATA) + POS.pack(pos)


def encode_beat(beat: Beat) -> bytes:
    """Return a BEAT."""
    return _message(
        MessageType.BEAT,
        _BEAT.pack(
            beat.start_pos,
            beat.committed_pos,
            beat.flushed_pos,
            beat.visible_pos,
            beat.epoch,
            beat.time_ms,
        ),
    )


def decode_beat(body: bytes) -> Beat:
    """Decode a body of the right size."""
    return Beat(*_BEAT.unpack(body))


def encode_ack(ack: Ack) -> bytes:
    """Return an ACK."""
    return _message(MessageType.ACK, _ACK.pack(ack.received_pos, ack.durable_pos, ack.time_ms))


def decode_ack(body: bytes) -> Ack:
    """Decode a body of the right size."""
    return Ack(*_ACK.unpack(body))


def encode_term(kind: MessageType, term: int) -> bytes:
    """Return a PREPARE, READY or TAKEN about a term."""
    return _message(kind, _TERM.pack(term))


def decode_term(body: bytes) -> int:
    """Decode a body of the right size."""
    term: int = _TERM.unpack(body)[0]
    return term


def encode_yield(order: Yield) -> bytes:
    """Return a YIELD."""
    return _message(MessageType.YIELD, _YIELD.pack(order.term, order.end_pos))


def decode_yield(body: bytes) -> Yield:
    """Decode a body of the right size."""
    return Yield(*_YIELD.unpack(body))


def encode_read(pos: int, size: int, kind: MessageType = MessageType.READ) -> bytes:
    """Return a READ, or a REQUEST, of 1 to READ_SIZE_MAX_BYTES bytes."""
    assert 1 <= size <= READ_SIZE_MAX_BYTES
    return _message(kind, _READ.pack(pos, size))


def decode_read(body: bytes) -> tuple[int, int]:
    """Decode a body of the right size into position and size.

    Raises:
        RemoteProtocolError: it asks for nothing, or for too much.
    """
    pos, size = _READ.unpack(body)
    if pos < 0 or not 1 <= size <= READ_SIZE_MAX_BYTES:
        raise RemoteProtocolError(f"asks for {size} bytes at {pos}")
    return pos, size


def encode_bytes(pos: int, data: bytes, kind: MessageType = MessageType.BYTES) -> bytes:
    """Return a BYTES, or a SUPPLY, with 1 to READ_SIZE_MAX_BYTES bytes of the log."""
    assert 1 <= len(data) <= READ_SIZE_MAX_BYTES
    return _message(kind, POS.pack(pos) + data)


def decode_bytes(body: bytes) -> Data:
    """Decode a body of an allowed size."""
    return Data(pos=POS.unpack_from(body)[0], data=body[POS.size :])


def _message(kind: MessageType, body: bytes) -> bytes:
    return HEADER.pack(1 + len(body), kind) + body


# Each covers its whole message, the nonce of the other side, and who speaks, so that no message can
# be sent again, sent back, or taken for another one.


def _mac_of_slave(secret: bytes, master_nonce: bytes, head: bytes, rest: bytes) -> bytes:
    return hmac.digest(secret, b"slave" + master_nonce + head + rest, "sha256")


def _mac_of_master(secret: bytes, slave_nonce: bytes, kind: MessageType, rest: bytes) -> bytes:
    return hmac.digest(secret, b"master" + slave_nonce + bytes([kind]) + rest, "sha256")
