"""Directories of the simulated file system: current names, and those that a power cut leaves."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.simulator.sim_file import CrashMode, SimNode
from tests.support.simulator.sim_lock import SimLocks


class SimDir:
    """A directory: its current names, and those that a power cut leaves."""

    __slots__ = ("durable", "entries", "locks")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.locks = SimLocks()

    def digest(self) -> int:
        """A number that is equal, within one process, for directories with equal content."""
        parts = [(name, entry.digest()) for name, entry in sorted(self.entries.items())]
        return hash((*parts, *sorted(self.durable)))


Entry = SimNode | SimDir


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One atomic change of names; None removes a name."""

    changes: tuple[tuple[SimDir, str, Entry | None], ...]

    def places(self) -> set[tuple[int, str]]:
        """The names that it changes, by directory."""
        return {(id(directory), name) for directory, name, _ in self.changes}


class Copies:
    """Copies of directories and files, one for each even if several names refer to it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._known: dict[int, Entry] = {}

    def of(self, entry: Entry) -> Entry:
        """The one copy of a file or directory."""
        if isinstance(entry, SimDir):
            return self.of_dir(entry)
        return self._known.setdefault(id(entry), entry.crashed("killed", self._rng))

    def of_dir(self, directory: SimDir) -> SimDir:
        """The one copy of a directory."""
        copy = self._known.get(id(directory))
        if copy is None:
            copy = self._known[id(directory)] = SimDir()
            copy.entries = {name: self.of(entry) for name, entry in directory.entries.items()}
            copy.durable = {name: self.of(entry) for name, entry in directory.durable.items()}
        assert isinstance(copy, SimDir)
        return copy

    def of_link(self, link: Link) -> Link:
        """The same change, applied to the copies."""
        return Link(
            tuple(
                (self.of_dir(directory), name, None if entry is None else self.of(entry))
                for directory, name, entry in link.changes
            )
        )


def set_entry(entries: dict[str, Entry], name: str, entry: Entry | None) -> None:
    """Add or replace a name; None removes it."""
    if entry is None:
        entries.pop(name, None)
    else:
        entries[name] = entry


def count_links(root: SimDir) -> None:
    """Set the number of names of each file below a directory."""
    counts: dict[SimNode, int] = {}

    def walk(directory: SimDir) -> None:
        for entry in directory.entries.values():
            if isinstance(entry, SimDir):
                walk(entry)
            else:
                counts[entry] = counts.get(entry, 0) + 1

    walk(root)
    for node, count in counts.items():
        node.link_count = count


def durable_copy(
    root: SimDir, pending: Sequence[Link], mode: CrashMode, rng: random.Random
) -> SimDir:
    """The tree that a power cut leaves, or with "kept" a sync; it is durable.

    Args:
        root: the tree.
        pending: changes of its names that are not synced, in order.
        mode: what is lost of these and of the files' bytes.
        rng: chooses.
    """
    kept: dict[int, dict[str, Entry]] = {}
    dropped_places: set[tuple[int, str]] = set()
    lost_share = {"dropped": 1.0, "last": 0.0}.get(mode, 0.5)
    if mode == "names":
        lost_share = rng.choice((0.0, 0.3, 0.7, 1.0))
    for link in pending if mode != "kept" else ():
        # A change of a name is lost if an earlier one of the same name is.
        if rng.random() < lost_share or not dropped_places.isdisjoint(link.places()):
            dropped_places |= link.places()
            continue
        for changed, name, entry in link.changes:
            set_entry(kept.setdefault(id(changed), dict(changed.durable)), name, entry)

    files: dict[int, SimNode] = {}

    def crash(node: SimNode) -> SimNode:
        # A file with two names is crashed once.
        if id(node) not in files:
            files[id(node)] = node.crashed(mode, rng)
        return files[id(node)]

    def copy(directory: SimDir) -> SimDir:
        entries = directory.entries
        if mode != "kept":
            entries = kept.get(id(directory), directory.durable)
        found = SimDir()
        for name in sorted(entries):
            entry = entries[name]
            found.entries[name] = copy(entry) if isinstance(entry, SimDir) else crash(entry)
        found.durable = dict(found.entries)
        return found

    return copy(root)
