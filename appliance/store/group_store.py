"""Consumer groups and their committed offsets: what offset and group frames say, and more of them.

Committed offsets are kept by topic id: an offset of a deleted topic means nothing to a new topic of
the same name. The commits of one turn share a frame: it is appended at the end of the turn, or
before any other frame of control state, so that replay meets all of them in their order. Layer 2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from _core.layout import FRAME_ALIGNMENT, FRAME_HEADER_SIZE, KIND_GROUP, KIND_OFFSET
from appliance.errors import RequestError
from appliance.store.group_frames import (
    GROUP_DELETED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
    encode_group,
    encode_offset,
    join_offsets,
    offset_size,
)
from appliance.store.payload import COUNT
from appliance.units import KIB

GATHERED_MAX_BYTES: Final = 32 * KIB
"""Commits of one turn that wait for its end to share a frame; with more there are more frames."""

FRAME_OVERHEAD_BYTES: Final = FRAME_HEADER_SIZE + COUNT.size + FRAME_ALIGNMENT
"""What an offset frame has beside its entries, at most."""

RAISED_MAX: Final = (1 << 31) - (1 << 20)
"""Numbers of 32 bits are raised no further than there after a loss: some must be left to be given.
Of those below nobody has given so many."""

MESSAGE_TOO_LARGE: Final = 10
INVALID_COMMIT_OFFSET_SIZE: Final = 28
KAFKA_STORAGE_ERROR: Final = 56

_NONE: Final[Mapping[tuple[int, int], OffsetEntry]] = MappingProxyType({})


def raised(number: int, jump: int) -> int:
    """A number of 32 bits that is to be above `jump` later ones; never lower than it was."""
    return max(number, min(number + jump, RAISED_MAX))


class GroupStore:
    """Groups as they were last told, and their committed offsets.

    Attributes:
        offsets_size: what all committed offsets together take; see `offset_size`.
        generation_floor: a group that is not known here begins its generations above it.
    """

    def __init__(
        self,
        *,
        append: Callable[[int, bytes], None],
        has_room: Callable[[int], bool],
        begin: Callable[[], None],
        end: Callable[[], None],
        payload_size_max: int,
        reserve_bytes: int,
        offsets_size_max: int,
    ) -> None:
        """Begin without groups.

        Args:
            append: (kind, payload) appends a control frame; raises RequestError if it cannot.
            has_room: whether the log takes a payload of so many bytes beside its reserve.
            begin: told that something changes whose frame is yet to come.
            end: told that it has, and that what was appended has taken effect.
            payload_size_max: the largest payload, bytes.
            reserve_bytes: what is kept free when the disk is full. It takes what is gathered then.
            offsets_size_max: what all committed offsets together may take.
        """
        self._append = append
        self._has_room = has_room
        self._begin = begin
        self._end = end
        self._payload_size_max = payload_size_max
        self._gathered_size_max = min(GATHERED_MAX_BYTES, reserve_bytes - 2 * FRAME_HEADER_SIZE)
        self._offsets_size_max = offsets_size_max
        self.offsets_size = 0
        self.generation_floor = 0
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._groups: dict[str, GroupFrame] = {}
        self._offsets: dict[str, dict[tuple[int, int], OffsetEntry]] = {}
        self._counts: dict[int, dict[str, int]] = {}
        """By topic id and group, on how many partitions it has offsets."""
        self._shared: set[str] = set()
        """Groups whose offsets belong to a capture too: a change goes into a copy."""

    @property
    def groups(self) -> Mapping[str, GroupFrame]:
        """By name; a group that only ever committed offsets is not among them."""
        return MappingProxyType(self._groups)

    @property
    def topic_id_seen(self) -> int:
        """The highest topic id of any committed offset, 0 for none."""
        return max(self._counts, default=0)

    @property
    def names(self) -> list[str]:
        """Of all groups, those that only have offsets too, in order."""
        return sorted(self._groups.keys() | self._offsets.keys())

    def offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        """The committed offsets of a group, by topic id and partition."""
        found = self._offsets.get(group)
        return _NONE if found is None else MappingProxyType(found)

    # Changes

    def commit_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Commit or delete offsets, all of them or none; in the log with the turn.

        After a crash as well, if they are small enough to share a frame (GATHERED_MAX_BYTES).

        Args:
            entries: of any groups, of topics that exist; later ones beat earlier ones.

        Raises:
            RequestError: the disk is full, an entry is larger than a frame may be, or there are too
                many offsets. With more than one frame takes, and more than half a segment, the
                first ones may stay committed.
        """
        if not entries:
            return
        # Each entry has the group's name: a small request that names one partition again and again
        # would take any number of bytes, in memory and in the log.
        entries = list({(e.group, e.topic_id, e.partition): e for e in entries}.values())
        if self.offsets_size + sum(map(offset_size, entries)) > self._offsets_size_max:
            self._check_growth(entries)
        encoded = [encode_offset(entry) for entry in entries]
        self._check_payload(max(map(len, encoded)) + FRAME_OVERHEAD_BYTES)
        size = sum(map(len, encoded))
        frame_count = 2 + size // max(1, self._gathered_size_max)
        total = self._gathered_size + size + frame_count * FRAME_OVERHEAD_BYTES
        self._check_room(min(total, self._payload_size_max))
        if self._gathered_size + size > self._gathered_size_max:
            self.append_gathered()  # so that these share a frame if they can
        for entry, data in zip(entries, encoded, strict=True):
            if self._gathered_size + len(data) > self._gathered_size_max:
                self.append_gathered()
            if len(data) > self._gathered_size_max:
                self._append(KIND_OFFSET, join_offsets([data]))
            else:
                self._begin()
                self._gathered.append(data)
                self._gathered_size += len(data)
            self.apply_offsets((entry,))
            self._end()

    @property
    def has_gathered(self) -> bool:
        """Something was committed in this turn whose frame is yet to come."""
        return bool(self._gathered)

    def append_gathered(self) -> None:
        """Append the frame of what was committed since; see the module on when."""
        if self._gathered:
            self._append(KIND_OFFSET, join_offsets(self._gathered))
            self._gathered = []
            self._gathered_size = 0
            self._end()

    def tell_group(self, frame: GroupFrame) -> None:
        """Keep what a group is now, or that it is deleted, its offsets too.

        Raises:
            RequestError: the disk is full, or it is larger than a frame may be; the group stays as
                it was told before.
        """
        payload = encode_group(frame)
        self.append_gathered()
        self._check_payload(len(payload))
        self._check_room(len(payload))
        self._append(KIND_GROUP, payload)
        self.apply_group(frame)
        self._end()

    def _check_payload(self, size: int) -> None:
        if size > self._payload_size_max:
            raise RequestError(
                f"{size} bytes of a group's state; a frame of the log takes "
                f"{self._payload_size_max}: raise store.segment_size_bytes",
                code=MESSAGE_TOO_LARGE,
            )

    def _check_growth(self, entries: Sequence[OffsetEntry]) -> None:
        growth = 0
        for entry in entries:
            if entry.op != OFFSET_DELETED:
                known = self.offsets(entry.group).get((entry.topic_id, entry.partition))
                growth += offset_size(entry) - (0 if known is None else offset_size(known))
        if growth > 0 and self.offsets_size + growth > self._offsets_size_max:
            raise RequestError(
                f"{self.offsets_size} bytes of committed offsets; {growth} more would pass "
                f"groups.offset_total_size_max_bytes = {self._offsets_size_max}",
                code=INVALID_COMMIT_OFFSET_SIZE,
            )

    def _check_room(self, size: int) -> None:
        # What is gathered can go into the reserve, which is kept for deliveries; but nothing more
        # is let in when only that is left.
        if not self._has_room(size):
            raise RequestError("the disk is full", code=KAFKA_STORAGE_ERROR)

    # Frames, when they are appended and at the start

    def apply_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Take up what an offset frame says; later entries beat earlier ones."""
        for entry in entries:
            key = entry.topic_id, entry.partition
            if entry.op == OFFSET_DELETED:
                self._forget_offset(entry.group, key)
                continue
            offsets = self._own_offsets(entry.group)
            known = offsets.get(key)
            if known is None:
                counts = self._counts.setdefault(entry.topic_id, {})
                counts[entry.group] = counts.get(entry.group, 0) + 1
            self.offsets_size += offset_size(entry) - (0 if known is None else offset_size(known))
            offsets[key] = entry

    def _own_offsets(self, group: str) -> dict[tuple[int, int], OffsetEntry]:
        """The offsets of a group, to be changed."""
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
            self.offsets_size -= offset_size(known)
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
        """Take up what a group frame says; the offsets of a deleted group go with it."""
        if frame.op == GROUP_DELETED:
            self._groups.pop(frame.group, None)
            for key in list(self.offsets(frame.group)):
                self._forget_offset(frame.group, key)
        else:
            self._groups[frame.group] = frame

    def raise_generations(self, jump: int) -> None:
        """Add to the generation of every group: lost frames may have told of so many later ones."""
        if jump:
            for name, frame in self._groups.items():
                generation = raised(max(frame.generation, 0), jump)
                self._groups[name] = replace(frame, generation=generation)

    def forget_topic(self, topic_id: int, partition_count: int) -> None:
        """A topic is deleted: nobody's offset in it counts any more.

        O(its partitions) for each group that has offsets there.
        """
        for group in list(self._counts.get(topic_id, ())):
            for partition in range(partition_count):
                self._forget_offset(group, (topic_id, partition))
            # The frame that told of more partitions may have been damaged.
            if group in self._counts.get(topic_id, ()):
                for key in [key for key in self._offsets[group] if key[0] == topic_id]:
                    self._forget_offset(group, key)

    # Checkpoints

    def begin_capture(self) -> tuple[list[GroupFrame], list[Mapping[Any, OffsetEntry]]]:
        """All groups, and the offsets of each, as they are now and stay until `end_capture`.

        O(groups): what changes meanwhile is copied first.
        """
        self._shared = set(self._offsets)
        return list(self._groups.values()), list(self._offsets.values())

    def end_capture(self) -> None:
        """Nobody looks at what was captured any more."""
        self._shared = set()

    def walk_offsets(self) -> Iterator[OffsetEntry]:
        """Every committed offset, group by group; whatever changes meanwhile may be in it or not.

        At most those of one group are held at a time.
        """
        for group in list(self._offsets):
            yield from list(self._offsets.get(group, {}).values())
