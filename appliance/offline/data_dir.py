"""A data directory that is looked at: opened for reading only, nothing in it made or changed.

It is held with a shared lock meanwhile, so that no broker starts on it; several may look. What a
running broker holds can be looked at as far as it has come: segments are only ever appended to, and
a frame that is whole is never written again. Layer 4.
"""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from _core.frames import check, read_header
from _core.layout import FRAME_HEADER_SIZE, KIND_BLANK, KIND_HEAD
from appliance.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    StorageError,
)
from appliance.fs import FileSystem, Lock
from appliance.offline.findings import Findings
from appliance.offline.log_files import LogFiles
from appliance.store.checkpoint import COPY_SIZE, NO_CLUSTER, Checkpoint, SavedState, decode
from appliance.store.control_frames import decode_head
from appliance.store.paths import DataPaths
from appliance.units import PAGE_SIZE_BYTES

WHOLE = "whole"


@dataclass(slots=True)
class CheckpointCopies:
    """The checkpoint file.

    Attributes:
        raw, copies: what is there; None where it is no whole copy.
        is_own: False: it is about another log, and nothing that it says counts.
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
        """Every state that a whole copy names, each once."""
        if not self.is_own:
            return ()
        return tuple(dict.fromkeys(state for copy in self.copies if copy for state in copy.states))

    @property
    def flushed(self) -> int:
        """The log was once durable up to here for certain; -1 if nobody says so."""
        if not self.is_own:
            return -1
        return max((copy.flushed for copy in self.copies if copy is not None), default=-1)

    @property
    def reach(self) -> int:
        """No frame was written at or behind this position; -1 if nobody says so."""
        newest = self.newest
        return newest.reach if newest is not None and self.is_own else -1


class DataDir:
    """A data directory, for reading. `open` comes first, `close` last.

    Attributes:
        paths: where things are.
        log: the segments.
        checkpoint: what the checkpoint file says.
        is_live: a broker is working on it.
        is_clean: the last broker stopped as it should.
        cluster: that the log belongs to, if its first frame tells.
    """

    def __init__(self, fs: FileSystem, root: Path, findings: Findings) -> None:
        self.fs = fs
        self.paths = DataPaths(root)
        self.log = LogFiles(fs, self.paths, findings)
        self.checkpoint = CheckpointCopies(self.paths.checkpoint)
        self.is_live = False
        self.is_clean = False
        self.cluster: UUID | None = None
        self._lock: Lock | None = None

    def open(self, *, may_be_live: bool) -> None:
        """Take the lock and open the log.

        Args:
            may_be_live: go on if a broker holds the directory, as far as it has come.

        Raises:
            ConfigError: it is no data directory.
            DataDirectoryLockedError: a broker holds it.
            StorageError: something in it cannot be opened.
        """
        if not self.fs.exists(self.paths.commit_log):
            raise not_a_data_dir(self.paths)
        try:
            self._lock = self.fs.lock_for_reading(self.paths.root)
        except DataDirectoryLockedError:
            if not may_be_live:
                raise
            self.is_live = True
        self.is_clean = not self.fs.exists(self.paths.abort)
        # Before the log: all that it calls flushed is in the files that are opened next.
        self.read_checkpoint()
        self.log.open()
        self.cluster = self._first_cluster()
        newest = self.checkpoint.newest
        if newest is not None and self.cluster is not None:
            self.checkpoint.is_own = newest.log.cluster in (NO_CLUSTER, self.cluster)
        if self.is_live:
            self.log.end_at(self._last_whole())

    def read_checkpoint(self) -> None:
        """Read the copies of the checkpoint, again if a broker has written them meanwhile.

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
        """The cluster that the log belongs to, if its first frame tells."""
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
        """Where the frames that are whole by now end; all before what is flushed may be damaged."""
        log = self.log
        pos = max(self.checkpoint.flushed, log.start)
        while True:
            frame = log.bytes_at(pos, FRAME_HEADER_SIZE) if log.segments else b""
            if len(frame) < FRAME_HEADER_SIZE:
                return pos
            header = read_header(frame)
            if header["kind"] != KIND_BLANK:
                frame = log.bytes_at(pos, max(header["size"], 0))
            else:  # its header is all that is looked at
                frame = memoryview(bytes(frame).ljust(max(header["size"], 0), b"\0"))
            if check(frame, pos) != WHOLE:
                return pos
            pos += header["size"]

    def close(self) -> None:
        """Give the files and the lock back; may be called twice."""
        self.log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def not_a_data_dir(paths: DataPaths) -> ConfigError:
    """What is said of a directory without a log."""
    name = paths.commit_log.name
    return ConfigError(f"{paths.root} is no data directory of latermq: it has no {name}/")
