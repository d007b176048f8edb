"""What a log holds, by the heads of its frames: zones, topics, timers and groups. Layer 4.

A plan is one consistent snapshot: everything in it follows from the frames below one position of
the log. It reads no record. Its memory is a few hundred bytes for each 4 MiB of the log, 13 bytes
for each timer, about 100 for each carried timer and batch, and what the broker itself keeps for
pending timers and ids.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from _core.tables.plan_scan import HistoryProjections, PlanScan
from appliance.errors import ConfigError, FormatVersionError
from appliance.offline.log_files import POSITION_MAX
from appliance.offline.log_state import LogState
from appliance.store.checkpoint import NO_CLUSTER
from appliance.store.log.frame_kinds import newer_frame_error
from appliance.store.paths import segment_name
from appliance.store.recovery.log_knowledge import LogKnowledge
from appliance.system.files import FileSystem
from appliance.units import MIB
from compat.tables.log_reader import LogReader
from compat.tables.selection import (
    ANY,
    NOTHING_READ,
    ReadBefore,
    Selection,
    Topics,
    may_overlap,
)

ZONE_BYTES: Final = 4 * MIB
SLICE_BYTES: Final = 64 * MIB

Damage = tuple[int, int, str]
"""From, to, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Zone:
    """What the frames of a contiguous part of one segment hold.

    Attributes:
        start, end: log positions; frames begin and end there.
        topics: topic ids of its frames; 0 for frames of no topic.
        stored, timestamps, due: lowest and highest store time, timestamp of a visible record, and
            due time of a timer, epoch ms; the lowest is above the highest for none. The lowest
            store time is 0 if the zone has carried timers, which were accepted at any time before.
        records, timers, delivered: visible records, timers accepted or carried, timers delivered.
        frames: number of frames.
    """

    start: int
    end: int
    topics: frozenset[int]
    stored: tuple[int, int]
    timestamps: tuple[int, int]
    due: tuple[int, int]
    records: int
    timers: int
    delivered: int
    frames: int


