"""The payload of a group delta frame: what changed of a group since its last frame in the log.

docs/FORMAT.md describes it. A delta names only the members that changed, joined or left, and of
those only the fields that differ, so that a small request writes few bytes about a large group. It
says by a checksum which state it changes. Layer 2; pure functions of bytes and values.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from _core.bytes.crc32c import crc32c
from appliance.store.state.group_frames import (
    GROUP_CLASSIC,
    GROUP_CONSUMER,
    GROUP_SAVED,
    MEMBER_FIELDS,
    MEMBER_OCTETS,
    MEMBER_SIZE_MIN,
    MEMBER_TEXTS,
    STATE_EMPTY,
    STATE_RECONCILING,
    GroupFrame,
    GroupMember,
    decode_member,
    encode_group_head,
    encode_member,
    member_parts,
)
from appliance.store.state.payload import (
    COUNT,
    LONG_SIZE,
    SIZE,
    PayloadReader,
    pack_octets,
    pack_text,
)

GROUP_DELTA: Final = struct.Struct(">BBBBiiqqIIII")
"""_HEAD_FIELDS, with the number of texts after `is_cleared`, then how many members left, changed
and joined; then the group's name, texts that changed, and the members."""
LEFT_MEMBER: Final = COUNT
"""Its index."""
CHANGED_MEMBER: Final = struct.Struct(">IiiiiBBxx")
"""Its index, MEMBER_FIELDS, how many texts and octets changed; then these."""
CHANGED_FIELD: Final = struct.Struct(">B")
"""The number of a text or of octets; then its value."""

_GROUP_TEXTS: Final = ("protocol_type", "protocol", "leader")
_REQUIRED_TEXTS: Final = frozenset(("member_id", "client_id", "client_host"))
_NUMBERS: Final = ("group_type", "state", "generation", "assignment_epoch", "state_ms", "state_pos")
_CHANGED_TEXT_MIN: Final = CHANGED_FIELD.size + SIZE.size
_CHANGED_OCTETS_MIN: Final = CHANGED_FIELD.size + LONG_SIZE.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChange:
    """What changed of a member that stays in its group."""

    index: int
    """Its place among the members before the change, from 0."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    epoch: int = -1
    previous_epoch: int = -1
    values: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """The texts and octets that differ, by the name of the field of GroupMember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDelta:
    """What changed of a group. Numbers are as in GroupFrame, and those after the change."""

    group: str
    group_type: int = GROUP_CLASSIC
    state: int
    generation: int
    assignment_epoch: int = -1
    state_ms: int
    state_pos: int
    base_crc: int
    """Says which state this changes; see `MemberSums.base_crc`."""
    is_cleared: bool = False
    """The assignment of each member that stays is empty, unless `changed` has one."""
    texts: Mapping[str, str | None] = field(default_factory=dict)
    """Protocol type, protocol and leader, as far as they differ."""
    left: tuple[int, ...] = ()
    """Indexes of the members that left, ascending."""
    changed: tuple[MemberChange, ...] = ()
    """Members that stay and differ, ascending by index."""
    joined: tuple[GroupMember, ...] = ()
    """New members: they follow those that stay."""


# Bytes


def encode_delta(delta: GroupDelta) -> bytes:
    """Encode the payload of a group delta frame."""
    head = GROUP_DELTA.pack(
        *(delta.group_type, delta.state, delta.is_cleared, len(delta.texts)),
        *(delta.generation, delta.assignment_epoch, delta.state_ms, delta.state_pos),
        *(delta.base_crc, len(delta.left), len(delta.changed), len(delta.joined)),
    )
    return b"".join(
        (
            head,
            pack_text(delta.group),
            *_encode_values(_GROUP_TEXTS, delta.texts),
            *(LEFT_MEMBER.pack(index) for index in delta.left),
            *map(_encode_change, delta.changed),
            *map(encode_member, delta.joined),
        )
    )


def _encode_change(change: MemberChange) -> bytes:
    texts = list(_encode_values(MEMBER_TEXTS, change.values))
    octets = list(_encode_values(MEMBER_OCTETS, change.values))
    numbers = (getattr(change, name) for name in MEMBER_FIELDS)
    head = CHANGED_MEMBER.pack(change.index, *numbers, len(texts), len(octets))
    return b"".join((head, *texts, *octets))


def _encode_values(names: Sequence[str], values: Mapping[str, Any]) -> Iterator[bytes]:
    for number, name in enumerate(names, 1):
        if name in values:
            value = values[name]
            data = pack_octets(value) if isinstance(value, bytes) else pack_text(value)
            yield CHANGED_FIELD.pack(number) + data


