"""Reads the segments of a data directory, without a lock and without changing anything. Layer 4.

A broker may be running on the directory. Below the position that its checkpoint calls flushed, the
log does not change. The checkpoint is therefore read first, and the log ends there. Segments at the
head of the log may disappear at any time; reading one that did is an error that says so, also if it
is still open: the broker may write a later segment to its file. It takes the name away first, so
bytes are right if the name is still there after they were read.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.errors import ConfigError, LatermqError, StorageError
from appliance.store.checkpoint import COPY_SIZE, Checkpoint, decode
from appliance.store.log.reads import Unreadable, read_around
from appliance.store.paths import DataPaths, parse_segment_name, segment_name
from appliance.system.files import File, FileSystem

FILES_OPEN_MAX: Final = 16


class SegmentGoneError(LatermqError):
    """A segment that a plan refers to is not there any more."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is gone: the broker freed it, or its disk is not mounted. Read a snapshot of "
            "the directory, or set failOnDataLoss to false to go on without it"
        )
        self.path = path


class LogReader:
    """The log of a data directory up to its flushed position.

    Attributes:
        paths: the paths of the directory.
        segments: (base position, size) of each segment, ascending; the last may be shortened.
        flushed: the end of what may be read; -1 if no checkpoint says so.
        checkpoint: the newest copy of the checkpoint, None if there is none.
    """

    def __init__(self, fs: FileSystem, root: Path) -> None:
        self.paths = DataPaths(root)
        self.segments: list[tuple[int, int]] = []
        self.flushed = -1
        self.checkpoint: Checkpoint | None = None
        self._fs = fs
        self._files: dict[int, File] = {}

    def refresh(self) -> None:
        """Find out how far the log goes now.

        Raises:
            ConfigError: it is not a data directory.
            StorageError: the directory cannot be read.
        """
        if not self._fs.exists(self.paths.commit_log):
            raise ConfigError(
                f"{self.paths.root} is not a latermq data directory: it has no "
                f"{self.paths.commit_log.name}/"
            )
        # A start of the broker may have replaced a segment, of which a snapshot keeps the old file.
        self.close()
        self.checkpoint = self._read_checkpoint()
        self.flushed = -1 if self.checkpoint is None else self.checkpoint.flushed
        self.segments = []
        for name in self._fs.list_dir(self.paths.commit_log):
            base = parse_segment_name(name)
            if base is None or 0 <= self.flushed <= base:
                continue
            with suppress(SegmentGoneError):
                size = self._file(base).size()
                if self.flushed >= 0:
                    size = min(size, self.flushed - base)
                if size > 0:
                    self.segments.append((base, size))
        if self.checkpoint is not None:
            # The head may have been freed since: the checkpoint of then says where the log begins.
            self.checkpoint = replace(
                self._read_checkpoint() or self.checkpoint, flushed=self.flushed
            )

    def _read_checkpoint(self) -> Checkpoint | None:
        try:
            file = self._fs.open(self.paths.checkpoint, writable=False)
        except StorageError as error:
            if not error.is_missing:
                raise
            return None
        copies = []
        for at in (0, COPY_SIZE):
            with suppress(StorageError):
                copies.append(decode(file.pread(COPY_SIZE, at)))
        file.close()
        whole = [copy for copy in copies if copy is not None]
        return max(whole, key=lambda copy: copy.sequence, default=None)

    @property
    def end(self) -> int:
        """Log position after the last byte that may be read."""
        return sum(self.segments[-1]) if self.segments else 0

    def read_into(self, pos: int, memory: memoryview) -> list[Unreadable]:
        """Read bytes for a scan; see `LogWindow`.

        Raises:
            SegmentGoneError: the segment is not there any more.
        """
        base, _ = self.segments[self._index_of(pos)]
        file = self._file(base)
        lost = read_around(file, memory, pos - base)
        if not self._fs.exists(file.path):
            self._files.pop(base).close()
            raise SegmentGoneError(file.path)
        return [(base + begin, base + end, why) for begin, end, why in lost]

    def _index_of(self, pos: int) -> int:
        low, high = 0, len(self.segments)
        while high - low > 1:
            middle = (low + high) // 2
            if self.segments[middle][0] <= pos:
                low = middle
            else:
                high = middle
        return low

    def _file(self, base: int) -> File:
        file = self._files.get(base)
        if file is None:
            path = self.paths.commit_log / segment_name(base)
            while len(self._files) >= FILES_OPEN_MAX:
                self._files.pop(next(iter(self._files))).close()
            try:
                file = self._files[base] = self._fs.open(path, writable=False)
            except StorageError as error:
                if not error.is_missing:
                    raise
                raise SegmentGoneError(path) from None
        return file

    def close(self) -> None:
        """Close the files; may be called twice."""
        while self._files:
            self._files.popitem()[1].close()
