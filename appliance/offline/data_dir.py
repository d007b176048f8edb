"""A data directory opened read-only: nothing in it is created or changed.

A shared lock keeps brokers from starting on it; several readers may hold the lock. The directory of
a running broker can be read up to what it has written: segments are append-only, and a whole frame
is never rewritten as long as its segment is there. Layer 4.
"""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_BLANK, KIND_HEAD
from _core.log.frames import check, read_header
from appliance.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    StorageError,
)
from appliance.offline.findings import Findings
from appliance.offline.log_files import LogFiles
from appliance.store.checkpoint import COPY_SIZE, NO_CLUSTER, Checkpoint, SavedState, decode
from appliance.store.log.frame_kinds import WHOLE
from appliance.store.marks import read_mark
from appliance.store.paths import DataPaths
from appliance.store.state.control_frames import decode_head
from appliance.system.files import FileSystem, Lock
from appliance.units import PAGE_SIZE_BYTES


@dataclass(slots=True)
class CheckpointCopies:
    """The checkpoint file.

    Attributes:
        raw, copies: the bytes of each copy, and the decoded copy; None if it is not whole.
        is_own: False if the checkpoint belongs to another log; its content is then ignored.
    """

    path: Path
    raw: list[bytes] = field(default_factory=list)
    copies: list[Checkpoint | None] = field(default_factory=list)
    is_own: bool = True

    @property
    def newest(self) -> Checkpoint | None:
        whole = [copy for copy in self.copies if copy is not None]
        return max(whole, key=lambda copy: copy.sequence, default=None)

    @property
    def states(self) -> tuple[SavedState, ...]:
        """The states that the whole copies name, without duplicates."""
        if not self.is_own:
            return ()
        return tuple(dict.fromkeys(state for copy in self.copies if copy for state in copy.states))

    @property
    def flushed(self) -> int:
        """The log position up to which the log was certainly durable; -1 if unknown."""
        if not self.is_own:
            return -1
        return max((copy.flushed for copy in self.copies if copy is not None), default=-1)

    @property
    def watermark(self) -> int:
        """The allocation watermark: no frame was written at or after it; -1 if unknown."""
        newest = self.newest
        return newest.watermark if newest is not None and self.is_own else -1


class DataDir:
    """A data directory, for reading. `open` comes first, `close` last.

    Attributes:
        paths: the paths of its files.
        log: the segments.
        checkpoint: the content of the checkpoint file.
        is_live: a broker is running on it.
        is_snapshot: it is a snapshot; the bytes after its flushed position do not belong to it.
        is_backup: it is a backup, which is read like a snapshot.
        is_half_restored: it is the copy of a backup, and a part of it may be missing.
        is_clean: the last broker stopped cleanly.
        cluster: the cluster of the log, if its first frame names it.
    """

    def __init__(self, fs: FileSystem, root: Path, findings: Findings) -> None:
        self.fs = fs
        self.paths = DataPaths(root)
        self.log = LogFiles(fs, self.paths, findings)
        self.checkpoint = CheckpointCopies(self.paths.checkpoint)
        self.is_live = False
        self.is_snapshot = False
        self.is_backup = False
        self.is_half_restored = False
        self.is_clean = False
        self.cluster: UUID | None = None
        self._lock: Lock | None = None

    def open(self, *, may_be_live: bool) -> None:
        """Take the lock and open the log.

        Args:
            may_be_live: if a broker holds the directory, read what it has written so far.

        Raises:
            ConfigError: it is not a data directory.
            DataDirectoryLockedError: a broker holds the lock.
            StorageError: a file in it cannot be opened.
        """
        if not self.fs.exists(self.paths.commit_log):
            raise not_a_data_dir(self.paths)
        try:
            self._lock = self.fs.lock_for_reading(self.paths.root)
        except DataDirectoryLockedError:
            if not may_be_live:
                raise
            self.is_live = True
        mark = read_mark(self.fs, self.paths.snapshot_mark)
        self.is_snapshot = mark is not None
        self.is_backup = mark is not None and mark.kind == "backup"
        self.is_half_restored = mark is not None and mark.kind == "restore"
        self.is_clean = not self.is_snapshot and not self.fs.exists(self.paths.abort)
        # Before the log: whatever the checkpoint calls flushed is in the files opened next.
        self.read_checkpoint()
        self.log.open()
        self.cluster = self._first_cluster()
        newest = self.checkpoint.newest
        if newest is not None and self.cluster is not None:
            self.checkpoint.is_own = newest.log.cluster in (NO_CLUSTER, self.cluster)
        if self.is_snapshot and self.checkpoint.flushed >= 0:
            self.log.end_at(self.checkpoint.flushed)
        elif self.is_live:
            self.log.end_at(self._last_whole())

    def read_checkpoint(self) -> None:
        """Read the copies of the checkpoint; call it again if a broker may have rewritten them.

        Raises:
            StorageError: the file cannot be opened.
        """
        self.checkpoint = CheckpointCopies(self.paths.checkpoint)
        try:
            file = self.fs.open(self.paths.checkpoint, writable=False)
        except StorageError as error:
            if not error.is_missing:
                raise
            return
        for at in (0, COPY_SIZE):
            try:
                raw = file.pread(COPY_SIZE, at)
            except StorageError:
                raw = b""
            self.checkpoint.raw.append(raw)
            self.checkpoint.copies.append(decode(raw))
        file.close()

    def _first_cluster(self) -> UUID | None:
        """Return the cluster of the log, if its first frame names it."""
        if not self.log.segments:
            return None
        start = self.log.start
        frame = self.log.bytes_of_frame(start, PAGE_SIZE_BYTES)
        if len(frame) < FRAME_HEADER_SIZE or check(frame, start) != WHOLE:
            return None
        header = read_header(frame)
        if header["kind"] != KIND_HEAD:
            return None
        payload = frame[FRAME_HEADER_SIZE : FRAME_HEADER_SIZE + header["tables_size"]]
        try:
            return decode_head(bytes(payload)).cluster
        except CorruptionError:
            return None

    def _last_whole(self) -> int:
        """Return the end of the frames that are whole by now.

        The search begins at the flushed position, so damage before it does not matter.
        """
        log = self.log
        pos = max(self.checkpoint.flushed, log.start)
        while True:
            frame = log.bytes_at(pos, FRAME_HEADER_SIZE) if log.segments else b""
            if len(frame) < FRAME_HEADER_SIZE:
                return pos
            header = read_header(frame)
            if header["kind"] != KIND_BLANK:
                frame = log.bytes_at(pos, max(header["size"], 0))
            else:  # the check reads its header only
                frame = memoryview(bytes(frame).ljust(max(header["size"], 0), b"\0"))
            if check(frame, pos) != WHOLE:
                return pos
            pos += header["size"]

    def close(self) -> None:
        """Close the files and release the lock; may be called twice."""
        self.log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def not_a_data_dir(paths: DataPaths) -> ConfigError:
    """Return the error for a directory without a log."""
    name = paths.commit_log.name
    return ConfigError(f"{paths.root} is not a latermq data directory: it has no {name}/")
