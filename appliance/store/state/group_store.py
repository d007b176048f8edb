"""Consumer groups and their committed offsets: replays offset and group frames, and appends them.

The key of a committed offset has the topic id: an offset of a deleted topic does not apply to a new
topic of the same name. The commits of one turn share a frame. It is appended at the end of the
turn, or before any other control frame, so that replay sees all frames in order.

A change of a group is appended as what changed, so that the log grows by about the size of the
request that causes it. Once such changes take as much as the whole group, or after a start, the
whole group is appended: so a damaged frame costs the members of a group at most until then, and the
log never takes more than twice the changes. Layer 2.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from _core.bytes.layout import (
    FRAME_ALIGNMENT,
    FRAME_HEADER_SIZE,
    KIND_GROUP,
    KIND_GROUP_DELTA,
    KIND_OFFSET,
)
from _core.log.tail import ROOM_CONTROL
from appliance.allowance import share_max
from appliance.errors import OffsetsTooLargeError, TooLargeError
from appliance.store.state.change_positions import ChangePositions
from appliance.store.state.group_deltas import (
    GroupDelta,
    MemberSums,
    apply_delta,
    encode_delta,
    find_delta,
    without_base,
)
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    STATE_EMPTY,
    GroupFrame,
    OffsetEntry,
    encode_group,
    encode_offset,
    join_offsets,
    offset_size,
)
from appliance.store.state.log_calls import LogCalls
from appliance.store.state.payload import COUNT
from appliance.units import KIB

GATHERED_MAX_BYTES: Final = 32 * KIB
"""Commits of one turn that share a frame at its end; more take several frames."""

FRAME_OVERHEAD_BYTES: Final = FRAME_HEADER_SIZE + COUNT.size + FRAME_ALIGNMENT
"""Maximum size of an offset frame without its entries."""

RAISED_MAX: Final = (1 << 31) - (1 << 20)
"""The limit to which 32-bit numbers are raised after a loss, so that some remain to be allocated.
No broker has allocated that many."""


_NONE: Final[Mapping[tuple[int, int], OffsetEntry]] = MappingProxyType({})


def raised(number: int, jump: int) -> int:
    """Raise a 32-bit number by `jump`, up to RAISED_MAX; never lower it."""
    return max(number, min(number + jump, RAISED_MAX))


@dataclass(frozen=True, slots=True)
class _Chain:
    """What is kept beside a group for its next change.

    Attributes:
        sums: of its members.
        delta_bytes: size of the frames of its changes since the last one with the whole group;
            None: this broker has not appended one with the whole group.
    """

    sums: MemberSums
    delta_bytes: int | None = None


class GroupStore:
    """The last known state of groups, and their committed offsets.

    Attributes:
        offsets_size: total size of all committed offsets in bytes; see `offset_size`.
        generation_floor: the generations of an unknown group start above this.
        changes: where the log ended after the last change of a group or its offsets.
    """

    def __init__(
        self, log: LogCalls, *, payload_size_max: int, reserve_bytes: int, offsets_size_max: int
    ) -> None:
        """Start without groups.

        Args:
            log: appends the frames of groups and offsets.
            payload_size_max: the largest payload, bytes.
            reserve_bytes: room kept for deliveries on a full disk; gathered commits may use it.
            offsets_size_max: maximum total size of committed offsets, bytes.
        """
        self._log = log
        self._payload_size_max = payload_size_max
        self._gathered_size_max = min(GATHERED_MAX_BYTES, reserve_bytes - 2 * FRAME_HEADER_SIZE)
        self._offsets_size_max = offsets_size_max
        self.offsets_size = 0
        self.generation_floor = 0
        self.changes = ChangePositions(log.flushed_pos)
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._groups: dict[str, GroupFrame] = {}
        self._chains: dict[str, _Chain] = {}
        self._offsets: dict[str, dict[tuple[int, int], OffsetEntry]] = {}
        self._counts: dict[int, dict[str, int]] = {}
        """By topic id and group: the number of partitions with offsets."""
        self._addresses: dict[str, str] = {}
        """Of groups that count for an address, which one."""
        self._sizes: dict[str, int] = {}
        """By address: size of the offsets of its groups, if there are any."""
        self._occupied: set[str] = set()
        """Groups that got members since the log says that they are empty."""
        self._shared: set[str] = set()
        """Groups whose offsets a capture shares: a change makes a copy first."""

    @property
    def groups(self) -> Mapping[str, GroupFrame]:
        """Groups by name, without those that only committed offsets."""
        return MappingProxyType(self._groups)

    @property
    def topic_id_seen(self) -> int:
        """The highest topic id of any committed offset, 0 for none."""
        return max(self._counts, default=0)

    @property
    def names(self) -> list[str]:
        """Sorted names of all groups, including those with only committed offsets."""
        return sorted(self._groups.keys() | self._offsets.keys())

    def offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        """The committed offsets of a group, by topic id and partition."""
        found = self._offsets.get(group)
        return _NONE if found is None else MappingProxyType(found)

    def has_offsets(self, group: str, topic_id: int) -> bool:
        """Return whether a group has committed offsets of a topic."""
        return group in self._counts.get(topic_id, ())

    # Changes

    def commit_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Commit or delete offsets, all or none; they are appended at the end of the turn.

        This holds after a crash too if they are small enough to share a frame (GATHERED_MAX_BYTES).

        Args:
            entries: of any groups, of topics that exist; later entries override earlier ones. One
                without `commit_pos` gets the present end of the log.

        Raises:
            RequestError: the disk is full, an entry is larger than a frame, or there are too many
                offsets. If they need several frames and more than half a segment, the first ones
                may stay committed.
        """
        if not entries:
            return
        # Each entry holds the group's name: without this, a small request that repeats one
        # partition would take any number of bytes, in memory and in the log.
        entries = list({(e.group, e.topic_id, e.partition): e for e in entries}.values())
        self._check_growth(entries)
        end_pos = self._log.end_pos()
        entries = [
            replace(entry, commit_pos=end_pos)
            if entry.op == OFFSET_COMMITTED and entry.commit_pos < 0
            else entry
            for entry in entries
        ]
        encoded = [encode_offset(entry) for entry in entries]
        self._check_payload(max(map(len, encoded)) + FRAME_OVERHEAD_BYTES)
        size = sum(map(len, encoded))
        frame_count = 2 + size // max(1, self._gathered_size_max)
        total = self._gathered_size + size + frame_count * FRAME_OVERHEAD_BYTES
        self._check_room(min(total, self._payload_size_max))
        if self._gathered_size + size > self._gathered_size_max:
            self.append_gathered()  # so that the new entries share a frame if they fit
        try:
            self._gather(entries, encoded)
        finally:
            # The frame of this turn's offsets may not be appended yet: one byte more than the log
            # has. No answer leaves before the whole turn is written, and then the log is past it.
            pos = self._log.end_pos() + bool(self._gathered)
            for group in dict.fromkeys(entry.group for entry in entries):
                self.changes.note(group, pos)

    def _gather(self, entries: Sequence[OffsetEntry], encoded: Sequence[bytes]) -> None:
        for entry, data in zip(entries, encoded, strict=True):
            if self._gathered_size + len(data) > self._gathered_size_max:
                self.append_gathered()
            if len(data) > self._gathered_size_max:
                self._log.append(KIND_OFFSET, join_offsets([data]))
            else:
                self._log.begin()
                self._gathered.append(data)
                self._gathered_size += len(data)
            self.apply_offsets((entry,))
            self._log.end()

    @property
    def has_gathered(self) -> bool:
        """Offsets were committed in this turn whose frame is not appended yet."""
        return bool(self._gathered)

    def append_gathered(self) -> None:
        """Append the frame of the gathered commits, if any; see the module for when."""
        if self._gathered:
            self._log.append(KIND_OFFSET, join_offsets(self._gathered))
            self._gathered = []
            self._gathered_size = 0
            self._log.end()

    def note_members(self, group: str) -> None:
        """Note that a group has members, before the log says so.

        Its offsets do not expire until `save_group` says that it is empty again.
        """
        self._occupied.add(group)

    def note_address(self, group: str, address: str) -> None:
        """Count the offsets of a group for an address.

        The groups of one address take at most half of what the others leave of what all offsets may
        take. O(its offsets).

        Args:
            group: a new group, one that is used for the first time since a start, or one that is
                deleted.
            address: an IP address; "" to count it for none from now on.
        """
        size = sum(map(offset_size, self.offsets(group).values()))
        self._count_for(self._addresses.pop(group, ""), -size)
        if address:
            self._addresses[group] = address
            self._count_for(address, size)

    def _count_for(self, address: str, size: int) -> None:
        left = self._sizes.pop(address, 0) + size
        if address and left:
            self._sizes[address] = left

    def is_empty(self, group: str) -> bool:
        """Return whether a group has no members, as far as the log and `note_members` say."""
        frame = self._groups.get(group)
        return group not in self._occupied and (frame is None or frame.state == STATE_EMPTY)

    def save_group(self, frame: GroupFrame) -> None:
        """Store the current state of a group, or delete it with its offsets.

        Raises:
            RequestError: the disk is full, or the state is larger than a frame; the stored group
                does not change.
        """
        frame = replace(frame, state_pos=self._state_pos(frame))
        kind, payload, chain = self._encode(frame)
        self.append_gathered()
        # The whole group must fit as well: it is written before the frames it follows from go.
        self._check_payload(max(len(payload), chain.sums.whole_size(frame)))
        self._check_room(len(payload))
        self._log.append(kind, payload)
        self.apply_group(frame)
        if frame.op != GROUP_DELETED:
            self._chains[frame.group] = chain
        if frame.op == GROUP_DELETED or frame.state == STATE_EMPTY:
            self._occupied.discard(frame.group)
        self._log.end()
        self.changes.note(frame.group, self._log.end_pos())

    def _encode(self, frame: GroupFrame) -> tuple[int, bytes, _Chain]:
        """Return the kind and the payload of the frame for a group, and what to keep beside it."""
        chain = self._chains.get(frame.group)
        known = None if frame.op == GROUP_DELETED else self._groups.get(frame.group)
        if chain is not None and chain.delta_bytes is not None and known is not None:
            delta = find_delta(known, chain.sums.base_crc(known), frame)
            sums = chain.sums.after(delta, frame)
            payload = encode_delta(delta)
            delta_bytes = chain.delta_bytes + FRAME_HEADER_SIZE + len(payload)
            if delta_bytes < FRAME_HEADER_SIZE + sums.whole_size(frame):
                return KIND_GROUP_DELTA, payload, _Chain(sums, delta_bytes)
        return KIND_GROUP, encode_group(frame), _Chain(MemberSums.of(frame), 0)

    def _state_pos(self, frame: GroupFrame) -> int:
        """Where the log ended when the group entered the state that is saved now."""
        if frame.state_ms == 0:
            return 0
        known = self._groups.get(frame.group)
        if frame.group in self._occupied:
            known = None  # it became empty again, whatever the clock says
        if known is not None and (known.state, known.state_ms) == (frame.state, frame.state_ms):
            return known.state_pos
        return self._log.end_pos()

    def _check_payload(self, size: int) -> None:
        if size > self._payload_size_max:
            raise TooLargeError(
                f"the group's state has {size} bytes; a frame of the log holds at most "
                f"{self._payload_size_max}: raise store.segment_size_bytes",
            )

    def _check_growth(self, entries: Sequence[OffsetEntry]) -> None:
        size, limit = sum(map(offset_size, entries)), self._offsets_size_max
        addresses = {self._addresses.get(entry.group, "") for entry in entries} - {""}
        if self.offsets_size + size <= limit and all(
            self._sizes.get(address, 0) + size <= self._share_max(address) for address in addresses
        ):
            return
        growth: Counter[str] = Counter()
        for entry in entries:
            if entry.op != OFFSET_DELETED:
                known = self.offsets(entry.group).get((entry.topic_id, entry.partition))
                grown = offset_size(entry) - (0 if known is None else offset_size(known))
                growth[self._addresses.get(entry.group, "")] += grown
        total = growth.total()
        if total > 0 and self.offsets_size + total > limit:
            raise OffsetsTooLargeError(
                f"committed offsets take {self.offsets_size} bytes; {total} more would exceed "
                f"groups.offset_total_size_max_bytes = {limit}",
            )
        for address in addresses:
            has, grown = self._sizes.get(address, 0), growth[address]
            if grown > 0 and has + grown > self._share_max(address):
                raise OffsetsTooLargeError(
                    f"committed offsets of the groups of one address take {has} bytes; {grown} "
                    "more would exceed half of what others leave of "
                    f"groups.offset_total_size_max_bytes = {limit}",
                )

    def _share_max(self, address: str) -> int:
        return share_max(self._offsets_size_max, self.offsets_size - self._sizes.get(address, 0))

    def _check_room(self, size: int) -> None:
        # Gathered commits may use all of the reserve; but no more are accepted once only the part
        # for deliveries is left.
        self._log.check_room(size, ROOM_CONTROL)

    # Frames, when they are appended and when they are replayed

    def apply_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Apply the entries of an offset frame; later entries override earlier ones."""
        for entry in entries:
            key = entry.topic_id, entry.partition
            if entry.op == OFFSET_DELETED:
                self._forget_offset(entry.group, key)
                continue
            if entry.producer_id >= 0:
                continue  # it counts from the commit of its transaction, and here are none
            offsets = self._own_offsets(entry.group)
            known = offsets.get(key)
            if known is None:
                counts = self._counts.setdefault(entry.topic_id, {})
                counts[entry.group] = counts.get(entry.group, 0) + 1
            grown = offset_size(entry) - (0 if known is None else offset_size(known))
            self._count(entry.group, grown)
            offsets[key] = entry

    def _count(self, group: str, size: int) -> None:
        self.offsets_size += size
        self._count_for(self._addresses.get(group, ""), size)

    def _own_offsets(self, group: str) -> dict[tuple[int, int], OffsetEntry]:
        """The offsets of a group for a change: a copy if a capture shares them."""
        offsets = self._offsets.setdefault(group, {})
        if group in self._shared:
            self._shared.discard(group)
            offsets = self._offsets[group] = offsets.copy()
        return offsets

    def _forget_offset(self, group: str, key: tuple[int, int]) -> None:
        if group not in self._offsets:
            return
        offsets = self._own_offsets(group)
        known = offsets.pop(key, None)
        if known is not None:
            self._count(group, -offset_size(known))
            self._discount(group, key[0])
        if not offsets:
            self._offsets.pop(group, None)

    def _discount(self, group: str, topic_id: int) -> None:
        counts = self._counts[topic_id]
        counts[group] -= 1
        if not counts[group]:
            del counts[group]
        if not counts:
            del self._counts[topic_id]

    def apply_group(self, frame: GroupFrame) -> None:
        """Apply a group frame; the offsets of a deleted group are deleted with it."""
        self._chains.pop(frame.group, None)
        if frame.op == GROUP_DELETED:
            self._groups.pop(frame.group, None)
            for key in list(self.offsets(frame.group)):
                self._forget_offset(frame.group, key)
        else:
            self._groups[frame.group] = frame

    def apply_delta(self, delta: GroupDelta) -> None:
        """Apply a group delta frame.

        If it changes another state than the one known here, the frame before it is damaged or
        freed. The group then has no members, and the numbers of this frame. If that frame is freed,
        a carry frame with the whole group follows; else the group is as after a loss, see
        `GroupCoordinator.restore`.
        """
        known, chain = self._groups.get(delta.group), self._chains.get(delta.group)
        if known is not None:
            if chain is None:
                chain = _Chain(MemberSums.of(known))
            if chain.sums.base_crc(known) == delta.base_crc:
                with suppress(IndexError):
                    frame = apply_delta(known, delta)
                    self._groups[delta.group] = frame
                    self._chains[delta.group] = _Chain(chain.sums.after(delta, frame))
                    return
        self.apply_group(without_base(delta))

    def raise_generations(self, jump: int) -> None:
        """Add `jump` to the generation of every group: lost frames may have held later ones."""
        if jump:
            for name, frame in self._groups.items():
                generation = raised(max(frame.generation, 0), jump)
                self._groups[name] = replace(frame, generation=generation)

    def forget_topic(self, topic_id: int, partition_count: int) -> None:
        """Forget all committed offsets of a deleted topic.

        O(its partitions) for each group that has offsets there.
        """
        for group in list(self._counts.get(topic_id, ())):
            for partition in range(partition_count):
                self._forget_offset(group, (topic_id, partition))
            # The frame that added more partitions may have been damaged.
            if group in self._counts.get(topic_id, ()):
                for key in [key for key in self._offsets[group] if key[0] == topic_id]:
                    self._forget_offset(group, key)

    # Checkpoints

    def begin_capture(self) -> tuple[list[GroupFrame], list[Mapping[Any, OffsetEntry]]]:
        """Return all groups, and the offsets of each, unchanged until `end_capture`.

        O(groups): offsets that change meanwhile are copied first.
        """
        self._shared = set(self._offsets)
        return list(self._groups.values()), list(self._offsets.values())

    def end_capture(self) -> None:
        """End the sharing that `begin_capture` started."""
        self._shared = set()

    def walk_offsets(self) -> Iterator[OffsetEntry]:
        """Yield every committed offset, group by group; concurrent changes may be missed.

        Copies the offsets of one group at a time.
        """
        for group in list(self._offsets):
            yield from list(self._offsets.get(group, {}).values())
