"""The CommitLog: one contiguous range of frames in segment files of a fixed size.

 [ segment 0 ][ segment 1 ] ... [ last segment: frames | zeros ][ spare, if the last is half full ]

Frames are encoded by `_core.log.tail`; this module writes them (`commit`: one pwritev), makes them
durable (`begin_flush` on the loop, `FlushJob.run` on a thread, `end_flush` on the loop again),
opens the next segment when one is full, and reads the log for recovery (`read_into`). `view` has
what is in memory.

Durable order: a segment is allocated and synced, and its name is synced, before the first frame is
written to it. A full segment is synced before, or together with, the segments after it. Layer 2:
files through FileSystem only.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_HEAD
from _core.log.pointers import Pointers
from _core.log.tail import LogTail
from _core.log.view import LogView
from appliance.errors import CorruptionError, FreedPositionError, StorageError, UnappliedChangeError
from appliance.store.checkpoint import CheckpointFile
from appliance.store.log.flush_job import FlushJob
from appliance.store.log.reads import Unreadable, read_around, written_ranges
from appliance.store.log.segment import (
    FreedSegment,
    Segment,
    SpareJob,
    make_private,
    put_aside,
)
from appliance.store.log.segment_files import SegmentFiles
from appliance.store.log.watermark import AllocationWatermark, WatermarkJob
from appliance.store.paths import SPARE_NAME, parse_segment_name
from appliance.system.clock import Clock
from appliance.system.files import File, FileSystem
from appliance.units import MIB, NS_PER_MS

RESERVE_FRACTION: Final = 16
"""1/16 of a segment is closed to new records while no further segment can be allocated: half of it
is for deliveries alone, the other half also for cancels, commits and deletions."""

PAGES_KEPT_BYTES: Final = 4 * MIB
"""The kernel caches a file in pieces of at most this size, and drops only whole pieces."""

FRAME_DROPPED_BYTES: Final = 32 * MIB
"""How much of the page cache is dropped to read a frame again; larger frames are very rare."""

SPARE_RETRY_NS: Final = 200 * NS_PER_MS
"""The minimum time between two attempts to allocate a segment on a full disk."""


WATERMARK_STEP_BYTES: Final = 1024 * MIB
"""The allocation watermark is raised by this much, and again when a quarter of it is used up: early
enough that the event loop need not wait for the disk."""

SYNC_WATERMARK_STEP_BYTES: Final = 256 * MIB
"""With sync flush a start may have to search that many old bytes, half a second."""

_log = logging.getLogger(__name__)


class CommitLog:
    """The log's files. Call `open_segments`, then `recover_to`, before the first append.

    Attributes:
        view: the part of the log that is in memory.
        files: the segments as files, for use before the first append.
        head: makes the payload of the head frame at the start of a segment.
        recycled_count: freed segments whose files were kept for later ones, since the start.
        is_full: the disk had no room for the next segment when one was last needed.
        may_have_room: False while a full disk is known to have no room for a segment.
        pointers, tail: valid once the end of the log is known.
        watermark: how far the log may be written.
    """

    def __init__(
        self,
        clock: Clock,
        fs: FileSystem,
        directory: Path,
        *,
        segment_size_bytes: int,
        is_sync_flush: bool,
        is_prewritten: bool,
        is_recycling: bool,
        checkpoint: CheckpointFile,
        cache_size_bytes: int,
    ) -> None:
        self._clock = clock
        self._fs = fs
        self._directory = directory
        self._segment_size_bytes = segment_size_bytes
        self._is_sync_flush = is_sync_flush
        self._is_prewritten = is_prewritten
        self._is_recycling = is_recycling
        self._has_recycled = False
        """The spare is the file of a freed segment, for which no job was begun yet."""
        self._checkpoint = checkpoint
        step = WATERMARK_STEP_BYTES
        if is_sync_flush:
            step = min(step, SYNC_WATERMARK_STEP_BYTES)
        self.watermark = AllocationWatermark(checkpoint, step_bytes=step)
        self._segments: list[Segment] = []
        self.files = SegmentFiles(fs, directory, self._segments, segment_size_bytes)
        self._empty: list[Path] = []
        """Empty files, to be removed once the log is accepted."""
        self._spare_job: SpareJob | None = None
        self._unsynced: list[File] = []
        self._spare_failed_ns: int | None = None
        self._is_debug = _log.isEnabledFor(logging.DEBUG)
        self.recycled_count = 0
        self.is_full = False
        self.may_have_room = True
        self.head: Callable[[], bytes] = bytes
        self.view = LogView(size_max=cache_size_bytes)
        self.pointers = Pointers(0, sync_flush=is_sync_flush)
        self.tail = LogTail(self.pointers, reserve_bytes=0)

    # Start

    def open_segments(self) -> None:
        """Open all segments that exist; changes nothing."""
        if not self._fs.exists(self._directory):
            return
        for name in self._fs.list_dir(self._directory):
            if name == SPARE_NAME:
                continue
            base = parse_segment_name(name)
            if base is None:
                raise CorruptionError(
                    self._directory / name, 0, "a segment named by 20 digits", f"the name {name!r}"
                )
            file = self._fs.open(self._directory / name)
            size = file.size()
            if size == 0:  # a crash occurred between its creation and its allocation
                file.close()
                self._empty.append(self._directory / name)
                continue
            end = self._segments[-1].end if self._segments else 0
            if not end <= base < (1 << 63) - size:
                file.close()
                raise CorruptionError(
                    self._directory / name, 0, f"a segment from {end} on", f"the name {name!r}"
                )
            self._segments.append(Segment(base, size, file))

    def segments_from(self, pos: int, *, drop_cache: bool) -> list[tuple[int, int]]:
        """List the segment that holds the byte before a log position, and all after it.

        Args:
            pos: log position.
            drop_cache: drop cached pages first, so that reads return what the disk holds.

        Returns:
            (base position, size) of each, ascending.
        """
        found = []
        for segment in self._segments:
            if segment.end >= pos:
                if drop_cache:
                    segment.file.drop_cache()
                found.append((segment.base, segment.size))
        return found

    def recover_to(self, end: int, *, durable: int, is_cut: bool, shared: int) -> None:
        """Set the end of the log to `end`, discard everything after it, and prepare to append.

        Args:
            end: log position after the last intact frame; 0 for an empty log.
            durable: log position below which everything is already synced.
            is_cut: True after an unclean stop: zero the bytes after `end`, sync any that may not
                be durable.
            shared: log position up to which other names of the files may be read; if it is after
                `end`, the log gets a copy of its last segment, and they keep theirs.

        Raises:
            StorageError: a file operation failed, or the disk has no room for a segment.
        """
        self.remove_empty()
        last = self._checkpoint.last
        unwritten_from = end if last is None else last.watermark
        while self._segments and self._segments[-1].base >= end:
            # It was allocated ahead and not needed yet, or is left over from before a cut.
            segment = self._segments.pop()
            may_reuse = not is_cut and segment.base >= unwritten_from
            put_aside(self._fs, segment, self._segment_size_bytes, may_reuse=may_reuse)
        spare = self._directory / SPARE_NAME
        if is_cut and self._fs.exists(spare):
            self._fs.unlink(spare)
        if end < shared and self._segments and self._segments[-1].file.link_count() > 1:
            make_private(self._fs, self._segments[-1], end - self._segments[-1].base)
        if is_cut and self._segments:
            self._cut(self._segments[-1], end, durable)
        if not self._segments or self._segments[-1].end == end:
            first = self._new_spare_job(end)
            first.run()
            self._segments.append(first.segment())
        self._fill_up(self._segments[-1])
        self.pointers = Pointers(end, sync_flush=self._is_sync_flush)
        self.tail = LogTail(
            self.pointers, reserve_bytes=self._segment_size_bytes // RESERVE_FRACTION
        )
        self.tail.roll = self._roll
        self.tail.prepare_spare = self._prepare_spare
        self._enter(self._segments[-1])
        self.watermark.raise_after(end, end)

    def remove_empty(self) -> None:
        """Remove files that a crash left empty, before segments of these names are made."""
        for path in self._empty:
            self._fs.unlink(path)
        self._empty.clear()

    def _cut(self, segment: Segment, end: int, durable: int) -> None:
        """Zero the bytes after `end`, and make all bytes before it durable."""
        if end < segment.end and segment.file.next_data(end - segment.base) is not None:
            segment.file.truncate(end - segment.base)
            segment.file.allocate(segment.size)
        for each in self._segments:
            # The last one in any case: zeroed bytes must not reappear.
            if each.end > durable or each is segment:
                each.file.fdatasync()
        self._fs.sync_dir(self._directory)

    def _fill_up(self, segment: Segment) -> None:
        """Extend the last segment if it lost its end or the configured size was raised."""
        if segment.size < self._segment_size_bytes:
            segment.file.allocate(self._segment_size_bytes)
            segment.file.fdatasync()
            segment.size = self._segment_size_bytes

    def _enter(self, segment: Segment) -> None:
        self.tail.enter_segment(segment.end)
        self._unsynced.append(segment.file)

    # Segments

    def begin_spare(self) -> SpareJob | None:
        """Return a job that makes the next segment on a thread; None if none is needed yet.

        Call its `run`, then its `prewrite`. The log takes the segment when it needs it.
        """
        job = self._spare_job
        if self._has_recycled and self._has_place_for_spare:
            if job is not None:
                job.stop()
            replaced = None if job is None else job.segment().file
            self._spare_job = self._new_spare_job(self.tail.segment_end, replaced)
            return self._spare_job
        if job is not None or self._is_spare_refused():
            return None
        if self.is_full and not self.may_have_room:
            return None
        rest = self.tail.segment_end - self.pointers.wrote
        is_early = rest > self._segment_size_bytes // 2
        if is_early and not self._is_prewritten and not self.is_full:
            return None
        self._spare_job = self._new_spare_job(self.tail.segment_end)
        return self._spare_job

    @property
    def wanted_spare_bytes(self) -> int:
        """The size of a freed file that becomes the next segment; 0 if none is wanted."""
        is_short = self.is_full or not self.may_have_room or self.tail.is_refusing
        is_wanted = self._is_recycling and not is_short and not self._has_recycled
        return self._segment_size_bytes if is_wanted and self._has_place_for_spare else 0

    @property
    def _has_place_for_spare(self) -> bool:
        """There is no next segment yet, or it is a new file that is not needed at once."""
        job = self._spare_job
        return job is None or (job.is_made and job.is_new and not self.tail.has_spare)

    def note_recycled(self) -> None:
        """Note that the file of a freed segment has become the spare."""
        self._has_recycled = True
        self.recycled_count += 1

    def note_spare(self) -> None:
        """While the disk is full: take note of a segment that a thread has made since.

        Without it, a full disk would be full until somebody tries to write.
        """
        job = self._spare_job
        if self.is_full and job is not None and job.is_made:
            self._prepare_spare()

    def _new_spare_job(self, base: int, replaced: File | None = None) -> SpareJob:
        self._has_recycled = False
        return SpareJob(
            self._fs,
            self._directory,
            base,
            self._segment_size_bytes,
            is_prewritten=self._is_prewritten,
            keeps_old=self._is_recycling,
            replaced=replaced,
        )

    def _is_spare_refused(self) -> bool:
        """The disk was full less than `SPARE_RETRY_NS` ago."""
        failed_ns = self._spare_failed_ns
        return failed_ns is not None and self._clock.monotonic_ns() - failed_ns < SPARE_RETRY_NS

    def stop_prewriting(self) -> None:
        """Make a job that runs on a thread end soon."""
        if self._spare_job is not None:
            self._spare_job.stop()

    def _prepare_spare(self) -> bool:
        """Make sure that a next segment exists; False if the disk is full. Called by the tail."""
        job = self._spare_job
        if job is None:
            if self._is_spare_refused():
                return False
            job = self._new_spare_job(self.tail.segment_end)
            job.run()
            self._spare_job = job
        try:
            job.segment()
        except StorageError as error:
            self._spare_job = None
            if not error.is_disk_full:
                raise
            self._spare_failed_ns = self._clock.monotonic_ns()
            self.is_full = True
            return False
        self.is_full = False
        self.tail.has_spare = True
        return True

    def _roll(self, size: int) -> bool:
        """Continue in the next segment; False if the disk is full. Called by the tail."""
        assert size <= self._segment_size_bytes
        began_ns = self._clock.monotonic_ns() if self._is_debug else 0
        if not self._prepare_spare():
            return False
        assert self._spare_job is not None
        self.begin_change()
        segment = self._spare_job.take()
        self.tail.append_blank()
        self._write()
        assert segment.base == self.pointers.wrote
        self._spare_job = None
        self.tail.has_spare = False
        self._segments.append(segment)
        self._enter(segment)
        self.append_head()
        self.tail.end_change()
        if self._is_debug:
            _log.debug(
                "segment rolled base=%d bytes=%d segments=%d took_us=%d",
                segment.base,
                segment.size,
                len(self._segments),
                (self._clock.monotonic_ns() - began_ns) // 1_000,
            )
        return True

    def forget_head(self, pos: int) -> list[FreedSegment]:
        """Take the segments before a log position out of the log; their files stay.

        A read on a thread may still use a file: it is closed when nothing refers to it any longer.

        Args:
            pos: where a segment begins; the log begins there from now on.
        """
        assert pos in self.files.bases
        freed = [segment for segment in self._segments if segment.end <= pos]
        del self._segments[: len(freed)]
        for segment in freed:
            self.view.unlock_between(segment.base, segment.end)
        return [FreedSegment.of(segment) for segment in freed]

    @property
    def is_head_shared(self) -> bool:
        """The first segment has other names, so freeing it gives no space back."""
        return self._segments[0].file.link_count() > 1

    def append_head(self) -> None:
        """Append the head frame if the segment is empty."""
        if self.pointers.wrote == self._segments[-1].base:
            pos = self.tail.append_control(
                KIND_HEAD, topic_id=0, store_time_ms=self._clock.wall_ms(), payload=self.head()
            )
            assert pos == self._segments[-1].base
            self.tail.end_change()

    # Write and flush

    def begin_change(self) -> None:
        """Announce that memory changes before its frame is appended; `end_change` follows."""
        self.check_applied()
        self.tail.begin_change()

    def end_change(self) -> None:
        """Note that the appended frame or the begun change is applied to memory."""
        self.tail.end_change()

    def check_applied(self) -> None:
        """Check that every appended frame is applied to memory; before each append and write.

        Raises:
            UnappliedChangeError: one is not, because of an error; the process must stop.
        """
        if self.tail.unapplied_pos >= 0:
            raise UnappliedChangeError(self.tail.unapplied_pos, self.pointers.wrote)

    def commit(self) -> None:
        """Write the encoded frames.

        Raises:
            StorageError: the write failed; the process must stop, since memory is ahead of the log.
            UnappliedChangeError: memory and log differ; the process must stop.
        """
        self.check_applied()
        if self.tail.has_pending:
            self._write()

    def _write(self) -> None:
        self.watermark.raise_to_fit(self.pointers.wrote, self.pointers.flushed)
        segment = self._segments[-1]
        parts = self.tail.take()
        zeros = [segment.zeros_after(self.pointers.wrote)] if segment.may_hold_old else []
        segment.file.pwritev(parts + zeros, self.pointers.committed - segment.base)
        if self.tail.has_held:
            # Held records may be due soon: their delivery must not wait for the disk.
            self.view.hold(self.pointers.committed, parts)
        self.tail.taken()

    def begin_flush(self) -> FlushJob | None:
        """Return the sync that makes all committed frames durable; None if they are."""
        if self.pointers.flushed == self.pointers.committed:
            return None
        return FlushJob(self.pointers.committed, tuple(self._unsynced), self.pointers.flushed)

    def begin_raise(self) -> WatermarkJob | None:
        """Return the next raise of the watermark, for a thread; None if it is not time for one."""
        return self.watermark.begin_raise(self.pointers.committed, self.pointers.flushed)

    def end_flush(self, job: FlushJob) -> None:
        """Note that a job has run: everything up to its target is durable."""
        # Segments that were full before the job began are now synced completely.
        while len(self._unsynced) > 1 and self._unsynced[0] in job.files[:-1]:
            del self._unsynced[0]
        self.pointers.advance_flushed(job.target)

    # Read

    def _segment_at(self, pos: int) -> Segment:
        # A copy: a thread may look while the loop takes segments out of the log.
        for segment in reversed(self._segments[:]):
            if segment.base <= pos:
                return segment
        raise FreedPositionError(pos, self.start_pos)

    def written_ranges(self, pos: int) -> list[tuple[int, int]]:
        """Return the ranges from `pos` to its segment's end that may be written: (from, to).

        Call it before those pages are read: a page counts as written once it was read.
        """
        segment = self._segment_at(pos)
        found = written_ranges(segment.file, pos - segment.base, segment.size)
        return [(segment.base + start, segment.base + end) for start, end in found]

    def read_into(self, pos: int, memory: memoryview) -> list[Unreadable]:
        """Read the log into memory, with zeros where the disk cannot read it; see `LogScan`.

        Args:
            pos: log position of the first byte; all bytes are in one segment.
            memory: filled completely.

        Returns:
            The unreadable parts, ascending, in log positions.

        Raises:
            StorageError: the read failed for a reason other than a bad place of the disk.
        """
        segment = self._segment_at(pos)
        lost = read_around(segment.file, memory, pos - segment.base)
        return [(segment.base + begin, segment.base + end, why) for begin, end, why in lost]

    def read_header(self, pos: int) -> bytes:
        """Read the header of the frame at `pos` from the disk, unchecked."""
        segment = self._segment_at(pos)
        return segment.file.pread(FRAME_HEADER_SIZE, pos - segment.base)

    def read_ahead(self, pos: int, size: int) -> None:
        """Start to read a range of the log into the page cache; ignore any part after its end."""
        for segment in self._segments:
            start, end = max(pos, segment.base), min(pos + size, segment.end)
            if start < end:
                segment.file.will_need(start - segment.base, end - start)

    def read_frame(self, pos: int) -> bytes:
        """Read the frame at `pos` from the disk, unchecked; may run on any thread."""
        segment = self._segment_at(pos)
        header = self.read_header(pos)
        is_whole = len(header) == FRAME_HEADER_SIZE
        size = int.from_bytes(header[4:8], "big") if is_whole else 0
        if not FRAME_HEADER_SIZE <= size <= segment.end - pos:
            return header
        return segment.file.pread(size, pos - segment.base)

    def read(self, pos: int, size: int) -> bytes:
        """Read up to `size` bytes at `pos`, unchecked; may run on any thread.

        Fewer at the end of the segment or of the committed part.
        """
        segment = self._segment_at(pos)
        end = min(pos + size, segment.end, self.pointers.committed)
        return segment.file.pread(max(end - pos, 0), pos - segment.base)

    def readable_from(self, pos: int) -> int:
        """The number of committed bytes from a log position to its segment's end; may be 0."""
        if not self._segments or pos < self._segments[0].base:
            return 0
        return max(min(self._segment_at(pos).end, self.pointers.committed) - pos, 0)

    def read_some(self, pos: int, memory: memoryview) -> int:
        """See `File.pread_into`; may run on any thread. The range must be in one segment."""
        segment = self._segment_at(pos)
        return segment.file.pread_into(memory, pos - segment.base)

    def read_hot(self, pos: int, memory: memoryview) -> int:
        """See `File.pread_hot_into`. The range must be in one segment."""
        segment = self._segment_at(pos)
        return segment.file.pread_hot_into(memory, pos - segment.base)

    def lock_hot(self, pos: int, size: int) -> memoryview | Literal[False] | None:
        """See `File.lock_hot`. The range must be in one segment."""
        segment = self._segment_at(pos)
        return segment.file.lock_hot(pos - segment.base, size)

    def drop_cache(self, pos: int) -> None:
        """Drop the frame at a log position from the page cache: the next read goes to the disk."""
        segment = self._segment_at(pos)
        start = (pos - segment.base) // PAGES_KEPT_BYTES * PAGES_KEPT_BYTES
        size = FRAME_DROPPED_BYTES + PAGES_KEPT_BYTES
        self.view.unlock_between(segment.base + start, segment.base + start + size)
        segment.file.drop_cache(start, size)

    def path_of(self, pos: int) -> tuple[Path, int]:
        """Return the file that holds a log position, and the offset in it."""
        segment = self._segment_at(pos)
        return segment.file.path, pos - segment.base

    @property
    def has_segments(self) -> bool:
        """The log has at least one file."""
        return bool(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, and of the next one if it exists."""
        return sum(segment.size for segment in self._segments) + self._spare_bytes

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of the segments that are allocated and hold no frame yet."""
        return self.tail.segment_end - self.pointers.wrote + self._spare_bytes

    @property
    def _spare_bytes(self) -> int:
        job = self._spare_job
        count = (job is not None and job.has_segment) + self._has_recycled
        return count * self._segment_size_bytes

    @property
    def start_pos(self) -> int:
        """Log position of the first byte that is kept."""
        return self._segments[0].base if self._segments else 0

    def close(self) -> None:
        """Close the files and unlock their memory; flush nothing."""
        self.view.clear()
        for segment in self._segments:
            segment.file.close()
        if self._spare_job is not None:
            with contextlib.suppress(StorageError):
                self._spare_job.take().file.close()
            self._spare_job = None
