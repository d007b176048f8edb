"""The payloads of control frames: what was encoded is read again, and nothing else is."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import CorruptionError
from appliance.store.state import control_frames as control
from appliance.store.state import group_deltas as deltas
from appliance.store.state import group_frames as group
from appliance.store.state import sequences
from appliance.store.state.payload import NULL_SIZE, pack_name, pack_text
from tests.support.docs import golden_frames as golden
from tests.support.docs.format_doc import bytes_of
from tests.support.values import carry_payloads as carry

Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]

CODECS: dict[str, Codec] = {
    "topic": (control.encode_topic, control.decode_topic),
    "producer": (control.encode_producer, control.decode_producer),
    "stages": (control.encode_stages, control.decode_stages),
    "epoch": (control.encode_epoch, control.decode_epoch),
    "offset": (golden.encode_offsets, group.decode_offsets),
    "group": (group.encode_group, group.decode_group),
    "group delta": (deltas.encode_delta, deltas.decode_delta),
    "sequences": (lambda value: carry.encode_sequences(*value), sequences.decode_sequences),
}

EXAMPLES: dict[str, Any] = {
    "topic": golden.TOPIC_FRAME,
    "producer": golden.NEXT_PRODUCER_ID,
    "stages": golden.STOPPED,
    "epoch": golden.EPOCH_FRAME,
    "offset": golden.OFFSETS,
    "group": golden.GROUP_FRAME,
    "group delta": golden.GROUP_DELTA,
    "sequences": (1, golden.SEQUENCES),
}

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
OCTETS = st.binary(max_size=20)


def tuples(items: st.SearchStrategy[Any], size: int = 4) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=size).map(tuple)


def numbers(first: int, last: int) -> st.SearchStrategy[int]:
    return st.integers(first, last)


UUIDS = st.uuids() | st.just(UUID(int=0))
OFFSETS = tuples(
    st.builds(
        group.OffsetEntry,
        op=numbers(1, 2),
        group=TEXT,
        topic_id=I32,
        partition=I32,
        offset=I64,
        leader_epoch=I32,
        metadata=st.none() | TEXT,
        commit_ms=I64,
        commit_pos=I64,
        retention_ms=I64,
        producer_id=I64,
        producer_epoch=I16,
    )
)
MEMBERS = tuples(
    st.builds(
        group.GroupMember,
        member_id=TEXT,
        instance_id=st.none() | TEXT,
        rack_id=st.none() | TEXT,
        client_id=TEXT,
        client_host=TEXT,
        session_timeout_ms=I32,
        rebalance_timeout_ms=I32,
        epoch=I32,
        previous_epoch=I32,
        metadata=OCTETS,
        assignment=OCTETS,
        target=OCTETS,
    )
)
INDEXES = st.lists(st.integers(0, 2**32 - 1), max_size=4, unique=True).map(sorted)
CHANGED_VALUES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("member_id", "client_id", "client_host"), TEXT),
        **dict.fromkeys(("instance_id", "rack_id"), st.none() | TEXT),
        **dict.fromkeys(("metadata", "assignment", "target"), OCTETS),
    },
)
CHANGES = INDEXES.flatmap(
    lambda indexes: st.tuples(
        *(
            st.builds(
                deltas.MemberChange,
                index=st.just(index),
                session_timeout_ms=I32,
                rebalance_timeout_ms=I32,
                epoch=I32,
                previous_epoch=I32,
                values=CHANGED_VALUES,
            )
            for index in indexes
        )
    )
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.builds(
        control.TopicFrame,
        op=numbers(1, 2),
        name=st.text("abcXYZ09._-", max_size=249),
        uuid=UUIDS,
        partitions=tuples(st.tuples(I64, I64, I64)),
        settings=st.dictionaries(TEXT, TEXT, max_size=4),
    ),
    "producer": I64,
    "stages": st.builds(control.StoppedStages, st.booleans(), st.booleans()),
    "epoch": st.builds(control.EpochFrame, epoch=I32, start_pos=I64, cluster=UUIDS),
    "offset": OFFSETS,
    "group": st.builds(
        group.GroupFrame,
        op=numbers(1, 2),
        group=TEXT,
        group_type=numbers(1, 2),
        state=numbers(1, 6),
        generation=I32,
        assignment_epoch=I32,
        state_ms=I64,
        state_pos=I64,
        protocol_type=st.none() | TEXT,
        protocol=st.none() | TEXT,
        leader=st.none() | TEXT,
        members=MEMBERS,
    ),
    "group delta": st.builds(
        deltas.GroupDelta,
        group=TEXT,
        group_type=numbers(1, 2),
        state=numbers(1, 6),
        generation=I32,
        assignment_epoch=I32,
        state_ms=I64,
        state_pos=I64,
        base_crc=numbers(0, 2**32 - 1),
        is_cleared=st.booleans(),
        texts=st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("protocol_type", "protocol", "leader"), st.none() | TEXT)
        ),
        left=INDEXES.map(tuple),
        changed=CHANGES,
        joined=MEMBERS,
    ),
    "sequences": st.tuples(
        I32,
        tuples(
            st.builds(
                sequences.ProducerState,
                producer_id=I64,
                epoch=I16,
                last_pos=I64,
                batches=tuples(st.builds(sequences.SequencedBatch, I32, I32, I64, I64), 5),
            )
        ),
    ),
}

every_payload = pytest.mark.parametrize("name", CODECS)


@every_payload
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_encoded_is_read_again_also_with_the_padding_of_the_log(
    name: str, data: st.DataObject
) -> None:
    encode, decode = CODECS[name]
    value = data.draw(VALUES[name])
    payload = encode(value)
    assert decode(payload) == value
    assert decode(payload + bytes(-len(payload) % 8)) == value


@every_payload
def test_golden_payloads_hold_the_values_they_were_made_of(name: str) -> None:
    encode, decode = CODECS[name]
    assert decode(encode(EXAMPLES[name])) == EXAMPLES[name]


def test_golden_frames_are_decoded_to_the_values_they_were_made_of() -> None:
    def payload(name: str) -> bytes:
        return bytes_of(golden.golden_path(name).read_text().splitlines())[160:]

    assert control.decode_topic(payload("topic")) == golden.TOPIC_FRAME
    assert control.decode_topic(payload("topic_deleted")).op == control.TOPIC_DELETED
    assert control.decode_producer(payload("producer")) == golden.NEXT_PRODUCER_ID
    assert control.decode_stages(payload("stages")) == golden.STOPPED
    assert control.decode_epoch(payload("epoch")) == golden.EPOCH_FRAME
    assert group.decode_offsets(payload("offset")) == golden.OFFSETS
    assert group.decode_group(payload("group")) == golden.GROUP_FRAME
    assert group.decode_group(payload("group_deleted")) == golden.GROUP_DELETED
    assert deltas.decode_delta(payload("group_delta")) == golden.GROUP_DELTA


@every_payload
def test_every_truncation_is_refused(name: str) -> None:
    encode, decode = CODECS[name]
    payload = encode(EXAMPLES[name])
    for size in range(len(payload)):
        with pytest.raises(CorruptionError):
            decode(payload[:size])


@every_payload
@pytest.mark.parametrize("rest", [bytes(8), b"\x01", bytes(6) + b"\x01", b"x" * 100])
def test_bytes_after_the_last_field_are_refused(name: str, rest: bytes) -> None:
    encode, decode = CODECS[name]
    with pytest.raises(CorruptionError, match="zeros up to a multiple of 8"):
        decode(encode(EXAMPLES[name]) + rest)


@every_payload
def test_whatever_the_bytes_are_a_decoder_answers_or_tells_of_corruption(name: str) -> None:
    encode, decode = CODECS[name]
    payload = encode(EXAMPLES[name])
    rng = random.Random(20260101)
    refused = 0
    for _ in range(2000):
        changed = bytearray(payload)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
        try:
            decode(
                bytes(changed[: rng.randint(0, len(changed))] if rng.random() < 0.3 else changed)
            )
        except CorruptionError:
            refused += 1
    assert refused > 100


def test_counts_beyond_the_payload_are_refused_before_anything_is_read() -> None:
    """A count of four billion must not cost four billion steps, or their memory."""
    for decode, head in (
        (group.decode_offsets, b"\xff\xff\xff\xff"),
        (sequences.decode_sequences, bytes(4) + b"\xff\xff\xff\xff"),
        (deltas.decode_delta, bytes(32) + b"\xff\xff\xff\xff" + bytes(8)),
        (deltas.decode_delta, bytes(36) + b"\xff\xff\xff\xff" + bytes(4)),
        (deltas.decode_delta, bytes(40) + b"\xff\xff\xff\xff"),
        (control.decode_topic, b"\x01\x00" + bytes(18) + b"\xff\xff\xff\xff" + bytes(4)),
    ):
        with pytest.raises(CorruptionError, match="items of at least"):
            decode(head + bytes(100))


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("topic", 0, 0),
        ("topic", 0, 3),
        ("offset", 4, 0),
        ("offset", 4, 3),
        ("group", 0, 3),
        ("group", 1, 0),
        ("group", 1, 3),
        ("group", 2, 0),
        ("group", 2, 7),
        ("group delta", 0, 0),
        ("group delta", 0, 3),
        ("group delta", 1, 0),
        ("group delta", 1, 7),
        ("group delta", 2, 2),
        ("group delta", 53, 0),  # the number of the first text
        ("group delta", 53, 4),
    ],
)
def test_unknown_numbers_are_refused(name: str, at: int, value: int) -> None:
    encode, decode = CODECS[name]
    payload = bytearray(encode(EXAMPLES[name]))
    payload[at] = value
    with pytest.raises(CorruptionError, match=rf"found (kind )?{value}\b"):
        decode(bytes(payload))


def test_text_that_is_not_utf_8_is_refused() -> None:
    payload = group.encode_group(golden.GROUP_DELETED).replace(b"old", b"o\xff\xfe")
    with pytest.raises(CorruptionError, match="UTF-8"):
        group.decode_group(payload)


def test_an_absent_text_is_refused_where_one_must_be() -> None:
    payload = group.encode_group(golden.GROUP_DELETED)
    absent = payload.replace(pack_text("old"), pack_text(None))
    assert absent != payload
    with pytest.raises(CorruptionError, match="an id or a text"):
        group.decode_group(absent)


def test_an_error_names_the_place_and_the_kind_of_frame() -> None:
    with pytest.raises(CorruptionError) as caught:
        control.decode_epoch(bytes(31))
    assert "32 bytes in the payload of an epoch frame" in str(caught.value)
    assert caught.value.offset == 0
    assert caught.value.found == "31"


def test_ids_keep_every_byte_and_sizes_up_to_the_mark_of_absence() -> None:
    longest = "x" * (NULL_SIZE - 1)
    frame = group.GroupFrame(op=group.GROUP_SAVED, group=longest, leader="")
    assert group.decode_group(group.encode_group(frame)) == frame
    with pytest.raises(AssertionError):
        pack_name(b"x" * NULL_SIZE)
