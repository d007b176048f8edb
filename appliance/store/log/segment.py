"""One file of the log, and the job that makes the next one before it is needed. Layer 2.

The file of a segment that the log no longer needs is kept as the spare and becomes the next
segment, so that no other process can take its disk space. Two kinds of files become the spare: a
segment that was allocated ahead when the broker stopped, and, with sync flush, a freed segment. No
frame in them is at or after the end of the log, so none can be mistaken for a new one: each frame
holds its position. With sync flush the old bytes therefore stay, because to overwrite blocks that
were written before is the point of it. `zeros_after` ends each write to such a segment, so that a
start knows where the log ended. Otherwise every byte ever written is overwritten with zeros first.

Only a file with a single name is reused: a backup may be a hard link to it. After an unclean stop
no file is kept: a sync of it may have failed, and then ext4 can lose what is written there later
although that sync succeeds. Nothing may hold a slice of the map of such a file, or read it: see
`FreedSegment`.

A start that ends the log below a position that a snapshot or a backup may be read up to does not
write to a file with a second name either: `make_private` first gives the log a copy of its own.
Ending the segment early and beginning another one would need no copy. But frames that the start
declared lost would stay in the file of the log, and could be found again.

A sync of bytes that were written before is two to three times as fast as one that must also
initialize new blocks. So, on request, the zeros of an allocated spare segment are also written, in
the background, until it is complete or the log needs it.
"""

import contextlib
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import StorageError
from appliance.store.log.reads import read_around
from appliance.store.paths import SPARE_NAME, segment_name
from appliance.system.files import File, FileSystem
from appliance.units import MIB, PAGE_SIZE_BYTES

ZERO_STEP_BYTES: Final = MIB
"""Size of one write; the log waits for at most one when it takes the segment."""

COPY_STEP_BYTES: Final = MIB
"""Size of one read and one write."""

ZERO_SYNC_BYTES: Final = 16 * MIB
"""Bytes between syncs, so that few pages are dirty when another file is synced."""


ZEROS_MIN_BYTES: Final = 16
"""Zeros after the last frame by which a start knows where the log ended: it looks at two words."""

_ZEROS: Final = memoryview(bytes(PAGE_SIZE_BYTES + ZEROS_MIN_BYTES))


@dataclass(slots=True)
class Segment:
    """One file of the log."""

    base: int
    size: int
    file: File
    may_hold_old: bool = True
    """Bytes that were there before may follow what the log wrote."""

    @property
    def end(self) -> int:
        return self.base + self.size

    def zeros_after(self, pos: int) -> memoryview:
        """Return the zeros to write after the last frame, which ends at a log position.

        They go to the end of a page: the kernel would read a page first of which a part is written.
        """
        offset = pos - self.base
        size = ZEROS_MIN_BYTES + -(offset + ZEROS_MIN_BYTES) % PAGE_SIZE_BYTES
        return _ZEROS[: min(size, self.size - offset)]


@dataclass(frozen=True, slots=True)
class FreedSegment:
    """A segment that is no longer part of the log, without its open file.

    Attributes:
        path, size: of the file.
        file: dead once no read uses the file any longer, and no slice of a map of it.
    """

    path: Path
    size: int
    file: weakref.ref[File]

    @classmethod
    def of(cls, segment: Segment) -> "FreedSegment":
        """Return that of a segment, which the caller then forgets."""
        return cls(segment.file.path, segment.size, weakref.ref(segment.file))

    def remove(self, fs: FileSystem, spare_size_bytes: int = 0) -> bool:
        """Remove the file, or make it the spare if it is fit; the caller syncs the directory.

        Args:
            fs: its file system.
            spare_size_bytes: size of a spare; 0 if none is wanted.

        Returns:
            Whether it is the spare.

        Raises:
            StorageError: the directory could not be changed.
        """
        spare = self.path.with_name(SPARE_NAME)
        if self.file() is not None or self.size != spare_size_bytes or fs.exists(spare):
            fs.unlink(self.path)
            return False
        with contextlib.closing(fs.open(self.path)) as file:
            # First it loses its name in the log: then nobody can link it any more.
            fs.rename(self.path, spare)
            is_fit = _is_fit(file, spare_size_bytes)
        if not is_fit:
            _unlink_spare(fs, spare)
        return is_fit


