"""ConsumeQueue files: 20-byte units, one per record of a partition, 300,000 units per file.

The units are a projection of the log. New units are in memory (`_core.queue.partition`); `save`
writes them, after which only a short tail stays in memory. A checkpoint makes them durable
(`sync_job`), and recovery from it continues with them (`restore`). Units are never trusted: a
reader checks each against the frame that it points to (`appliance.store.queue.unit_reader`), and
wrong ones are rebuilt from the log.

Files are opened on demand; a bounded number of them stays open. Layer 2: files through FileSystem
only; everything except `UnitSyncJob.run` belongs to the loop.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from _core.bytes.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.queue.partition import Partition
from _core.queue.unit_blocks import UNITS_PER_BLOCK, UnitBlocks
from appliance.errors import StorageError
from appliance.store.paths import DataPaths, parse_segment_name, segment_name
from appliance.system.files import File, FileSystem

OPEN_FILES_MAX: Final = 256
"""Unit files that stay open: the most recently used."""

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The system is temporarily out of file descriptors or memory."""

UNITS_IN_MEMORY_MAX: Final = 16_384
"""A partition with more unsaved units than this is saved at once."""

UNITS_SAVED_AT: Final = 128
"""Fewer are not worth a write; a checkpoint saves any number."""

FILES_PER_SLICE: Final = 16
"""New files that a slice of a checkpoint makes on the loop: each takes 0.1 ms, some ms on a busy
disk. Most files were made ahead by a thread."""

UNITS_PER_SLICE: Final = 131_072
"""Units that the loop writes at a time: 2.6 MB, about 2 ms."""

ANYWHERE: Final = (1 << 63) - 1
"""Above every log position."""

UNITS_AHEAD: Final = UNITS_PER_FILE // 4
"""The next file is made when the file of the newest unit has room for fewer units than this."""

SYNCED_EACH_MAX: Final = 64
"""More files than this are synced by one syncfs, with all other dirty data of the file system."""


def file_start(offset: int) -> int:
    """Return the offset of the first unit of the file that holds the unit of `offset`."""
    return offset - offset % UNITS_PER_FILE


@dataclass(frozen=True, slots=True)
class UnitsRead:
    """Units that a thread read, or rebuilt from the log, for `ConsumeQueues.take_up`.

    Attributes:
        partition: of the units.
        first: offset of the first unit, which begins a block.
        units: their bytes.
        is_rebuilt: they are rebuilt from the log, and differ from the content of the file.
        file: the file, open; None if it could not be opened.
        moves_saved: of the partition when the thread began: if units of carried records were saved
            since, these units may be older.
        carried_pos: of the partition when the thread began: if records were carried since, units
            that are rebuilt may name their earlier places.
    """

    partition: Partition
    first: int
    units: bytes
    is_rebuilt: bool
    file: File | None
    moves_saved: int = 0
    carried_pos: int = 0

    @property
    def is_current(self) -> bool:
        """Whether nothing happened to the partition since that the thread may not have seen."""
        partition = self.partition
        if partition.topic.deleted or self.moves_saved != partition.moves_saved:
            return False
        return not self.is_rebuilt or self.carried_pos == partition.carried_pos


@dataclass(frozen=True, slots=True)
class UnitSyncJob:
    """Makes written units durable; `run` may run on any thread."""

    fs: FileSystem
    root: Path
    files: dict[Path, int]
    directories: dict[Path, int]

    def run(self) -> None:
        """Sync the files, then the directories that got new names.

        Raises:
            StorageError: a sync failed. Never retry it: the kernel has dropped the error.
        """
        if len(self.files) > SYNCED_EACH_MAX:
            self.fs.sync_tree(self.root)
            return
        for path in self.files:
            try:
                file = self.fs.open(path)
            except StorageError as error:
                if error.is_missing:  # its topic was deleted meanwhile
                    continue
                raise
            with closing(file):
                file.fdatasync()
        # Deepest first; the order does not matter, since the checkpoint is written after all syncs.
        for directory in sorted(self.directories, key=lambda path: -len(path.parts)):
            try:
                self.fs.sync_dir(directory)
            except StorageError as error:
                if not error.is_missing:  # its topic was deleted meanwhile
                    raise


@dataclass(frozen=True, slots=True)
class UnitFilesJob:
    """Makes files for units that are not saved yet; `run` may run on any thread.

    Attributes:
        places: the partition of each file, and the offset of its first unit.
        made: the places whose files exist since.
    """

    fs: FileSystem
    places: dict[tuple[int, int], Path]
    made: set[tuple[int, int]] = field(default_factory=set)

    def run(self) -> None:
        """Make files and directories that are missing, without a sync."""
        for place, path in self.places.items():
            try:
                self.fs.make_dirs(path.parent, is_synced=False)
                self.fs.open(path, create=True).close()
            except StorageError:
                return  # `ConsumeQueues.save` tries again, and raises the error
            self.made.add(place)


