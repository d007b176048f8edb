"""A data directory that is looked at: opened for reading only, nothing in it made or changed.

It is held with a shared lock meanwhile, so that no broker starts on it; several may look. What a
running broker holds can be looked at as far as it has come: segments are only ever appended to, and
a frame that is whole is never written again. Layer 4.
"""

from dataclasses import dataclass, field
from pathlib import Path

from _core.frames import check, read_header
from _core.layout import FRAME_HEADER_SIZE, KIND_BLANK
from appliance.errors import ConfigError, DataDirectoryLockedError, StorageError
from appliance.fs import FileSystem, Lock
from appliance.offline.findings import Findings
from appliance.offline.log_files import LogFiles
from appliance.store.checkpoint import COPY_SIZE, Checkpoint, decode
from appliance.store.paths import DataPaths

WHOLE = "whole"


@dataclass(slots=True)
class CheckpointCopies:
    """The checkpoint file. `copies` are None where they are not whole, `raw` is what is there."""

    path: Path
    raw: list[bytes] = field(default_factory=list)
    copies: list[Checkpoint | None] = field(default_factory=list)

    @property
    def newest(self) -> Checkpoint | None:
        whole = [copy for copy in self.copies if copy is not None]
        return max(whole, key=lambda copy: copy.sequence, default=None)

    @property
    def flushed(self) -> int:
        """The log was once durable up to here for certain; -1 if nobody says so."""
        return max((copy.flushed for copy in self.copies if copy is not None), default=-1)


class DataDir:
    """A data directory, for reading. `open` comes first, `close` last.

    Attributes:
        paths: where things are.
        log: the segments.
        checkpoint: what the checkpoint file says.
        is_live: a broker is working on it.
        is_clean: the last broker stopped as it should.
    """

    def __init__(self, fs: FileSystem, root: Path, findings: Findings) -> None:
        self.fs = fs
        self.paths = DataPaths(root)
        self.log = LogFiles(fs, self.paths, findings)
        self.checkpoint = CheckpointCopies(self.paths.checkpoint)
        self.is_live = False
        self.is_clean = False
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
        self._read_checkpoint()
        self.log.open()
        if self.is_live:
            self.log.end_at(self._last_whole())

    def _read_checkpoint(self) -> None:
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

    def _last_whole(self) -> int:
        """Where the frames that are whole by now end; all before what is flushed may be damaged."""
        log = self.log
        pos = max(self.checkpoint.flushed, log.start)
        while True:
            log.test_up_to(pos)
            frame = log.bytes_at(pos, FRAME_HEADER_SIZE) if log.segments else b""
            if len(frame) < FRAME_HEADER_SIZE:
                return pos
            header = read_header(frame)
            if header["kind"] != KIND_BLANK:
                frame = log.bytes_at(pos, max(header["size"], 0))
            else:
                frame = log.bytes_at(pos, 1 << 62)
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
