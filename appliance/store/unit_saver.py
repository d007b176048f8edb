"""Saves the ConsumeQueue units of all partitions in slices, while the broker serves. Layer 2."""

import itertools
from collections.abc import Iterator
from typing import Final

from _core.queue.partition import Partition
from appliance.store.queue.consume_queue import (
    UNITS_PER_SLICE,
    UNITS_SAVED_AT,
    ConsumeQueues,
    UnitFilesJob,
)
from appliance.store.state.state import State

PARTITIONS_PER_SLICE: Final = 256
"""Visited in one call, so that the loop is not blocked."""

FILES_PER_JOB: Final = 64
"""Made by one job on a thread; the others wait for the next."""

UNITS_WAITING_MAX: Final = 131_072
"""A partition with more units than this, 2.6 MB, does not wait for its file: the loop makes it. It
takes 130 ms to get there with a million records a second."""


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
        self._wanted: dict[tuple[int, int], Partition] = {}
        """Files to be made, each by the handle of its partition and its first offset."""
        self._making: dict[tuple[int, int], Partition] = {}
        """Those that a thread makes now."""

    def save(self) -> bool:
        """Save some units of the next partitions if they have many; call it often to visit all.

        Units wait until a thread has made their file, unless they are too many to stay in memory.

        Returns:
            True if there are so many units that the next call should come soon.
        """
        left = UNITS_PER_SLICE
        for _ in range(PARTITIONS_PER_SLICE):
            partition = next(self._waiting, None)
            if partition is None:
                partitions = self._state.projections.partitions
                self._waiting = iter([each for each in partitions if each is not None])
                return False
            count = partition.unsaved_count + partition.moved_count
            if not count or partition.topic.deleted:
                continue
            has_file = self._has_file(partition) or count > UNITS_WAITING_MAX
            if count >= UNITS_SAVED_AT and has_file:
                left = self._queues.save(partition, units_max=left)
                if not left:
                    self._waiting = itertools.chain((partition,), self._waiting)
                    return True
        return False

    def _has_file(self, partition: Partition) -> bool:
        """Whether the next units have a file; ask for the files that are missing."""
        unmade = self._queues.unmade(partition)
        for place in unmade:
            if len(self._wanted) < FILES_PER_JOB:
                self._wanted[place] = partition
        return not unmade or unmade[0][1] > partition.units_saved

    def begin_files(self) -> UnitFilesJob | None:
        """Return a job that makes files, None if none is needed; one at a time."""
        if self._making or not self._wanted:
            return None
        self._making, self._wanted = self._wanted, {}
        return self._queues.begin_files(self._making)

    def end_files(self, job: UnitFilesJob) -> None:
        """Note that a job has run.

        Raises:
            StorageError: files of a topic that was deleted meanwhile could not be removed.
        """
        making, self._making = self._making, {}
        self._queues.end_files(place for place in job.made if not making[place].topic.deleted)
        for name in {of.topic.name for of in making.values() if of.topic.deleted}:
            if self._state.topics.find(name) is None:
                self._queues.remove_topic(name, [])
