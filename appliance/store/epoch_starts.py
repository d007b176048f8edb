"""Where in the log each epoch starts. Layer 2; does no I/O."""

from bisect import bisect_right


class EpochStarts:
    """The epochs of the log, in its order; numbers and positions only rise."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._positions: list[int] = []

    def add(self, epoch: int, start_pos: int) -> None:
        """Note an epoch that starts at a log position."""
        if self._epochs and epoch <= self._epochs[-1]:
            return  # a segment's start may tell of it again
        self._epochs.append(epoch)
        self._positions.append(start_pos)

    def all(self) -> list[tuple[int, int]]:
        """Every epoch and where it starts, in their order."""
        return list(zip(self._epochs, self._positions, strict=True))

    def find_end(self, epoch: int) -> tuple[int, int | None] | None:
        """Find where the records of an epoch, and of all before it, end.

        Args:
            epoch: any number.

        Returns:
            The last epoch up to it that is known (`epoch` itself if all known ones are later), and
            the log position at which the next one starts, None if that is yet to come. None if the
            log has not come to `epoch`.
        """
        index = bisect_right(self._epochs, epoch)
        if index < len(self._epochs):
            return self._epochs[index - 1] if index else epoch, self._positions[index]
        return (epoch, None) if epoch in self._epochs[-1:] else None
