"""One file of the log, and how the next one is made before it is needed. Layer 2.

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
from appliance.store.paths import segment_name
from appliance.units import MIB

PREWRITE_STEP_BYTES: Final = MIB
"""Written at once; the log waits for no more than that when it takes the segment."""

PREWRITE_SYNC_BYTES: Final = 16 * MIB
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


class SpareJob:
    """Makes one segment of reserved zeros, durable with its name.

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
            self._segment = self._allocate()
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
        zeros = memoryview(bytes(min(PREWRITE_STEP_BYTES, segment.size)))
        for start in range(0, segment.size, len(zeros)):
            with self._lock:
                if self._is_taken:
                    return
                segment.file.pwritev([zeros[: segment.size - start]], start)
            if (start + len(zeros)) % PREWRITE_SYNC_BYTES < len(zeros):
                segment.file.fdatasync()
        segment.file.fdatasync()

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
