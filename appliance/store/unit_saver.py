"""Saves the ConsumeQueue units of all partitions in slices, while the broker serves. Layer 2."""

import itertools
from collections.abc import Iterator

from _core.queue.partition import Partition
from appliance.store.queue.consume_queue import UNITS_PER_SLICE, UNITS_SAVED_AT, ConsumeQueues
from appliance.store.state.state import State


class UnitSaver:
    """See the module."""

    def __init__(self, queues: ConsumeQueues, state: State) -> None:
        """Save nothing yet.

        Args:
            queues: the files.
            state: has the partitions.
        """
        self._queues, self._state = queues, state
        self._waiting: Iterator[Partition] = iter(())

    def save(self, *, partitions_max: int) -> bool:
        """Save some units of the next partitions if they have many; call it often to visit all.

        Args:
            partitions_max: visit at most this many, so that the loop is not blocked.

        Returns:
            True if there are so many units that the next call should come soon.
        """
        left = UNITS_PER_SLICE
        for _ in range(partitions_max):
            partition = next(self._waiting, None)
            if partition is None:
                partitions = self._state.projections.partitions
                self._waiting = iter([each for each in partitions if each is not None])
                return False
            count = partition.unsaved_count + partition.moved_count
            if count >= UNITS_SAVED_AT and not partition.topic.deleted:
                left = self._queues.save(partition, units_max=left)
                if not left:
                    self._waiting = itertools.chain((partition,), self._waiting)
                    return True
        return False
