"""The payloads of offset and group frames: committed offsets and members of consumer groups.

docs/FORMAT.md describes them. One offset frame holds all commits of one turn of the loop. Layer 2;
pure functions of bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from appliance.store.state.payload import (
    COUNT,
    LONG_SIZE,
    SIZE,
    PayloadReader,
    pack_octets,
    pack_text,
)

OFFSET_COMMITTED: Final = 1
OFFSET_DELETED: Final = 2

GROUP_SAVED: Final = 1
GROUP_DELETED: Final = 2

GROUP_CLASSIC: Final = 1
GROUP_CONSUMER: Final = 2
"""A group of KIP-848, whose assignment the broker computes."""

STATE_EMPTY: Final = 1
STATE_PREPARING_REBALANCE: Final = 2
STATE_COMPLETING_REBALANCE: Final = 3
STATE_STABLE: Final = 4
STATE_ASSIGNING: Final = 5
STATE_RECONCILING: Final = 6

OFFSET_ENTRY: Final = struct.Struct(">Bxhiiiqqqq")
"""Op, producer epoch, topic id, partition, leader epoch, offset, commit time, expiry, producer id;
then group and metadata as texts."""
GROUP_HEAD: Final = struct.Struct(">BBBxiiqI")
"""Op, type, state, generation, assignment epoch, state time, member count; then four texts."""
MEMBER_HEAD: Final = struct.Struct(">iiii")
"""Session timeout, rebalance timeout, epoch, previous epoch; then five texts, and three byte
strings."""

_GROUP_TEXTS: Final = 4
_MEMBER_TEXTS: Final = 5
_MEMBER_OCTETS: Final = 3
_OFFSET_SIZE_MIN: Final = OFFSET_ENTRY.size + 2 * SIZE.size
_MEMBER_SIZE_MIN: Final = (
    MEMBER_HEAD.size + _MEMBER_TEXTS * SIZE.size + _MEMBER_OCTETS * LONG_SIZE.size
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetEntry:
    """The offset of one group on one partition; if it is deleted, only the key is set.

    With a producer id, it was committed in a transaction and takes effect when that commits.
    """

    op: int
    group: str
    topic_id: int
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str | None = None
    commit_ms: int = -1
    expiry_ms: int = -1
    """Epoch ms; -1: the configured retention applies."""
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group. Fields specific to KIP-848 are -1 or empty in a classic group."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    epoch: int = -1
    previous_epoch: int = -1
    metadata: bytes = b""
    """The subscription, as the member sent it for the chosen protocol."""
    assignment: bytes = b""
    """The current assignment."""
    target: bytes = b""
    """The target assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFrame:
    """One group; if it is deleted, only `group` is set, and its offsets are deleted with it."""

    op: int
    group: str
    group_type: int = GROUP_CLASSIC
    state: int = STATE_EMPTY
    generation: int = -1
    assignment_epoch: int = -1
    state_ms: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: tuple[GroupMember, ...] = ()


def encode_offsets(entries: Sequence[OffsetEntry]) -> bytes:
    """Encode the payload of an offset frame; later entries override earlier ones."""
    return join_offsets([encode_offset(entry) for entry in entries])


def join_offsets(encoded: Sequence[bytes]) -> bytes:
    """Join entries from `encode_offset` into the payload of an offset frame."""
    return COUNT.pack(len(encoded)) + b"".join(encoded)


def encode_offset(entry: OffsetEntry) -> bytes:
    """Encode one entry of an offset frame."""
    head = OFFSET_ENTRY.pack(
        entry.op,
        entry.producer_epoch,
        entry.topic_id,
        entry.partition,
        entry.leader_epoch,
        entry.offset,
        entry.commit_ms,
        entry.expiry_ms,
        entry.producer_id,
    )
    return head + pack_text(entry.group) + pack_text(entry.metadata)


def offset_size(entry: OffsetEntry) -> int:
    """The size of one entry of an offset frame, with texts counted in characters. O(1)."""
    return _OFFSET_SIZE_MIN + len(entry.group) + len(entry.metadata or "")


