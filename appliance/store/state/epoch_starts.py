"""The log position at which each epoch starts. Layer 2; does no I/O."""

from bisect import bisect_left, bisect_right
from typing import Final

from appliance.units import MS_PER_SECOND

YEAR_2020_MS: Final = 1_577_836_800_000
"""Epochs count seconds from this time, so that 31 bits last until 2088."""
EPOCH_MAX: Final = (1 << 31) - 1


def next_epoch(last: int, wall_ms: int, node: int = 0) -> int:
    """Return the epoch of a start; two starts of copies of one log get different epochs.

    Args:
        last: the newest known epoch, -1 for none.
        wall_ms: now, epoch ms.
        node: 1 or 2 in a pair, whose epochs are odd and even, so that they never coincide; else 0.

    Returns:
        The greater of the one after `last` and the seconds since 2020, or the one after that.
    """
    seconds = (wall_ms - YEAR_2020_MS) // MS_PER_SECOND
    epoch = max(last + 1, seconds, 0)
    is_of_other = node > 0 and epoch % 2 != node % 2
    return min(epoch + is_of_other, EPOCH_MAX)


class EpochStarts:
    """The epochs in log order: both numbers and positions rise."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._positions: list[int] = []

    def add(self, epoch: int, start_pos: int) -> None:
        """Note an epoch that starts at a log position."""
        index = bisect_left(self._epochs, epoch)
        if self._epochs[index : index + 1] == [epoch]:
            return  # the start of a segment may repeat it
        # A carry frame repeats earlier ones.
        self._epochs.insert(index, epoch)
        self._positions.insert(index, start_pos)

    def all(self) -> list[tuple[int, int]]:
        """Return every epoch and its start position, in order."""
        return list(zip(self._epochs, self._positions, strict=True))

    def find_end(self, epoch: int) -> tuple[int, int | None] | None:
        """Find where the records of an epoch, and of all epochs before it, end.

        Args:
            epoch: any number.

        Returns:
            The last known epoch that is not above it (`epoch` itself if all known ones are later),
            and the log position at which the next one starts, None if there is no next one. None
            if `epoch` is above all known ones.
        """
        index = bisect_right(self._epochs, epoch)
        if index < len(self._epochs):
            return self._epochs[index - 1] if index else epoch, self._positions[index]
        return (epoch, None) if epoch in self._epochs[-1:] else None
