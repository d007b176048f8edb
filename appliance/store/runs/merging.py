"""Reads run files of any kind, and merges their rows.

Layer 2; any thread, one at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from _core.bytes.layout import RUN_DUE, RUN_VERSION
from _core.timers.memtable import TimerMemtable
from _core.timers.run_merge import RunMerge
from appliance.store.paths import DataPaths
from appliance.store.runs.id_run import IdRunReader
from appliance.store.runs.run_files import (
    CompletedRow,
    IdRow,
    RunEntry,
    RunReader,
    TimerRow,
    rows_of,
)
from appliance.store.runs.timer_log import TimerLogReader
from appliance.system.files import FileSystem

_DONE: Final = -1
"""The result of `RunMerge.run` at the end."""


def open_reader(fs: FileSystem, path: Path, entry: RunEntry | None = None) -> RunReader:
    """Open a run file of any kind; the arguments and errors are those of `RunReader`."""
    reader = RunReader(fs, path, entry)
    if reader.kind != RUN_DUE and reader.version == RUN_VERSION:
        return reader
    reader.close()
    make = TimerLogReader if reader.kind == RUN_DUE else IdRunReader
    return make(fs, path, entry)


def read_rows(fs: FileSystem, path: Path) -> Iterator[TimerRow | CompletedRow | IdRow]:
    """Yield every row of a run file in order; slow, for tools and tests.

    Raises:
        StorageError: it cannot be read.
        CorruptionError: it is damaged.
    """
    with closing(open_reader(fs, path)) as reader:
        for block in reader.blocks():
            yield from rows_of(reader.kind, block)


def open_run(
    stack: ExitStack, fs: FileSystem, paths: DataPaths, entry: RunEntry, *, from_ms: int = 0
) -> Iterator[bytes]:
    """Return the blocks of a run; the stack closes its file.

    Args:
        stack: owns the file.
        fs, paths: where it is.
        entry: which run.
        from_ms: leave out blocks of the TimerLog with nothing that is due from then on, epoch ms.
    """
    reader = stack.enter_context(closing(open_reader(fs, entry.path(paths), entry)))
    if isinstance(reader, TimerLogReader):
        return reader.blocks_from(from_ms)
    return reader.blocks()


def memtable_blocks(memtable: TimerMemtable, kind: int) -> Iterator[bytes]:
    """Yield the rows of a sorted memtable, block by block."""
    while block := memtable.next_block(kind):
        yield block


def merged_blocks(
    merge: RunMerge, sources: Sequence[Iterator[bytes]]
) -> Iterator[tuple[bytes, int]]:
    """Yield the rows of a merge and their count, block by block."""
    while True:
        wanted = merge.run()
        if wanted >= 0:
            merge.feed(wanted, next(sources[wanted], b""))
            continue
        rows = merge.out_rows
        block = merge.take()
        if block:
            yield block, rows
        if wanted == _DONE:
            return
