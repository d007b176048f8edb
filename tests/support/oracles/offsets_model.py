"""Committed offsets as plain dictionaries: what a broker must return after any changes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from tests.support.clients.offsets_client import Commit, Committed, OffsetsClient, Place


@dataclass
class OffsetsModel:
    """All committed offsets of all groups.

    Attributes:
        groups: by group, then by topic and partition.
    """

    groups: dict[str, dict[Place, Committed]]

    def __init__(self, groups: Mapping[str, Mapping[Place, Committed]] | None = None) -> None:
        self.groups = {name: dict(offsets) for name, offsets in (groups or {}).items()}

    def copy(self) -> Self:
        return type(self)(self.groups)

    def commit(self, group: str, commits: Mapping[Place, Commit]) -> None:
        offsets = self.groups.setdefault(group, {})
        for place, one in commits.items():
            offsets[place] = Committed(one.offset, one.metadata or "", one.leader_epoch)

    def delete(self, group: str, places: Iterable[Place]) -> None:
        for place in places:
            self.groups.get(group, {}).pop(place, None)

    def delete_topic(self, name: str) -> None:
        for offsets in self.groups.values():
            for place in [place for place in offsets if place[0] == name]:
                del offsets[place]

    def seen(self) -> dict[str, dict[Place, Committed]]:
        """The offsets as a broker returns them: without groups that have none."""
        return {name: offsets for name, offsets in self.groups.items() if offsets}


def seen_by(offsets: OffsetsClient) -> dict[str, dict[Place, Committed]]:
    """The offsets that a broker returns for all its groups."""
    names = offsets.harness.broker.groups.names
    return {} if not names else offsets.fetch_many(dict.fromkeys(names), version=8)
