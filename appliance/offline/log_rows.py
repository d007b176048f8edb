"""Timers and ids as they follow from a log, as the rows that a saved state has of them.

What happens to them is gathered as in a broker, and folded into one run in memory from time to
time, so that only what is pending or remembered takes memory. Layer 4; does no I/O.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from _core.layout import RUN_ID_SIZE, RUN_IDS, RUN_SETTLED_SIZE, RUN_TIMER_SIZE, RUN_TIMERS
from _core.projections import Projections
from _core.run_merge import RunMerge
from _core.timer_deltas import TimerDeltas
from appliance.store.run_files import IdRow, SettledRow, TimerRow, rows_of
from appliance.store.runs import KINDS, delta_blocks, merged_blocks
from appliance.units import MIB

FOLD_BYTES: Final = 64 * MIB

Row = TimerRow | SettledRow | IdRow
RowKey = tuple[int, int, int]


class LogRows:
    """The rows of all timers and ids at the present place in the log.

    Args:
        projections: what the frames are applied to; nothing was yet.
        now_ms: epoch ms; ids to be forgotten by then are left out.
    """

    def __init__(self, projections: Projections, now_ms: int) -> None:
        self._projections = projections
        self.now_ms = now_ms
        self._blocks: dict[int, list[bytes]] = {RUN_TIMERS: [], RUN_IDS: []}
        self._deltas = projections.deltas = TimerDeltas()

    def bound_memory(self) -> None:
        """Fold what was gathered if it is much; call it now and then."""
        if self._deltas.memory_bytes > FOLD_BYTES:
            self.fold()

    def fold(self) -> None:
        """Merge what was gathered into the rows."""
        deltas, self._deltas = self._deltas, TimerDeltas()
        self._projections.deltas = self._deltas
        deltas.sort()
        for kind in KINDS:
            merge = RunMerge(
                kind, source_count=2, topics=self.topics, is_whole=True, now_ms=self.now_ms
            )
            sources = [iter(self._blocks[kind]), iter(delta_blocks(deltas, kind))]
            self._blocks[kind] = [block for block, _ in merged_blocks(merge, sources)]
        deltas.release()

    @property
    def topics(self) -> "array[int]":
        """Ids of the topics that exist here."""
        return array("i", self._projections.topics_by_id)

    def blocks(self, kind: int) -> Iterator[bytes]:
        """The rows of a kind, block by block, as of the last `fold`."""
        return iter(self._blocks[kind])


def key_of(row: Row) -> RowKey:
    """What orders rows of a kind, and tells them apart."""
    if isinstance(row, IdRow):
        return row.hash_high, row.hash_low, row.topic_id
    return row.accept_pos, row.index, 0


def size_of(row: Row) -> int:
    """Bytes of a row in a run."""
    if isinstance(row, IdRow):
        return RUN_ID_SIZE
    return RUN_TIMER_SIZE if isinstance(row, TimerRow) else RUN_SETTLED_SIZE


def differences(
    kind: int, ours: Iterator[bytes], theirs: Iterator[bytes]
) -> Iterator[tuple[Row | None, Row | None]]:
    """Compare two ordered lists of rows.

    Args:
        kind: of the rows.
        ours, theirs: their blocks.

    Yields:
        Each row that is in one of them alone, or that differs: ours and theirs.
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
    """A row for people."""
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
            f"{row.partition}, forgotten at {row.forget_ms}"
        )
    return f"the settled timer of record {row.index} of the frame at {row.accept_pos}"
