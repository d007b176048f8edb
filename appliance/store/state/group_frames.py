"""The payloads of offset and group frames: committed offsets and members of consumer groups.

docs/FORMAT.md describes them. One offset frame holds all commits of one turn of the loop. Layer 2;
pure functions of bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from appliance.store.state.payload import (
    COUNT,
    LONG_SIZE,
    SIZE,
    PayloadReader,
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

OFFSET_ENTRY: Final = struct.Struct(">Bxhiiiqqqqq")
"""_OFFSET_FIELDS; then group and metadata as texts."""
GROUP_HEAD: Final = struct.Struct(">BBBxiiqqI")
"""_GROUP_FIELDS, member count; then _GROUP_TEXTS."""
MEMBER_HEAD: Final = struct.Struct(">iiii")
"""MEMBER_FIELDS; then MEMBER_TEXTS and MEMBER_OCTETS."""

_OFFSET_FIELDS: Final = (
    *("op", "producer_epoch", "topic_id", "partition", "leader_epoch"),
    *("offset", "commit_ms", "commit_pos", "retention_ms", "producer_id"),
)
_GROUP_FIELDS: Final = (
    *("op", "group_type", "state", "generation", "assignment_epoch"),
    *("state_ms", "state_pos"),
)
_GROUP_TEXTS: Final = ("group", "protocol_type", "protocol", "leader")
MEMBER_FIELDS: Final = ("session_timeout_ms", "rebalance_timeout_ms", "epoch", "previous_epoch")
MEMBER_TEXTS: Final = ("member_id", "instance_id", "rack_id", "client_id", "client_host")
MEMBER_OCTETS: Final = ("metadata", "assignment", "target")
_OFFSET_SIZE_MIN: Final = OFFSET_ENTRY.size + 2 * SIZE.size
MEMBER_SIZE_MIN: Final = (
    MEMBER_HEAD.size + len(MEMBER_TEXTS) * SIZE.size + len(MEMBER_OCTETS) * LONG_SIZE.size
)

_offset_fields: Final = attrgetter(*_OFFSET_FIELDS)
_group_fields: Final = attrgetter(*_GROUP_FIELDS)
_group_texts: Final = attrgetter(*_GROUP_TEXTS)
_member_fields: Final = attrgetter(*MEMBER_FIELDS)
_member_texts: Final = attrgetter(*MEMBER_TEXTS)
_member_octets: Final = attrgetter(*MEMBER_OCTETS)


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
    commit_pos: int = -1
    """Where the log ended when it was committed, by which it expires; -1: not committed yet."""
    retention_ms: int = -1
    """How long it is kept from then on; -1: as long as configured."""
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
    state_pos: int = -1
    """Where the log ended when the group entered its state; 0: only its offsets have an age."""
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: tuple[GroupMember, ...] = ()


def join_offsets(encoded: Sequence[bytes]) -> bytes:
    """Join entries from `encode_offset` into a payload; later entries override earlier ones."""
    return COUNT.pack(len(encoded)) + b"".join(encoded)


def encode_offset(entry: OffsetEntry) -> bytes:
    """Encode one entry of an offset frame."""
    head = OFFSET_ENTRY.pack(*_offset_fields(entry))
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
    fields = dict(zip(_OFFSET_FIELDS, reader.fields(OFFSET_ENTRY), strict=True))
    reader.chosen(fields["op"], range(OFFSET_COMMITTED, OFFSET_DELETED + 1))
    return OffsetEntry(group=reader.text(), metadata=reader.optional_text(), **fields)


def encode_group(frame: GroupFrame) -> bytes:
    """Encode the payload of a group frame."""
    return encode_group_head(frame) + b"".join(map(encode_member, frame.members))


def encode_group_head(frame: GroupFrame) -> bytes:
    """Encode what stands before the members in the payload of a group frame."""
    head = GROUP_HEAD.pack(*_group_fields(frame), len(frame.members))
    return head + b"".join(map(pack_text, _group_texts(frame)))


def encode_member(member: GroupMember) -> bytes:
    """Encode one member of a group frame."""
    return b"".join(member_parts(member))


def member_parts(member: GroupMember) -> list[bytes]:
    """Return one member of a group frame in parts, without a copy of its octets."""
    parts = [MEMBER_HEAD.pack(*_member_fields(member)), *map(pack_text, _member_texts(member))]
    for octets in _member_octets(member):
        parts += (LONG_SIZE.pack(len(octets)), octets)
    return parts


def decode_group(payload: bytes) -> GroupFrame:
    """Decode the payload of a group frame.

    Raises:
        CorruptionError: its size does not match its counts, or a text is not UTF-8.
    """
    reader = PayloadReader(payload, "a group frame")
    *numbers, member_count = reader.fields(GROUP_HEAD)
    fields = dict(zip(_GROUP_FIELDS, numbers, strict=True))
    texts = _read_texts(reader, _GROUP_TEXTS, required=("group",))
    reader.check_count(member_count, MEMBER_SIZE_MIN)
    members = tuple(decode_member(reader) for _ in range(member_count))
    reader.chosen(fields["op"], range(GROUP_SAVED, GROUP_DELETED + 1))
    reader.chosen(fields["group_type"], range(GROUP_CLASSIC, GROUP_CONSUMER + 1))
    reader.chosen(fields["state"], range(STATE_EMPTY, STATE_RECONCILING + 1))
    reader.finish()
    return GroupFrame(**fields, **texts, members=members)


def decode_member(reader: PayloadReader) -> GroupMember:
    """Decode the next member of a group frame.

    Raises:
        CorruptionError: it is incomplete, or a text is not UTF-8.
    """
    fields = dict(zip(MEMBER_FIELDS, reader.fields(MEMBER_HEAD), strict=True))
    texts = _read_texts(reader, MEMBER_TEXTS, required=("member_id", "client_id", "client_host"))
    octets: dict[str, Any] = {name: reader.octets() for name in MEMBER_OCTETS}
    return GroupMember(**fields, **texts, **octets)


def _read_texts(
    reader: PayloadReader, names: Sequence[str], required: Sequence[str]
) -> dict[str, Any]:
    return {name: reader.text() if name in required else reader.optional_text() for name in names}
