"""The verdict of a start: what is lost, and where every allocator continues after it.

    judged     parts of the log that this start is the first to declare lost
    missing    bytes after the end of the log that were durable and no longer exist
    torn       bytes after the end that are cut; whether they were durable is unknown

An allocator continues above every value that any readable frame shows. If bytes are lost after the
last frame that shows its value, it also skips all values that so many bytes may have held. A
verdict stays in the log for good: replays honour it, even if the bytes become readable again.
Layer 2; no I/O.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE, RECORDS_PER_BYTE_MAX
from _core.queue.partition import Partition
from _core.state.scan import LogScan
from appliance.store.recovery.decisions import End
from appliance.store.recovery.restored import JUMP, first_producer_id
from appliance.store.state.control_frames import PRODUCER_ID_BLOCK, Floors, Ranges, VerdictFrame
from appliance.store.state.group_store import RAISED_MAX, raised
from appliance.store.state.snapshot import KnownDamage
from appliance.store.state.state import State

CONTROL_FRAME_MIN_BYTES: Final = FRAME_HEADER_SIZE + 8
"""No control frame is smaller; this bounds how many of them the lost bytes held."""

SKIP_MAX: Final = 1 << 36
"""Maximum number of skipped offsets of a partition: no more records can be lost, and every 2
billion take a frame."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Offsets of a partition that are skipped: lost records may have had them."""

    partition: Partition
    end: int
    """The next offset to be assigned."""

    def __str__(self) -> str:
        name = f"{self.partition.topic.name}/{self.partition.index}"
        return (
            f"{name} continues at offset {self.end}: lost records may have had the offsets from "
            f"{self.partition.next_offset} on"
        )


class Verdict:
    """The verdict of one start.

    Attributes:
        judged: (from, to) log positions of newly lost parts, ascending.
        damage: every damaged part found by the replay, including those of earlier verdicts.
        missing_bytes: bytes lost after the end of the log; the log continues there.
        torn_bytes: bytes cut at the end of the log.
        restored_in: the epoch of this start if the log was restored from a backup, else None.
    """

    def __init__(self, scan: LogScan, state: State, *, flushed: int) -> None:
        """Determine what is lost.

        Args:
            scan: the completed replay.
            state: the state after it.
            flushed: log position below which everything was durable, -1 for unknown.
        """
        self._state = state
        self.judged: Ranges = tuple(subtract(scan.lost_ranges, state.verdicts))
        self.missing_bytes = max(0, flushed - scan.pos)
        self.damage = [KnownDamage(begin, end - begin, why) for begin, end, why in scan.damage]
        if self.missing_bytes and not any(each.pos == scan.pos for each in self.damage):
            # The log is intact up to its end: whole segments are missing.
            self.damage.append(KnownDamage(scan.pos, self.missing_bytes, "it is missing"))
        self.torn_bytes = max(0, scan.garbage_end - scan.pos - self.missing_bytes)
        self.restored_in: int | None = None

    @property
    def lost_bytes(self) -> int:
        """Bytes that were durable, and that no earlier start has declared lost."""
        return sum(end - start for start, end in self.judged) + self.missing_bytes

    def is_empty(self) -> bool:
        """Nothing is lost beyond the verdicts of earlier starts, and nothing was restored."""
        return not (self.lost_bytes or self.torn_bytes) and self.restored_in is None

    def _lost_after(self, pos: int) -> int:
        """The number of bytes lost after a log position."""
        judged = sum(end - max(start, pos) for start, end in self.judged if end > pos)
        return judged + self.missing_bytes

    def skips(self) -> Iterator[Skip]:
        """Yield partitions that do not continue right after their last readable record."""
        for partition in self._state.projections.partitions:
            if partition is None:
                continue
            end = max(partition.next_offset, partition.offset_floor)
            lost = RECORDS_PER_BYTE_MAX * self._lost_after(partition.confirmed_pos)
            end += min(lost, SKIP_MAX)
            if end > partition.next_offset:
                yield Skip(partition, end)

    def frame(self) -> VerdictFrame:
        """Return the verdict frame for the log."""
        state = self._state
        lost_frames = 0
        if self.lost_bytes or self.torn_bytes:
            lost_frames = (self.lost_bytes + self.torn_bytes) // CONTROL_FRAME_MIN_BYTES + 1
        floors = state.floors
        producer_id = max(floors.producer_id, state.projections.producer_id_seen + 1)
        producer_id += lost_frames * PRODUCER_ID_BLOCK
        if self.restored_in is not None:
            lost_frames += JUMP
            producer_id = max(producer_id, first_producer_id(self.restored_in))
        return VerdictFrame(
            floors=Floors(
                producer_id=producer_id,
                topic_id=raised(max(floors.topic_id, state.groups.topic_id_seen + 1), lost_frames),
                generation=raised(floors.generation, lost_frames),
            ),
            generation_jump=min(lost_frames, RAISED_MAX),
            lost=self.judged,
        )


def find_end(scan: LogScan, flushed: int) -> End:
    """Return how the replay ended.

    Args:
        scan: the completed replay.
        flushed: log position below which everything was durable, -1 for unknown.
    """
    if scan.pos < flushed:
        return End.SHORT
    is_torn = scan.has_leftovers or scan.garbage_end > scan.pos
    return End.TORN if is_torn else End.WHOLE


def subtract(ranges: Iterable[tuple[int, int]], known: Ranges) -> Iterator[tuple[int, int]]:
    """Yield the parts of ranges that are outside all known ranges; all are ascending."""
    for start, end in ranges:
        at = start
        for known_start, known_end in known:
            if known_end <= at or known_start >= end:
                continue
            if known_start > at:
                yield at, known_start
            at = max(at, known_end)
        if at < end:
            yield at, end
