"""The timers and ids after replay of a log, as the rows that a saved state has.

Changes go into a memtable as in a broker. The memtable is folded into one run in memory when it is
large, so that only pending and remembered entries take memory. Layer 4; does no I/O.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from _core.bytes.layout import RUN_COMPLETED_SIZE, RUN_ID_SIZE, RUN_IDS, RUN_TIMER_SIZE, RUN_TIMERS
from _core.state.projections import Projections
from _core.timers.memtable import TimerMemtable
from _core.timers.run_merge import RunMerge
from appliance.store.runs.merging import memtable_blocks, merged_blocks
from appliance.store.runs.run_files import CompletedRow, IdRow, TimerRow, rows_of
from appliance.units import MIB

FOLD_BYTES: Final = 64 * MIB

Row = TimerRow | CompletedRow | IdRow
RowKey = tuple[int, int, int]


class LogRows:
    """The rows of all timers and ids at the current log position.

    Args:
        projections: the frames are applied to them; no frame was applied yet.
        forget_pos: log position; ids of timers that frames below it completed are left out.
    """

    def __init__(self, projections: Projections, forget_pos: int) -> None:
        self._projections = projections
        self.forget_pos = forget_pos
        self._blocks: dict[int, list[bytes]] = {RUN_TIMERS: [], RUN_IDS: []}
        self._memtable = projections.memtable = TimerMemtable()

    def bound_memory(self) -> None:
        """Fold the memtable if it exceeds FOLD_BYTES; call it regularly."""
        if self._memtable.memory_bytes > FOLD_BYTES:
            self.fold()

    def fold(self) -> None:
        """Merge the memtable into the rows."""
        memtable, self._memtable = self._memtable, TimerMemtable()
        self._projections.memtable = self._memtable
        memtable.sort()
        for kind in self._blocks:
            merge = RunMerge(
                kind, source_count=2, topics=self.topics, is_whole=True, forget_pos=self.forget_pos
            )
            sources = [iter(self._blocks[kind]), iter(memtable_blocks(memtable, kind))]
            self._blocks[kind] = [block for block, _ in merged_blocks(merge, sources)]
        memtable.release()

    @property
    def topics(self) -> "array[int]":
        """Ids of the topics that exist at this position."""
        return array("i", self._projections.topics_by_id)

    def blocks(self, kind: int) -> Iterator[bytes]:
        """Return the rows of a kind, block by block, as of the last `fold`."""
        return iter(self._blocks[kind])


def key_of(row: Row) -> RowKey:
    """Return the unique sort key of a row among those of its kind."""
    if isinstance(row, IdRow):
        return row.hash_high, row.hash_low, row.topic_id
    return row.accept_pos, row.index, 0


def size_of(row: Row) -> int:
    """Return the size of a row in a run, bytes."""
    if isinstance(row, IdRow):
        return RUN_ID_SIZE
    return RUN_TIMER_SIZE if isinstance(row, TimerRow) else RUN_COMPLETED_SIZE


def differences(
    kind: int, ours: Iterator[bytes], theirs: Iterator[bytes]
) -> Iterator[tuple[Row | None, Row | None]]:
    """Compare two ordered lists of rows.

    Args:
        kind: of the rows.
        ours, theirs: their blocks.

    Yields:
        (ours, theirs) for each row that differs; None for a row that is missing.
    """
    left, right = _rows(kind, ours), _rows(kind, theirs)
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if a is None or (b is not None and key_of(b) < key_of(a)):
            yield None, b
            b = next(right, None)
        elif b is None or key_of(a) < key_of(b):
            yield a, None
            a = next(left, None)
        else:
            if a != b:
                yield a, b
            a, b = next(left, None), next(right, None)


def _rows(kind: int, blocks: Iterator[bytes]) -> Iterator[Row]:
    for block in blocks:
        yield from rows_of(kind, block)


def describe(row: Row | None) -> str:
    """Return a row as text."""
    if row is None:
        return "none"
    if isinstance(row, TimerRow):
        place = f"topic id {row.topic_id}, partition {row.partition}"
        level = f", level {row.level} offset {row.level_offset}" if row.level else ""
        return (
            f"the pending timer of record {row.index} of the frame at {row.accept_pos}, due "
            f"{row.due_ms}, {place}{level}"
        )
    if isinstance(row, IdRow):
        state = ("unknown", "pending", "cancelled", "delivered")[row.state & 3]
        return (
            f"the id {row.hash_high:016x}{row.hash_low:08x} of topic id {row.topic_id}, {state}, "
            f"of record {row.index} of the frame at {row.accept_pos}, due {row.due_ms}, partition "
            f"{row.partition}, completed below {row.completed_pos}"
        )
    return f"the completed timer of record {row.index} of the frame at {row.accept_pos}"
