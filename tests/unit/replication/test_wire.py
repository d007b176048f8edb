"""Every message is read as it was written; everything else is refused before it is kept."""

import random
import struct
from dataclasses import replace

import pytest

from appliance.config.setting import Address
from appliance.errors import RemoteProtocolError
from appliance.model import Endpoint
from appliance.replication import wire
from appliance.replication.facts import (
    FIELD_COUNT_MAX,
    FIELDS_SIZE_MAX_BYTES,
    TERM_MAX,
    Facts,
    Role,
    decode_facts,
    encode_facts,
)
from appliance.replication.logs import NO_CLUSTER, NO_POS
from appliance.replication.message_reader import MessageReader
from appliance.replication.wire import (
    Ack,
    Beat,
    Challenge,
    Data,
    Hello,
    MessageType,
    Refused,
    Welcome,
)

SECRET = b"sixteen bytes and more"
MASTER_NONCE = bytes(range(32))
SLAVE_NONCE = bytes(range(32, 64))

HELLO = Hello(
    cluster=bytes(range(16)),
    node=2,
    format_version=1,
    segment_size_bytes=1 << 26,
    start_pos=0,
    end_pos=5_000,
    last_pos=4_800,
    last_crc=0xFFFFFFFF,
    epochs=((11, 208), (13, 4_000)),
    facts=Facts(7, Role.SLAVE, Endpoint("10.0.0.2", 9092, "rack-b"), 0, Address("::1", 9292)),
)
EMPTY = Hello(NO_CLUSTER, 1, 1, 4096, 0, 0, NO_POS, 0, ())
WELCOME = Welcome(
    bytes(range(16)), 1, 13, 1 << 26, 0, 1 << 62, 5_000, facts=Facts(TERM_MAX, Role.MASTER)
)
BEAT = Beat(0, (1 << 63) - 1, 17, 15, 2**31 - 1, 123_456)


def encode(hello: Hello, **changes: bytes) -> bytes:
    arguments = {"nonce": SLAVE_NONCE, "secret": SECRET, "master_nonce": MASTER_NONCE} | changes
    return wire.encode_hello(hello, **arguments)


def read_one(data: bytes, *expected: MessageType) -> bytes:
    """Return the body of the only message, which arrives byte by byte."""
    reader = MessageReader()
    for index in range(len(data) - 1):
        reader.feed(data[index : index + 1])
        assert reader.next_message(expected or tuple(MessageType)) is None
    reader.feed(data[-1:])
    message = reader.next_message(expected or tuple(MessageType))
    assert message is not None
    assert not isinstance(message, Data)
    assert reader.held_bytes == 0
    return message[1]


@pytest.mark.parametrize(
    "hello", [HELLO, EMPTY, replace(EMPTY, cluster=HELLO.cluster), replace(HELLO, epochs=())]
)
def test_hello_is_read_as_it_was_written(hello: Hello) -> None:
    body = read_one(encode(hello), MessageType.HELLO)
    assert wire.hello_version(body) == wire.VERSION
    found = wire.decode_hello(body, secret=SECRET, master_nonce=MASTER_NONCE)
    assert found == (hello, SLAVE_NONCE)


