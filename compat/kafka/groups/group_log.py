"""The interface through which groups and committed offsets are stored. Layer 3."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from appliance.store.state.group_frames import GroupFrame, OffsetEntry


class GroupLog(Protocol):
    """The part of the store that keeps groups. Every answer waits until the log is durable."""

    @property
    def generation_floor(self) -> int:
        """The generations of a new group begin above it."""

    @property
    def groups(self) -> Mapping[str, GroupFrame]:
        """The groups by name, each as last saved."""

    @property
    def names(self) -> Sequence[str]:
        """All groups, also those that have only offsets."""

    def offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        """The committed offsets of a group by topic id and partition; empty if it is unknown."""

    def save_group(self, frame: GroupFrame) -> None:
        """Append the state of a group, or its deletion, which removes its offsets.

        Raises:
            RequestError: the disk is full, or the frame is too large.
        """

    def commit_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Commit or delete offsets, all of them or none; raises RequestError."""
