"""One file of the log, and how the next one is made before it is needed. Layer 2.

The file of a segment that the log has no use for any more is put aside as the spare, and becomes
the next segment: its room on the disk cannot be taken by others meanwhile. Zeros are written over
all that was ever written to it first. Frames of another place in the log could not be taken for
new ones, since each says where it belongs; but those of a segment with the same base could, which
a start leaves over when it cuts the log. Only a file with no other name is used again: a backup may
be a hard link to it. Nothing may hold a slice of its map.

A sync of bytes that were written before is two to three times as fast as one that also has to take
new blocks into use. So on request a spare segment is not only allocated: its zeros are written, in
the background, until it is whole or the log needs it.
"""

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import StorageError
from appliance.fs import File, FileSystem
from appliance.store.paths import SPARE_NAME, segment_name
from appliance.units import MIB

ZERO_STEP_BYTES: Final = MIB
"""Written at once; the log waits for no more than that when it takes the segment."""

ZERO_SYNC_BYTES: Final = 16 * MIB
"""Synced at once, so that little is dirty when somebody else syncs."""


@dataclass(slots=True)
class Segment:
    """One file of the log."""

    base: int
    size: int
    file: File

    @property
    def end(self) -> int:
        return self.base + self.size


def put_aside(fs: FileSystem, segment: Segment, size_bytes: int) -> None:
    """Take a segment out of the log; its file is the spare from now on, or gone if it cannot be.

    The caller syncs the directory before the log is appended to.

    Args:
        fs: holds it.
        segment: the log ends before it, or begins behind it; no slice of its map is in use.
        size_bytes: of the segments to come.

    Raises:
        StorageError: the directory could not be changed.
    """
    path = segment.file.path
    spare = path.with_name(SPARE_NAME)
    is_fit = _is_fit(segment.file, size_bytes) and not fs.exists(spare)
    segment.file.close()
    if is_fit:
        fs.rename(path, spare)
    else:
        fs.unlink(path)


def _is_fit(file: File, size_bytes: int) -> bool:
    return file.size() == size_bytes and file.link_count() == 1


class SpareJob:
    """Makes one segment of reserved zeros, durable with its name; of the spare, if there is one.

    `run` and then `prewrite` may be on any thread; `segment` and `take` are the log's.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        base: int,
        size_bytes: int,
        *,
        is_prewritten: bool = True,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._base = base
        self._size_bytes = size_bytes
        self._is_prewritten = is_prewritten
        self._is_made = threading.Event()
        self._lock = threading.Lock()
        self._is_taken = False
        self._segment: Segment | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Make it; what goes wrong is told by `segment`."""
        try:
            self._segment = self._reuse() or self._allocate()
        except Exception as error:  # noqa: BLE001 (the root of a thread: `segment` raises it)
            self._error = error
        finally:
            self._is_made.set()

    def segment(self) -> Segment:
        """The segment; waits for a run that is under way. Raises what `run` met, a StorageError."""
        self._is_made.wait()
        if self._error is not None:
            raise self._error
        assert self._segment is not None
        return self._segment

    def _reuse(self) -> Segment | None:
        spare = self._directory / SPARE_NAME
        if not self._fs.exists(spare):
            return None
        file = self._fs.open(spare)
        try:
            if not _is_fit(file, self._size_bytes):
                self._fs.unlink(spare)
                return None
            _zero(file, self._size_bytes)
            file.fdatasync()
        finally:
            file.close()
        path = self._directory / segment_name(self._base)
        self._fs.rename(spare, path)
        self._fs.sync_dir(self._directory)
        return Segment(self._base, self._size_bytes, self._fs.open(path))

    def _allocate(self) -> Segment:
        path = self._directory / segment_name(self._base)
        file = self._fs.open(path, create=True)
        try:
            file.allocate(self._size_bytes)
            file.fdatasync()
            self._fs.sync_dir(self._directory)
        except StorageError:
            # Where a sync failed the file system may have become read-only: that came second.
            with contextlib.suppress(StorageError):
                file.close()
                self._fs.unlink(path)
            raise
        return Segment(self._base, self._size_bytes, file)

    def prewrite(self) -> None:
        """Write the zeros if that is wanted, until the segment is taken.

        What goes wrong is told by `take`.
        """
        if self._segment is None or not self._is_prewritten:
            return
        try:
            self._prewrite(self._segment)
        except Exception as error:  # noqa: BLE001 (the root of a thread: `take` raises it)
            # Where blocks cannot be reserved the disk may fill up: then as much is written as was.
            if not (isinstance(error, StorageError) and error.is_disk_full):
                self._error = error

    def _prewrite(self, segment: Segment) -> None:
        # Through a descriptor of its own: the kernel tells of a failed write-back once for each,
        # and what a sync here is told must not be kept from one of the log's.
        file = self._fs.open(segment.file.path)
        zeros = memoryview(bytes(min(ZERO_STEP_BYTES, segment.size)))
        try:
            for start in range(0, segment.size, len(zeros)):
                with self._lock:
                    if self._is_taken:
                        return
                    file.pwritev([zeros[: segment.size - start]], start)
                if (start + len(zeros)) % ZERO_SYNC_BYTES < len(zeros):
                    file.fdatasync()
            file.fdatasync()
        finally:
            file.close()

    def stop(self) -> None:
        """Write no more of it; a sync may still be under way."""
        with self._lock:
            self._is_taken = True

    def take(self) -> Segment:
        """The segment, into which nothing but the log writes from now on.

        Raises:
            StorageError: it could not be made, or a write into it or a sync of it failed.
        """
        self.stop()
        return self.segment()


def _zero(file: File, size_bytes: int) -> None:
    """Write zeros over all that was written, and nowhere else; the file keeps its blocks."""
    zeros = memoryview(bytes(min(ZERO_STEP_BYTES, size_bytes)))
    unsynced_bytes = 0
    start = file.next_data(0)
    while start is not None and start < size_bytes:
        end = min(start + len(zeros), size_bytes)
        file.pwritev([zeros[: end - start]], start)
        unsynced_bytes += end - start
        if unsynced_bytes >= ZERO_SYNC_BYTES:
            file.fdatasync()
            unsynced_bytes = 0
        start = file.next_data(end)
