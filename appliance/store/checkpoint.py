"""The checkpoint: what a start may know of the log before it reads it.

Two copies in one file, written in turn, so that a torn write leaves the other one; docs/FORMAT.md
draws them. Without one that is whole a start takes nothing for known, and reads more. Layer 2.
"""

import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.crc32c import crc32c
from appliance.fs import File, FileSystem

MAGIC: Final = 0x4C4D5143
"""LMQC."""
VERSION: Final = 1
COPY_SIZE: Final = 4096
"""A page each: no write of one touches the other."""

BODY: Final = struct.Struct(">IHxxqqq")
CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions of the log; 0 <= flushed <= reach."""

    sequence: int
    flushed: int
    reach: int


def encode(checkpoint: Checkpoint) -> bytes:
    """One copy, without the padding behind it."""
    body = BODY.pack(MAGIC, VERSION, checkpoint.sequence, checkpoint.flushed, checkpoint.reach)
    return body + CRC.pack(crc32c(body))


def decode(copy: bytes) -> Checkpoint | None:
    """Read one copy; None if it is not whole, or of another version."""
    if len(copy) < BODY.size + CRC.size:
        return None
    (crc,) = CRC.unpack_from(copy, BODY.size)
    if crc32c(copy[: BODY.size]) != crc:
        return None
    magic, version, sequence, flushed, reach = BODY.unpack_from(copy)
    if magic != MAGIC or version != VERSION or not 0 <= flushed <= reach:
        return None
    return Checkpoint(sequence, flushed, reach)


class CheckpointFile:
    """The file of both copies. `open` comes first; `write` may be on any thread.

    Attributes:
        last: the newest whole copy, None if there is none.
    """

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._file: File | None = None
        self._lock = threading.Lock()
        self.last: Checkpoint | None = None

    def open(self) -> None:
        """Read what is there.

        Raises:
            StorageError: the file cannot be made or read.
        """
        is_new = not self._fs.exists(self._path)
        self._file = self._fs.open(self._path, create=True)
        if is_new:
            self._file.allocate(2 * COPY_SIZE)
            self._file.fdatasync()
            self._fs.sync_dir(self._path.parent)
        copies = [decode(self._file.pread(COPY_SIZE, at)) for at in (0, COPY_SIZE)]
        whole = [copy for copy in copies if copy is not None]
        self.last = max(whole, key=lambda copy: copy.sequence, default=None)

    def write(self, flushed: int, reach: int) -> None:
        """Say durably how far the log goes; what was said of a greater reach holds on.

        Args:
            flushed: log position up to which the log is durable.
            reach: log position from which on nothing was or will be written before the next call.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        with self._lock:
            before = self.last
            self._write(flushed, reach if before is None else max(before.reach, reach))

    def end(self, flushed: int) -> None:
        """Say durably that the log ends at `flushed`, and that nothing was written behind it.

        Raises:
            StorageError: it could not be written or synced.
        """
        with self._lock:
            self._write(flushed, flushed)

    def _write(self, flushed: int, reach: int) -> None:
        assert self._file is not None
        sequence = 1 if self.last is None else self.last.sequence + 1
        checkpoint = Checkpoint(sequence, flushed, reach)
        # The older copy is the one that is lost if this write is torn.
        self._file.pwritev([encode(checkpoint)], sequence % 2 * COPY_SIZE)
        self._file.fdatasync()
        self.last = checkpoint

    def close(self) -> None:
        """Give the file back; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