def _unlink_spare(fs: FileSystem, spare: Path) -> None:
    """Remove the spare, unless a `SpareJob` on another thread was first."""
    try:
        fs.unlink(spare)
    except StorageError as error:
        if not error.is_missing:
            raise


def put_aside(fs: FileSystem, segment: Segment, size_bytes: int, *, may_reuse: bool = True) -> None:
    """Take a segment out of the log; keep its file as the spare, or remove it if it is unfit.

    The caller syncs the directory before the next append.

    Args:
        fs: file system of the segment.
        segment: the log ends before it, or begins after it; no slice of its map is in use.
        size_bytes: size of future segments.
        may_reuse: False: remove the file in any case.

    Raises:
        StorageError: the directory could not be changed.
    """
    path = segment.file.path
    spare = path.with_name(SPARE_NAME)
    is_fit = may_reuse and _is_fit(segment.file, size_bytes) and not fs.exists(spare)
    segment.file.close()
    if is_fit:
        fs.rename(path, spare)
    else:
        fs.unlink(path)


def has_one_name(file: File) -> bool:
    """Return whether a file has no other name, so that its bytes may be overwritten.

    A snapshot or a backup may be a hard link to a segment. Ask this after the file has lost its
    name in the log, when nobody can link it any more, and before the first byte is overwritten.
    """
    return file.link_count() == 1


def _is_fit(file: File, size_bytes: int) -> bool:
    return file.size() == size_bytes and has_one_name(file)


def make_private(fs: FileSystem, segment: Segment, kept_bytes: int) -> None:
    """Replace the file of a segment by a copy with a single name, durably; other names keep theirs.

    The copy is made under the name of the spare, whose content has no meaning after a crash. Bytes
    that the disk cannot read become zeros.

    Args:
        fs: file system of the segment.
        segment: its file is replaced; no slice of its map is in use.
        kept_bytes: that many are copied; zeros follow, up to its size.

    Raises:
        StorageError: it failed, possibly because the disk is full; the file is not replaced.
    """
    path = segment.file.path
    spare = path.with_name(SPARE_NAME)
    if fs.exists(spare):
        fs.unlink(spare)
    copy = fs.open(spare, create=True)
    try:
        copy.allocate(segment.size)
        memory = memoryview(bytearray(min(COPY_STEP_BYTES, kept_bytes)))
        for start in range(0, kept_bytes, COPY_STEP_BYTES):
            part = memory[: kept_bytes - start]
            read_around(segment.file, part, start)
            copy.pwritev([part], start)
        copy.fdatasync()
        fs.rename(spare, path)
    except StorageError:
        with contextlib.suppress(StorageError):
            fs.unlink(spare)
        raise
    finally:
        copy.close()
    fs.sync_dir(path.parent)
    segment.file.close()
    segment.file = fs.open(path)


