"""The start of the timers: those that are due next are loaded first, the rest while the broker
serves.

    loop     TimerLoad.take    some timers, up to whose due time deliveries may go then
    thread   LoadJob.run       the next ones of the TimerLog, merged

How many timers are pending, and when, is restored from the state snapshot, so that all counts are
right from the begin. What the log says about a timer that is not loaded yet is noted by its id, as
for one that is loaded.

If a block of the TimerLog is damaged, the rest is loaded from the runs of timers, which have the
same timers in the order of arrival. Layer 2.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from _core.bytes.layout import RUN_DUE, RUN_TIMER_SIZE, RUN_TIMERS
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from _core.timers.row_places import rows_due_after
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.runs.merging import merged_blocks, open_run
from appliance.store.runs.run_files import RunEntry
from appliance.system.files import FileSystem

LOADED_AT_ONCE: Final = 1 << 18
"""So many timers are loaded before the broker is ready, in 50 ms, and nobody has to wait later."""

ROWS_AT_ONCE: Final = 4_096
"""Timers that one turn of the loop takes, in less than a millisecond."""

READ_AT_ONCE: Final = 4
"""So many of these pieces are read for one job."""

NEAR_MS: Final = 10_000
"""Timers due within this time are loaded before the broker is ready ..."""

NEAR_PIECES: Final = 40
"""... as far as they are in so many pieces, which take 30 ms."""

ALL_MS: Final = (1 << 63) - 1
"""The due time up to which timers are loaded if all are."""


@dataclass(frozen=True, slots=True)
class SavedCounts:
    """How many timers are pending in a saved state.

    Attributes:
        pending: by partition and level: see docs/FORMAT.md.
        minutes: by minutes of their due times.
    """

    pending: bytes
    minutes: bytes


class TimerLoad:
    """One load of the timers of a saved state.

    Attributes:
        total: number of timers in the state.
        fault: why the TimerLog cannot be read; None if it can.
        is_fault_known: the next checkpoint writes the TimerLog anew.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        projections: Projections,
        entries: Sequence[RunEntry],
        counts: SavedCounts,
    ) -> None:
        """Restore the counts, and open the files.

        Args:
            fs: all files.
            paths: their names.
            projections: have the topics of the state, and no timers.
            entries: the runs of the state, with a TimerLog.
            counts: of the state.

        Raises:
            StorageError: a file is missing or cannot be read.
            CorruptionError: the directory of a file is damaged.
            ValueError: the counts are not those of these topics.
        """
        self._due = projections.due
        self._loader = RunLoader(projections)
        self._loader.restore_counts(counts.pending)
        self._due.wheels.restore(counts.minutes)
        self._due.note_loaded(0)
        self._fs, self._paths = fs, paths
        self._entries = entries
        self._topics = array("i", projections.topics_by_id)
        self._stack = ExitStack()
        self.total = self._due.pending
        self.fault: StorageError | CorruptionError | None = None
        self.is_fault_known = False
        self._left = memoryview(b"")
        self._last = b""
        minutes = self._due.wheels.minutes
        from_ms = minutes.first_ms() if minutes.total == self.total else 0
        self._blocks = self._merged(RUN_DUE, from_ms)

    def _merged(self, kind: int, from_ms: int) -> Iterator[tuple[bytes, int]]:
        """Open the runs of a kind, and return all pending timers in their order."""
        of_kind = [entry for entry in self._entries if entry.kind == kind]
        merge = RunMerge(
            kind, source_count=len(of_kind), topics=self._topics, is_whole=True, forget_pos=0
        )
        try:
            sources = [
                open_run(self._stack, self._fs, self._paths, entry, from_ms=from_ms)
                for entry in of_kind
            ]
        except (StorageError, CorruptionError):
            self.close()
            raise
        return merged_blocks(merge, sources)

    @property
    def loaded(self) -> int:
        """Number of timers loaded so far."""
        return self._loader.timers

    @property
    def left(self) -> int:
        """Number of timers that are not loaded yet; some of them may be cancelled meanwhile."""
        return 0 if self.is_done else self.total - self.loaded

    @property
    def is_done(self) -> bool:
        """All timers are loaded."""
        return self._due.is_loaded

    def read(self) -> bytes:
        """Read the next piece; b"" after the last. On any thread, one at a time.

        Raises:
            StorageError: a run of timers cannot be read, and neither can the TimerLog.
            CorruptionError: it is damaged.
        """
        if not self._left:
            self._left = memoryview(self._next_block())
        size = ROWS_AT_ONCE * RUN_TIMER_SIZE
        piece, self._left = bytes(self._left[:size]), self._left[size:]
        if self.fault is None:
            self._last = piece[-RUN_TIMER_SIZE:]
        return piece

    def _next_block(self) -> bytes:
        if self.fault is None:
            try:
                block, _ = next(self._blocks, (b"", 0))
            except (StorageError, CorruptionError) as error:
                self._blocks = self._merged(RUN_TIMERS, 0)
                self.fault = error
            else:
                return block
        for block, _ in self._blocks:
            rows = rows_due_after(block, self._last)
            if rows:
                return rows
        return b""

    def take(self, block: bytes) -> None:
        """Add the timers of the next piece to the due queue; b"" ends the load.

        Raises:
            CorruptionError: there are more or fewer timers than the state counts.
        """
        if block:
            loaded_ms = self._loader.load_due(block)
            # After a fault they come in the order of arrival.
            if self.fault is None:
                self._due.note_loaded(loaded_ms)
            return
        self.close()
        if self.loaded != self.total:
            self.set_aside()
            path = self._paths.timer_log
            raise CorruptionError(path, 0, f"{self.total} pending timers", self.loaded)
        self._due.note_loaded(ALL_MS)

    def load_near(self, now_ms: int) -> Iterator[int]:
        """Load the timers that are due soon; yield how many are loaded so far.

        Raises:
            StorageError, CorruptionError: as `read` and `take`.
        """
        for _ in range(NEAR_PIECES):
            if self._due.loaded_ms > now_ms + NEAR_MS:
                return
            self.take(self.read())
            yield self.loaded

    def set_aside(self) -> None:
        """Rename the files of the TimerLog: the next start misses them, and replays the log."""
        for entry in self._entries:
            if entry.kind == RUN_DUE:
                path = entry.path(self._paths)
                with suppress(StorageError):
                    self._fs.rename(path, path.with_suffix(".damaged"))
        with suppress(StorageError):
            self._fs.sync_dir(self._paths.timer_log)

    def close(self) -> None:
        """Close the files; may be called twice."""
        self._stack.close()


@dataclass(slots=True, eq=False)
class LoadJob:
    """Reads the next pieces, on a thread.

    Attributes:
        pieces: what was read; the last one of all is b"".
        error: why a piece cannot be read; None if all were.
    """

    load: TimerLoad
    pieces: list[bytes] = field(default_factory=list)
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read them; may run on any thread."""
        try:
            while len(self.pieces) < READ_AT_ONCE and b"" not in self.pieces:
                self.pieces.append(self.load.read())
        except (StorageError, CorruptionError) as error:
            self.load.set_aside()
            self.error = error


def pending_count(entries: Sequence[RunEntry]) -> int:
    """Return about how many timers a TimerLog has: some rows may be obsolete."""
    return sum(entry.rows for entry in entries if entry.kind == RUN_DUE)
