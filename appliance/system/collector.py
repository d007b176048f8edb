"""Keeps the garbage collector from searching what stays, or is held. Layer 1; reads no clock.

A full collection searches all objects in one turn of the loop: 99,000 partitions take 31 ms. Frozen
objects are exempt. But a partition and its topic refer to each other, and frozen objects that do
are not freed when they are deleted. So after many deletions the collector searches all once.

Six hundred requests that name thousands of topics each are searched in 30 to 50 ms, and whoever
sends them makes so many new objects that this happens several times a second. So full collections
are rare.
"""

import gc
from typing import Final, Literal

THRESHOLDS: Final = 700, 10, 100
"""Objects before a collection of the youngest, and collections of one generation before one of the
next. 700, 10, 10 are those of Python."""

NEW_MIN: Final = 1_000
"""Fewer new partitions are searched: a third of a millisecond."""

NEW_PART: Final = 0.1
DELETED_PART: Final = 0.25
"""Of the partitions that are there: so many new ones are frozen, and so many deleted ones freed."""


class PartitionFreezer:
    """Decides what the collector searches, from the number of partitions."""

    def __init__(self) -> None:
        """Begin just after a freeze."""
        self._made: int | None = None
        """Partitions made up to the last freeze."""
        self._deleted = 0
        """Partitions deleted up to the last search of all."""

    def step(self, made: int, deleted: int) -> Literal["freeze", "search"] | None:
        """Look at the partitions; return what to do now.

        Args:
            made: partitions ever made, also deleted ones.
            deleted: those of them that are deleted.

        Returns:
            "freeze" to exempt what is there; "search" to free what was deleted before that; None.
        """
        if self._made is None:
            self._made, self._deleted = made, deleted
            return None
        present = made - deleted
        if deleted - self._deleted >= max(NEW_MIN, DELETED_PART * present):
            self._made, self._deleted = made, deleted
            return "search"
        if made - self._made >= max(NEW_MIN, NEW_PART * present):
            self._made = made
            return "freeze"
        return None


def collect_rarely() -> None:
    """Make full collections ten times rarer than Python does."""
    gc.set_threshold(*THRESHOLDS)


def freeze(*, searches_all: bool) -> None:
    """Free garbage, and exempt all other objects from collections.

    Args:
        searches_all: search exempt objects too.
    """
    if searches_all:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