def decode_offsets(payload: bytes) -> tuple[OffsetEntry, ...]:
    """Decode the payload of an offset frame.

    Raises:
        CorruptionError: its size does not match its counts, or a text is not UTF-8.
    """
    reader = PayloadReader(payload, "an offset frame")
    count = reader.count(_OFFSET_SIZE_MIN)
    entries = tuple(_decode_offset(reader) for _ in range(count))
    reader.finish()
    return entries


def _decode_offset(reader: PayloadReader) -> OffsetEntry:
    (
        op,
        producer_epoch,
        topic_id,
        partition,
        leader_epoch,
        offset,
        commit_ms,
        expiry_ms,
        producer_id,
    ) = reader.fields(OFFSET_ENTRY)
    return OffsetEntry(
        op=reader.chosen(op, range(OFFSET_COMMITTED, OFFSET_DELETED + 1)),
        group=reader.text(),
        topic_id=topic_id,
        partition=partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=reader.optional_text(),
        commit_ms=commit_ms,
        expiry_ms=expiry_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def encode_group(frame: GroupFrame) -> bytes:
    """Encode the payload of a group frame."""
    head = GROUP_HEAD.pack(
        frame.op,
        frame.group_type,
        frame.state,
        frame.generation,
        frame.assignment_epoch,
        frame.state_ms,
        len(frame.members),
    )
    texts = (frame.group, frame.protocol_type, frame.protocol, frame.leader)
    assert len(texts) == _GROUP_TEXTS
    members = b"".join(_encode_member(member) for member in frame.members)
    return head + b"".join(map(pack_text, texts)) + members


def _encode_member(member: GroupMember) -> bytes:
    head = MEMBER_HEAD.pack(
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.epoch,
        member.previous_epoch,
    )
    texts = (
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
    )
    octets = (member.metadata, member.assignment, member.target)
    assert len(texts) == _MEMBER_TEXTS
    assert len(octets) == _MEMBER_OCTETS
    return head + b"".join(map(pack_text, texts)) + b"".join(map(pack_octets, octets))


def decode_group(payload: bytes) -> GroupFrame:
    """Decode the payload of a group frame.

    Raises:
        CorruptionError: its size does not match its counts, or a text is not UTF-8.
    """
    reader = PayloadReader(payload, "a group frame")
    op, group_type, state, generation, assignment_epoch, state_ms, member_count = reader.fields(
        GROUP_HEAD
    )
    group, protocol_type = reader.text(), reader.optional_text()
    protocol, leader = reader.optional_text(), reader.optional_text()
    reader.check_count(member_count, _MEMBER_SIZE_MIN)
    members = tuple(_decode_member(reader) for _ in range(member_count))
    frame = GroupFrame(
        op=reader.chosen(op, range(GROUP_SAVED, GROUP_DELETED + 1)),
        group=group,
        group_type=reader.chosen(group_type, range(GROUP_CLASSIC, GROUP_CONSUMER + 1)),
        state=reader.chosen(state, range(STATE_EMPTY, STATE_RECONCILING + 1)),
        generation=generation,
        assignment_epoch=assignment_epoch,
        state_ms=state_ms,
        protocol_type=protocol_type,
        protocol=protocol,
        leader=leader,
        members=members,
    )
    reader.finish()
    return frame


def _decode_member(reader: PayloadReader) -> GroupMember:
    session_timeout_ms, rebalance_timeout_ms, epoch, previous_epoch = reader.fields(MEMBER_HEAD)
    member_id, instance_id, rack_id = reader.text(), reader.optional_text(), reader.optional_text()
    client_id, client_host = reader.text(), reader.text()
    metadata, assignment, target = reader.octets(), reader.octets(), reader.octets()
    return GroupMember(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        epoch=epoch,
        previous_epoch=previous_epoch,
        metadata=metadata,
        assignment=assignment,
        target=target,
    )
