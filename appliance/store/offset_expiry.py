"""Forgets committed offsets that nobody came back for, a slice at a time.

A group with members keeps all it has. Without members an offset expires when the group has been
empty for the retention time, counted from its own commit if that came later, so that what a tool
sets for an empty group stays as long. Of a group of which nothing but offsets is known, the commit
alone counts. An offset that came with an expiry of its own goes when that comes, but not before the
group is empty. These are Kafka's rules (KIP-211).

Each one that expires is deleted by an entry in the log: a replay knows no retention. Layer 2.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from appliance.errors import RequestError
from appliance.store.group_frames import (
    OFFSET_DELETED,
    STATE_EMPTY,
    GroupFrame,
    OffsetEntry,
)
from appliance.store.group_store import GroupStore
from appliance.units import MS_PER_SECOND

OFFSETS_PER_SLICE: Final = 2_048
"""Looked at in one turn; takes about a millisecond."""

ROUND_INTERVAL_MS: Final = 10 * MS_PER_SECOND
"""From the beginning of one round to that of the next, at least; in Kafka it is ten minutes."""


class OffsetExpiry:
    """Goes round all offsets of a store, again and again."""

    def __init__(self, groups: GroupStore, *, retention_ms: int) -> None:
        """Begin with the first group.

        Args:
            groups: whose offsets.
            retention_ms: how long a group without members keeps its offsets.
        """
        self._groups = groups
        self._retention_ms = retention_ms
        self._round: Iterator[OffsetEntry] = iter(())
        self._began_ms = -ROUND_INTERVAL_MS

    def expire_some(self, now_ms: int, offsets_max: int = OFFSETS_PER_SLICE) -> bool:
        """Look at the next offsets and delete those whose time is over; in the log with the turn.

        Args:
            now_ms: wall clock.
            offsets_max: look at no more than so many.

        Returns:
            Whether any was deleted.
        """
        entries = list(islice(self._round, offsets_max))
        # A clock that was set back must not stop it.
        if not entries and abs(now_ms - self._began_ms) >= ROUND_INTERVAL_MS:
            self._began_ms = now_ms
            self._round = self._groups.walk_offsets()
            entries = list(islice(self._round, offsets_max))
        expired = [
            OffsetEntry(
                op=OFFSET_DELETED,
                group=entry.group,
                topic_id=entry.topic_id,
                partition=entry.partition,
            )
            for entry in entries
            if self._is_current(entry) and self._is_over(entry, now_ms)
        ]
        # If the disk is full, the next round finds them again.
        with suppress(RequestError):
            self._groups.commit_offsets(expired)
            return bool(expired)
        return False

    def _is_current(self, entry: OffsetEntry) -> bool:
        key = entry.topic_id, entry.partition
        return self._groups.offsets(entry.group).get(key) is entry

    def _is_over(self, entry: OffsetEntry, now_ms: int) -> bool:
        group = self._groups.groups.get(entry.group)
        if group is not None and group.state != STATE_EMPTY:
            return False
        if entry.expiry_ms >= 0:
            return now_ms >= entry.expiry_ms
        return now_ms - _idle_since_ms(group, entry) >= self._retention_ms


def _idle_since_ms(group: GroupFrame | None, entry: OffsetEntry) -> int:
    return entry.commit_ms if group is None else max(group.state_ms, entry.commit_ms)
