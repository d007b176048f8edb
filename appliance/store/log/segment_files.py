"""The segments of a log as files: which exist, which are missing, their raw bytes. Layer 2.

Recovery uses this before the first append.
"""

from itertools import pairwise
from pathlib import Path

from appliance.store.log.reads import read_around
from appliance.store.log.segment import Segment, SpareJob, make_private
from appliance.store.paths import segment_name
from appliance.system.files import File, FileSystem


class SegmentFiles:
    """The files of a log."""

    def __init__(
        self, fs: FileSystem, directory: Path, segments: list[Segment], segment_size_bytes: int
    ) -> None:
        """Use the segments that the log has opened.

        Args:
            fs, directory: where they are.
            segments: those of the log, ascending; the log owns the list.
            segment_size_bytes: the configured size.
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
    def places(self) -> list[tuple[int, int]]:
        """Base position and size of all segments, ascending."""
        return [(segment.base, segment.size) for segment in self._segments]

    @property
    def end_of_files(self) -> int:
        """Log position after the last segment; 0 if there is none."""
        return self._segments[-1].end if self._segments else 0

    @property
    def full_size_bytes(self) -> int:
        """The size of a complete segment, one that has not lost its end."""
        sizes = [segment.size for segment in self._segments]
        return max(sizes) if len(sizes) > 1 else max(sizes, default=0) or self._segment_size_bytes

    def find_gap(self) -> tuple[int, int] | None:
        """Return the first (from, to) range where whole segments are missing, or None.

        A file that only lost its end is not reported: the replay decides about it.
        """
        for before, after in pairwise(self._segments):
            if before.base + self.full_size_bytes < after.base:
                return before.end, after.base
        return None

    def fill_gaps(self) -> None:
        """Put holes where files lost their end, or where missing files were accepted as lost.

        This makes the log contiguous again, so that the next start is not refused.

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
        """Base positions of the segments that lie entirely between two log positions."""
        return [each.base for each in self._segments if start <= each.base and each.end <= end]

    def write_raw(self, pos: int, data: bytes) -> File:
        """Write bytes into a segment that exists, without a sync; return its file.

        Snapshots and backups keep the file as it is.

        Args:
            pos: log position of the first byte.
            data: do not cross the end of the segment.

        Raises:
            StorageError: they could not be written.
        """
        segment = next(each for each in self._segments if each.base <= pos < each.end)
        assert pos + len(data) <= segment.end
        if segment.file.link_count() > 1:
            make_private(self._fs, segment, segment.size)
        segment.file.pwritev([data], pos - segment.base)
        return segment.file

    def read_raw(self, pos: int, size: int) -> bytes:
        """Read bytes at a log position, with zeros for unreadable and missing ones."""
        found = bytearray(size)
        for segment in self._segments:
            start, end = max(pos, segment.base), min(pos + size, segment.end)
            if start < end:
                memory = memoryview(found)[start - pos : end - pos]
                read_around(segment.file, memory, start - segment.base)
        return bytes(found)

    def reaches(self, pos: int) -> bool:
        """Return whether the files cover everything from the first byte to a position after it."""
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

    def segment_for(self, pos: int) -> Segment:
        """Return the segment that holds a log position; make it if the last one ends there.

        Raises:
            StorageError: it could not be made; the disk may be full.
        """
        last = self._segments[-1] if self._segments else None
        if last is not None and last.base <= pos < last.end:
            return last
        assert last is None or pos == last.end
        job = SpareJob(
            self._fs, self._directory, pos, self._segment_size_bytes, is_prewritten=False
        )
        job.run()
        self._segments.append(job.segment())
        return self._segments[-1]

    def cut(self, end: int) -> None:
        """Remove everything after a log position, and make everything before it durable.

        Args:
            end: where the log ends from now on.

        Raises:
            StorageError: a file could not be changed or synced.
        """
        while self._segments and self._segments[-1].base >= end:
            segment = self._segments.pop()
            segment.file.close()
            self._fs.unlink(segment.file.path)
        if self._segments:
            last = self._segments[-1]
            if end < last.end and last.file.link_count() > 1:
                # Snapshots and backups keep the file as it is.
                make_private(self._fs, last, end - last.base)
            elif end < last.end and last.file.next_data(end - last.base) is not None:
                last.file.truncate(end - last.base)
            last.file.allocate(self._segment_size_bytes)
            last.size = max(last.size, self._segment_size_bytes)
        for segment in self._segments:
            segment.file.fdatasync()
        self._fs.sync_dir(self._directory)
