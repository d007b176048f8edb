"""ConsumeQueue files: 20-byte units, one for each record of a partition, in files of 300,000.

The units are a projection of the log. They grow in memory (`_core.partition`); `save` writes what
is new, after which only a short tail stays in memory. A checkpoint makes them durable (`sync_job`),
and a start from it goes on with them (`restore`). They are never trusted: who reads one checks it
against the frame that it names (`appliance.store.unit_reader`), and what is wrong is made anew from
the log.

Files are opened when they are needed; a bounded number of them stays open. Layer 2: files through
FileSystem only; all but `UnitSyncJob.run` belongs to the loop.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.partition import Partition
from _core.unit_blocks import UNITS_PER_BLOCK, UnitBlocks
from appliance.errors import StorageError
from appliance.fs import File, FileSystem
from appliance.store.paths import DataPaths, parse_segment_name, segment_name

OPEN_FILES_MAX: Final = 256
"""Unit files that stay open; those that were used last."""

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The system has no file descriptor or memory to spare at the moment."""

UNITS_IN_MEMORY_MAX: Final = 16_384
"""A partition with more unsaved units than this is saved at once."""

UNITS_SAVED_AT: Final = 128
"""Fewer are not worth a write; those of a checkpoint are saved however few they are."""


SYNCED_EACH_MAX: Final = 64
"""More files than that are synced all at once, with whatever else waits to be written."""


def file_start(offset: int) -> int:
    """Return the offset of the first unit of the file that holds the unit of `offset`."""
    return offset - offset % UNITS_PER_FILE


@dataclass(frozen=True, slots=True)
class UnitsRead:
    """Units that a thread read, or made anew from the log, for `ConsumeQueues.take_up`.

    Attributes:
        partition: whose.
        first: offset of the first one, which begins a block.
        units: their bytes.
        is_anew: they differ from what the file holds.
        file: the file, open; None if it was not to be had.
    """

    partition: Partition
    first: int
    units: bytes
    is_anew: bool
    file: File | None


@dataclass(frozen=True, slots=True)
class UnitSyncJob:
    """Makes durable what was written of the units; `run` may be on any thread."""

    fs: FileSystem
    root: Path
    files: dict[Path, int]
    directories: dict[Path, int]

    def run(self) -> None:
        """Sync the files, then the directories that got new names.

        Raises:
            StorageError: a sync failed. Never to be tried again: the kernel has dropped the error.
        """
        if len(self.files) > SYNCED_EACH_MAX:
            self.fs.sync_tree(self.root)
            return
        for path in self.files:
            try:
                file = self.fs.open(path)
            except StorageError as error:
                if error.is_missing:  # of a topic that was deleted meanwhile
                    continue
                raise
            try:
                file.fdatasync()
            finally:
                file.close()
        # The deepest first; the order does not matter, as nothing is named before all are synced.
        for directory in sorted(self.directories, key=lambda path: -len(path.parts)):
            try:
                self.fs.sync_dir(directory)
            except StorageError as error:
                if not error.is_missing:  # of a topic that was deleted meanwhile
                    raise


