"""Where the log ended after the last change of each thing, as long as that may not be durable.

An answer of the control plane waits until the changes that it shows are durable, and for nothing
else. Layer 2; does no I/O.
"""

from collections.abc import Callable


class ChangePositions:
    """Log positions by name.

    Positions below the flushed one are forgotten, so the memory is bounded by what one flush
    writes.

    Attributes:
        last: where the log ended after the last change of all.
    """

    def __init__(self, flushed_pos: Callable[[], int]) -> None:
        """Begin without changes.

        Args:
            flushed_pos: returns the end of the part of the log that is on the disk.
        """
        self.last = 0
        self._flushed_pos = flushed_pos
        self._positions: dict[str, int] = {}  # in the order of the positions

    def note(self, name: str, pos: int) -> None:
        """Note a change. Amortised O(1).

        Args:
            name: what changed.
            pos: where the log ends after the frame of the change; not below earlier ones.
        """
        self._positions.pop(name, None)
        self._positions[name] = self.last = pos
        flushed_pos = self._flushed_pos()
        while self._positions:
            oldest = next(iter(self._positions))
            if self._positions[oldest] > flushed_pos:
                break
            del self._positions[oldest]

    def of(self, name: str) -> int:
        """Return the position of the last change of `name`; 0 if that is on the disk."""
        pos = self._positions.get(name, 0)
        return pos if pos > self._flushed_pos() else 0

    def is_flushed(self, name: str) -> bool:
        """Return whether the last change of `name` is on the disk."""
        return self.of(name) == 0

    @property
    def are_flushed(self) -> bool:
        """Whether all changes are on the disk."""
        return self.last <= self._flushed_pos()

    def __len__(self) -> int:
        return len(self._positions)
