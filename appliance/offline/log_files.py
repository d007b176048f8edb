"""The segments of a log, opened for reading. Layer 4."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.bytes.layout import AT_SIZE, FRAME_HEADER_SIZE
from appliance.errors import CorruptionError, SegmentFreedError
from appliance.offline.findings import Fault, Findings
from appliance.store.log.reads import Unreadable, read_around, written_ranges
from appliance.store.paths import SPARE_NAME, DataPaths, parse_segment_name, segment_name
from appliance.system.files import File, FileSystem
from appliance.units import MIB

BLOCK_BYTES: Final = MIB
"""Bytes per read when single frames are read one after the other."""

POSITION_MAX: Final = (1 << 63) - 1
"""The highest log position."""


@dataclass(slots=True)
class LogFile:
    """One segment. `written` lists the ranges of the file that may hold written bytes."""

    base: int
    size: int
    file: File
    written: list[tuple[int, int]]


class LogFiles:
    """All segments of a data directory. `open` comes first.

    Attributes:
        segments: (base position, size) of each, ascending; the input of a scan.
    """

    def __init__(self, fs: FileSystem, paths: DataPaths, findings: Findings) -> None:
        self._fs = fs
        self._directory = paths.commit_log
        self._findings = findings
        self._files: list[LogFile] = []
        self._block = 0, memoryview(b"")
        """Log position and content of the last block read."""

    def open(self) -> None:
        """Open all segments.

        Raises:
            StorageError: the directory or a file in it cannot be opened.
        """
        for name in self._fs.list_dir(self._directory):
            if name == SPARE_NAME:
                continue
            path = self._directory / name
            base = parse_segment_name(name)
            if base is None:
                found = f"the name {name!r}"
                self._findings.fault(Fault(path, 0, "a segment named by 20 digits", found))
                continue
            file = self._fs.open(path, writable=False)
            size = file.size()
            if size == 0:  # a crash came between creation and allocation
                file.close()
                continue
            end = self._files[-1].base + self._files[-1].size if self._files else 0
            if not end <= base <= POSITION_MAX - size:
                place = f"a segment at position {end} or later, after the previous segment"
                self._findings.fault(Fault(path, 0, place, f"the name {name!r}", size))
                file.close()
                continue
            # Determined before any read: a page that was only read counts as written.
            self._files.append(LogFile(base, size, file, written_ranges(file, 0, size)))

    def end_at(self, limit: int) -> None:
        """Make the log end at a position: a broker may be writing the bytes after it."""
        while self._files and self._files[-1].base >= limit:
            self._files.pop().file.close()
        if self._files and self._files[-1].base + self._files[-1].size > limit:
            last = self._files[-1]
            last.size = limit - last.base
            last.written = [(a, min(b, last.size)) for a, b in last.written if a < last.size]

    def begin_at(self, pos: int) -> None:
        """Make the log begin with the segment that holds a position."""
        while len(self._files) > 1 and self._files[1].base <= pos:
            self._files.pop(0).file.close()

    @property
    def segments(self) -> list[tuple[int, int]]:
        return [(each.base, each.size) for each in self._files]

    def read_into(self, pos: int, memory: memoryview) -> list[Unreadable]:
        """Read bytes for a scan; see `CommitLog.read_into`.

        Raises:
            SegmentFreedError: the broker freed the segment meanwhile.
        """
        log_file = self._files[self._index_of(pos)]
        lost = read_around(log_file.file, memory, pos - log_file.base)
        # The file loses its name before a later segment is written to it.
        if not self._fs.exists(log_file.file.path):
            raise SegmentFreedError(log_file.file.path)
        return [(log_file.base + begin, log_file.base + end, why) for begin, end, why in lost]

    def frame_at(self, pos: int) -> memoryview:
        """Return the frame at a log position, which is known to be whole.

        Raises:
            CorruptionError: it can no longer be read.
        """
        size = int.from_bytes(self.bytes_at(pos + AT_SIZE, 4), "big")
        found, lost = self._read(pos, size)
        if lost:
            path, offset = self.place_of(lost[0][0])
            raise CorruptionError(
                path, offset, "the bytes read before", f"cannot be read: {lost[0][2]}"
            )
        return found

    def bytes_of_frame(self, pos: int, limit: int) -> memoryview:
        """Return the bytes of a frame, unchecked: as many as its size field says, at most `limit`.

        Unreadable bytes are zeros.
        """
        size = int.from_bytes(self.bytes_at(pos + AT_SIZE, 4), "big")
        return self.bytes_at(pos, min(max(size, FRAME_HEADER_SIZE), limit))

    def frame_positions(self, end: int, damage: Sequence[tuple[int, int, str]]) -> Iterator[int]:
        """Yield the log positions of the frames, after a walk over the log.

        Args:
            end: the log position at which the walk ended.
            damage: the damaged parts that it found.
        """
        skipped = {begin: after for begin, after, _ in damage}
        pos = self.start
        while pos < end:
            if pos in skipped:
                pos = skipped[pos]
                continue
            yield pos
            pos += len(self.frame_at(pos))

    def written_ranges(self, pos: int) -> list[tuple[int, int]]:
        """Return the ranges of the segment from `pos` on that may be written; see `LogScan`."""
        log_file = self._files[self._index_of(pos)]
        base = log_file.base
        return [(max(a + base, pos), b + base) for a, b in log_file.written if b + base > pos]

    def _index_of(self, pos: int) -> int:
        for index in range(len(self._files) - 1, -1, -1):
            if self._files[index].base <= pos:
                return index
        raise IndexError(f"log position {pos} is before the first segment")

    def bytes_at(self, pos: int, size: int) -> memoryview:
        """Return up to `size` bytes from a log position on, at most to the end of its segment.

        Unreadable bytes are zeros.
        """
        return self._read(pos, size)[0]

    def _read(self, pos: int, size: int) -> tuple[memoryview, list[Unreadable]]:
        """Like `bytes_at`; also return the unreadable ranges."""
        log_file = self._files[self._index_of(pos)]
        size = max(min(size, log_file.base + log_file.size - pos), 0)
        start, block = self._block
        if start <= pos and pos + size <= start + len(block):
            return block[pos - start : pos - start + size], []
        room = max(min(max(size, BLOCK_BYTES), log_file.base + log_file.size - pos), 0)
        block = memoryview(bytearray(room))
        lost = self.read_into(pos, block)
        # Only readable bytes are cached, so that a cache hit has nothing unreadable to report.
        self._block = pos, block if not lost else block[: lost[0][0] - pos]
        return block[:size], [part for part in lost if part[0] < pos + size]

    def place_of(self, pos: int) -> tuple[Path, int]:
        """Return the file that holds or should hold a log position, and the offset in it."""
        for log_file in reversed(self._files):
            if log_file.base <= pos:
                if pos < log_file.base + log_file.size:
                    return log_file.file.path, pos - log_file.base
                break
        return self._directory / segment_name(pos), 0

    @property
    def start(self) -> int:
        """Log position of the first byte of the log; 0 if there is none."""
        return self._files[0].base if self._files else 0

    @property
    def written_bytes(self) -> int:
        """Bytes that were ever written, as far as the file system reports it."""
        return sum(end - start for each in self._files for start, end in each.written)

    def close(self) -> None:
        """Close the files; bytes read before stay valid."""
        for log_file in self._files:
            log_file.file.close()
