"""The segments of a log as files: which there are, what is missing, and what is in them. Layer 2.

A start asks, before the first append.
"""

from itertools import pairwise
from pathlib import Path

from appliance.fs import FileSystem
from appliance.store.log_reads import read_around
from appliance.store.paths import segment_name
from appliance.store.segment import Segment


class SegmentFiles:
    """The files of a log."""

    def __init__(
        self, fs: FileSystem, directory: Path, segments: list[Segment], segment_size_bytes: int
    ) -> None:
        """Look at the segments of a log, which opens them.

        Args:
            fs, directory: where they are.
            segments: those of the log, ascending; the list is the log's.
            segment_size_bytes: as configured.
        """
        self._fs = fs
        self._directory = directory
        self._segments = segments
        self._segment_size_bytes = segment_size_bytes

    @property
    def bases(self) -> list[int]:
        """The base positions of all segments, ascending."""
        return [segment.base for segment in self._segments]

    @property
    def end_of_files(self) -> int:
        """Log position behind the last segment; 0 if there is none."""
        return self._segments[-1].end if self._segments else 0

    @property
    def full_size_bytes(self) -> int:
        """The size of a segment that has not lost its end."""
        sizes = [segment.size for segment in self._segments]
        return max(sizes) if len(sizes) > 1 else max(sizes, default=0) or self._segment_size_bytes

    def find_gap(self) -> tuple[int, int] | None:
        """The first (from, to) where whole segments are missing; None: no such gap.

        Where a file only lost its end nothing is said: the replay judges that.
        """
        for before, after in pairwise(self._segments):
            if before.base + self.full_size_bytes < after.base:
                return before.end, after.base
        return None

    def fill_gaps(self) -> None:
        """Put holes where files lost their end, or are missing and that was accepted.

        So the log is contiguous again, and the next start is not refused.

        Raises:
            StorageError: a file could not be made.
        """
        for before, after in list(pairwise(self._segments)):
            if before.end == after.base:
                continue
            full_end = min(before.base + self.full_size_bytes, after.base)
            if before.end < full_end:
                before.file.truncate(full_end - before.base)
                before.file.fdatasync()
                before.size = full_end - before.base
            if before.end < after.base:
                path = self._directory / segment_name(before.end)
                file = self._fs.open(path, create=True)
                file.truncate(after.base - before.end)
                file.fdatasync()
                self._segments.append(Segment(before.end, after.base - before.end, file))
                self._fs.sync_dir(self._directory)
        self._segments.sort(key=lambda segment: segment.base)

    def whole_segments(self, start: int, end: int) -> list[int]:
        """Base positions of segments that lie between two log positions as a whole."""
        return [each.base for each in self._segments if start <= each.base and each.end <= end]

    def read_raw(self, pos: int, size: int) -> bytes:
        """Bytes at a log position; what cannot be read or is not there is zero."""
        found = bytearray(size)
        for segment in self._segments:
            start, end = max(pos, segment.base), min(pos + size, segment.end)
            if start < end:
                memory = memoryview(found)[start - pos : end - pos]
                read_around(segment.file, memory, start - segment.base)
        return bytes(found)

    def reaches(self, pos: int) -> bool:
        """Whether there is a file for everything up to a log position, above the first byte."""
        if not self._segments or self._segments[0].base >= pos:
            return False
        end = self._segments[0].base
        for segment in self._segments:
            if segment.base >= pos:
                break
            if segment.base != end:
                return False
            end = segment.end
        return pos <= end
