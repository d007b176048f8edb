"""Reads ConsumeQueue units from their files, checks them against the log, and rebuilds them.

It runs on a thread, reads files and changes nothing; `ConsumeQueues.take_up` applies the result on
the loop. A unit is valid if the frame that it points to is intact, belongs to that topic and
partition, has the size in the unit, and holds the offset. If a unit is not valid, the units around
it are rebuilt from the frames of the log between the nearest valid units. Layer 2.
"""

import struct
from dataclasses import dataclass, field, replace
from typing import Final

from _core.bytes.layout import FRAME_ALIGNMENT, FRAME_HEADER_SIZE, UNIT_SIZE, UNITS_PER_FILE
from _core.log.frames import check, read_header
from _core.queue.frame_finder import LOST, UnitScan, find_candidate, holds_offset
from _core.queue.partition import Partition
from _core.queue.unit_blocks import UNITS_PER_BLOCK
from appliance.errors import StorageError
from appliance.store.damage import Damage
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.frame_kinds import WHOLE
from appliance.store.queue.consume_queue import EXHAUSTED, ConsumeQueues, UnitsRead, file_start
from appliance.system.files import File, FileSystem
from appliance.units import KIB, MIB, PAGE_SIZE_BYTES

SCAN_CHUNK_BYTES: Final = 4 * MIB
"""Size of one read of the log when units are rebuilt."""

LOOK_CHUNK_BYTES: Final = 64 * KIB
"""Size of one read when the next frame after damage is searched."""

UNIT: Final = struct.Struct(">qiq")

Unit = tuple[int, int, int]
"""Position, size, tags code."""

Frame = tuple[int, int, str]
"""Log position, bytes, and the fault or "whole"."""


@dataclass(slots=True)
class UnitsFound:
    """The result of reading a requested unit.

    Attributes:
        frames: the frame that it points to, and damaged frames found on the way.
        units: the units to apply; None if the topic or the record no longer exists.
        damage: of the unit file, repaired by `units`.
    """

    frames: list[Frame] = field(default_factory=list)
    units: UnitsRead | None = None
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class _Block:
    """The units of one block that the file holds: possibly fewer than it should."""

    first: int
    units: bytes
    file: File | None
    is_refused: bool
    """No file descriptor or memory was available to read it."""

    def unit(self, offset: int) -> Unit | None:
        at = (offset - self.first) * UNIT_SIZE
        if at + UNIT_SIZE > len(self.units):
            return None
        position, size, tags_code = UNIT.unpack_from(self.units, at)
        return position, size, tags_code


