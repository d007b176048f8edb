"""Consumer groups and their committed offsets: what offset and group frames say, and more of them.

Committed offsets are kept by topic id: an offset of a deleted topic means nothing to a new topic of
the same name. The commits of one turn share a frame: it is appended at the end of the turn, or
before any other frame of control state, so that replay meets all of them in their order. Layer 2.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from _core.layout import KIND_GROUP, KIND_OFFSET
from appliance.errors import RequestError
from appliance.store.group_frames import (
    GROUP_DELETED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
    encode_group,
    encode_offset,
    join_offsets,
)
from appliance.units import KIB

GATHERED_MAX_BYTES: Final = 32 * KIB
"""Commits of one turn that wait for its end to share a frame; with more there are more frames."""

KAFKA_STORAGE_ERROR: Final = 56
MESSAGE_TOO_LARGE: Final = 10

_NONE: Final[Mapping[tuple[int, int], OffsetEntry]] = MappingProxyType({})


class GroupStore:
    """Groups as they were last told, and their committed offsets."""

    def __init__(
        self,
        *,
        append: Callable[[int, bytes], None],
        has_room: Callable[[int], bool],
        payload_size_max: int,
    ) -> None:
        """Begin without groups.

        Args:
            append: (kind, payload) appends a control frame; raises RequestError if it cannot.
            has_room: whether the log takes a payload of so many bytes beside its reserve.
            payload_size_max: the largest payload, bytes.
        """
        self._append = append
        self._has_room = has_room
        self._payload_size_max = payload_size_max
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._groups: dict[str, GroupFrame] = {}
        self._offsets: dict[str, dict[tuple[int, int], OffsetEntry]] = {}

    @property
    def groups(self) -> Mapping[str, GroupFrame]:
        """By name; a group that only ever committed offsets is not among them."""
        return MappingProxyType(self._groups)

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
        """Commit or delete offsets; in the log with the turn.

        Args:
            entries: of any groups, of topics that exist.

        Raises:
            RequestError: the disk is full, or an entry is larger than a frame may be; that entry
                and those behind it are not committed.
        """
        for entry in entries:
            encoded = encode_offset(entry)
            if self._gathered_size + len(encoded) > GATHERED_MAX_BYTES:
                self.append_gathered()
            self._check_room(self._gathered_size + len(encoded))
            self._gathered.append(encoded)
            self._gathered_size += len(encoded)
            self.apply_offsets((entry,))

    def append_gathered(self) -> None:
        """Append the frame of what was committed since; see the module on when."""
        if self._gathered:
            self._append(KIND_OFFSET, join_offsets(self._gathered))
            self._gathered = []
            self._gathered_size = 0

    def tell_group(self, frame: GroupFrame) -> None:
        """Keep what a group is now, or that it is deleted, its offsets too.

        Raises:
            RequestError: the disk is full, or it is larger than a frame may be; the group stays as
                it was told before.
        """
        payload = encode_group(frame)
        self.append_gathered()
        self._check_room(len(payload))
        self._append(KIND_GROUP, payload)
        self.apply_group(frame)

    def _check_room(self, size: int) -> None:
        # What is gathered can go into the reserve, which is kept for deliveries; but nothing more
        # is let in when only that is left.
        if size > self._payload_size_max:
            raise RequestError(
                f"{size} bytes of a group's state; a frame of the log takes "
                f"{self._payload_size_max}: raise store.segment_size_bytes",
                code=MESSAGE_TOO_LARGE,
            )
        if not self._has_room(size):
            raise RequestError("the disk is full", code=KAFKA_STORAGE_ERROR)

    # Frames, when they are appended and at the start

    def apply_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Take up what an offset frame says; later entries beat earlier ones."""
        for entry in entries:
            key = entry.topic_id, entry.partition
            if entry.op != OFFSET_DELETED:
                self._offsets.setdefault(entry.group, {})[key] = entry
                continue
            offsets = self._offsets.get(entry.group, {})
            offsets.pop(key, None)
            if not offsets:
                self._offsets.pop(entry.group, None)

    def apply_group(self, frame: GroupFrame) -> None:
        """Take up what a group frame says; the offsets of a deleted group go with it."""
        if frame.op == GROUP_DELETED:
            self._groups.pop(frame.group, None)
            self._offsets.pop(frame.group, None)
        else:
            self._groups[frame.group] = frame

    def forget_topic(self, topic_id: int) -> None:
        """A topic is deleted: nobody's offset in it counts any more."""
        for group, offsets in list(self._offsets.items()):
            kept = {key: entry for key, entry in offsets.items() if key[0] != topic_id}
            if kept:
                self._offsets[group] = kept
            else:
                del self._offsets[group]

    def all_offsets(self) -> Iterable[OffsetEntry]:
        """Every committed offset."""
        for offsets in self._offsets.values():
            yield from offsets.values()
