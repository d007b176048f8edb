"""The CommitLog: one contiguous range of frames in segment files of a fixed size.

 [ segment 0 ][ segment 1 ] ... [ last segment: frames | zeros ][ spare, if that is nearly full ]

Frames are encoded by `_core.log_tail`; this module writes them (`commit`: one pwritev), makes them
durable (`begin_flush` on the loop, `FlushJob.run` on a thread, `end_flush` on the loop again),
opens the next segment when one is full, and reads the log for a start (`read_into`). `view` is what
of it is in our own memory.

Durable order: a segment is allocated, synced and its name synced before the first frame goes into
it; a segment that was left is synced before, or together with, what follows it. Layer 2: files
through FileSystem only.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from _core.layout import FRAME_HEADER_SIZE, KIND_HEAD
from _core.log_tail import LogTail
from _core.log_view import LogView
from _core.pointers import Pointers
from appliance.clock import Clock
from appliance.errors import CorruptionError, StorageError, UnappliedChangeError
from appliance.fs import File, FileSystem
from appliance.store.checkpoint import CheckpointFile
from appliance.store.log_reads import Unreadable, read_around, written_ranges
from appliance.store.paths import SPARE_NAME, parse_segment_name
from appliance.store.segment import Segment, SpareJob, put_aside
from appliance.store.segment_files import SegmentFiles
from appliance.units import MIB, NS_PER_MS

RESERVE_FRACTION: Final = 16
"""1/16 of a segment is kept for deliveries while no further segment can be allocated."""

PAGES_KEPT_BYTES: Final = 4 * MIB
"""In pieces of up to so much the kernel keeps a file in memory; it drops whole ones."""

FRAME_DROPPED_BYTES: Final = 32 * MIB
"""So much is dropped to read a frame anew; larger ones are very rare."""

SPARE_RETRY_NS: Final = 200 * NS_PER_MS
"""A full disk is asked for room again at most this often."""


REACH_STEP_BYTES: Final = 1024 * MIB
"""The log says so far ahead where it will write next. The flushing thread says so again when a
quarter of it is used up: early enough that the event loop need not wait for the disk to do it."""


@dataclass(frozen=True, slots=True)
class FlushJob:
    """What one flush makes durable: everything up to `target`."""

    target: int
    files: tuple[File, ...]
    checkpoint: CheckpointFile
    flushed: int
    """Durable already."""
    reach: int | None = None
    """How far the log will go from now on, if it is time to say so."""

    def run(self) -> None:
        """Sync the files; may run on any thread.

        Raises:
            StorageError: a sync failed. Never to be tried again: the kernel has dropped the error.
        """
        if self.reach is not None:
            # First, while the disk has nothing to do: else the log may get there before.
            self.checkpoint.write(self.flushed, self.reach)
        for file in self.files:
            file.fdatasync()


class CommitLog:
    """The log's files. `open_segments`, then `recover_to`, come before the first append.

    Attributes:
        view: what of the log is in memory.
        files: the segments as files, before the first append.
        head: makes the payload of the head frame with which a segment begins.
        is_full: there was no room for the next segment when it was needed.
        pointers, tail: set once the end of the log is known.
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
        checkpoint: CheckpointFile,
        cache_size_bytes: int,
    ) -> None:
        self._clock = clock
        self._fs = fs
        self._directory = directory
        self._segment_size_bytes = segment_size_bytes
        self._is_sync_flush = is_sync_flush
        self._is_prewritten = is_prewritten
        self._checkpoint = checkpoint
        self._reach = 0
        self._segments: list[Segment] = []
        self.files = SegmentFiles(fs, directory, self._segments, segment_size_bytes)
        self._empty: list[Path] = []
        """Files without a byte, to be removed once the log is served."""
        self._spare_job: SpareJob | None = None
        self._unsynced: list[File] = []
        self._spare_failed_ns: int | None = None
        self.is_full = False
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
            if size == 0:  # a crash came between its creation and its allocation
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
        """The segment that holds the byte before a log position, and all that follow.

        Args:
            pos: log position.
            drop_cache: forget cached pages first, so that what is read is what the disk holds.

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

    def recover_to(self, end: int, *, durable: int, is_cut: bool) -> None:
        """The log ends at `end`: forget what lies behind, and be ready to append there.

        Args:
            end: log position behind the last whole frame; 0 for an empty log.
            durable: log position below which all was synced already.
            is_cut: True after an unclean stop: zero what is behind `end`, sync what may not be.

        Raises:
            StorageError: also when the disk has no room for the first segment.
        """
        for path in self._empty:
            self._fs.unlink(path)
        while self._segments and self._segments[-1].base >= end:
            # It was made in time and not needed yet, or is left over from before a cut.
            put_aside(self._fs, self._segments.pop(), self._segment_size_bytes)
        if is_cut and self._segments:
            self._cut(self._segments[-1], end, durable)
        if not self._segments or self._segments[-1].end == end:
            first = SpareJob(self._fs, self._directory, end, self._segment_size_bytes)
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
        self._raise_reach()

    def _cut(self, segment: Segment, end: int, durable: int) -> None:
        """Zero what follows `end`, and make all that precedes it durable."""
        if end < segment.end and segment.file.next_data(end - segment.base) is not None:
            segment.file.truncate(end - segment.base)
            segment.file.allocate(segment.size)
        for each in self._segments:
            # The last one also if nothing follows: what was zeroed must not come back.
            if each.end > durable or each is segment:
                each.file.fdatasync()
        self._fs.sync_dir(self._directory)

    def _fill_up(self, segment: Segment) -> None:
        """Give the last segment back its size, if it lost its end or the setting was raised."""
        if segment.size < self._segment_size_bytes:
            segment.file.allocate(self._segment_size_bytes)
            segment.file.fdatasync()
            segment.size = self._segment_size_bytes

    def _enter(self, segment: Segment) -> None:
        self.tail.enter_segment(segment.end)
        self._unsynced.append(segment.file)

    # Segments

    def begin_spare(self) -> SpareJob | None:
        """What is to be run on a thread so that the next segment is there in time; None if nothing.

        `run`, then `prewrite`. The job needs no end: the log takes its segment when it needs it.
        """
        if self._spare_job is not None or self._is_spare_refused():
            return None
        rest = self.tail.segment_end - self.pointers.wrote
        if not self._is_prewritten and rest > self._segment_size_bytes // 2:
            return None
        self._spare_job = self._new_spare_job()
        return self._spare_job

    def _new_spare_job(self) -> SpareJob:
        return SpareJob(
            self._fs,
            self._directory,
            self.tail.segment_end,
            self._segment_size_bytes,
            is_prewritten=self._is_prewritten,
        )

    def _is_spare_refused(self) -> bool:
        """The disk was full a moment ago."""
        failed_ns = self._spare_failed_ns
        return failed_ns is not None and self._clock.monotonic_ns() - failed_ns < SPARE_RETRY_NS

    def stop_prewriting(self) -> None:
        """Let a job that is under way on a thread come to its end."""
        if self._spare_job is not None:
            self._spare_job.stop()

    def _prepare_spare(self) -> bool:
        """Have the next segment at hand; False if the disk is full. Called by the tail."""
        job = self._spare_job
        if job is None:
            if self._is_spare_refused():
                return False
            job = self._new_spare_job()
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
        """Go on in the next segment; False if there is none to be had. Called by the tail."""
        assert size <= self._segment_size_bytes
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
        return True

    def append_head(self) -> None:
        """Begin a segment with its head, if nothing is in it yet."""
        if self.pointers.wrote == self._segments[-1].base:
            pos = self.tail.append_control(
                KIND_HEAD, topic_id=0, store_time_ms=self._clock.wall_ms(), payload=self.head()
            )
            assert pos == self._segments[-1].base
            self.tail.end_change()

    # Write and flush

    def begin_change(self) -> None:
        """Memory is about to change by what a frame will say that is yet to come; `end_change`."""
        self.check_applied()
        self.tail.begin_change()

    def end_change(self) -> None:
        """What was appended or begun has taken effect."""
        self.tail.end_change()

    def check_applied(self) -> None:
        """See that everything that was appended has taken effect; before each append and write.

        Raises:
            UnappliedChangeError: an error came between; the process must stop.
        """
        if self.tail.unapplied_pos >= 0:
            raise UnappliedChangeError(self.tail.unapplied_pos, self.pointers.wrote)

    def commit(self) -> None:
        """Write what is encoded.

        Raises:
            StorageError: the write failed; the process must stop, memory is ahead of the file now.
            UnappliedChangeError: memory is not what the log would say; the process must stop.
        """
        self.check_applied()
        if self.tail.has_pending:
            self._write()

    def _write(self) -> None:
        if self.pointers.wrote > self._reach:
            self._raise_reach()
        segment = self._segments[-1]
        parts = self.tail.take()
        segment.file.pwritev(parts, self.pointers.committed - segment.base)
        if self.tail.has_held:
            # It may be due soon; whoever waits for it shall not wait for the disk.
            self.view.hold(self.pointers.committed, parts)
        self.tail.taken()

    def begin_flush(self) -> FlushJob | None:
        """What must be synced so that all that is committed becomes durable; None if nothing."""
        if self.pointers.flushed == self.pointers.committed:
            return None
        committed = self.pointers.committed
        is_near = committed > self._reach - REACH_STEP_BYTES * 3 // 4
        return FlushJob(
            committed,
            tuple(self._unsynced),
            self._checkpoint,
            self.pointers.flushed,
            committed + REACH_STEP_BYTES if is_near else None,
        )

    def _raise_reach(self) -> None:
        """Say before it is done that the log will be written beyond where it said it would."""
        reach = self.pointers.wrote + REACH_STEP_BYTES
        self._checkpoint.write(self.pointers.flushed, reach)
        self._reach = reach

    def end_flush(self, job: FlushJob) -> None:
        """A job has run: everything up to its target is durable."""
        # Segments that were left before the job began are whole and synced now.
        while len(self._unsynced) > 1 and self._unsynced[0] in job.files[:-1]:
            del self._unsynced[0]
        if job.reach is not None:
            self._reach = max(self._reach, job.reach)
        self.pointers.advance_flushed(job.target)

    # Read

    def _segment_at(self, pos: int) -> Segment:
        for segment in reversed(self._segments):
            if segment.base <= pos:
                return segment
        raise IndexError(f"log position {pos} is before the first segment")

    def written_ranges(self, pos: int) -> list[tuple[int, int]]:
        """Where in its segment, from `pos` on, something may be written: (from, to) positions.

        Ask before those pages are read: one that was only looked at counts as written afterwards.
        """
        segment = self._segment_at(pos)
        found = written_ranges(segment.file, pos - segment.base, segment.size)
        return [(segment.base + start, segment.base + end) for start, end in found]

    def read_into(self, pos: int, memory: memoryview) -> list[Unreadable]:
        """Read the log into memory, and zeros where the disk cannot read it; see `LogScan`.

        Args:
            pos: log position of the first byte; all are in one segment.
            memory: to be filled.

        Returns:
            The parts that cannot be read, ascending, in log positions.

        Raises:
            StorageError: it is not the disk that refuses.
        """
        segment = self._segment_at(pos)
        lost = read_around(segment.file, memory, pos - segment.base)
        return [(segment.base + begin, segment.base + end, why) for begin, end, why in lost]

    def read_header(self, pos: int) -> bytes:
        """Read the header of the frame at `pos` from the disk, unchecked."""
        segment = self._segment_at(pos)
        return segment.file.pread(FRAME_HEADER_SIZE, pos - segment.base)

    def read_ahead(self, pos: int, size: int) -> None:
        """Have what is at a log position read into memory meanwhile; nothing if it is beyond."""
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
        """Read what of the `size` bytes at `pos` is committed and in its segment, unchecked; may
        run on any thread.
        """
        segment = self._segment_at(pos)
        end = min(pos + size, segment.end, self.pointers.committed)
        return segment.file.pread(max(end - pos, 0), pos - segment.base)

    def readable_from(self, pos: int) -> int:
        """How many bytes from a log position on are committed, and in its segment; may be 0."""
        if not self._segments or pos < self._segments[0].base:
            return 0
        return max(min(self._segment_at(pos).end, self.pointers.committed) - pos, 0)

    def read_some(self, pos: int, memory: memoryview) -> int:
        """See `File.pread_into`; may run on any thread. All of it must be in one segment."""
        segment = self._segment_at(pos)
        return segment.file.pread_into(memory, pos - segment.base)

    def read_hot(self, pos: int, memory: memoryview) -> int:
        """See `File.pread_hot_into`. All of it must be in one segment."""
        segment = self._segment_at(pos)
        return segment.file.pread_hot_into(memory, pos - segment.base)

    def lock_hot(self, pos: int, size: int) -> memoryview | Literal[False] | None:
        """See `File.lock_hot`. All of it must be in one segment."""
        segment = self._segment_at(pos)
        return segment.file.lock_hot(pos - segment.base, size)

    def drop_cache(self, pos: int) -> None:
        """Have the frame at a log position read from the disk itself the next time."""
        segment = self._segment_at(pos)
        start = (pos - segment.base) // PAGES_KEPT_BYTES * PAGES_KEPT_BYTES
        segment.file.drop_cache(start, FRAME_DROPPED_BYTES + PAGES_KEPT_BYTES)

    def path_of(self, pos: int) -> tuple[Path, int]:
        """The file that holds a log position, and the offset in it."""
        segment = self._segment_at(pos)
        return segment.file.path, pos - segment.base

    @property
    def has_segments(self) -> bool:
        """There are files of the log."""
        return bool(self._segments)

    @property
    def start_pos(self) -> int:
        """Log position of the first byte that is kept."""
        return self._segments[0].base if self._segments else 0

    def close(self) -> None:
        """Give the files back, and what is locked of them; what is not flushed stays so."""
        self.view.clear()
        for segment in self._segments:
            segment.file.close()
        if self._spare_job is not None:
            with contextlib.suppress(StorageError):
                self._spare_job.take().file.close()
            self._spare_job = None