class SpareJob:
    """Makes one segment of reserved zeros, durable with its name; reuses the spare if possible.

    `run` and then `prewrite` may run on any thread; the log calls `segment` and `take`.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        base: int,
        size_bytes: int,
        *,
        is_prewritten: bool = True,
        keeps_old: bool = False,
        replaced: File | None = None,
    ) -> None:
        """Do nothing yet.

        Args:
            fs, directory: of the log.
            base, size_bytes: of the segment.
            is_prewritten: `prewrite` writes zeros to a segment that was allocated.
            keeps_old: the bytes in the spare stay; see above.
            replaced: the file of a segment of that base, in which nothing was written; the spare
                takes its place.
        """
        self._fs = fs
        self._directory = directory
        self._base = base
        self._size_bytes = size_bytes
        self._is_prewritten = is_prewritten
        self._keeps_old = keeps_old
        self._replaced = replaced
        self._is_made = threading.Event()
        self._lock = threading.Lock()
        self._is_taken = False
        self._segment: Segment | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Make the segment; `segment` raises any error."""
        try:
            self._segment = self._reuse() or self._allocate()
            if self._replaced is not None:
                self._replaced.close()
        except Exception as error:  # noqa: BLE001 (the root of a thread: `segment` raises it)
            self._error = error
        finally:
            self._is_made.set()

    @property
    def is_made(self) -> bool:
        """`run` has ended, so `segment` does not wait."""
        return self._is_made.is_set()

    @property
    def has_segment(self) -> bool:
        """`run` has made the segment."""
        return self._segment is not None

    @property
    def is_new(self) -> bool:
        """`run` has allocated the segment, and its zeros are not written."""
        segment = self._segment
        return segment is not None and not segment.may_hold_old and not self._is_prewritten

    def segment(self) -> Segment:
        """Return the segment; wait for `run` to end. Raises the error of `run`, a StorageError."""
        self._is_made.wait()
        if self._error is not None:
            raise self._error
        assert self._segment is not None
        return self._segment

    def _reuse(self) -> Segment | None:
        path = self._directory / segment_name(self._base)
        try:
            if not self._take_spare(path):
                return None
        except StorageError as error:
            if not error.is_missing:
                raise
            return None  # there is none, or the thread that made it found it unfit
        self._fs.sync_dir(self._directory)
        file = self._fs.open(path)
        return Segment(self._base, self._size_bytes, file, may_hold_old=self._keeps_old)

    def _take_spare(self, path: Path) -> bool:
        """Rename the spare, if it is fit."""
        spare = self._directory / SPARE_NAME
        with contextlib.closing(self._fs.open(spare)) as file:
            if not _is_fit(file, self._size_bytes):
                _unlink_spare(self._fs, spare)
                return False
            if not self._keeps_old:
                _zero(file, self._size_bytes)
                file.fdatasync()
        self._fs.rename(spare, path)
        return True

    def _allocate(self) -> Segment:
        path = self._directory / segment_name(self._base)
        file = self._fs.open(path, create=True)
        try:
            file.allocate(self._size_bytes)
            file.fdatasync()
            self._fs.sync_dir(self._directory)
        except StorageError:
            # After a failed sync the file system may be read-only: raise the first error.
            with contextlib.suppress(StorageError):
                file.close()
                self._fs.unlink(path)
            raise
        return Segment(self._base, self._size_bytes, file, may_hold_old=False)

    def prewrite(self) -> None:
        """Write the zeros, if configured, until the segment is taken; `take` raises any error."""
        if self._segment is None or self._segment.may_hold_old or not self._is_prewritten:
            return
        try:
            self._prewrite(self._segment)
        except Exception as error:  # noqa: BLE001 (the root of a thread: `take` raises it)
            # Without reserved blocks the disk may fill up: the zeros written so far remain.
            if not (isinstance(error, StorageError) and error.is_disk_full):
                self._error = error

    def _prewrite(self, segment: Segment) -> None:
        # Use a separate descriptor: the kernel reports a failed write-back once per descriptor,
        # and a sync here must not consume the error that a sync of the log would get.
        zeros = memoryview(bytes(min(ZERO_STEP_BYTES, segment.size)))
        with contextlib.closing(self._fs.open(segment.file.path)) as file:
            for start in range(0, segment.size, len(zeros)):
                with self._lock:
                    if self._is_taken:
                        return
                    file.pwritev([zeros[: segment.size - start]], start)
                if (start + len(zeros)) % ZERO_SYNC_BYTES < len(zeros):
                    file.fdatasync()
            file.fdatasync()

    def stop(self) -> None:
        """Stop writing zeros; a sync may still be in flight."""
        with self._lock:
            self._is_taken = True

    def take(self) -> Segment:
        """Return the segment; from now on only the log writes to it.

        Raises:
            StorageError: it could not be made, or a write to it or a sync of it failed.
        """
        self.stop()
        return self.segment()


def _zero(file: File, size_bytes: int) -> None:
    """Overwrite the written ranges with zeros, and nothing else; the file keeps its blocks."""
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
