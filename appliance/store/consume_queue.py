"""ConsumeQueue files: 20-byte units, one for each record of a partition, in files of 300,000.

The units are a projection of the log. They grow in memory (`_core.partition`); `save` writes what
is new to the files and maps these, after which only a short tail stays in memory. They are not
synced: every start rebuilds them from the log.

Layer 2: files through FileSystem only.
"""

import errno
from typing import Final

from _core.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.partition import Partition
from appliance.errors import StorageError
from appliance.fs import File, FileSystem
from appliance.store.paths import DataPaths, segment_name

FILE_SIZE_BYTES: Final = UNIT_SIZE * UNITS_PER_FILE

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

UNITS_IN_MEMORY_MAX: Final = 16_384
"""A partition with more unsaved units than this is saved at once."""


class ConsumeQueues:
    """The unit files of all partitions."""

    def __init__(self, fs: FileSystem, paths: DataPaths) -> None:
        self._fs = fs
        self._paths = paths
        self._files: dict[int, tuple[int, File]] = {}
        """By partition handle: first offset and file of the units written last."""

    def reset(self) -> None:
        """Remove all files: they are about to be rebuilt from the log."""
        self._fs.remove_tree(self._paths.consume_queue)
        self._fs.make_dirs(self._paths.consume_queue)

    def save(self, partition: Partition) -> None:
        """Write a partition's unsaved units to its files.

        On a full disk, or without a file descriptor or mapping to spare, they stay in memory, where
        they serve as well, until there is room again.

        Raises:
            StorageError: they could not be written for another reason.
        """
        try:
            self._save(partition)
        except StorageError as error:
            if not error.is_disk_full and error.errno not in _EXHAUSTED:
                raise

    def _save(self, partition: Partition) -> None:
        while partition.unsaved_count:
            offset, units = partition.unsaved_units()
            first = offset - offset % UNITS_PER_FILE
            count = min(len(units) // UNIT_SIZE, first + UNITS_PER_FILE - offset)
            file = self._file_for(partition, first)
            file.pwritev([units[: count * UNIT_SIZE]], (offset - first) * UNIT_SIZE)
            partition.units_are_saved(offset + count)

    def _file_for(self, partition: Partition, first: int) -> File:
        known = self._files.get(partition.handle)
        if known is not None and known[0] == first:
            return known[1]
        directory = self._paths.queue(partition.topic.name, partition.index)
        if known is None:
            self._fs.make_dirs(directory)
        else:
            known[1].close()
        file = self._fs.open(directory / segment_name(first * UNIT_SIZE), create=True)
        # Sparse: its blocks come with the units, and reading a hole gives zeros.
        file.truncate(FILE_SIZE_BYTES)
        partition.attach_units(first, file.map())
        self._files[partition.handle] = (first, file)
        return file

    def remove_topic(self, name: str, handles: list[int]) -> None:
        """Remove the files of a deleted topic.

        Args:
            name: the topic's name.
            handles: its partitions.
        """
        for handle in handles:
            known = self._files.pop(handle, None)
            if known is not None:
                known[1].close()
        self._fs.remove_tree(self._paths.consume_queue / name)

    def close(self) -> None:
        """Give all files back."""
        for _, file in self._files.values():
            file.close()
        self._files.clear()
