"""A part of the log, read through files of its own. Layer 2; belongs to one thread at a time.

Segments at the head of the log may disappear while it is read: nothing is found in them then. Their
files lose their names before a later segment is written to them.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE
from _core.log import frames
from _core.tables.key_scan import FrameWalk
from appliance.errors import StorageError
from appliance.store.keys.frame_parts import FrameParts
from appliance.store.log.reads import read_around
from appliance.store.paths import segment_name
from appliance.system.files import File, FileSystem
from appliance.units import KIB, MIB

CHUNK_BYTES: Final = MIB
"""Bytes of one read; a larger frame takes more."""

FRAME_READ_BYTES: Final = 4 * KIB
"""Bytes of the first read for one frame: most frames are smaller."""

KEPT_MAX_BYTES: Final = 8 * MIB
"""Of frames that were found and are shown next."""

FAULTS_KEPT_MAX: Final = 100

FRAME_STEP: Final = 8

WHOLE: Final = frames.FAULTS[0]


class LogPart:
    """The log from the first of some segments to a position.

    Attributes:
        start, end: log positions; every frame between them is written.
        faults: (from, to) of the parts that hold no whole frame, the first ones.
        read_bytes: bytes read so far.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        segments: Sequence[tuple[int, int]],
        end: int,
        *,
        salt: int = 0,
    ) -> None:
        """Open no file yet.

        Args:
            fs, directory: where the segments are.
            segments: base position and size of each, ascending.
            end: log position after the last frame.
            salt: of the frames; 0 takes any.
        """
        self._fs = fs
        self._directory = directory
        self._segments = [each for each in segments if each[0] < end]
        self._files: dict[int, File | None] = {}
        self._buffer = bytearray(FRAME_READ_BYTES)
        self._salt = salt
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self.start = self._segments[0][0] if self._segments else end
        self.end = end
        self.faults: list[tuple[int, int]] = []
        self.read_bytes = 0

    def close(self) -> None:
        """Close the files; may be called twice."""
        for file in self._files.values():
            if file is not None:
                file.close()
        self._files.clear()

    def scan(
        self, walk: FrameWalk, start: int, *, until: int, stop: int, goes_on: Callable[[], bool]
    ) -> int:
        """Give the frames of a range to a walk.

        Args:
            walk: takes them.
            start: where a frame begins.
            until: ends with the first piece that reaches this position.
            stop: where a frame begins or the log ends; nothing after it is given.
            goes_on: called after each piece; the scan ends if it returns False.

        Returns:
            The position of the first frame that was not taken.

        Raises:
            StorageError: a read failed for a reason other than a bad place of the disk.
        """
        pos, needed = max(start, self.start), 0
        while pos < min(until, stop):
            base, limit = self._bounds_of(pos)
            limit = min(limit, stop)
            wanted = max(needed, min(CHUNK_BYTES, until - pos), FRAME_HEADER_SIZE)
            data = self._read(base, pos, min(wanted, limit - pos))
            if data is None:
                pos = limit
                continue
            pos, needed = walk.walk(data, pos, limit)
            if needed < 0:
                pos = self._pass_over(walk, pos, stop)
            if not goes_on():
                break
        return pos

    def frame_at(self, pos: int) -> bytes | None:
        """Return the whole frame that begins at a position, or None.

        Raises:
            StorageError: as `scan`.
        """
        frame = self.view_at(pos)
        return None if frame is None else bytes(frame)

    def view_at(self, pos: int) -> memoryview | None:
        """Return the same without a copy; it is valid until the next call of any method."""
        kept = self._kept.get(pos)
        if kept is not None:
            return memoryview(kept)
        frame = self._read_frame(pos)
        return frame if frame is not None and frames.check(frame, pos) == WHOLE else None

    def keep(self, pos: int, frame: bytes) -> None:
        """Keep a frame that was checked for a later `frame_at`, as far as memory permits."""
        if self._kept_bytes + len(frame) <= KEPT_MAX_BYTES:
            self._kept_bytes += len(frame)
            self._kept[pos] = frame

    def read_frame(self, pos: int) -> bytes | None:
        """Return the frame that begins at a position by its header, unchecked; None for none.

        Raises:
            StorageError: as `scan`.
        """
        frame = self._read_frame(pos)
        return None if frame is None else bytes(frame)

    def parts_at(self, pos: int) -> FrameParts | None:
        """Return the frame that begins at a position by its header, to read parts of it.

        Once they are read, `has_segments` must be true for them to be valid.

        Raises:
            StorageError: as `scan`.
        """
        data, size = self._begin_of(pos)
        base, _ = self._bounds_of(pos)
        file = self._files.get(base)
        if data is None or file is None:
            return None
        return FrameParts(file, pos - base, bytes(data[:size]), size)

    def has_segments(self, positions: Collection[int]) -> bool:
        """Return whether the segments of some positions are there and were not recycled."""
        files = (self._file(base) for base in {self._bounds_of(pos)[0] for pos in positions})
        return all(file is not None and self._fs.exists(file.path) for file in files)

    def _read_frame(self, pos: int) -> memoryview | None:
        data, size = self._begin_of(pos)
        if data is not None and size > len(data):
            data = self._read(self._bounds_of(pos)[0], pos, size)
        return None if data is None else data[:size]

    def _begin_of(self, pos: int) -> tuple[memoryview | None, int]:
        """Return the first bytes of the frame at a position, and its size; None if none begins."""
        nothing = None, 0
        if not self.start <= pos < self.end or pos % FRAME_STEP:
            return nothing
        base, limit = self._bounds_of(pos)
        limit = min(limit, self.end)
        data = self._read(base, pos, min(FRAME_READ_BYTES, limit - pos))
        if data is None or len(data) < FRAME_HEADER_SIZE:
            return nothing
        header = frames.read_header(data)
        size = header["size"]
        if header["position"] != pos or not FRAME_HEADER_SIZE <= size <= limit - pos:
            return nothing
        return nothing if self._salt and header["salt"] != self._salt else (data, size)

    def crc_at(self, pos: int) -> int | None:
        """Return the field crc of the frame that begins at a position, unchecked; None if gone."""
        base, limit = self._bounds_of(pos)
        data = self._read(base, pos, min(FRAME_HEADER_SIZE, limit - pos))
        if data is None or len(data) < FRAME_HEADER_SIZE:
            return None
        header = frames.read_header(data)
        return int.from_bytes(data[-4:], "big") if header["position"] == pos else None

    def _pass_over(self, walk: FrameWalk, fault: int, stop: int) -> int:
        """Return where a frame may begin after one that is not whole."""
        pos = fault + FRAME_STEP
        found = None
        while pos < stop and found is None:
            base, limit = self._bounds_of(pos)
            limit = min(limit, stop)
            data = self._read(base, pos, min(CHUNK_BYTES, limit - pos))
            if data is None or len(data) < FRAME_HEADER_SIZE:
                pos = limit
                continue
            found = walk.find_frame(data, pos, limit)
            # A header may begin in this piece and end in the next one.
            rest = FRAME_HEADER_SIZE - FRAME_STEP if pos + len(data) < limit else 0
            pos += len(data) - rest
        after = stop if found is None else found
        if self.faults and self.faults[-1][1] == fault:
            fault = self.faults.pop()[0]
        if len(self.faults) < FAULTS_KEPT_MAX:
            self.faults.append((fault, after))
        return after

    def _bounds_of(self, pos: int) -> tuple[int, int]:
        """Return where the segment of a position begins and ends."""
        low, high = 0, len(self._segments)
        while high - low > 1:
            middle = (low + high) // 2
            if self._segments[middle][0] <= pos:
                low = middle
            else:
                high = middle
        base, size = self._segments[low]
        if pos < base + size:
            return base, base + size
        # A missing segment: what should be in it was accepted as lost.
        after = self._segments[low + 1][0] if low + 1 < len(self._segments) else self.end
        return base, after

    def _read(self, base: int, pos: int, size: int) -> memoryview | None:
        """Return bytes of a segment, with zeros where the disk cannot read it; None if it is gone.

        They are valid until the next call.
        """
        file = self._file(base)
        if file is None:
            return None
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        elif size <= CHUNK_BYTES < len(self._buffer):
            self._buffer = bytearray(FRAME_READ_BYTES)
        memory = memoryview(self._buffer)[:size]
        read_around(file, memory, pos - base)
        self.read_bytes += size
        if not self._fs.exists(file.path):
            file.close()
            self._files[base] = None
            return None
        return memory

    def _file(self, base: int) -> File | None:
        if base not in self._files:
            path = self._directory / segment_name(base)
            try:
                self._files[base] = self._fs.open(path, writable=False)
            except StorageError as error:
                if not error.is_missing:
                    raise
                self._files[base] = None
        return self._files[base]