def decode_delta(payload: bytes) -> GroupDelta:
    """Decode the payload of a group delta frame.

    Raises:
        CorruptionError: its size does not match its counts, a number is not known or out of order,
            or a text is not UTF-8.
    """
    reader = PayloadReader(payload, "a group delta frame")
    group_type, state, is_cleared, text_count, *rest = reader.fields(GROUP_DELTA)
    generation, assignment_epoch, state_ms, state_pos, base_crc, *counts = rest
    left_count, changed_count, joined_count = counts
    group = reader.text()
    texts = _decode_values(reader, _GROUP_TEXTS, text_count, _CHANGED_TEXT_MIN)
    reader.check_count(left_count, LEFT_MEMBER.size)
    left = tuple(reader.fields(LEFT_MEMBER)[0] for _ in range(left_count))
    reader.check_count(changed_count, CHANGED_MEMBER.size)
    changed = tuple(_decode_change(reader) for _ in range(changed_count))
    reader.check_count(joined_count, MEMBER_SIZE_MIN)
    joined = tuple(decode_member(reader) for _ in range(joined_count))
    _check_ascending(reader, left)
    _check_ascending(reader, [change.index for change in changed])
    reader.chosen(group_type, range(GROUP_CLASSIC, GROUP_CONSUMER + 1))
    reader.chosen(state, range(STATE_EMPTY, STATE_RECONCILING + 1))
    reader.chosen(is_cleared, range(2))
    reader.finish()
    return GroupDelta(
        group=group,
        group_type=group_type,
        state=state,
        generation=generation,
        assignment_epoch=assignment_epoch,
        state_ms=state_ms,
        state_pos=state_pos,
        base_crc=base_crc,
        is_cleared=bool(is_cleared),
        texts=texts,
        left=left,
        changed=changed,
        joined=joined,
    )


def _decode_change(reader: PayloadReader) -> MemberChange:
    index, *numbers, text_count, octets_count = reader.fields(CHANGED_MEMBER)
    values = _decode_values(reader, MEMBER_TEXTS, text_count, _CHANGED_TEXT_MIN)
    values |= _decode_values(reader, MEMBER_OCTETS, octets_count, _CHANGED_OCTETS_MIN)
    return MemberChange(
        index=index, **dict(zip(MEMBER_FIELDS, numbers, strict=True)), values=values
    )


def _decode_values(
    reader: PayloadReader, names: Sequence[str], count: int, size_min: int
) -> dict[str, Any]:
    reader.check_count(count, size_min)
    values: dict[str, Any] = {}
    last = 0
    for _ in range(count):
        number: int = reader.fields(CHANGED_FIELD)[0]
        if not last < number <= len(names):
            raise reader.error(f"a field from {last + 1} to {len(names)}", str(number))
        last, name = number, names[number - 1]
        if names is MEMBER_OCTETS:
            values[name] = reader.octets()
        else:
            values[name] = reader.text() if name in _REQUIRED_TEXTS else reader.optional_text()
    return values


def _check_ascending(reader: PayloadReader, indexes: Sequence[int]) -> None:
    for index, following in pairwise(indexes):
        if following <= index:
            raise reader.error(f"a member after {index}", str(following))


# Values


def _sums_of(member: GroupMember) -> tuple[int, int]:
    """Size and CRC of a member as a group frame holds it."""
    size = crc = 0
    for part in member_parts(member):
        size += len(part)
        crc = crc32c(part, crc)
    return size, crc


class MemberSums:
    """Size and checksum of each member of a group, as a group frame holds it.

    They are kept beside a group, so that a small change need not read all its members again.
    """

    def __init__(self, sums: Iterable[tuple[int, int]] = ()) -> None:
        self._sizes = array("I")
        self._crcs = array("I")
        for size, crc in sums:
            self._sizes.append(size)
            self._crcs.append(crc)

    @classmethod
    def of(cls, frame: GroupFrame) -> "MemberSums":
        """Return the sums of the members of a group. O(bytes)."""
        return cls(map(_sums_of, frame.members))

    def base_crc(self, frame: GroupFrame) -> int:
        """Return the checksum by which a delta names the state that it changes. O(members).

        It covers the head as a group frame holds it, and the CRC of each member.
        """
        crcs = self._crcs[:]
        if sys.byteorder == "little":
            crcs.byteswap()
        return crc32c(crcs.tobytes(), crc32c(encode_group_head(frame)))

    def whole_size(self, frame: GroupFrame) -> int:
        """Return the size of the payload of a group frame. O(members)."""
        return len(encode_group_head(frame)) + sum(self._sizes)

    def after(self, delta: GroupDelta, frame: GroupFrame) -> "MemberSums":
        """Return the sums after a change.

        O(members), and O(bytes) of those that changed or joined; of all if assignments are cleared.

        Args:
            delta: the change.
            frame: the group after it.
        """
        if delta.is_cleared:
            return MemberSums.of(frame)
        sums = MemberSums()
        sums._sizes, sums._crcs = self._sizes[:], self._crcs[:]
        for change in delta.changed:
            place = change.index - bisect_left(delta.left, change.index)
            size, crc = _sums_of(frame.members[place])
            sums._sizes[change.index], sums._crcs[change.index] = size, crc
        for index in reversed(delta.left):
            del sums._sizes[index], sums._crcs[index]
        for size, crc in map(_sums_of, delta.joined):
            sums._sizes.append(size)
            sums._crcs.append(crc)
        return sums


