"""The segments of a log, opened for reading and made safe to look at.

A page that the disk cannot read would end the process when it is touched through a mapping. So
every written range is read with pread first, which finds that out and brings the pages into memory;
a segment with such pages is looked at in a copy that has zeros in their place. Layer 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.layout import AT_SIZE
from appliance.errors import StorageError
from appliance.fs import File, FileSystem
from appliance.offline.findings import Fault, Findings
from appliance.store.paths import SPARE_NAME, DataPaths, parse_segment_name, segment_name
from appliance.units import KIB, MIB, PAGE_SIZE_BYTES

READ_SIZE_BYTES: Final = MIB
"""Read at once; where that fails, page by page."""

WRITTEN_STEP_BYTES: Final = 64 * KIB
"""In such steps the file system is asked what was ever written."""

POSITION_MAX: Final = (1 << 63) - 1
"""The last position that a log may have."""


@dataclass(slots=True)
class LogFile:
    """One segment. `written` are the ranges of the file that may hold written bytes."""

    base: int
    size: int
    file: File
    written: list[tuple[int, int]]
    is_tested: bool = False


class LogFiles:
    """All segments of a data directory. `open` comes first.

    Attributes:
        segments: (base position, content) of each, ascending; what a scan takes. A scan may look at
            one only after `test` of it.
    """

    def __init__(self, fs: FileSystem, paths: DataPaths, findings: Findings) -> None:
        self._fs = fs
        self._directory = paths.commit_log
        self._findings = findings
        self._files: list[LogFile] = []
        self.segments: list[tuple[int, memoryview]] = []

    def open(self) -> None:
        """Open and map what is there.

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
            if size == 0:  # a crash came between its creation and its allocation
                file.close()
                continue
            end = self._files[-1].base + self._files[-1].size if self._files else 0
            if not end <= base <= POSITION_MAX - size:
                place = f"a segment of a position from {end} on, behind the one before it"
                self._findings.fault(Fault(path, 0, place, f"the name {name!r}", size))
                file.close()
                continue
            # Asked before anything is read: a page that was only looked at counts as written.
            self._files.append(LogFile(base, size, file, _written_ranges(file, size)))
            self.segments.append((base, file.map()))

    def end_at(self, limit: int) -> None:
        """Let the log end at a position: what lies behind is being written."""
        while self._files and self._files[-1].base >= limit:
            self._files.pop().file.close()
            self.segments.pop()
        if self._files and self._files[-1].base + self._files[-1].size > limit:
            last = self._files[-1]
            last.size = limit - last.base
            last.written = [(a, min(b, last.size)) for a, b in last.written if a < last.size]
            self.segments[-1] = last.base, self.segments[-1][1][: last.size]

    def begin_at(self, pos: int) -> None:
        """Let the log begin with the segment that holds a position."""
        while len(self._files) > 1 and self._files[1].base <= pos:
            self._files.pop(0).file.close()
            self.segments.pop(0)

    def frame_at(self, pos: int) -> memoryview:
        """The frame at a log position, known to be whole."""
        size = int.from_bytes(self.bytes_at(pos + AT_SIZE, 4), "big")
        return self.bytes_at(pos, size)

    def frame_positions(self, end: int, damage: Sequence[tuple[int, int, str]]) -> Iterator[int]:
        """Where the frames are, in a log that was gone through before.

        Args:
            end: where that ended.
            damage: what it found damaged.
        """
        skipped = {begin: behind for begin, behind, _ in damage}
        pos = self.start
        while pos < end:
            if pos in skipped:
                pos = skipped[pos]
                continue
            yield pos
            pos += len(self.frame_at(pos))

    def test(self, index: int) -> None:
        """Make it safe to look at a segment; what cannot be read is a fault."""
        log_file = self._files[index]
        if log_file.is_tested:
            return
        log_file.is_tested = True
        copy: bytearray | None = None
        for start, end in log_file.written:
            for at in range(start, end, READ_SIZE_BYTES):
                size = min(READ_SIZE_BYTES, end - at)
                try:
                    log_file.file.pread(size, at)
                except StorageError as error:
                    copy = copy or self._copy_of(log_file)
                    self._read_pages(log_file, at, size, copy, error)
        if copy is not None:
            self.segments[index] = log_file.base, memoryview(copy)

    def _copy_of(self, log_file: LogFile) -> bytearray:
        """A segment without what cannot be read; zeros cost no memory."""
        copy = bytearray(log_file.size)
        for start, end in log_file.written:
            for at in range(start, end, READ_SIZE_BYTES):
                size = min(READ_SIZE_BYTES, end - at)
                try:
                    copy[at : at + size] = log_file.file.pread(size, at)
                except StorageError:
                    continue
        return copy

    def _read_pages(
        self, log_file: LogFile, start: int, size: int, copy: bytearray, error: StorageError
    ) -> None:
        """Save what can be read of a range, and tell of what cannot."""
        lost: list[tuple[int, int]] = []
        for at in range(start, start + size, PAGE_SIZE_BYTES):
            end = min(at + PAGE_SIZE_BYTES, start + size)
            try:
                copy[at:end] = log_file.file.pread(end - at, at)
            except StorageError:
                begin = lost.pop()[0] if lost and lost[-1][1] == at else at
                lost.append((begin, end))
        for begin, end in lost:
            self._findings.fault(
                Fault(
                    log_file.file.path,
                    begin,
                    "bytes that can be read",
                    str(error),
                    end - begin,
                    log_file.base + begin,
                )
            )

    def test_up_to(self, pos: int) -> None:
        """Make it safe to look at every segment that begins at or before a position."""
        for index, log_file in enumerate(self._files):
            if log_file.base <= pos:
                self.test(index)

    def written_ranges(self, pos: int) -> list[tuple[int, int]]:
        """Where in its segment, from `pos` on, something may be written; see `LogScan`.

        The scan looks ahead from here on, so the segment is tested.
        """
        index = self._index_of(pos)
        self.test(index)
        log_file = self._files[index]
        base = log_file.base
        return [(max(a + base, pos), b + base) for a, b in log_file.written if b + base > pos]

    def _index_of(self, pos: int) -> int:
        for index in range(len(self._files) - 1, -1, -1):
            if self._files[index].base <= pos:
                return index
        raise IndexError(f"log position {pos} is before the first segment")

    def bytes_at(self, pos: int, size: int) -> memoryview:
        """Up to `size` bytes from a log position on, no further than its segment goes."""
        base, memory = self.segments[self._index_of(pos)]
        return memory[pos - base : pos - base + size]

    def place_of(self, pos: int) -> tuple[Path, int]:
        """The file that holds a log position, or should, and the offset in it."""
        for log_file in reversed(self._files):
            if log_file.base <= pos:
                if pos < log_file.base + log_file.size:
                    return log_file.file.path, pos - log_file.base
                break
        return self._directory / segment_name(pos), 0

    @property
    def start(self) -> int:
        """Log position of the first byte that is kept; 0 if there is none."""
        return self._files[0].base if self._files else 0

    @property
    def written_bytes(self) -> int:
        """Bytes that were ever written, as far as the file system can tell."""
        return sum(end - start for each in self._files for start, end in each.written)

    def close(self) -> None:
        """Give the files back; views of them stay valid."""
        for log_file in self._files:
            log_file.file.close()


def _written_ranges(file: File, size: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < size:
        found = file.next_data(at)
        if found is None or found >= size:
            break
        at = min((found // WRITTEN_STEP_BYTES + 1) * WRITTEN_STEP_BYTES, size)
        if ranges and ranges[-1][1] == found:
            ranges[-1] = ranges[-1][0], at
        else:
            ranges.append((found, at))
    return ranges
