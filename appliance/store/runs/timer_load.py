"""Loads timers of a saved state, in the order of their due times.

    loop     TimerLoad.take    some timers, up to whose due time deliveries may go then
    thread   LoadJob.run       the next ones of the TimerLog, and of what no run has yet, merged

If a block of the TimerLog is damaged, the rest is loaded from the runs of timers, which have the
same timers in the order of arrival. Layer 2.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from _core.bytes.layout import RUN_DUE, RUN_TIMER_AT_DUE, RUN_TIMER_SIZE, RUN_TIMERS
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from _core.timers.memtable import TimerMemtable
from _core.timers.row_places import rows_due_after, rows_due_between
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.runs.merging import memtable_blocks, merged_blocks, open_run
from appliance.store.runs.run_files import RunEntry
from appliance.system.files import FileSystem

ROWS_AT_ONCE: Final = 4_096
"""Timers that one turn of the loop takes, in less than a millisecond."""

READ_AT_ONCE: Final = 4
"""So many of these pieces are read for one job."""

ALL_MS: Final = (1 << 63) - 1
"""The end of a load of all timers."""


class TimerLoad:
    """One load: the timers that are due in an interval.

    Attributes:
        until_ms: where the interval ends.
        total: number of timers, if it is known: then there must be as many.
        fault: why the TimerLog cannot be read; None if it can.
        is_fault_known: the next checkpoint writes the TimerLog anew.
        is_done: all are loaded.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        projections: Projections,
        entries: Sequence[RunEntry],
        *,
        from_ms: int,
        until_ms: int,
        changes: TimerMemtable | None = None,
        total: int | None = None,
        has_log: bool = True,
    ) -> None:
        """Open no file yet.

        Args:
            fs: all files.
            paths: their names.
            projections: have the topics; their due queue is told how far the load is.
            entries: runs of timers.
            from_ms, until_ms: where the interval begins and ends, epoch ms.
            changes: of the timers in the interval since the runs were written; not sorted yet.
            total: number of timers in the interval; None if it is not known.
            has_log: the entries have a TimerLog; else all runs of timers are read.
        """
        self._due = projections.due
        self._loader = RunLoader(projections)
        self._fs, self._paths = fs, paths
        self._entries = entries
        self._topics = array("i", projections.topics_by_id)
        self._stack = ExitStack()
        self._from_ms = from_ms
        self.until_ms = until_ms
        self._changes = changes
        self._blocks: Iterator[tuple[bytes, int]] | None = None
        self._left = memoryview(b"")
        self._last = b""
        self._is_ended = False
        self._has_log = has_log
        self.total = total
        self.fault: StorageError | CorruptionError | None = None
        self.is_fault_known = False
        self.is_done = False

    def open(self) -> None:
        """Open the files of the TimerLog and check their directories.

        Raises:
            StorageError: a file is missing or cannot be read.
            CorruptionError: the directory of a file is damaged.
        """
        self._blocks = self._merged(RUN_DUE)

    def _merged(self, kind: int) -> Iterator[tuple[bytes, int]]:
        """Open the runs of a kind, and return all pending timers in their order."""
        of_kind = [entry for entry in self._entries if entry.kind == kind]
        merge = RunMerge(
            kind,
            source_count=len(of_kind) + (self._changes is not None),
            topics=self._topics,
            is_whole=True,
            forget_pos=0,
        )
        try:
            sources = [
                open_run(self._stack, self._fs, self._paths, entry, from_ms=self._from_ms)
                for entry in of_kind
            ]
        except (StorageError, CorruptionError):
            self.close()
            raise
        if self._changes is not None:
            self._changes.sort()
            sources.append(iter(memtable_blocks(self._changes, kind)))
        return merged_blocks(merge, sources)

    @property
    def _is_by_due(self) -> bool:
        """The timers come in the order of due times, not in that of arrival."""
        return self._has_log and self.fault is None

    @property
    def loaded(self) -> int:
        """Number of timers loaded so far."""
        return self._loader.timers

    def read(self) -> bytes:
        """Read the next piece; b"" after the last. On any thread, one at a time.

        Raises:
            StorageError: a run of timers cannot be read, and neither can the TimerLog.
            CorruptionError: it is damaged.
        """
        while not self._left and not self._is_ended:
            self._left = memoryview(self._next_block())
        size = ROWS_AT_ONCE * RUN_TIMER_SIZE
        piece, self._left = bytes(self._left[:size]), self._left[size:]
        if self._is_by_due:
            self._last = piece[-RUN_TIMER_SIZE:] or self._last
        return piece

    def _next_block(self) -> bytes:
        """Return the rows of the next block that are in the interval."""
        block = b""
        if self._has_log and self.fault is None:
            try:
                if self._blocks is None:
                    self.open()
                assert self._blocks is not None
                block, _ = next(self._blocks, (b"", 0))
            except (StorageError, CorruptionError) as error:
                self._blocks = self._merged(RUN_TIMERS)
                self.fault = error
            else:
                rows = rows_due_between(block, self._from_ms, self.until_ms)
                self._is_ended = not block or last_due(block) >= self.until_ms
                return rows
        if self._blocks is None:
            self._blocks = self._merged(RUN_TIMERS)
        block, _ = next(self._blocks, (b"", 0))
        self._is_ended = not block
        rows = rows_due_between(block, self._from_ms, self.until_ms)
        return rows_due_after(rows, self._last)

    def take(self, piece: bytes) -> None:
        """Add the timers of the next piece to the due queue; b"" ends the load.

        Raises:
            CorruptionError: there are more or fewer timers than the state counts.
        """
        if piece:
            loaded_ms = self._loader.load_due(self._loader.without_dropped(piece))
            if self._is_by_due:
                self._due.note_loaded(max(loaded_ms, self._due.loaded_ms))
            return
        self.close()
        if self.total is not None and self.loaded != self.total:
            self.set_aside()
            path = self._paths.timer_log
            raise CorruptionError(path, 0, f"{self.total} pending timers", self.loaded)
        self._due.note_loaded(self.until_ms)
        self.is_done = True

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


def last_due(rows: bytes) -> int:
    """Return when the last of some timers is due, epoch ms."""
    at = RUN_TIMER_AT_DUE - RUN_TIMER_SIZE
    return int.from_bytes(rows[at : at + 8], "big")


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
