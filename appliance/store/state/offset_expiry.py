"""Expires committed offsets of abandoned groups, a slice at a time.

A group with members keeps all its offsets. Without members, an offset expires when the group has
been empty for the retention time. The time counts from the offset's commit if that is later, so
that an offset that a tool sets for an empty group is kept as long. For a group with only committed
offsets, the commit alone counts. An offset with its own retention is kept that long from its
commit, and as long as the group has members. These are Kafka's rules (KIP-211), but the time is the
age of the log, by positions: a wrong wall clock expires nothing.

Each expired offset is deleted by an entry in the log: replay does not know the retention. Layer 2.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from appliance.errors import RequestError
from appliance.store.state.group_frames import (
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from appliance.store.state.group_store import GroupStore
from appliance.units import MS_PER_SECOND

OFFSETS_PER_SLICE: Final = 2_048
"""Offsets checked in one turn, in about a millisecond."""

ROUND_INTERVAL_MS: Final = 10 * MS_PER_SECOND
"""Minimum time between the starts of two rounds; Kafka's is ten minutes."""


class OffsetExpiry:
    """Checks all offsets of a store in rounds."""

    def __init__(self, groups: GroupStore, *, retention_ms: int) -> None:
        """Start with the first group.

        Args:
            groups: the groups and their offsets.
            retention_ms: how long a group without members keeps its offsets.
        """
        self._groups = groups
        self._retention_ms = retention_ms
        self._round: Iterator[OffsetEntry] = iter(())
        self._began_ms = -ROUND_INTERVAL_MS

    def expire_some(
        self,
        now_ms: int,
        position_before: Callable[[int], int],
        offsets_max: int = OFFSETS_PER_SLICE,
    ) -> bool:
        """Check the next offsets and delete expired ones; appended at the end of the turn.

        Args:
            now_ms: monotonic, for the pauses between rounds.
            position_before: see `Expiry.position_before`.
            offsets_max: check at most this many.

        Returns:
            Whether any was deleted.
        """
        entries = list(islice(self._round, offsets_max))
        if not entries and now_ms - self._began_ms >= ROUND_INTERVAL_MS:
            self._began_ms = now_ms
            self._round = self._groups.walk_offsets()
            entries = list(islice(self._round, offsets_max))
        cut_pos = position_before(self._retention_ms) if entries else 0
        expired = [
            OffsetEntry(
                op=OFFSET_DELETED,
                group=entry.group,
                topic_id=entry.topic_id,
                partition=entry.partition,
            )
            for entry in entries
            if self._is_current(entry) and self._is_over(entry, cut_pos, position_before)
        ]
        # If the disk is full, the next round finds them again.
        with suppress(RequestError):
            self._groups.commit_offsets(expired)
            return bool(expired)
        return False

    def _is_current(self, entry: OffsetEntry) -> bool:
        key = entry.topic_id, entry.partition
        return self._groups.offsets(entry.group).get(key) is entry

    def _is_over(
        self, entry: OffsetEntry, cut_pos: int, position_before: Callable[[int], int]
    ) -> bool:
        if not self._groups.is_empty(entry.group):
            return False
        if entry.retention_ms >= 0:
            return entry.commit_pos < position_before(entry.retention_ms)
        return _idle_since_pos(self._groups.groups.get(entry.group), entry) < cut_pos


def _idle_since_pos(group: GroupFrame | None, entry: OffsetEntry) -> int:
    return entry.commit_pos if group is None else max(group.state_pos, entry.commit_pos)
