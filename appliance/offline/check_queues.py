"""Compares ConsumeQueue files with the units that follow from the log. Layer 4.

The units of a slice of the log are compared as soon as they are known, so that few are in memory.
What is found is told at the end: a topic that is deleted further on in the log has no files, and
another one may have its name.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from _core.layout import UNIT_AT_SIZE, UNIT_AT_TAGS_CODE, UNIT_SIZE, UNITS_PER_FILE
from _core.partition import Partition, Topic
from appliance.errors import StorageError
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from appliance.offline.log_state import LogState
from appliance.store.paths import segment_name

FAULTS_PER_PARTITION_MAX: Final = 100
"""Ranges of wrong units that are told of one partition."""

_NO_UNIT: Final = bytes(UNIT_SIZE)


@dataclass(slots=True)
class _Queue:
    """What is known of one partition's files.

    Attributes:
        required: units below this offset must be there and right; None: nothing must be there. Of
            those behind it, after a clean stop, only what is there at all must be right.
        wrong: of each range of units what is wrong with the first.
        wrong_count: ranges, also those that are not kept.
    """

    directory: Path
    required: int | None
    wrong: list[Fault] = field(default_factory=list)
    wrong_count: int = 0


class QueueCheck:
    """All ConsumeQueue files of a data directory.

    Args:
        data: the directory.
        findings: where faults go.
        required: by topic id and partition, the offset below which units must be in the files.
    """

    def __init__(
        self, data: DataDir, findings: Findings, required: dict[tuple[int, int], int]
    ) -> None:
        self._data = data
        self._findings = findings
        self._required = required
        self._is_settled = data.is_clean and not data.is_live
        self._queues: dict[int, dict[int, _Queue]] = {}
        """By topic id and partition."""
        self._damage: Sequence[tuple[int, int, str]] = ()
        self.units = 0

    def compare(self, state: LogState, damage: Sequence[tuple[int, int, str]]) -> None:
        """Compare the units of all frames since the last call; they are let go of.

        Args:
            state: what follows from the log so far.
            damage: (from, to, what) of the damaged parts so far. Units that lead there are right.
        """
        self._damage = damage
        for partition in state.projections.partitions:
            if partition is not None and partition.units_dirty:
                while partition.unsaved_count:
                    partition.units_are_saved(self._compare(partition))

    def _compare(self, partition: Partition) -> int:
        """Compare the first units that were not; the offset up to which they were then."""
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

    def _queue_of(self, partition: Partition) -> _Queue:
        queues = self._queues.setdefault(partition.topic.topic_id, {})
        queue = queues.get(partition.index)
        if queue is None:
            directory = self._data.paths.queue(partition.topic.name, partition.index)
            required = self._required.get((partition.topic.topic_id, partition.index))
            queue = queues[partition.index] = _Queue(directory, required)
        return queue

    def _read(self, queue: _Queue, first: int, at: int, size: int) -> bytes | None:
        """Units of the file that begins with offset `first`; zeros where there are none.

        None if they cannot be read, which is a fault.
        """
        path = queue.directory / segment_name(first * UNIT_SIZE)
        try:
            # Opened anew each time: there may be more partitions than a process may open files.
            file = self._data.fs.open(path, writable=False)
            try:
                return file.pread(size, at).ljust(size, b"\x00")
            finally:
                file.close()
        except StorageError as error:
            if error.is_missing:
                return bytes(size)
            self._add(queue, Fault(path, at, "bytes that can be read", str(error), size))
            return None

    def _compare_units(
        self, queue: _Queue, offset: int, expected: memoryview, found: bytes
    ) -> None:
        path = queue.directory / segment_name((offset - offset % UNITS_PER_FILE) * UNIT_SIZE)
        for at in range(0, len(expected), UNIT_SIZE):
            theirs, ours = found[at : at + UNIT_SIZE], bytes(expected[at : at + UNIT_SIZE])
            unit = offset + at // UNIT_SIZE
            is_required = queue.required is not None and unit < queue.required
            if theirs == ours or (theirs == _NO_UNIT and not is_required):
                continue
            # What no state covers is written again by the next start, whatever it is now.
            if self._leads_to_damage(theirs) or not (is_required or self._is_settled):
                continue
            place = unit % UNITS_PER_FILE * UNIT_SIZE
            text = f"{describe_unit(ours)} of offset {unit}"
            self._add(queue, Fault(path, place, text, describe_unit(theirs), UNIT_SIZE))

    def _leads_to_damage(self, unit: bytes) -> bool:
        if not self._damage:
            return False
        pos = int.from_bytes(unit[:UNIT_AT_SIZE], "big", signed=True)
        place = bisect_right(self._damage, pos, key=lambda part: part[0]) - 1
        return place >= 0 and pos < self._damage[place][1]

    def _add(self, queue: _Queue, fault: Fault) -> None:
        """Take note of a fault, together with the one before it if it goes on there."""
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
        """The log deletes a topic: it has no files."""
        self._queues.pop(topic.topic_id, None)

    def finish(self) -> None:
        """Tell what is wrong."""
        for queues in self._queues.values():
            for queue in queues.values():
                for fault in queue.wrong:
                    self._findings.fault(fault)
                if queue.wrong_count > len(queue.wrong):
                    more = queue.wrong_count - len(queue.wrong)
                    self._findings.note(queue.directory, None, f"{more} more ranges are wrong")


def describe_unit(unit: bytes) -> str:
    """A unit for people."""
    if unit == _NO_UNIT:
        return "no unit"
    position = int.from_bytes(unit[:UNIT_AT_SIZE], "big", signed=True)
    size = int.from_bytes(unit[UNIT_AT_SIZE:UNIT_AT_TAGS_CODE], "big", signed=True)
    tags = int.from_bytes(unit[UNIT_AT_TAGS_CODE:], "big", signed=True)
    return f"the unit position {position} size {size} tags {tags}"