def test_other_messages_are_read_as_they_were_written() -> None:
    body = read_one(wire.encode_challenge(MASTER_NONCE), MessageType.CHALLENGE)
    assert wire.decode_challenge(body) == Challenge(wire.VERSION, MASTER_NONCE)
    proof = {"secret": SECRET, "slave_nonce": SLAVE_NONCE}
    body = read_one(wire.encode_welcome(WELCOME, **proof), MessageType.WELCOME)
    assert wire.decode_welcome(body, **proof) == WELCOME
    refused = Refused(5, "has segments of 4096 bytes")
    body = read_one(wire.encode_refused(refused, **proof), MessageType.REFUSED)
    assert wire.decode_refused(body, **proof) == refused
    assert wire.decode_beat(read_one(wire.encode_beat(BEAT), MessageType.BEAT)) == BEAT
    ack = Ack(5, 4, 3)
    assert wire.decode_ack(read_one(wire.encode_ack(ack), MessageType.ACK)) == ack
    body = read_one(wire.encode_read(5, wire.READ_SIZE_MAX_BYTES), MessageType.READ)
    assert wire.decode_read(body) == (5, wire.READ_SIZE_MAX_BYTES)
    body = read_one(wire.encode_bytes(5, b"log"), MessageType.BYTES)
    assert wire.decode_bytes(body) == Data(5, b"log")
    order = wire.Yield(7, 5)
    assert wire.decode_yield(read_one(wire.encode_yield(order), MessageType.YIELD)) == order
    for kind in (MessageType.PREPARE, MessageType.READY, MessageType.TAKEN):
        assert wire.decode_term(read_one(wire.encode_term(kind, 7), kind)) == 7


def test_the_longest_hello_is_a_control_message() -> None:
    epochs = tuple((epoch, 100 * epoch) for epoch in range(1, wire.EPOCH_COUNT_MAX + 1))
    end_pos = 100 * wire.EPOCH_COUNT_MAX + 100
    hello = replace(HELLO, epochs=epochs, end_pos=end_pos)
    data = encode(hello)
    assert len(data) < wire.CONTROL_SIZE_MAX_BYTES
    reader = MessageReader()
    reader.feed(data)
    message = reader.next_message([MessageType.HELLO])
    assert message is not None
    assert not isinstance(message, Data)
    found = wire.decode_hello(message[1], secret=SECRET, master_nonce=MASTER_NONCE)
    assert found is not None
    assert found[0] == hello


@pytest.mark.parametrize("kind", MessageType)
def test_a_wrong_length_is_refused_from_the_header_alone(kind: MessageType) -> None:
    least, most = wire.BODY_SIZES[kind]
    for size in (-1, 0, least - 1, most + 1, (1 << 32) - 2):
        reader = MessageReader()
        reader.feed(struct.pack(">IB", (size + 1) % (1 << 32), kind))
        with pytest.raises(RemoteProtocolError, match=kind.name):
            reader.next_message(tuple(MessageType))


@pytest.mark.parametrize("number", [0, 14, 255, MessageType.DATA])
def test_a_type_that_may_not_come_is_refused_whatever_its_length(number: int) -> None:
    reader = MessageReader()
    reader.feed(struct.pack(">IB", 1 << 20, number))
    with pytest.raises(RemoteProtocolError, match="in place of HELLO or ACK"):
        reader.next_message([MessageType.HELLO, MessageType.ACK])


def test_a_proof_is_for_one_challenge_one_secret_and_one_side() -> None:
    def is_proof(data: bytes, secret: bytes = SECRET, nonce: bytes = MASTER_NONCE) -> bool:
        return wire.decode_hello(data[5:], secret=secret, master_nonce=nonce) is not None

    assert is_proof(encode(HELLO))
    assert not is_proof(encode(HELLO, secret=SECRET[:-1] + b"?"))
    assert not is_proof(encode(HELLO), nonce=SLAVE_NONCE)
    proof = {"secret": SECRET, "slave_nonce": SLAVE_NONCE}
    welcome = wire.encode_welcome(WELCOME, **proof)
    for wrong in ({"secret": b"another secret of us"}, {"slave_nonce": MASTER_NONCE}):
        with pytest.raises(RemoteProtocolError, match="secret"):
            wire.decode_welcome(welcome[5:], **(proof | wrong))
    # As long as a WELCOME, with its HMAC, and yet none.
    text = "x" * (wire.BODY_SIZES[MessageType.WELCOME][0] - 34)
    refused = wire.encode_refused(Refused(5, text), **proof)
    with pytest.raises(RemoteProtocolError, match="secret"):
        wire.decode_welcome(refused[5:], **proof)


