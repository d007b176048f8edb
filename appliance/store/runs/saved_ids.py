"""The ids that are in the runs alone, and how they are read.

    loop     look_up    which ids are wanted
    thread   run        reads a block of each run that may have one of them
    loop     take       they are in the index, until the end of a checkpoint

As long as all ids fit their memory, they are in the index and no run is read. Layer 2.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from _core.bytes.layout import RUN_IDS
from _core.queue.partition import Topic
from _core.state.id_rows import recall_ids
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from _core.timers.id_filter import IdFilter
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.runs.id_run import IdRunReader
from appliance.store.runs.merging import merged_blocks, open_reader
from appliance.store.runs.run_files import RunEntry
from appliance.system.files import FileSystem

ID_BYTES: Final = 80
"""What an id takes in memory, about."""

RECALLS_MAX: Final = 20_000
"""A replay that needs more ids than this loads all of them, which takes about as long."""


@dataclass(slots=True, eq=False)
class IdLookup:
    """Reads what the runs say of some ids.

    Attributes:
        keys: what the rows of the ids begin with, 16 bytes each.
        generation: that of the index when it was made.
        found: after `run`: (key, row) of each; the row is empty if no run has the id.
        error: after `run`: why a run cannot be read; None if all were.
    """

    fs: FileSystem
    readers: tuple[IdRunReader, ...]
    keys: list[bytes]
    generation: int
    found: list[tuple[bytes, bytes]] = field(default_factory=list)
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read them; may run on any thread."""
        rows: dict[bytes, bytes] = {}
        keys = sorted(set(self.keys))
        try:
            for reader in reversed(self.readers):
                rows |= reader.find([key for key in keys if key not in rows])
            self.found = [(key, rows.get(key, b"")) for key in keys]
        except (StorageError, CorruptionError) as error:
            self.error = error
            # The next start misses it, and replays the log.
            with suppress(StorageError):
                self.fs.rename(error.path, error.path.with_suffix(".damaged"))
                self.fs.sync_dir(error.path.parent)


class SavedIds:
    """The ids of one store that are in the runs; on the loop.

    Args:
        fs, paths: where the runs are.
        projections: have the index.
        limit_bytes: memory of ids; if they need more, most of them are in the runs alone.

    Attributes:
        readers: the runs, the oldest first; none while all ids are in memory.
        read_count: ids that were read since the start.
    """

    def __init__(
        self, fs: FileSystem, paths: DataPaths, projections: Projections, limit_bytes: int
    ) -> None:
        self._fs, self._paths = fs, paths
        self._projections = projections
        self._limit_bytes = limit_bytes
        self._recalls_left = RECALLS_MAX
        self.readers: tuple[IdRunReader, ...] = ()
        self.read_count = 0
        projections.id_source = self

    @property
    def is_whole(self) -> bool:
        """All ids are in memory."""
        return bool(self._projections.ids.is_whole)

    # Start

    def readers_of(self, entries: Sequence[RunEntry]) -> tuple[IdRunReader, ...] | None:
        """Return the runs of a state if their ids are left on the disk; None: load them.

        Raises:
            StorageError: a run is missing, or cannot be read.
            CorruptionError: its directory or its filter is damaged.
        """
        of_kind = [entry for entry in entries if entry.kind == RUN_IDS]
        count = sum(entry.rows for entry in of_kind)
        if count * ID_BYTES <= self._limit_bytes:
            return None
        return open_id_runs(self._fs, self._paths, of_kind, ())

    def restore(self, readers: tuple[IdRunReader, ...]) -> None:
        """Leave the ids of a saved state on the disk."""
        self.readers = readers
        self._projections.ids.note_saved(*self._saved())

    def end_replay(self) -> None:
        """The log was replayed; from now on what reads a run waits for a thread, mostly."""
        self._recalls_left = -1

    def close(self) -> None:
        """Close the runs."""
        for reader in self.readers:
            reader.close()

    # Checkpoints

    def begin_save(self) -> bool:
        """Begin a checkpoint; return whether its runs have to be opened.

        They have to if there are more ids than fit their memory.
        """
        ids = self._projections.ids
        if self.is_whole and ids.memory_bytes <= self._limit_bytes:
            return False
        ids.begin_save()
        return True

    def end_save(self, readers: tuple[IdRunReader, ...]) -> None:
        """Note that the runs have all ids that a checkpoint had to save."""
        ids = self._projections.ids
        if ids.is_held:
            # What is in memory hides the rows of runs that are older.
            if not ids.is_whole:
                self.restore(readers)
            return
        self.readers = readers
        ids.end_save(*self._saved())

    def _saved(self) -> tuple[list[IdFilter], int, int]:
        return (
            [reader.filter for reader in self.readers],
            sum(reader.rows for reader in self.readers),
            sum(reader.completed for reader in self.readers),
        )

    # Reads

    def look_up_names(self, names: Iterable[tuple[Topic, bytes]]) -> IdLookup | None:
        """Return a look-up of those ids that are not certain; None if all are.

        Args:
            names: topics and ids in them.
        """
        ids = self._projections.ids
        wanted = [ids.uncertain(topic.topic_id, user_id) for topic, user_id in names]
        keys = [key for key in wanted if key is not None]
        return self.look_up(keys) if keys else None

    def look_up(self, keys: list[bytes]) -> IdLookup:
        """Return a look-up of ids that are not certain, for a thread to run."""
        return IdLookup(self._fs, self.readers, keys, self._projections.ids.generation)

    def take(self, lookup: IdLookup) -> None:
        """Put what was found into the index, unless a checkpoint ended meanwhile.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run is damaged; it is set aside.
        """
        if lookup.error is not None:
            raise lookup.error
        self.read_count += len(lookup.found)
        if lookup.generation == self._projections.ids.generation:
            recall_ids(self._projections, lookup.found)

    def recall(self, key: bytes) -> None:
        """Read an id at once, and put what is found into the index; the errors of `take`."""
        if self._recalls_left == 0:
            self._load_all()
            return
        self._recalls_left -= self._recalls_left > 0
        lookup = self.look_up([key])
        lookup.run()
        self.take(lookup)

    def _load_all(self) -> None:
        """Put all ids of the runs into the index."""
        merge = RunMerge(
            RUN_IDS,
            source_count=len(self.readers),
            topics=self._projections.topics_by_id,
            is_whole=True,
            forget_pos=self._projections.ids.forget_pos,
        )
        loader = RunLoader(self._projections)
        for block, _ in merged_blocks(merge, [reader.blocks() for reader in self.readers]):
            loader.load_ids(block)
        self._projections.ids.become_whole()
        self.readers = ()


def open_id_runs(
    fs: FileSystem,
    paths: DataPaths,
    entries: Sequence[RunEntry],
    known: Sequence[IdRunReader],
) -> tuple[IdRunReader, ...] | None:
    """Open runs of ids; None if one has no directory, as an older latermq wrote them.

    Args:
        fs, paths: where they are.
        entries: the runs.
        known: some that are open.

    Raises:
        StorageError: a run is missing, or cannot be read.
        CorruptionError: its directory or its filter is damaged.
    """
    by_path = {reader.path: reader for reader in known}
    readers = []
    for entry in entries:
        path = entry.path(paths)
        reader = by_path.get(path) or open_reader(fs, path, entry)
        if not isinstance(reader, IdRunReader):
            reader.close()
            return None
        readers.append(reader)
    return tuple(readers)