def find_delta(base: GroupFrame, base_crc: int, frame: GroupFrame) -> GroupDelta:
    """Return what changed of a group. O(members).

    A static member that has a new member id is the same member. One that has another place among
    the others has left and joined.

    Args:
        base: the group as the log has it.
        base_crc: its checksum.
        frame: the group as it is now.
    """
    stays, left = _find_stays(base.members, frame.members)
    old_members = base.members
    pairs = [
        (index, old_members[index], new)
        for index, new in zip(stays, frame.members, strict=False)
        if new is not old_members[index]
    ]
    is_cleared = _are_cleared(pairs) and not any(
        new is old_members[index] and new.assignment
        for index, new in zip(stays, frame.members, strict=False)
    )
    changes = (_find_change(index, new, old, is_cleared) for index, old, new in pairs)
    return GroupDelta(
        group=frame.group,
        **{name: getattr(frame, name) for name in _NUMBERS},
        base_crc=base_crc,
        is_cleared=is_cleared,
        texts={
            name: getattr(frame, name)
            for name in _GROUP_TEXTS
            if getattr(frame, name) != getattr(base, name)
        },
        left=left,
        changed=tuple(change for change in changes if change is not None),
        joined=frame.members[len(stays) :],
    )


def _find_stays(
    base: Sequence[GroupMember], members: Sequence[GroupMember]
) -> tuple[list[int], tuple[int, ...]]:
    """Return the indexes in `base` of the members that stay, which come first, and of the others.

    Most members are the same objects, in a small change of a large group.
    """
    same = 0
    for old, now in zip(base, members, strict=False):
        if now is not old and not _is_same(now, old):
            break
        same += 1
    stays = list(range(same))
    left: list[int] = []
    for index, member in enumerate(base[same:], same):
        new = members[len(stays)] if len(stays) < len(members) else None
        if new is member or (new is not None and _is_same(new, member)):
            stays.append(index)
        else:
            left.append(index)
    return stays, tuple(left)


def _is_same(member: GroupMember, base: GroupMember) -> bool:
    if member.member_id == base.member_id:
        return True
    return member.instance_id is not None and member.instance_id == base.instance_id


def _are_cleared(pairs: Sequence[tuple[int, GroupMember, GroupMember]]) -> bool:
    """Return whether assignments were taken away of the members that changed, and none was kept."""
    had = [(old, new) for _, old, new in pairs if old.assignment]
    is_any_empty = any(not new.assignment for _, new in had)
    return is_any_empty and all(new.assignment != old.assignment for old, new in had)


def _find_change(
    index: int, member: GroupMember, base: GroupMember, is_cleared: bool
) -> MemberChange | None:
    if is_cleared and base.assignment:
        base = replace(base, assignment=b"")
    if member == base:
        return None
    return MemberChange(
        index=index,
        **{name: getattr(member, name) for name in MEMBER_FIELDS},
        values={
            name: getattr(member, name)
            for name in (*MEMBER_TEXTS, *MEMBER_OCTETS)
            if getattr(member, name) != getattr(base, name)
        },
    )


def apply_delta(base: GroupFrame, delta: GroupDelta) -> GroupFrame:
    """Return a group after a change. O(members).

    Args:
        base: the group as it was, of which `delta.base_crc` is the checksum.
        delta: the change.

    Raises:
        IndexError: the change names a member that `base` does not have.
    """
    members = list(base.members)
    if delta.is_cleared:
        members = [replace(each, assignment=b"") if each.assignment else each for each in members]
    for change in delta.changed:
        numbers = {name: getattr(change, name) for name in MEMBER_FIELDS}
        values: dict[str, Any] = dict(change.values)
        members[change.index] = replace(members[change.index], **numbers, **values)
    for index in reversed(delta.left):
        del members[index]
    texts: dict[str, Any] = {name: getattr(base, name) for name in _GROUP_TEXTS}
    return GroupFrame(
        op=GROUP_SAVED,
        group=delta.group,
        **{name: getattr(delta, name) for name in _NUMBERS},
        **(texts | dict(delta.texts)),
        members=(*members, *delta.joined),
    )


def without_base(delta: GroupDelta) -> GroupFrame:
    """Return what a change says of a group whose state before is not known: all but its members."""
    return GroupFrame(
        op=GROUP_SAVED,
        group=delta.group,
        **{name: getattr(delta, name) for name in _NUMBERS},
    )
