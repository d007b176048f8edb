"""Merges many rows of older runs on a thread of its own, while checkpoints go on.

A checkpoint that merged tens of millions of rows itself would take half a minute, and all rows that
come meanwhile would wait for it in memory.

    loop     `Runs.begin_merge`    adjacent runs of one kind; a checkpoint leaves them as they are
    thread   `RunsMerge.run`       writes one run that says what they say
    loop     `Runs.end_merge`      it stands in their place; the next checkpoint names it

Layer 2.
"""

from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from _core.bytes.layout import RUN_DUE, RUN_IDS
from _core.timers.id_filter import IdFilter
from _core.timers.memtable import TimerMemtable
from _core.timers.run_merge import RunMerge
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.runs.id_run import IdRunWriter
from appliance.store.runs.merging import memtable_blocks, merged_blocks, open_run
from appliance.store.runs.run_files import RunEntry, RunWriter
from appliance.store.runs.timer_log import TimerLogWriter
from appliance.system.files import FileSystem

_WRITERS: Final = {RUN_DUE: TimerLogWriter, RUN_IDS: IdRunWriter}


def make_writer(
    fs: FileSystem, paths: DataPaths, *, kind: int, number: int, from_pos: int, to_pos: int
) -> RunWriter:
    """Return a writer of a run of some kind; the arguments are those of `RunWriter`."""
    make = _WRITERS.get(kind, RunWriter)
    return make(fs, paths, kind=kind, number=number, from_pos=from_pos, to_pos=to_pos)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """Which rows are obsolete.

    Attributes:
        topics: ids of existing topics.
        forget_pos: log position; ids of timers that frames below it completed are dropped.
        is_whole: no older run has rows of the same timers or ids.
    """

    topics: "array[int]"
    forget_pos: int
    is_whole: bool


def write_merged(
    writer: RunWriter,
    fs: FileSystem,
    paths: DataPaths,
    rules: MergeRules,
    entries: Sequence[RunEntry],
    *,
    memtables: Sequence[TimerMemtable] = (),
    is_stopped: Callable[[], bool] = bool,
) -> RunEntry | None:
    """Merge runs, and rows that no run has, into one run, durably.

    Args:
        writer: of the new run, whose kind all have.
        fs, paths: where the runs are.
        rules: which rows are left out.
        entries: the runs, the oldest first.
        memtables: newer rows, the oldest first.
        is_stopped: returns True when the result is not wanted any more.

    Returns:
        The new run, None if it would have no rows or was stopped: then there is no file.

    Raises:
        StorageError: a run cannot be read, or the new one cannot be written.
        CorruptionError: a run is damaged.
    """
    kind = writer.kind
    if isinstance(writer, IdRunWriter):
        added = sum(memtable.row_count(kind) for memtable in memtables)
        writer.filter = IdFilter(added + sum(entry.rows for entry in entries))
    for memtable in memtables:
        memtable.sort()
    merge = RunMerge(
        kind,
        source_count=len(entries) + len(memtables),
        topics=rules.topics,
        is_whole=rules.is_whole,
        forget_pos=rules.forget_pos,
    )
    with ExitStack() as stack:
        sources = [open_run(stack, fs, paths, entry) for entry in entries]
        sources += [iter(memtable_blocks(memtable, kind)) for memtable in memtables]
        for block, rows in merged_blocks(merge, sources):
            if is_stopped():
                writer.discard()
                return None
            writer.append(block, rows)
    made = writer.finish()
    if made is not None:
        fs.sync_dir(writer.path.parent)
    return made


@dataclass(slots=True, kw_only=True, eq=False)
class RunsMerge:
    """A merge of adjacent runs of one kind. Made by `Runs.begin_merge`.

    Attributes:
        runs: the runs, the oldest first.
        number: the name of the new one.
        made: after `run`: the new run; None if no rows are left.
        error: after `run`: why there is no result; None if there is one.
        is_damage: the error is of one of the runs, not of the new one.
    """

    fs: FileSystem
    paths: DataPaths
    rules: MergeRules
    runs: tuple[RunEntry, ...]
    number: int
    made: RunEntry | None = None
    error: StorageError | CorruptionError | None = None
    is_damage: bool = False
    is_stopped: bool = False

    @property
    def kind(self) -> int:
        """Of all these runs."""
        return self.runs[0].kind

    def run(self) -> None:
        """Merge; on any thread. Call it once.

        Raises:
            StorageError: a sync failed; the process must stop.
            MemoryError: there is no memory for it.
        """
        writer = make_writer(
            self.fs,
            self.paths,
            kind=self.kind,
            number=self.number,
            from_pos=self.runs[0].from_pos,
            to_pos=self.runs[-1].to_pos,
        )
        try:
            self.made = write_merged(
                writer,
                self.fs,
                self.paths,
                self.rules,
                self.runs,
                is_stopped=lambda: self.is_stopped,
            )
        except (StorageError, CorruptionError) as error:
            writer.discard()
            self.error = error
            self.is_damage = error.path != writer.path
            if isinstance(error, StorageError) and error.is_fatal:
                raise

    def stop(self) -> None:
        """Let `run` end soon, without a result; from any thread."""
        self.is_stopped = True
