"""What a start judges lost, and where every allocator goes on after it.

    judged     parts of the log that this start is the first to find lost
    missing    what was durable behind the end of the log, and is not there any more
    torn       bytes behind the end that are cut; nobody knows that they were durable

An allocator goes on above everything that anything readable tells. Where the last word on it lies
before what was lost, it also goes on above all that so many bytes may have held. A verdict is in
the log for good: replays honour it, even when what it judges can be read again. Layer 2; no I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from _core.layout import FRAME_HEADER_SIZE, RECORDS_PER_BYTE_MAX
from _core.log_scan import LogScan
from _core.partition import Partition
from appliance.store.control_file import KnownDamage
from appliance.store.control_frames import PRODUCER_ID_BLOCK, Floors, Ranges, VerdictFrame
from appliance.store.decisions import End
from appliance.store.group_store import RAISED_MAX, raised
from appliance.store.recovery import Damage, RecoveryReport
from appliance.store.start import Start
from appliance.store.state import State

CONTROL_FRAME_MIN_BYTES: Final = FRAME_HEADER_SIZE + 8
"""No control frame is smaller, so lost bytes held no more than so many of them."""

SKIP_MAX: Final = 1 << 36
"""Offsets of a partition: more records were never lost, and each 2 billion cost a frame."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Offsets of a partition that are not given: records that were lost may have had them."""

    partition: Partition
    end: int
    """The next offset that is given."""

    def __str__(self) -> str:
        name = f"{self.partition.topic.name}/{self.partition.index}"
        return (
            f"{name} goes on at offset {self.end}: offsets from {self.partition.next_offset} on "
            "may have been given to records that are lost"
        )


class Verdict:
    """The verdict of one start.

    Attributes:
        judged: new (from, to) log positions of what is lost for good, ascending.
        damage: every damaged part that the replay met, of earlier verdicts too.
        missing_bytes: lost behind the end of the log; the log goes on there.
        torn_bytes: cut at the end of the log.
    """

    def __init__(self, scan: LogScan, state: State, *, flushed: int) -> None:
        """Judge.

        Args:
            scan: the replay, at its end.
            state: what follows from it.
            flushed: log position below which all was durable once, -1 for unknown.
        """
        self._state = state
        self._end = scan.pos
        self.judged: Ranges = tuple(subtract(scan.lost_ranges, state.verdicts))
        self.missing_bytes = max(0, flushed - scan.pos)
        self.damage = [KnownDamage(begin, end - begin, why) for begin, end, why in scan.damage]
        if self.missing_bytes and not any(each.pos == scan.pos for each in self.damage):
            # Nothing is wrong up to there: whole segments are gone.
            self.damage.append(KnownDamage(scan.pos, self.missing_bytes, "it is missing"))
        self.torn_bytes = max(0, scan.garbage_end - scan.pos - self.missing_bytes)

    @property
    def lost_bytes(self) -> int:
        """That were durable once, and that no start before has judged."""
        return sum(end - start for start, end in self.judged) + self.missing_bytes

    def is_empty(self) -> bool:
        """Nothing was lost but what earlier starts have told of."""
        return not (self.lost_bytes or self.torn_bytes)

    def _lost_behind(self, pos: int) -> int:
        """Bytes lost behind a log position."""
        judged = sum(end - max(start, pos) for start, end in self.judged if end > pos)
        return judged + self.missing_bytes

    def skips(self) -> Iterator[Skip]:
        """Partitions that go on above their last readable record."""
        for partition in self._state.projections.partitions:
            if partition is None:
                continue
            end = max(partition.next_offset, partition.offset_floor)
            lost = RECORDS_PER_BYTE_MAX * self._lost_behind(partition.confirmed_pos)
            end += min(lost, SKIP_MAX)
            if end > partition.next_offset:
                yield Skip(partition, end)

    def frame(self) -> VerdictFrame:
        """What the log is told."""
        state = self._state
        lost_frames = 0
        if not self.is_empty():
            lost_frames = (self.lost_bytes + self.torn_bytes) // CONTROL_FRAME_MIN_BYTES + 1
        floors = state.floors
        seen = state.projections.producer_id_seen + 1
        return VerdictFrame(
            floors=Floors(
                producer_id=max(floors.producer_id, seen) + lost_frames * PRODUCER_ID_BLOCK,
                topic_id=raised(max(floors.topic_id, state.groups.topic_id_seen + 1), lost_frames),
                generation=raised(floors.generation, lost_frames),
            ),
            generation_jump=min(lost_frames, RAISED_MAX),
            lost=self.judged,
        )


def find_end(scan: LogScan, flushed: int) -> End:
    """Where the replay ended.

    Args:
        scan: at its end.
        flushed: log position below which all was durable once, -1 for unknown.
    """
    if scan.pos < flushed:
        return End.SHORT
    is_torn = scan.has_leftovers or scan.garbage_end > scan.pos
    return End.TORN if is_torn else End.WHOLE


def subtract(ranges: Iterable[tuple[int, int]], known: Ranges) -> Iterator[tuple[int, int]]:
    """The parts of ranges that lie in none of those that are known; all ascending."""
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


def make_report(
    start: Start,
    verdict: Verdict,
    *,
    is_clean: bool,
    end_pos: int,
    damage: Sequence[Damage],
    epoch: int,
    skips: tuple[str, ...],
    duration_ms: int,
) -> RecoveryReport:
    """What people are told of a start.

    Args:
        start, verdict: what it found.
        is_clean: the last broker stopped as it should.
        end_pos: where the log ends now.
        damage, epoch, skips, duration_ms: as in the report.
    """
    scan = start.scan
    return RecoveryReport(
        is_clean=is_clean,
        frames=scan.frames,
        end_pos=end_pos,
        cut_bytes=max(0, scan.garbage_end - scan.pos),
        damage=tuple(damage),
        epoch=epoch,
        checkpoint=0 if start.loaded is None else start.loaded.number,
        applied=start.applied,
        replayed_bytes=scan.pos - start.applied,
        duration_ms=duration_ms,
        rejected=tuple(start.rejected),
        skips=skips,
        lost_bytes=verdict.lost_bytes,
    )
