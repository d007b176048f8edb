"""The files of a slave's log: its master's bytes, at the master's log positions. Layer 2.

The bytes are written as they come, also parts of a frame. Nothing here checks them: a start would
take what is not whole for a torn tail.
"""

from typing import Final

from _core.bytes.layout import AT_SIZE, FRAME_HEADER_SIZE
from _core.log.frames import whole_size
from appliance.errors import ReplicaError
from appliance.store.checkpoint import CheckpointFile
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.flush_job import FlushJob
from appliance.store.log.watermark import AllocationWatermark, WatermarkJob
from appliance.system.files import File
from appliance.units import MIB

SIZE_END: Final = AT_SIZE + 4
"""So many bytes of a frame say how large it is."""

WATERMARK_STEP_BYTES: Final = 256 * MIB


class FollowedFiles:
    """Appends raw bytes to the segments of a log that no broker appends to.

    Attributes:
        pos: log position of the next byte.
        flushed: log position up to which all bytes are on the disk.
        durable: the end of the whole frames of that, as the owner says. Checkpoints name it: if
            they named a place within a frame, a torn end would look like damage.
    """

    def __init__(self, log: CommitLog, checkpoint: CheckpointFile, *, pos: int) -> None:
        """Begin after the last whole frame; the bytes after it are removed by `cut`.

        Args:
            log: its segments are open.
            checkpoint: gets the watermark before bytes are written above it.
            pos: the end of the log.
        """
        self._log = log
        self._unsynced: dict[File, None] = {}
        self._watermark = AllocationWatermark(checkpoint, step_bytes=WATERMARK_STEP_BYTES)
        self.pos = pos
        self._next_size = 0
        """Of the frame after the whole ones, 0 if it is not known yet."""
        self.flushed = self.durable = 0

    def cut(self) -> None:
        """Remove everything after the end of the log, and make everything before it durable.

        Raises:
            StorageError: a file could not be changed or synced.
        """
        self._log.files.cut(self.pos)
        self.flushed = self.durable = self.pos

    def begin_at(self, pos: int) -> None:
        """Let an empty log begin at a log position, where a segment of the master begins."""
        assert not self._log.has_segments
        self._unsynced.clear()
        self._next_size = 0
        self.pos = self.flushed = self.durable = pos

    def append(self, data: bytes | memoryview) -> None:
        """Write bytes at the end; they do not cross the end of a segment.

        Raises:
            StorageError: the disk is full or failed; nothing before these bytes is lost.
            ValueError: they cross the end of a segment.
        """
        segment = self._log.files.segment_for(self.pos)
        if self.pos + len(data) > segment.end:
            raise ValueError(f"{len(data)} bytes at {self.pos} cross the end of the segment")
        self._watermark.raise_to_fit(self.pos + len(data), self.durable)
        segment.file.pwritev([data], self.pos - segment.base)
        self._unsynced[segment.file] = None
        self.pos += len(data)

    def go_back(self, end: int) -> None:
        """Forget the bytes after the last whole frame.

        Args:
            end: where it ends.
        """
        self.pos = end
        self.flushed = min(self.flushed, end)
        self._next_size = 0

    def find_whole(self, at: int, pos: int, data: bytes | memoryview) -> int:
        """Return where the last whole frame ends; nothing but sizes is checked.

        Args:
            at: where a frame begins.
            pos: where the bytes begin that were appended last.
            data: these.

        Raises:
            ReplicaError: a frame has an impossible size.
        """
        if at < pos:  # its begin came before
            if not self._next_size:
                self._next_size = self._read_size(at)
            if not self._next_size or at + self._next_size > self.pos:
                return at
            at += self._next_size
        whole, size = whole_size(data, at - pos)
        self._next_size = self._check_size(pos + whole, size)
        return pos + whole

    def _read_size(self, pos: int) -> int:
        """Return the size of the frame at a log position; 0 if its first bytes are not all here."""
        if self.pos - pos < SIZE_END:
            return 0
        head = self._log.files.read_raw(pos, SIZE_END)
        return self._check_size(pos, int.from_bytes(head[AT_SIZE:], "big"))

    def _check_size(self, pos: int, size: int) -> int:
        base, segment_size = self._log.files.places[-1]
        if size and not FRAME_HEADER_SIZE <= size <= base + segment_size - pos:
            raise ReplicaError(f"the frame at {pos} has {size} bytes: there is no such frame")
        return size

    def begin_raise(self) -> WatermarkJob | None:
        """Return a raise of the watermark for a thread, None if it is too early for one."""
        return self._watermark.begin_raise(self.pos, self.durable)

    def end_raise(self, job: WatermarkJob) -> None:
        """Note that a job has run."""
        self._watermark.end_raise(job)

    def begin_flush(self) -> FlushJob | None:
        """Return the sync that makes all bytes durable; None if they are."""
        if self.flushed == self.pos:
            return None
        return FlushJob(self.pos, tuple(self._unsynced), self.flushed)

    def end_flush(self, job: FlushJob) -> None:
        """Note that a job has run."""
        for file in job.files[:-1]:
            del self._unsynced[file]
        self.flushed = max(self.flushed, job.target)