def _with_runs(units: bytes, first: int, partition: Partition) -> bytes:
    """The units from `first` on in their saved form, with zeros inside runs."""
    stop = first + len(units) // UNIT_SIZE
    changed = bytearray(units)
    for begin, end, pos, size, tags_code in partition.runs.overlapping(first, stop):
        low, high = max(begin, first), min(end, stop)
        run = bytearray((high - low) * UNIT_SIZE)
        if begin >= first:
            run[:UNIT_SIZE] = UNIT.pack(pos, size, end if size < 0 else tags_code)
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
            partition: of the unit.
            offset: of a record whose unit is in a file.

        Raises:
            StorageError: a file could not be read, and the units could not be rebuilt.
        """
        # DeleteRecords may raise the start concurrently: use one value throughout.
        start, saved = partition.start_offset, partition.units_saved
        serial, carried_pos = partition.moves_saved, partition.carried_pos
        if partition.topic.deleted or not start <= offset < saved:
            return UnitsFound()
        if partition.unit_in_memory(offset) is not None:
            return UnitsFound()  # its record was carried meanwhile
        block = self._read_block(partition, offset, saved)
        unit = block.unit(offset)
        frame = self._right_frame(partition, offset, unit)
        if unit is not None and (frame is not None or unit == (0, LOST, 0)):
            frames = [] if frame is None else [(unit[0], len(frame), WHOLE)]
            units = UnitsRead(partition, block.first, block.units, False, block.file, serial)
            return UnitsFound(frames, units)
        if block.file is not None:
            block.file.close()
        if partition.moves_saved != serial:
            return UnitsFound()
        found = self._rebuild(partition, offset, start, saved, block)
        if found.units is not None:
            found.units = replace(found.units, moves_saved=serial, carried_pos=carried_pos)
        return found

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
            # Missing or unreadable: its content can be rebuilt from the log.
            if file is not None:
                file.close()
            return _Block(first, b"", None, error.errno in EXHAUSTED)
        return _Block(first, units[: len(units) // UNIT_SIZE * UNIT_SIZE], file, False)

    def _unit(self, partition: Partition, offset: int, saved: int) -> Unit | None:
        """Return the unit of any offset, from memory or its file."""
        known = partition.unit_in_memory(offset)
        if known is not None:
            return known
        block = self._read_block(partition, offset, saved)
        if block.file is not None:
            block.file.close()
        return block.unit(offset)

    def _right_frame(self, partition: Partition, offset: int, unit: Unit | None) -> bytes | None:
        """Return the frame that a unit points to, if the unit is valid."""
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

    # Rebuild

    def _rebuild(
        self, partition: Partition, offset: int, start: int, saved: int, block: _Block
    ) -> UnitsFound:
        low, pos = self._right_before(partition, block.first, start, saved)
        high, end = self._right_after(partition, block.first + UNITS_PER_BLOCK, saved)
        # Carried records lie anywhere in the log, so that the neighbours do not bound their place.
        is_unordered = low <= partition.carried_end
        if is_unordered:
            pos, end = self._log.start_pos, self._log.pointers.committed
        scan = UnitScan(
            topic_id=partition.topic.topic_id,
            partition=partition.index,
            first=low,
            stop=high,
            is_unordered=is_unordered,
        )
        broken = self._scan_log(scan, pos, end)
        units = _with_runs(scan.finish(), low, partition)
        frames = [(begin, stop - begin, fault) for begin, stop, fault in broken]
        at = (offset - low) * UNIT_SIZE
        _, size, _ = UNIT.unpack_from(units, at)
        stored = block.unit(offset)
        if size < 0 and stored is not None and any(a <= stored[0] < b for a, b, _ in broken):
            # The unit may be valid: the log is damaged where it points.
            if all(stored[0] != begin for begin, _, _ in broken):
                frames.append((stored[0], max(stored[1], FRAME_HEADER_SIZE), "inside damage"))
            found = UnitsRead(partition, block.first, block.units, False, None)
            return UnitsFound(frames, found)
        first = low - low % UNITS_PER_BLOCK
        # The block may begin before the first record that exists; those units are never read.
        units = bytes((low - first) * UNIT_SIZE) + units
        found = UnitsRead(partition, first, units, True, None)
        if block.is_refused:
            return UnitsFound(frames, found)
        count = high - low
        return UnitsFound(frames, found, self._damage(partition, offset, stored, count))

    def _damage(self, partition: Partition, offset: int, stored: Unit | None, count: int) -> Damage:
        start = file_start(offset)
        if stored is None or not any(stored):
            fault = f"the unit of offset {offset} is missing"
        else:
            fault = (
                f"the unit of offset {offset} points to log position {stored[0]}, size "
                f"{stored[1]}, where no frame holds that offset"
            )
        return Damage(
            self._queues.path_of(partition, start),
            (offset - start) * UNIT_SIZE,
            UNIT_SIZE,
            f"{fault}; {count} units are rebuilt from the log",
            is_repaired=True,
        )

    def _right_before(
        self, partition: Partition, first: int, start: int, saved: int
    ) -> tuple[int, int]:
        """Find the nearest block start whose preceding unit is valid, and that unit's frame.

        Records begin with offset `start`.

        Returns:
            (offset of the block's start, log position where the frame begins).
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

    def _right_after(self, partition: Partition, stop: int, saved: int) -> tuple[int, int]:
        """Find the nearest block end whose next unit is valid, and where that unit's frame ends."""
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
        """Feed frames from `pos` to before `end`; return damaged ranges as (from, to, fault)."""
        broken: list[tuple[int, int, str]] = []
        while scan.reached < scan.stop and pos < end:
            after = scan.feed(self._read(pos, SCAN_CHUNK_BYTES), pos)
            fault = ""
            if after == pos:
                after, fault = self._feed_one(scan, pos)
            if after == pos:
                after = self._next_frame(pos, end)
                if broken and broken[-1][1] == pos:
                    pos, _, fault = broken.pop()
                broken.append((pos, after, fault))
            pos = after
        return broken

    def _feed_one(self, scan: UnitScan, pos: int) -> tuple[int, str]:
        """Feed one frame that is larger than a chunk; return where it ends, and any fault."""
        try:
            frame = self._log.read_frame(pos)
        except StorageError as error:
            return pos, str(error)
        return scan.feed(frame, pos), check(frame, pos)

    def _next_frame(self, pos: int, end: int) -> int:
        """Return the position of what looks like the next frame after `pos`, at most `end`."""
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
        """Read bytes of the log; fewer at the end of a segment, or before an unreadable page."""
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
