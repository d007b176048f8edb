"""Reads ConsumeQueue units from their files, checks them against the log, and makes them anew.

Runs on a thread: it reads files by itself and changes nothing; what it found is for
`ConsumeQueues.take_up`, on the loop. A unit is right if the frame that it names is whole, of that
topic and partition, of the size that it says, and holds the offset. If not, the units around it are
made anew from the frames of the log that lie between the nearest units that are right. Layer 2.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from _core.cq_scan import LOST, UnitScan, find_candidate, holds_offset
from _core.frames import check, read_header
from _core.layout import FRAME_ALIGNMENT, FRAME_HEADER_SIZE, UNIT_SIZE, UNITS_PER_FILE
from _core.partition import Partition
from _core.unit_blocks import UNITS_PER_BLOCK
from appliance.errors import StorageError
from appliance.fs import File, FileSystem
from appliance.store.commit_log import CommitLog
from appliance.store.consume_queue import EXHAUSTED, ConsumeQueues, UnitsRead, file_start
from appliance.store.recovery import Damage
from appliance.units import KIB, MIB, PAGE_SIZE_BYTES

WHOLE: Final = "whole"
"""What `check` says of a frame that is as it was written."""

SCAN_CHUNK_BYTES: Final = 4 * MIB
"""Read of the log at once, to make units anew."""

LOOK_CHUNK_BYTES: Final = 64 * KIB
"""Read at once, to find the next frame behind damage."""

_UNIT: Final = struct.Struct(">qiq")

Unit = tuple[int, int, int]
"""Position, size, tags code."""

Frame = tuple[int, int, str]
"""Log position, bytes, and what is wrong or "whole"."""


@dataclass(slots=True)
class UnitsFound:
    """What became of a unit that was asked for.

    Attributes:
        frames: the frame that it names, and damaged ones that were met on the way.
        units: what to take up; None if there is nothing to be had of the partition any more.
        damage: of the unit file, made good by `units`.
    """

    frames: list[Frame] = field(default_factory=list)
    units: UnitsRead | None = None
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class _Block:
    """What the file holds of one block: maybe less than it should."""

    first: int
    units: bytes
    file: File | None
    is_refused: bool
    """There was no file descriptor to read it."""

    def unit(self, offset: int) -> Unit | None:
        at = (offset - self.first) * UNIT_SIZE
        if at + UNIT_SIZE > len(self.units):
            return None
        position, size, tags_code = _UNIT.unpack_from(self.units, at)
        return position, size, tags_code


def _with_runs(units: bytes, first: int, partition: Partition) -> bytes:
    """The units of `first` and behind it, with nothing inside of runs, as they are saved."""
    stop = first + len(units) // UNIT_SIZE
    changed = bytearray(units)
    for begin, end, pos, size, tags_code in partition.runs.overlapping(first, stop):
        low, high = max(begin, first), min(end, stop)
        run = bytearray((high - low) * UNIT_SIZE)
        if begin >= first:
            run[:UNIT_SIZE] = _UNIT.pack(pos, size, end if size < 0 else tags_code)
        changed[(low - first) * UNIT_SIZE : (high - first) * UNIT_SIZE] = run
    return bytes(changed)


class UnitReader:
    """Reads units of any partition; on any thread."""

    def __init__(self, fs: FileSystem, queues: ConsumeQueues, log: CommitLog) -> None:
        self._fs = fs
        self._queues = queues
        self._log = log

    def read(self, partition: Partition, offset: int) -> UnitsFound:
        """Read the block that holds the unit of an offset, and check that unit.

        Args:
            partition: whose.
            offset: of a record whose unit is in a file.

        Raises:
            StorageError: a file could not be read, and nothing else helps.
        """
        # DeleteRecords may raise the start meanwhile: all of this goes by what it is now.
        start, saved = partition.start_offset, partition.units_saved
        if partition.topic.deleted or not start <= offset < saved:
            return UnitsFound()
        block = self._read_block(partition, offset, saved)
        unit = block.unit(offset)
        frame = self._right_frame(partition, offset, unit)
        if unit is not None and (frame is not None or unit == (0, LOST, 0)):
            frames = [] if frame is None else [(unit[0], len(frame), WHOLE)]
            units = UnitsRead(partition, block.first, block.units, False, block.file)
            return UnitsFound(frames, units)
        if block.file is not None:
            block.file.close()
        return self._make_anew(partition, offset, start, saved, block)

    # Units

    def _read_block(self, partition: Partition, offset: int, saved: int) -> _Block:
        first = offset - offset % UNITS_PER_BLOCK
        start = file_start(offset)
        count = min(UNITS_PER_BLOCK, saved - first)
        file = None
        try:
            file = self._fs.open(self._queues.path_of(partition, start))
            units = file.pread(count * UNIT_SIZE, (first - start) * UNIT_SIZE)
        except StorageError as error:
            # Gone or unreadable: what it should hold follows from the log.
            if file is not None:
                file.close()
            return _Block(first, b"", None, error.errno in EXHAUSTED)
        return _Block(first, units[: len(units) // UNIT_SIZE * UNIT_SIZE], file, False)

    def _unit(self, partition: Partition, offset: int, saved: int) -> Unit | None:
        """The unit of any offset, from memory or its file."""
        known = partition.unit_in_memory(offset)
        if known is not None:
            return known
        block = self._read_block(partition, offset, saved)
        if block.file is not None:
            block.file.close()
        return block.unit(offset)

    def _right_frame(self, partition: Partition, offset: int, unit: Unit | None) -> bytes | None:
        """The frame that a unit names, if the unit is right."""
        if unit is None:
            return None
        position, size, _ = unit
        end = self._log.pointers.committed
        if position < self._log.start_pos or abs(size) < FRAME_HEADER_SIZE:
            return None
        if position % FRAME_ALIGNMENT or position + abs(size) > end:
            return None
        frame = self._read(position, abs(size))
        if len(frame) != abs(size) or check(frame, position) != WHOLE:
            return None
        is_right = read_header(frame)["size"] == abs(size) and holds_offset(
            frame,
            topic_id=partition.topic.topic_id,
            partition=partition.index,
            offset=offset,
            is_lost=size < 0,
        )
        return frame if is_right else None

    # Making them anew

    def _make_anew(
        self, partition: Partition, offset: int, start: int, saved: int, block: _Block
    ) -> UnitsFound:
        low, pos = self._right_before(partition, block.first, start, saved)
        high, end = self._right_behind(partition, block.first + UNITS_PER_BLOCK, saved)
        scan = UnitScan(
            topic_id=partition.topic.topic_id, partition=partition.index, first=low, stop=high
        )
        broken = self._scan_log(scan, pos, end)
        units = _with_runs(scan.finish(), low, partition)
        frames = [(begin, stop - begin, fault) for begin, stop, fault in broken]
        at = (offset - low) * UNIT_SIZE
        _, size, _ = _UNIT.unpack_from(units, at)
        told = block.unit(offset)
        if size < 0 and told is not None and any(a <= told[0] < b for a, b, _ in broken):
            # The unit may well be right: it is the log that is damaged where it leads.
            if all(told[0] != begin for begin, _, _ in broken):
                frames.append((told[0], max(told[1], FRAME_HEADER_SIZE), "inside damage"))
            found = UnitsRead(partition, block.first, block.units, False, None)
            return UnitsFound(frames, found)
        first = low - low % UNITS_PER_BLOCK
        # A block begins before the first record that is there; nobody asks for those units.
        units = bytes((low - first) * UNIT_SIZE) + units
        found = UnitsRead(partition, first, units, True, None)
        if block.is_refused:
            return UnitsFound(frames, found)
        count = high - low
        return UnitsFound(frames, found, self._damage(partition, offset, told, count))

    def _damage(self, partition: Partition, offset: int, told: Unit | None, count: int) -> Damage:
        start = file_start(offset)
        if told is None or not any(told):
            fault = f"the unit of offset {offset} is missing"
        else:
            fault = (
                f"the unit of offset {offset} names log position {told[0]}, size {told[1]}, "
                "where no frame holds it"
            )
        return Damage(
            self._queues.path_of(partition, start),
            (offset - start) * UNIT_SIZE,
            UNIT_SIZE,
            f"{fault}; {count} units are made anew from the log",
            is_mended=True,
        )

    def _right_before(
        self, partition: Partition, first: int, start: int, saved: int
    ) -> tuple[int, int]:
        """The nearest block's start whose predecessor is right, and where its frame begins.

        Records begin with offset `start`.
        """
        bottom = max(file_start(first), start)
        low = max(first, bottom)
        while low > start:
            unit = self._unit(partition, low - 1, saved)
            if unit is not None and self._right_frame(partition, low - 1, unit) is not None:
                return low, unit[0]
            if low == bottom:
                break
            low = max(low - UNITS_PER_BLOCK, bottom)
        return low, self._log.start_pos

    def _right_behind(self, partition: Partition, stop: int, saved: int) -> tuple[int, int]:
        """The nearest block's end whose successor is right, and where that one's frame ends."""
        top = min(file_start(stop - 1) + UNITS_PER_FILE, saved)
        high = min(stop, top)
        while high < partition.next_offset:
            unit = self._unit(partition, high, saved)
            if unit is not None and self._right_frame(partition, high, unit) is not None:
                return high, unit[0] + abs(unit[1])
            if high == top:
                break
            high = min(high + UNITS_PER_BLOCK, top)
        return high, self._log.pointers.committed

    def _scan_log(self, scan: UnitScan, pos: int, end: int) -> list[tuple[int, int, str]]:
        """Feed frames from `pos` to before `end`; damaged ranges as (from, to, fault)."""
        broken: list[tuple[int, int, str]] = []
        while scan.reached < scan.stop and pos < end:
            behind = scan.feed(self._read(pos, SCAN_CHUNK_BYTES), pos)
            fault = ""
            if behind == pos:
                behind, fault = self._feed_one(scan, pos)
            if behind == pos:
                behind = self._next_frame(pos, end)
                if broken and broken[-1][1] == pos:
                    pos, _, fault = broken.pop()
                broken.append((pos, behind, fault))
            pos = behind
        return broken

    def _feed_one(self, scan: UnitScan, pos: int) -> tuple[int, str]:
        """Feed one frame that is larger than a chunk; where it ends, and what is wrong if there."""
        try:
            frame = self._log.read_frame(pos)
        except StorageError as error:
            return pos, str(error)
        return scan.feed(frame, pos), check(frame, pos)

    def _next_frame(self, pos: int, end: int) -> int:
        """The position of what looks like the next frame behind `pos`, at most `end`."""
        start = FRAME_ALIGNMENT
        while pos < end:
            data = self._read(pos, LOOK_CHUNK_BYTES)
            at = find_candidate(data, pos, start)
            if at < len(data):
                return min(pos + at, end)
            if len(data) == LOOK_CHUNK_BYTES:
                pos += len(data) - FRAME_HEADER_SIZE
            elif data:
                pos += len(data)  # a segment ends here, or the next page cannot be read
            else:
                pos = (pos // PAGE_SIZE_BYTES + 1) * PAGE_SIZE_BYTES
            start = 0
        return end

    def _read(self, pos: int, size: int) -> bytes:
        """Bytes of the log; fewer at the end of a segment, and where the disk refuses."""
        try:
            return self._log.read(pos, size)
        except StorageError:
            pass
        parts: list[bytes] = []
        while size > 0:
            step = min(PAGE_SIZE_BYTES - pos % PAGE_SIZE_BYTES, size)
            try:
                part = self._log.read(pos, step)
            except StorageError:
                break
            parts.append(part)
            if len(part) < step:
                break
            pos += step
            size -= step
        return b"".join(parts)
