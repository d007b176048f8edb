"""What of a table is asked for. Layer 4."""

from dataclasses import dataclass, replace
from typing import Final

Bounds = tuple[int | None, int | None]
"""From, to before; None for no bound. Instants in epoch ms."""

ANY: Final[Bounds] = (None, None)

Topics = dict[int, tuple[bytes, list[int]]]
"""By topic id: the name, and the first offset that is kept of each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows are asked for. A scan may return others too, unless it says otherwise.

    Attributes:
        topics: names of topics; None for all.
        partition: one partition of each topic; None for all.
        timestamps: bounds of the records' timestamps, epoch ms.
        stored: bounds of the store times, epoch ms.
        due: bounds of the due times of timers and deliveries, epoch ms.
    """

    topics: frozenset[str] | None = None
    partition: int | None = None
    timestamps: Bounds = ANY
    stored: Bounds = ANY
    due: Bounds = ANY

    def narrowed(self, other: "Selection") -> "Selection":
        """Return the rows that both select."""
        topics = self.topics
        if other.topics is not None:
            topics = other.topics if topics is None else topics & other.topics
        partition = self.partition
        if other.partition is not None:
            if partition is not None and partition != other.partition:
                topics = frozenset()
            partition = other.partition
        return replace(
            self,
            topics=topics,
            partition=partition,
            timestamps=intersection(self.timestamps, other.timestamps),
            stored=intersection(self.stored, other.stored),
            due=intersection(self.due, other.due),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBefore:
    """What earlier readings of a table have returned, so that a carried record comes only once.

    A record or timer that was carried is a row where it was first held, if that is below
    `position` or still in the log; otherwise its first copy is the row. But what was first held in
    the gap could not be read there, because the log began after it: its last copy below `gap_end`
    is the row.

    Attributes:
        position: frames below this log position were read.
        gap: (from, to) in log positions.
        gap_end: where the log ended when the reading began behind the gap.
    """

    position: int = 0
    gap: tuple[int, int] = (0, 0)
    gap_end: int = 0

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The same as `Copies.left_out` takes it."""
        return self.position, *self.gap, self.gap_end


NOTHING_READ: Final = ReadBefore()


def intersection(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of what is within both."""
    lows = [each[0] for each in (a, b) if each[0] is not None]
    highs = [each[1] for each in (a, b) if each[1] is not None]
    return max(lows, default=None), min(highs, default=None)


def may_overlap(bounds: Bounds, lowest: int, highest: int) -> bool:
    """Return whether some instant from `lowest` to `highest` is within the bounds."""
    low, high = bounds
    return (low is None or low <= highest) and (high is None or lowest < high)
