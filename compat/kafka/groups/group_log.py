"""Where groups are kept, as far as the coordinator knows of it. Layer 3."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from appliance.clock import Clock
from appliance.store.group_frames import GroupFrame, OffsetEntry


class GroupLog(Protocol):
    """The part of the broker that keeps groups. Every answer waits until the log is durable."""

    @property
    def clock(self) -> Clock:
        """Says since when a group is in its state."""

    @property
    def generation_floor(self) -> int:
        """A group that nobody knows begins its generations above it."""

    def groups(self) -> Mapping[str, GroupFrame]:
        """The groups that were told, by name, each as it was told last."""

    def group_names(self) -> Sequence[str]:
        """All groups, also those of which there are offsets alone."""

    def committed_offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        """The offsets of a group; none if nobody knows it."""

    def tell_group(self, frame: GroupFrame) -> None:
        """Write what a group is now, or that it is no more, and its offsets with it.

        Raises:
            RequestError: the disk is full, or the frame too large.
        """