def test_every_changed_bit_of_a_signed_message_is_noticed() -> None:
    hello = encode(HELLO)[5:]
    proof = {"secret": SECRET, "slave_nonce": SLAVE_NONCE}
    welcome = wire.encode_welcome(WELCOME, **proof)[5:]
    refused = wire.encode_refused(Refused(5, "text"), **proof)[5:]
    for bit in range(8 * len(hello)):
        assert wire.decode_hello(flip(hello, bit), secret=SECRET, master_nonce=MASTER_NONCE) is None
    for bit in range(8 * len(welcome)):
        with pytest.raises(RemoteProtocolError):
            wire.decode_welcome(flip(welcome, bit), **proof)
    for bit in range(8 * len(refused)):
        with pytest.raises(RemoteProtocolError):
            wire.decode_refused(flip(refused, bit), **proof)


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("code", wire.OPEN_CODES)
def test_a_refusal_without_proof_says_nothing_and_is_believed(code: int) -> None:
    proof = {"secret": SECRET, "slave_nonce": SLAVE_NONCE}
    data = wire.encode_refused(Refused(code, "not sent"), **proof)
    assert data[5:] == wire.NO_MAC + struct.pack(">H", code)
    assert wire.decode_refused(data[5:], **proof) == Refused(code, "")


@pytest.mark.parametrize("rest", [b"\0\5", b"\0\1text", b"\0\0"])
def test_any_other_refusal_without_proof_is_not_believed(rest: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="secret"):
        wire.decode_refused(wire.NO_MAC + rest, secret=SECRET, slave_nonce=SLAVE_NONCE)


@pytest.mark.parametrize(
    "change",
    [
        {"node": 0},
        {"node": 3},
        {"segment_size_bytes": 0},
        {"start_pos": -1},
        {"start_pos": 5_001},
        {"last_pos": 5_000},
        {"last_pos": NO_POS},
        {"cluster": NO_CLUSTER},
        {"end_pos": 0},
        {"epochs": ((13, 208), (11, 4_000))},
        {"epochs": ((11, 4_000), (13, 208))},
        {"epochs": ((11, 208), (11, 4_000))},
        {"epochs": ((11, 208), (13, 5_000))},
        {"epochs": ((0, 208),)},
        {"epochs": ((11, -1),)},
    ],
    ids=str,
)
def test_a_hello_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    data = encode(replace(HELLO, **change))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="contradicts"):
        wire.decode_hello(data[5:], secret=SECRET, master_nonce=MASTER_NONCE)


def test_a_hello_with_a_wrong_count_of_epochs_is_refused() -> None:
    body = bytearray(encode(HELLO)[5:])
    place = len(body) - len(encode_facts(HELLO.facts)) - 2 * 12 - 4
    body[place : place + 4] = struct.pack(">I", 1 << 31)
    rest = bytes(body[66:])
    mac = wire._mac_of_slave(SECRET, MASTER_NONCE, bytes(body[:34]), rest)
    with pytest.raises(RemoteProtocolError, match="epochs"):
        wire.decode_hello(bytes(body[:34]) + mac + rest, secret=SECRET, master_nonce=MASTER_NONCE)


@pytest.mark.parametrize(
    "change",
    [
        {"node": 0},
        {"start_pos": -1},
        {"common_pos": -1},
        {"end_pos": 4_999},
        {"cluster": NO_CLUSTER},
    ],
    ids=str,
)
def test_a_welcome_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    proof = {"secret": SECRET, "slave_nonce": SLAVE_NONCE}
    data = wire.encode_welcome(replace(WELCOME, **change), **proof)  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="contradicts"):
        wire.decode_welcome(data[5:], **proof)


def test_fields_that_a_node_does_not_know_are_skipped() -> None:
    facts = Facts(7, Role.MASTER)
    known = encode_facts(facts)
    assert decode_facts(known + b"\xc8\0\x03new" + b"\xc9\0\0") == facts
    assert decode_facts(b"") == Facts()
    assert decode_facts(b"\xc8\0\x03new") == Facts()


