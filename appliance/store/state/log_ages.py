"""How old each part of the log is, and where a partition reaches a size: what retention needs.

Both are marks that a sweep sets, about once a minute. A mark says what was true when it was set, so
what lies below it is at least as old, or as large, as it says. Marks that are lost make records
live longer, never shorter. Layer 2; does no I/O.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

MARKS_MAX: Final = 8_192
"""Of the age: 5.7 days of one each minute. Beyond it, every second of the older half goes."""

SIZE_PARTS: Final = 16
"""A partition has a mark for each 1/16 of its size limit, which is how exactly the limit holds."""


class LogAges:
    """Marks (log position, age of the store when the visible log ended there), both ascending.

    The newest marks are doubtful while a jump of the wall clock is in doubt: if it counts, they
    turn out to be that much older, and what they mark is younger. They stay doubtful over restarts.
    """

    def __init__(
        self,
        certain: Sequence[tuple[int, int]] = (),
        doubtful: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Continue with saved marks; the doubtful ones are the newest."""
        marks = [*certain, *doubtful]
        self._positions = [pos for pos, _ in marks]
        self._ages_ms = [age_ms for _, age_ms in marks]
        self._doubtful_count = len(doubtful)

    def certain(self) -> list[tuple[int, int]]:
        """Return the marks that are not doubtful, to be saved."""
        return self._marks(slice(0, self._first_doubtful))

    def doubtful(self) -> list[tuple[int, int]]:
        """Return the doubtful marks, to be saved."""
        return self._marks(slice(self._first_doubtful, None))

    @property
    def _first_doubtful(self) -> int:
        return len(self._positions) - self._doubtful_count

    def _marks(self, which: slice) -> list[tuple[int, int]]:
        return list(zip(self._positions[which], self._ages_ms[which], strict=True))

    def note(self, pos: int, age_ms: int, *, is_certain: bool = True) -> None:
        """Set a mark: the visible log ends at `pos` when the store has that age.

        Args:
            pos: log position.
            age_ms: age of the store.
            is_certain: False while a jump is in doubt; if True, the earlier marks are certain too.
        """
        if is_certain:
            self._doubtful_count = 0
        if self._positions and (pos <= self._positions[-1] or age_ms < self._ages_ms[-1]):
            return
        self._positions.append(pos)
        self._ages_ms.append(age_ms)
        self._doubtful_count += not is_certain
        if len(self._positions) > MARKS_MAX:
            half = MARKS_MAX // 2
            # Of two marks the later one stays: it makes records younger.
            self._positions[:half] = self._positions[1:half:2]
            self._ages_ms[:half] = self._ages_ms[1:half:2]
            self._doubtful_count = min(self._doubtful_count, len(self._positions))

    def raise_doubtful(self, by_ms: int) -> None:
        """Raise the ages of the doubtful marks: the jump counts, and they were set after it."""
        first = self._first_doubtful
        self._ages_ms[first:] = [age_ms + by_ms for age_ms in self._ages_ms[first:]]
        self._doubtful_count = 0

    def position_of(self, age_ms: int) -> int:
        """Return a log position: all below it was written when the store had that age, or before.

        It is the highest that is known; 0 if there is none.
        """
        found = bisect_right(self._ages_ms, age_ms)
        return self._positions[found - 1] if found else 0


Marks = tuple[tuple[int, int], ...]


class SizeMarks:
    """Marks (offset, bytes of the partition below it) of the partitions that have a size limit."""

    def __init__(self) -> None:
        """Start without marks."""
        self._marks: dict[tuple[int, int], Marks] = {}

    def restore(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Add saved rows: topic id, partition, offset, bytes; those of a partition in order."""
        for topic_id, partition, offset, size in rows:
            key = topic_id, partition
            self._marks[key] = (*self._marks.get(key, ()), (offset, size))

    def capture(self) -> list[tuple[tuple[int, int], Marks]]:
        """Return topic id, partition and marks of each partition as they are now.

        O(partitions with marks), 20 ns each: what changes later is replaced, never changed in
        place.
        """
        return list(self._marks.items())

    def excess(self, key: tuple[int, int], end: int, size: int, limit: int) -> int:
        """Return the offset below which a partition's records exceed its size limit.

        Args:
            key: topic id and partition.
            end: offset after its last record.
            size: its bytes in the log, including what has expired.
            limit: bytes to keep, 0 or more.

        Returns:
            An offset; at least `limit` bytes lie above it. 0 if there is none.
        """
        marks = self._marks.get(key, ())
        if not marks or (size - marks[-1][1] >= max(1, limit // SIZE_PARTS) and end > marks[-1][0]):
            marks = self._marks[key] = (*marks, (end, size))
        over = sum(size - below >= limit for _, below in marks)
        if not over:
            return 0
        if over > 1:
            marks = self._marks[key] = marks[over - 1 :]
        return marks[0][0]

    def keep(self, keys: set[tuple[int, int]]) -> None:
        """Drop the marks of all other partitions: they have no limit, or are gone."""
        for key in self._marks.keys() - keys:
            del self._marks[key]