class ConsumeQueues:
    """The unit files of all partitions.

    Attributes:
        flushed: returns the log position up to which frames are durable. Units of carried records
            are saved when their frames are: after a crash, the file still has the earlier place.
    """

    def __init__(self, fs: FileSystem, paths: DataPaths, blocks: UnitBlocks) -> None:
        """Touch no file yet.

        Args:
            fs: all files.
            paths: where they are.
            blocks: cache of units that were read; this sets its `load`.
        """
        self._fs = fs
        self._paths = paths
        self._blocks = blocks
        self._files: dict[tuple[int, int], File] = {}
        """Open files by partition handle and first offset, least recently used first."""
        self._unsynced: dict[Path, int] = {}
        """Files written since their last sync, each with the serial number of the last write."""
        self._unsynced_directories: dict[Path, int] = {}
        self._named: dict[int, set[int]] = {}
        """By handle, the first units of files whose names this process syncs or has synced."""
        self._made: set[tuple[int, int]] = set()
        """Files that a thread has made and that no units were written to yet."""
        self._serial = 0
        self._new_file_count = 0
        """Files that were made on the loop."""
        self._begun: Partition | None = None
        """What `save_some` has not finished."""
        self.flushed: Callable[[], int] = lambda: ANYWHERE
        blocks.load = self._load

    # Start

    def reset(self) -> None:
        """Remove all files before they are rebuilt from the log."""
        self._fs.remove_tree(self._paths.consume_queue)
        self._fs.make_dirs(self._paths.consume_queue)

    def restore(self, partition: Partition) -> bool:
        """Continue with the files of a partition for which `Partition.restore` was called.

        Returns:
            False if the file that holds its last unit is missing or too short. The partition can be
            served nevertheless: wrong units are rebuilt from the log when they are first read.
        """
        if partition.start_offset == partition.units_saved:
            return True
        last = partition.units_saved - 1
        for begin, *_ in partition.runs.overlapping(last, last + 1):
            last = begin  # the run's only unit is there
        first = file_start(last)
        try:
            file = self._fs.open(self.path_of(partition, first), writable=False)
        except StorageError as error:
            if error.is_missing:
                return False
            raise
        with closing(file):
            return file.size() >= (last + 1 - first) * UNIT_SIZE

    def cut(self, partition: Partition, offset: int) -> None:
        """Drop the units from `offset` on: the log ends before their records.

        Raises:
            StorageError: a file could not be truncated.
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
            with closing(self._fs.open(path)) as file:
                file.truncate(min((offset - first) * UNIT_SIZE, file.size()))
            self._note_written(path)

    def _files_from(self, partition: Partition, offset: int) -> list[int]:
        """The first offsets of the existing files, from the file at `offset` on."""
        directory = self.path_of(partition, 0).parent
        if not self._fs.exists(directory):
            return []
        places = map(parse_segment_name, self._fs.list_dir(directory))
        return [at // UNIT_SIZE for at in places if at is not None and at >= offset * UNIT_SIZE]

    # Save

    def save(self, partition: Partition, *, units_max: int = ANYWHERE) -> int:
        """Write a partition's unsaved units to its files.

        On a full disk, or out of file descriptors or memory, they stay in memory and are served
        from there until they can be written.

        Args:
            partition: whose they are.
            units_max: end after about so many, so that the loop is not blocked.

        Returns:
            How many of these are left; 0 if all units are saved that can be saved now.

        Raises:
            StorageError: they could not be written for another reason.
        """
        try:
            return self._save(partition, self.flushed(), units_max)
        except StorageError as error:
            if not error.is_disk_full and error.errno not in EXHAUSTED:
                raise
            return units_max

    def save_some(self, partitions: Iterator[Partition], *, partitions_max: int) -> bool:
        """Write some unsaved units of the next partitions, for a checkpoint.

        Args:
            partitions: the remaining ones.
            partitions_max: visit at most this many, so that the loop is not blocked.

        Returns:
            False when none is left.

        Raises:
            StorageError: units could not be written, for example because the disk is full; the
                checkpoint fails.
        """
        left = UNITS_PER_SLICE
        new_files_max = self._new_file_count + FILES_PER_SLICE
        for _ in range(partitions_max):
            if self._new_file_count >= new_files_max:
                break
            partition, self._begun = self._begun or next(partitions, None), None
            if partition is None:
                return False
            if partition.units_dirty and not partition.topic.deleted:
                left = self._save(partition, ANYWHERE, left)
                if not left:
                    self._begun = partition
                    break
        return True

    def _save(self, partition: Partition, flushed: int, left: int) -> int:
        """Write up to `left` unsaved units; return how many of these were not needed."""
        while partition.unsaved_count:
            if not left:
                return 0
            offset, units, end = partition.unsaved_units()
            count = min(len(units) // UNIT_SIZE, file_start(offset) + UNITS_PER_FILE - offset, left)
            left -= count
            is_all = count * UNIT_SIZE == len(units)
            self._write(partition, offset, units[: count * UNIT_SIZE])
            partition.units_are_saved(end if is_all else offset + count)
        while partition.moved_count and partition.carried_pos <= flushed:
            offset, moved = partition.moved_units()
            self._write(partition, offset, moved)
            end = offset + len(moved) // UNIT_SIZE
            partition.moved_are_saved(end)
            self._blocks.drop(partition.handle, offset, end)
        return left

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
            # The checkpoint's thread syncs them; here the loop would wait for the disk.
            self._fs.make_dirs(path.parent, is_synced=False)
            self._new_file_count += 1
        file = self._fs.open(path, create=True)
        named = self._named.setdefault(partition.handle, set())
        self._made.discard(key)
        if first not in named:
            # A process that was killed may have made the file and not synced its name.
            named.add(first)
            self._note_new_name(path.parent)
        self._keep_open(key, file)
        return file

    def _keep_open(self, key: tuple[int, int], file: File) -> None:
        while len(self._files) >= OPEN_FILES_MAX:
            self._files.pop(next(iter(self._files))).close()
        self._files[key] = file

    def _close(self, handle: int, first: int) -> None:
        self._named.get(handle, set()).discard(first)
        known = self._files.pop((handle, first), None)
        if known is not None:
            known.close()

    # Files made ahead

    def unmade(self, partition: Partition) -> list[tuple[int, int]]:
        """Return the files that a partition needs for unsaved units, or soon, and may not have.

        Returns:
            Its handle and the offset of the first unit of each file, in order. A file of an earlier
            process counts as missing until this process uses it.
        """
        handle = partition.handle
        first = file_start(partition.units_saved)
        ahead = file_start(partition.next_offset + UNITS_AHEAD)
        named = self._named.get(handle, ())
        return [
            (handle, start)
            for start in range(first, ahead + 1, UNITS_PER_FILE)
            if start not in named and (handle, start) not in self._made
        ]

    def begin_files(self, places: Mapping[tuple[int, int], Partition]) -> UnitFilesJob:
        """Return a job that makes files.

        Args:
            places: partitions that exist, by handle and offset of the file's first unit.
        """
        paths = {place: self.path_of(of, place[1]) for place, of in places.items()}
        return UnitFilesJob(self._fs, paths)

    def end_files(self, made: Iterable[tuple[int, int]]) -> None:
        """Note files that a job has made."""
        self._made.update(made)

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
        """Return the sync that makes all units saved so far durable."""
        return UnitSyncJob(
            self._fs,
            self._paths.consume_queue,
            dict(self._unsynced),
            dict(self._unsynced_directories),
        )

    def end_sync(self, job: UnitSyncJob) -> None:
        """Note that a job has run: files not written again since it began are durable."""
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
        """Read units of an open file from the page cache; None if a thread must read them."""
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
        """Make the units that a thread read available, and repair the file if it was wrong.

        Units that may be older than the file are ignored; who needs them asks again.

        Raises:
            StorageError: the file could not be repaired, for a reason other than a full disk.
        """
        partition, first, units = read.partition, read.first, read.units
        key = (partition.handle, file_start(first))
        if read.file is not None:
            if key in self._files or partition.topic.deleted:
                read.file.close()
            else:
                self._keep_open(key, read.file)
        if not read.is_current:
            return
        if read.is_rebuilt:
            self._blocks.drop(partition.handle, first, first + len(units) // UNIT_SIZE)
            self._repair(partition, first, units)
            partition.carried.forget_earlier(first, units)
        step = UNITS_PER_BLOCK * UNIT_SIZE
        for at in range(0, len(units), step):
            self._blocks.put(partition.handle, first + at // UNIT_SIZE, units[at : at + step])

    def _repair(self, partition: Partition, first: int, units: bytes) -> None:
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
            handles: those of its partitions.
        """
        deleted = set(handles)
        for key in [key for key in self._files if key[0] in deleted]:
            self._files.pop(key).close()
        for handle in handles:
            self._named.pop(handle, None)
        self._made = {place for place in self._made if place[0] not in deleted}
        self._fs.remove_tree(self._paths.consume_queue / name)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