@pytest.mark.parametrize(
    "data",
    [
        b"\1",
        b"\1\0",
        b"\1\0\x09" + bytes(8),
        b"\1\0\x08" + bytes(8),
        b"\1\0\x0a" + bytes(10),
        encode_facts(Facts(7)) * 2,
        b"\xc8\0\0" + encode_facts(Facts(7)),
        struct.pack(">BHqB", 1, 9, -1, 1),
        struct.pack(">BHqB", 1, 9, TERM_MAX + 1, 1),
        struct.pack(">BHqB", 1, 9, 7, 0),
        struct.pack(">BHqB", 1, 9, 7, 5),
        b"\3\0\3\0\0\1",
        b"\4\0\4none",
        b"\4\0\2\xff:",
        b"".join(bytes([tag, 0, 0]) for tag in range(2, FIELD_COUNT_MAX + 3)),
        b"\xc8" + struct.pack(">H", FIELDS_SIZE_MAX_BYTES) + bytes(FIELDS_SIZE_MAX_BYTES),
    ],
    ids=range(16),
)
def test_fields_that_are_not_whole_or_out_of_bounds_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_facts(data)


def test_a_challenge_of_another_protocol_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no master"):
        wire.decode_challenge(b"HTTP" + bytes(34))


def test_messages_are_the_same_in_pieces_of_any_size() -> None:
    chance = random.Random(3)
    log = chance.randbytes(1 + 5_000 + 70_000 + wire.DATA_SIZE_MAX_BYTES)
    sent, pos = [], 0
    for size in (1, 5_000, 70_000, wire.DATA_SIZE_MAX_BYTES):
        sent += [wire.encode_data_head(pos, size), log[pos : pos + size], wire.encode_beat(BEAT)]
        pos += size
    data = b"".join(sent)
    reader, found, beats, place = MessageReader(), bytearray(), 0, 0
    while place < len(data):
        size = chance.choice((1, 100, 65_536))
        reader.feed(data[place : place + size])
        place += size
        while message := reader.next_message([MessageType.DATA, MessageType.BEAT]):
            if isinstance(message, Data):
                assert message.pos == len(found)
                found += message.data
            else:
                assert wire.decode_beat(message[1]) == BEAT
                beats += 1
        assert reader.held_bytes <= 45
    assert found == log
    assert beats == 4


def test_the_bytes_of_data_are_passed_on_without_a_copy() -> None:
    reader, chunk = MessageReader(), bytes(1_000)
    reader.feed(wire.encode_data_head(17, 3_000))
    assert reader.next_message([MessageType.DATA]) is None
    reader.feed(chunk)
    message = reader.next_message([MessageType.DATA])
    assert message == Data(17, chunk)
    assert isinstance(message, Data)
    assert message.data is chunk
    assert reader.next_message([MessageType.DATA]) is None


def test_a_refusal_is_one_line_whatever_the_master_says() -> None:
    assert wire.refusal_text(Refused(1, "")) == "refused: wrong secret"
    assert wire.refusal_text(Refused(77, 'a\n"b')) == 'refused: code 77 "a\\n\\"b"'


@pytest.mark.parametrize(
    "endpoint", [Endpoint("h", 1), Endpoint("host.example", 65_535, "ü" * 127)]
)
def test_address_for_clients_is_read_as_it_was_written(endpoint: Endpoint) -> None:
    facts = Facts(7, Role.MASTER, endpoint)
    assert decode_facts(encode_facts(facts)) == facts


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"\0\x01",
        b"\0\x01\0",
        b"\0\x01\x02r",
        b"\0\0\0h",
        b"\0\x01\0\xff",
        b"\0\x01\0" + b"h" * 256,
    ],
)
def test_address_for_clients_that_cannot_be_is_refused(field: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="address for clients"):
        decode_facts(b"\x02" + len(field).to_bytes(2, "big") + field)