class Plan:
    """The log of a data directory up to a position. `advance` goes on to the newest one.

    Attributes:
        reader: the segments.
        zones: the parts of the log, ascending.
        damage: the parts that are damaged or were declared lost.
    """

    def __init__(self, fs: FileSystem, root: Path, *, zone_bytes: int = ZONE_BYTES) -> None:
        """Read nothing yet.

        Args:
            fs: the file system.
            root: the data directory.
            zone_bytes: bytes of the log that share a zone, at least.
        """
        self.reader = LogReader(fs, root)
        self.zones: list[Zone] = []
        self._zone_bytes = zone_bytes
        self._knowledge = LogKnowledge(-1)
        self._scan: PlanScan | None = None
        self._state = self._new_state()

    def _new_state(self) -> LogState:
        return LogState(fault=lambda *_: None, new_projections=HistoryProjections)

    @property
    def end(self) -> int:
        """Log position up to which the plan goes."""
        return 0 if self._scan is None else self._scan.pos

    @property
    def salt(self) -> int:
        """The salt of the log's frames, 0 if it has none."""
        return 0 if self._scan is None else self._scan.salt

    @property
    def cluster(self) -> str | None:
        """The cluster of the log, None if it has no frame."""
        is_empty = self._scan is None or self._scan.frames == 0
        return None if is_empty else str(self._state.cluster)

    @property
    def damage(self) -> list[Damage]:
        """The parts that are missing, damaged, or declared lost by an earlier start, ascending."""
        found = [] if self._scan is None else list(self._scan.damage)
        reader, checkpoint = self.reader, self.reader.checkpoint
        if checkpoint is None:
            return found
        first = reader.segments[0][0] if reader.segments else reader.flushed
        if checkpoint.log.start < first:
            found.insert(0, (checkpoint.log.start, first, "the first segments are missing"))
        if reader.end < reader.flushed and reader.segments:
            found.append((reader.end, reader.flushed, "the log ends before the flushed position"))
        return found

    @property
    def state(self) -> LogState:
        """Topics, groups and timers as of `end`."""
        return self._state

    def advance(
        self, progress: Callable[[int, int], None] | None = None, *, stop: int | None = None
    ) -> None:
        """Plan up to the flushed position of now.

        Args:
            progress: called with the log position reached, and the last one.
            stop: end at the first border of frames at or after this log position.

        Raises:
            ConfigError: it is not a data directory, or its checkpoint is another log's.
            FormatVersionError: a newer latermq wrote to the log.
            StorageError: the directory cannot be read.
        """
        self.reader.refresh()
        if not self._goes_on():
            self._begin()
        self._run(progress, stop)
        while self._knowledge.learn(
            self._current, self._state, start=self._state.projections.first_known_pos
        ):
            self._begin()
            self._run(progress, stop)
        checkpoint = self.reader.checkpoint
        if self._current.frames and checkpoint is not None:
            known = checkpoint.log.cluster
            if known not in (NO_CLUSTER, self._state.cluster):
                raise ConfigError(
                    f"{self.reader.paths.root} is not whole: its log belongs to cluster "
                    f"{self._state.cluster}, its checkpoint to cluster {known}; restore both from "
                    "the same copy"
                )

    def forget(self, before: int) -> None:
        """Drop the zones that end at or before a log position; no task needs them any more."""
        self.zones = [zone for zone in self.zones if zone.end > before]

    @property
    def _current(self) -> PlanScan:
        assert self._scan is not None
        return self._scan

    @property
    def _watermark(self) -> int:
        checkpoint = self.reader.checkpoint
        return -1 if checkpoint is None else checkpoint.watermark

    def _goes_on(self) -> bool:
        """Return whether the scan so far can go on with the segments of now."""
        return self._scan is not None and self._scan.extend(
            self.reader.segments, known_flushed=self.reader.flushed, watermark=self._watermark
        )

    def _begin(self) -> None:
        reader = self.reader
        self.zones = []
        self._state = self._new_state()
        if reader.segments:
            self._state.projections.first_known_pos = reader.segments[0][0]
        self._scan = PlanScan(
            self._state.projections,
            list(reader.segments),
            reader.read_into,
            self._knowledge.listen(self._state.apply_control),
            known_flushed=reader.flushed,
            watermark=self._watermark,
            verdicts=self._knowledge.verdicts,
            topics=self._knowledge.topics(),
        )
        self._scan.zone_size = self._zone_bytes

    def _run(self, progress: Callable[[int, int], None] | None, stop: int | None) -> None:
        scan = self._current
        is_done = False
        while not is_done and (stop is None or scan.pos < stop):
            is_done = scan.step(SLICE_BYTES if stop is None else min(SLICE_BYTES, stop - scan.pos))
            if scan.newer_version:
                raise self._newer_version(scan.pos)
            self.zones += [Zone(*each) for each in scan.take_zones()]
            self._state.release_units()
            if progress is not None:
                progress(scan.pos, self.reader.end)

    def _newer_version(self, pos: int) -> FormatVersionError:
        base = max(base for base, _ in self.reader.segments if base <= pos)
        header = memoryview(bytearray(160))
        self.reader.read_into(pos, header)
        path = self.reader.paths.commit_log / segment_name(base)
        return newer_frame_error(path, pos - base, bytes(header))

    def topics(
        self, selection: Selection, *, with_deleted: bool = False, with_expired: bool = False
    ) -> Topics:
        """Return the topics that exist at the end of the plan and are selected.

        Args:
            selection: the rows asked for.
            with_deleted: also return those that existed earlier.
            with_expired: let each partition begin with offset 0, not with its start offset.
        """
        found: Topics = {}
        deleted = self._history.deleted if with_deleted else {}
        for topic_id, (name, starts) in deleted.items():
            if selection.topics is None or name.decode("ascii") in selection.topics:
                found[topic_id] = name, starts
        for topic_id, topic in self._state.projections.topics_by_id.items():
            if selection.topics is None or topic.name in selection.topics:
                starts = [partition.start_offset for partition in topic.partitions]
                found[topic_id] = (topic.name.encode("ascii"), starts)
        if with_expired:
            return {key: (name, [0] * len(starts)) for key, (name, starts) in found.items()}
        return found

    @property
    def _history(self) -> HistoryProjections:
        return cast(HistoryProjections, self._state.projections)

    def outcomes(
        self,
        start: int,
        end: int,
        read: ReadBefore = NOTHING_READ,
        *,
        held_from: int = POSITION_MAX,
    ) -> bytes:
        """Return what became of the timers that frames between two log positions hold.

        See `TimerOutcomes.between`.
        """
        return self._history.outcomes.between(start, end, read.numbers, held_from)

    def left_out(self, start: int, end: int, read: ReadBefore = NOTHING_READ) -> bytes:
        """Return the frames of carried records whose rows are elsewhere, or were read before.

        See `Copies.left_out`.
        """
        return self._history.records.left_out(start, end, read.numbers)

    def superseded(self) -> list[int]:
        """Return the frames whose records stand again in a later one, ascending."""
        return self._history.records.superseded()

    def end_of_gap(self, start: int) -> int:
        """Return the position after the last carried copy of what was first held before `start`."""
        history = self._history
        found = (history.records.last_of_gap(start), history.outcomes.copies.last_of_gap(start))
        return max(found) + 1

    def zones_of(self, table: str, selection: Selection, topics: Topics) -> Iterator[Zone]:
        """Yield the zones that may have rows of a table."""
        for zone in self.zones:
            is_of_all = table == "frames" and selection.topics is None
            if has_rows(zone, table, selection) and (
                is_of_all or not zone.topics.isdisjoint(topics)
            ):
                yield zone


def has_rows(zone: Zone, table: str, selection: Selection) -> bool:
    """Return whether a zone may have rows of a table, topics aside."""
    if not may_overlap(selection.stored, *zone.stored):
        return table == "frames" and selection.stored == ANY
    if table == "messages":
        return zone.records > 0 and may_overlap(selection.timestamps, *zone.timestamps)
    if table == "queues":
        return zone.records > 0
    if table == "timers":
        return zone.timers > 0 and may_overlap(selection.due, *zone.due)
    if table == "deliveries":
        return zone.delivered > 0
    return True