class ConsumeQueues:
    """The unit files of all partitions."""

    def __init__(self, fs: FileSystem, paths: DataPaths, blocks: UnitBlocks) -> None:
        """Touches no file yet.

        Args:
            fs: all files.
            paths: where they are.
            blocks: units that were read; it gets its `load` here.
        """
        self._fs = fs
        self._paths = paths
        self._blocks = blocks
        self._files: dict[tuple[int, int], File] = {}
        """Open ones by partition handle and first offset; what was used last is last."""
        self._unsynced: dict[Path, int] = {}
        """Files that were written since they were synced, each with the serial of the write."""
        self._unsynced_directories: dict[Path, int] = {}
        self._serial = 0
        blocks.load = self._load

    # Start

    def reset(self) -> None:
        """Remove all files: they are about to be rebuilt from the log."""
        self._fs.remove_tree(self._paths.consume_queue)
        self._fs.make_dirs(self._paths.consume_queue)

    def restore(self, partition: Partition) -> bool:
        """Go on with the files of a partition that `Partition.restore` was called for.

        Returns:
            False if the file that holds its last unit is missing or too short. It may be served all
            the same: units that are wrong are made anew from the log when they are first read.
        """
        if partition.start_offset == partition.units_saved:
            return True
        last = partition.units_saved - 1
        for begin, *_ in partition.runs.overlapping(last, last + 1):
            last = begin  # its one unit stands there
        first = file_start(last)
        try:
            file = self._fs.open(self.path_of(partition, first), writable=False)
        except StorageError as error:
            if error.is_missing:
                return False
            raise
        try:
            return file.size() >= (last + 1 - first) * UNIT_SIZE
        finally:
            file.close()

    def cut(self, partition: Partition, offset: int) -> None:
        """Drop the units from `offset` on: the log ends before their records.

        Raises:
            StorageError: a file could not be cut.
        """
        saved = partition.units_saved
        partition.cut_units(offset)
        self._blocks.drop(partition.handle, offset, saved)
        if offset >= saved:
            return
        for first in self._files_from(partition, file_start(offset)):
            self._close(partition.handle, first)
            path = self.path_of(partition, first)
            if first >= offset:
                self._fs.unlink(path)
                self._note_new_name(path.parent)
                continue
            file = self._fs.open(path)
            try:
                file.truncate(min((offset - first) * UNIT_SIZE, file.size()))
            finally:
                file.close()
            self._note_written(path)

    def _files_from(self, partition: Partition, offset: int) -> list[int]:
        """The first offsets of the files that are there, from that of the file at `offset` on."""
        directory = self.path_of(partition, 0).parent
        if not self._fs.exists(directory):
            return []
        places = map(parse_segment_name, self._fs.list_dir(directory))
        return [at // UNIT_SIZE for at in places if at is not None and at >= offset * UNIT_SIZE]

    # Save

    def save(self, partition: Partition) -> None:
        """Write a partition's unsaved units to its files.

        On a full disk, or without a file descriptor to spare, they stay in memory, where they serve
        as well, until there is room again.

        Raises:
            StorageError: they could not be written for another reason.
        """
        try:
            self._save(partition)
        except StorageError as error:
            if not error.is_disk_full and error.errno not in EXHAUSTED:
                raise

    def save_some(self, partitions: Iterator[Partition], *, partitions_max: int) -> bool:
        """Write the unsaved units of the next partitions, for a checkpoint.

        Args:
            partitions: those that are left.
            partitions_max: look at no more than so many, so that the loop is not held up.

        Returns:
            False when none is left.

        Raises:
            StorageError: some could not be written, also for want of room: no checkpoint then.
        """
        for _ in range(partitions_max):
            partition = next(partitions, None)
            if partition is None:
                return False
            if partition.units_dirty and not partition.topic.deleted:
                self._save(partition)
        return True

    def _save(self, partition: Partition) -> None:
        while partition.unsaved_count:
            offset, units, end = partition.unsaved_units()
            count = min(len(units) // UNIT_SIZE, file_start(offset) + UNITS_PER_FILE - offset)
            is_all = count * UNIT_SIZE == len(units)
            self._write(partition, offset, units[: count * UNIT_SIZE])
            partition.units_are_saved(end if is_all else offset + count)

    def _write(self, partition: Partition, offset: int, units: bytes | memoryview) -> None:
        """Write units from `offset` on, all of one file."""
        first = file_start(offset)
        file = self._file_for(partition, first)
        file.pwritev([units], (offset - first) * UNIT_SIZE)
        self._note_written(file.path)

    def _file_for(self, partition: Partition, first: int) -> File:
        key = (partition.handle, first)
        known = self._files.pop(key, None)
        if known is not None:
            self._files[key] = known
            return known
        path = self.path_of(partition, first)
        if not self._fs.exists(path):
            # The checkpoint's thread syncs them: here the loop would wait for the disk.
            self._fs.make_dirs(path.parent, is_synced=False)
            self._note_new_name(path.parent)
        file = self._fs.open(path, create=True)
        self._keep_open(key, file)
        return file

    def _keep_open(self, key: tuple[int, int], file: File) -> None:
        while len(self._files) >= OPEN_FILES_MAX:
            self._files.pop(next(iter(self._files))).close()
        self._files[key] = file

    def _close(self, handle: int, first: int) -> None:
        known = self._files.pop((handle, first), None)
        if known is not None:
            known.close()

    # Durability

    def _note_written(self, path: Path) -> None:
        self._serial += 1
        self._unsynced[path] = self._serial

    def _note_new_name(self, directory: Path) -> None:
        self._serial += 1
        while directory != self._paths.root:
            self._unsynced_directories[directory] = self._serial
            directory = directory.parent

    def sync_job(self) -> UnitSyncJob:
        """What must be synced so that all units that are saved by now become durable."""
        return UnitSyncJob(
            self._fs,
            self._paths.consume_queue,
            dict(self._unsynced),
            dict(self._unsynced_directories),
        )

    def end_sync(self, job: UnitSyncJob) -> None:
        """A job has run: what was not written again since is durable."""
        for known, done in (
            (self._unsynced, job.files),
            (self._unsynced_directories, job.directories),
        ):
            for path, serial in done.items():
                if known.get(path) == serial:
                    del known[path]

    # Read

    def path_of(self, partition: Partition, first: int) -> Path:
        """Return the file whose first unit is that of offset `first`."""
        directory = self._paths.queue(partition.topic.name, partition.index)
        return directory / segment_name(first * UNIT_SIZE)

    def _load(self, handle: int, first: int, count: int) -> bytes | None:
        """Units of an open file, if the kernel has them in memory; else a thread reads them."""
        start = file_start(first)
        key = (handle, start)
        file = self._files.pop(key, None)
        if file is None:
            return None
        self._files[key] = file
        units = bytearray(count * UNIT_SIZE)
        size = file.pread_hot_into(memoryview(units), (first - start) * UNIT_SIZE)
        return bytes(units[:size]) if size else None

    def take_up(self, read: UnitsRead) -> None:
        """Hand what a thread read to the consumers, and mend the file where it was wrong.

        Raises:
            StorageError: the file could not be mended, though there was room.
        """
        partition, first, units = read.partition, read.first, read.units
        key = (partition.handle, file_start(first))
        if read.file is not None:
            if key in self._files or partition.topic.deleted:
                read.file.close()
            else:
                self._keep_open(key, read.file)
        if partition.topic.deleted:
            return
        if read.is_anew:
            self._blocks.drop(partition.handle, first, first + len(units) // UNIT_SIZE)
            self._mend(partition, first, units)
        step = UNITS_PER_BLOCK * UNIT_SIZE
        for at in range(0, len(units), step):
            self._blocks.put(partition.handle, first + at // UNIT_SIZE, units[at : at + step])

    def _mend(self, partition: Partition, first: int, units: bytes) -> None:
        try:
            self._write(partition, first, units)
        except StorageError as error:
            if not error.is_disk_full and error.errno not in EXHAUSTED:
                raise

    # End

    def remove_topic(self, name: str, handles: list[int]) -> None:
        """Remove the files of a deleted topic.

        Args:
            name: the topic's name.
            handles: its partitions.
        """
        gone = set(handles)
        for key in [key for key in self._files if key[0] in gone]:
            self._files.pop(key).close()
        self._fs.remove_tree(self._paths.consume_queue / name)

    def close(self) -> None:
        """Give all files back."""
        for file in self._files.values():
            file.close()
        self._files.clear()
