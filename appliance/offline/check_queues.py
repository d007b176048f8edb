"""Compares ConsumeQueue files with the units derived from the log. Layer 4.

Units are compared after each slice of the log, so that few are in memory. Faults are reported at
the end: a topic that is deleted later in the log has no files, and another topic may have its name.

The records of a unit may be carried later in the log. Then the file has the later place already: it
is right if a frame of carried records with that offset stands there, and it is compared again when
the walk has reached that frame.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from _core.bytes.layout import (
    FRAME_ALIGNMENT,
    FRAME_HEADER_SIZE,
    KIND_CARRIED_RECORDS,
    UNIT_SIZE,
    UNITS_PER_FILE,
)
from _core.log.frames import check, read_header
from _core.queue.frame_finder import holds_offset
from _core.queue.partition import Partition, Topic
from appliance.errors import StorageError
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from appliance.offline.log_state import LogState
from appliance.store.log.frame_kinds import WHOLE
from appliance.store.paths import segment_name
from appliance.store.queue.unit_reader import UNIT, Unit

FAULTS_PER_PARTITION_MAX: Final = 100
"""Ranges of wrong units that are reported for one partition."""

_NO_UNIT: Final = bytes(UNIT_SIZE)


@dataclass(slots=True)
class _Queue:
    """The check of one partition's files.

    Attributes:
        partition: whose files these are.
        required: units below this offset must exist and be right; None if none must exist. After a
            clean stop, units from this offset on may be missing, but must be right if they exist.
        wrong: for each range of wrong units the fault of the first one.
        wrong_count: the number of ranges, also of those that are not kept.
    """

    directory: Path
    partition: Partition
    required: int | None
    wrong: list[Fault] = field(default_factory=list)
    wrong_count: int = 0


class QueueCheck:
    """All ConsumeQueue files of a data directory.

    Args:
        data: the directory.
        findings: receives the faults.
        required: by topic id and partition, the offset below which units must be in the files.
        applied: units of carried records below this log position must be in the files.
    """

    def __init__(
        self,
        data: DataDir,
        findings: Findings,
        required: dict[tuple[int, int], int],
        *,
        applied: int,
    ) -> None:
        self._data = data
        self._findings = findings
        self._required = required
        self._applied = applied
        self._is_final = data.is_clean and not data.is_live
        self._queues: dict[int, dict[int, _Queue]] = {}
        """By topic id and partition."""
        self._damage: Sequence[tuple[int, int, str]] = ()
        self.units = 0

    def compare(self, state: LogState, damage: Sequence[tuple[int, int, str]]) -> None:
        """Compare the units of all frames since the last call, then release the units.

        Args:
            state: the state after the log so far.
            damage: (from, to, what) of the damaged parts so far. Units that point there are right.
        """
        self._damage = damage
        for partition in state.projections.partitions:
            if partition is not None and partition.units_dirty:
                while partition.unsaved_count:
                    partition.units_are_saved(self._compare(partition))
                while partition.moved_count:
                    self._compare_moved(partition)

    def _compare(self, partition: Partition) -> int:
        """Compare the first units not compared yet; return the offset after them."""
        queue = self._queue_of(partition)
        offset, units, end = partition.unsaved_units()
        self.units += len(units) // UNIT_SIZE
        while units:
            first = offset - offset % UNITS_PER_FILE
            count = min(len(units) // UNIT_SIZE, first + UNITS_PER_FILE - offset)
            expected = units[: count * UNIT_SIZE]
            found = self._read(queue, first, (offset - first) * UNIT_SIZE, len(expected))
            if found is not None and found != expected:
                self._compare_units(queue, offset, expected, found)
            units = units[len(expected) :]
            offset += count
        return end

    def _compare_moved(self, partition: Partition) -> None:
        """Compare the first units of carried records not compared yet."""
        queue = self._queue_of(partition)
        offset, units = partition.moved_units()
        first = offset - offset % UNITS_PER_FILE
        found = self._read(queue, first, (offset - first) * UNIT_SIZE, len(units))
        if found is not None and found != units:
            self._compare_units(queue, offset, memoryview(units), found, is_moved=True)
        partition.moved_are_saved(offset + len(units) // UNIT_SIZE)

    def _queue_of(self, partition: Partition) -> _Queue:
        queues = self._queues.setdefault(partition.topic.topic_id, {})
        queue = queues.get(partition.index)
        if queue is None:
            directory = self._data.paths.queue(partition.topic.name, partition.index)
            required = self._required.get((partition.topic.topic_id, partition.index))
            queue = queues[partition.index] = _Queue(directory, partition, required)
        return queue

    def _read(self, queue: _Queue, first: int, at: int, size: int) -> bytes | None:
        """Read units of the file that begins with offset `first`; missing units are zeros.

        Returns None and reports a fault if they cannot be read.
        """
        path = queue.directory / segment_name(first * UNIT_SIZE)
        try:
            # Opened each time: there may be more partitions than files that a process may open.
            with closing(self._data.fs.open(path, writable=False)) as file:
                return file.pread(size, at).ljust(size, b"\x00")
        except StorageError as error:
            if error.is_missing:
                return bytes(size)
            self._add(queue, Fault(path, at, "bytes that can be read", str(error), size))
            return None

    def _compare_units(
        self,
        queue: _Queue,
        offset: int,
        expected: memoryview,
        found: bytes,
        *,
        is_moved: bool = False,
    ) -> None:
        path = queue.directory / segment_name((offset - offset % UNITS_PER_FILE) * UNIT_SIZE)
        for at in range(0, len(expected), UNIT_SIZE):
            theirs, ours = found[at : at + UNIT_SIZE], bytes(expected[at : at + UNIT_SIZE])
            unit = offset + at // UNIT_SIZE
            is_required = queue.required is not None and unit < queue.required
            # A start maps carried records again that no saved state covers.
            is_required = is_required and not (is_moved and UNIT.unpack(ours)[0] >= self._applied)
            if theirs == ours or (theirs == _NO_UNIT and not is_required):
                continue
            # After a crash, the next start rewrites the units that no saved state covers.
            if self._leads_to_damage(theirs) or not (is_required or self._is_final):
                continue
            if self._is_carried(queue.partition, unit, UNIT.unpack(theirs), UNIT.unpack(ours)):
                continue
            place = unit % UNITS_PER_FILE * UNIT_SIZE
            text = f"{describe_unit(ours)} of offset {unit}"
            self._add(queue, Fault(path, place, text, describe_unit(theirs), UNIT_SIZE))

    def _leads_to_damage(self, unit: bytes) -> bool:
        if not self._damage:
            return False
        pos, _, _ = UNIT.unpack(unit)
        place = bisect_right(self._damage, pos, key=lambda part: part[0]) - 1
        return place >= 0 and pos < self._damage[place][1]

    def _is_carried(self, partition: Partition, offset: int, theirs: Unit, ours: Unit) -> bool:
        """Whether a unit names a later frame of carried records with its offset."""
        pos, size, _ = theirs
        log = self._data.log
        end = log.segments[-1][0] + log.segments[-1][1] if log.segments else 0
        if not ours[0] < pos < end or pos % FRAME_ALIGNMENT or size < FRAME_HEADER_SIZE:
            return False
        frame = log.bytes_at(pos, size)
        return (
            check(frame, pos) == WHOLE
            and read_header(frame)["kind"] == KIND_CARRIED_RECORDS
            and holds_offset(
                frame,
                topic_id=partition.topic.topic_id,
                partition=partition.index,
                offset=offset,
                is_lost=False,
            )
        )

    def _add(self, queue: _Queue, fault: Fault) -> None:
        """Add a fault, or extend the previous one if this one continues it."""
        last = queue.wrong[-1] if queue.wrong else None
        if last is not None and last.path == fault.path:
            assert last.size is not None
            assert fault.size is not None
            if last.offset + last.size == fault.offset:
                queue.wrong[-1] = replace(last, size=last.size + fault.size)
                return
        queue.wrong_count += 1
        if queue.wrong_count <= FAULTS_PER_PARTITION_MAX:
            queue.wrong.append(fault)

    def forget_topic(self, topic: Topic) -> None:
        """Drop the results of a topic that the log deletes: it has no files."""
        self._queues.pop(topic.topic_id, None)

    def finish(self) -> None:
        """Report the faults."""
        for queues in self._queues.values():
            for queue in queues.values():
                for fault in queue.wrong:
                    self._findings.fault(fault)
                if queue.wrong_count > len(queue.wrong):
                    more = queue.wrong_count - len(queue.wrong)
                    self._findings.note(queue.directory, None, f"{more} more ranges are wrong")


def describe_unit(unit: bytes) -> str:
    """Return a unit as text."""
    if unit == _NO_UNIT:
        return "no unit"
    position, size, tags = UNIT.unpack(unit)
    return f"the unit position {position} size {size} tags {tags}"
