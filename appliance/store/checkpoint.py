"""The checkpoint file: what recovery may know about the log before it reads it.

The file has two copies, written in turn, so that a torn write leaves the other one intact;
docs/FORMAT.md describes them. Each names the newest saved state and the one before, so that both
can be found through either copy. Without an intact copy, recovery assumes nothing and reads more of
the log. Layer 2.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from _core.bytes.crc32c import crc32c
from appliance.errors import StorageError
from appliance.system.files import File, FileSystem

MAGIC: Final = 0x4C4D5143
"""LMQC."""
VERSION: Final = 2
COPY_SIZE: Final = 4096
"""A page per copy: no write of one touches the other."""
STATES_KEPT: Final = 2
"""The newest state, and the previous one in case files of the newest are damaged."""

BODY: Final = struct.Struct(">IHxxqqq16sqqIi")
STATE: Final = struct.Struct(">qqII")
CRC: Final = struct.Struct(">I")
VERSIONED: Final = struct.Struct(">IH")
"""Magic and version, at the same place in every version."""
COPY: Final = struct.Struct(f"{BODY.format}{STATE.format[1:] * STATES_KEPT}I")

NO_CLUSTER: Final = UUID(int=0)

NOT_OWN: Final = (1 << 63) - 1
"""`own_from` of a slave: the marks of all frames refer to the master's disk."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The identity of a log, and what recovery must know about it even if the log is missing.

    Attributes:
        cluster: id of the cluster that the log belongs to.
        start: log position of the first byte that is kept.
        own_from: flushed marks of frames from this log position on refer to this disk; a slave
            copies the frames below it from its master, and their marks refer to that disk.
        salt: a random number in the header of every frame, which clients never see.
        epoch: the newest epoch.
    """

    cluster: UUID = NO_CLUSTER
    start: int = 0
    own_from: int = 0
    salt: int = 0
    epoch: int = -1


_NO_STATE: Final = (-1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SavedState:
    """A saved state of everything derived from the log, and the state snapshot that names it."""

    applied: int
    """The state includes every frame below this log position, and none from it on."""
    number: int
    """The name of the state snapshot; above 0."""
    size: int
    """Size of the state snapshot in bytes."""
    crc: int
    """CRC32C of the state snapshot."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions of the log; 0 <= flushed <= watermark. The newest state comes first."""

    sequence: int
    flushed: int
    watermark: int
    states: tuple[SavedState, ...] = ()
    log: LogIdentity = LogIdentity()

    @property
    def knows_log(self) -> bool:
        """It describes a log that had frames."""
        return self.log.cluster != NO_CLUSTER and (self.flushed > 0 or bool(self.states))


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode one copy, without the padding after it."""
    assert len(checkpoint.states) <= STATES_KEPT
    body = BODY.pack(
        MAGIC,
        VERSION,
        checkpoint.sequence,
        checkpoint.flushed,
        checkpoint.watermark,
        checkpoint.log.cluster.bytes,
        checkpoint.log.start,
        checkpoint.log.own_from,
        checkpoint.log.salt,
        checkpoint.log.epoch,
    )
    for state in checkpoint.states:
        body += STATE.pack(state.applied, state.number, state.size, state.crc)
    body += STATE.pack(*_NO_STATE) * (STATES_KEPT - len(checkpoint.states))
    return body + CRC.pack(crc32c(body))


def is_of_other_version(copy: bytes) -> bool:
    """Return whether this is a copy in the format of another version, which cannot be read."""
    if len(copy) < COPY_SIZE:
        return False
    magic, version = VERSIONED.unpack_from(copy)
    return bool(magic == MAGIC and version != VERSION)


def decode(copy: bytes) -> Checkpoint | None:
    """Decode one copy; None if it is damaged or of another version."""
    if len(copy) < COPY.size:
        return None
    magic, version, sequence, flushed, watermark, cluster, start, own_from, salt, epoch, *rest = (
        COPY.unpack_from(copy)
    )
    *fields, crc = rest
    if crc32c(copy[: COPY.size - CRC.size]) != crc:
        return None
    if magic != MAGIC or version != VERSION or not 0 <= flushed <= watermark:
        return None
    found = [tuple(fields[at : at + 4]) for at in range(0, len(fields), 4)]
    states = tuple(SavedState(*state) for state in found if state[0] >= 0)
    log = LogIdentity(UUID(bytes=cluster), start, own_from, salt, epoch)
    return Checkpoint(sequence, flushed, watermark, states, log)


class CheckpointFile:
    """The file of both copies. Call `open` first; all other methods may run on any thread.

    Attributes:
        log: identity of the log, written into every copy.
        last: the newest intact copy, on which the next one is based; None if there is none.
        copies: the content of each place in the file, None if it is damaged.
    """

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._file: File | None = None
        self._lock = threading.Lock()
        self._sequence = 0
        self._other_versions: list[int] = []
        """Offsets in the file, in bytes, of copies in the format of another version."""
        self.log = LogIdentity()
        self.last: Checkpoint | None = None
        self.copies: list[Checkpoint | None] = [None, None]

    def open(self) -> None:
        """Read both copies; change nothing. An unreadable copy counts as damaged.

        Raises:
            StorageError: the file cannot be opened.
        """
        if not self._fs.exists(self._path):
            return
        self._file = self._fs.open(self._path)
        self.copies = [self._read(self._file, at) for at in (0, COPY_SIZE)]
        self._other_versions = [at for at in (0, COPY_SIZE) if self._has_other_version(at)]
        whole = [copy for copy in self.copies if copy is not None]
        self.last = max(whole, key=lambda copy: copy.sequence, default=None)
        self._sequence = 0 if self.last is None else self.last.sequence

    def ensure(self) -> None:
        """Create the file if it is missing; call it before the first write.

        Raises:
            StorageError: it cannot be created.
        """
        if self._file is None:
            self._file = self._fs.open(self._path, create=True)
            self._file.allocate(2 * COPY_SIZE)
            self._file.fdatasync()
            self._fs.sync_dir(self._path.parent)

    @staticmethod
    def _read(file: File, at: int) -> Checkpoint | None:
        try:
            return decode(file.pread(COPY_SIZE, at))
        except StorageError:
            return None

    def _has_other_version(self, at: int) -> bool:
        assert self._file is not None
        try:
            return is_of_other_version(self._file.pread(COPY_SIZE, at))
        except StorageError:
            return False

    @property
    def states(self) -> tuple[SavedState, ...]:
        """The states that intact copies name, those of the newest copy first, without repeats."""
        whole = sorted(
            (copy for copy in self.copies if copy is not None),
            key=lambda copy: -copy.sequence,
        )
        return tuple(dict.fromkeys(state for copy in whole for state in copy.states))

    def adopt(self, states: Sequence[SavedState], *, is_own: bool) -> None:
        """Base the next copy on what recovery verified about the last one.

        Args:
            states: those that are intact and fit the log.
            is_own: False: the copies describe another log, so their positions are discarded.
        """
        if self.last is not None:
            flushed, watermark = (self.last.flushed, self.last.watermark) if is_own else (0, 0)
            kept = tuple(states)[:STATES_KEPT]
            self.last = replace(self.last, flushed=flushed, watermark=watermark, states=kept)

    def write(self, flushed: int, watermark: int) -> None:
        """Write durably how far the log extends; a higher watermark written before remains.

        Args:
            flushed: log position up to which the log is durable.
            watermark: allocation watermark: nothing was or will be written at or after this log
                position before the next call.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        with self._lock:
            before = self.last
            self._write(
                flushed, watermark if before is None else max(before.watermark, watermark), ()
            )

    def note_flushed(self, flushed: int) -> None:
        """Write durably how far the log is durable, and nothing else.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        with self._lock:
            self._write(flushed, 0 if self.last is None else self.last.watermark, ())

    def rewrite(self, flushed: int) -> None:
        """Rewrite both copies, so that neither keeps claims that are false for this log.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        for _ in self.copies:
            self.note_flushed(flushed)

    def save(self, state: SavedState, flushed: int) -> None:
        """Add a saved state, all of whose files are durable; `flushed` as in `write`.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        assert state.applied <= flushed
        with self._lock:
            self._write(flushed, 0 if self.last is None else self.last.watermark, (state,))

    def lower_flushed(self, end: int) -> None:
        """Limit the durable position of the next copy to `end`, the end of the log.

        Recovery calls it when it found less of the log than was durable before: the range after
        `end` will be written again, and a tear in it then is not a loss of durable data.
        """
        with self._lock:
            if self.last is not None and self.last.flushed > end:
                self.last = replace(self.last, flushed=end)

    def forget_states(self) -> None:
        """Remove the saved states from both copies, durably; keep the positions.

        Raises:
            StorageError: it could not be written or synced.
        """
        with self._lock:
            if self.last is not None:
                self.log = self.last.log
                self.last = replace(self.last, states=())
                for _ in self.copies:
                    self._write(self.last.flushed, self.last.watermark, ())

    def end(self, flushed: int) -> None:
        """Write durably that the log ends at `flushed`, and that nothing was written after it.

        Raises:
            StorageError: it could not be written or synced.
        """
        with self._lock:
            self._write(flushed, flushed, ())

    def _write(self, flushed: int, watermark: int, states: tuple[SavedState, ...]) -> None:
        assert self._file is not None
        before = self.last
        if before is not None:
            # A late call from another thread must not lower a position written meanwhile.
            flushed = max(flushed, before.flushed)
            states = (states + before.states)[:STATES_KEPT]
        # Advance the sequence only when the copy is durable: a retry after a failure must write to
        # the same place, which may be torn, and not over the only intact copy.
        sequence = self._sequence + 1
        watermark = max(flushed, watermark)
        checkpoint = Checkpoint(sequence, flushed, watermark, states, self.log)
        # Otherwise a later change of version would find these copies and trust outdated positions.
        for at in self._other_versions:
            self._file.pwritev([bytes(COPY_SIZE)], at)
        self._other_versions = []
        # This overwrites the older copy: only that one is lost if the write is torn.
        self._file.pwritev([encode(checkpoint)], sequence % 2 * COPY_SIZE)
        self._file.fdatasync()
        self._sequence = sequence
        self.copies[sequence % 2] = checkpoint
        self.last = checkpoint

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
