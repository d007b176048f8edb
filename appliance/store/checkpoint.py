"""The checkpoint: what a start may know of the log before it reads it.

Two copies in one file, written in turn, so that a torn write leaves the other one; docs/FORMAT.md
draws them. Each names the newest state that was saved and the one before it, so that the two last
states can be reached through either copy. Without a copy that is whole a start takes nothing for
known, and reads more. Layer 2.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from _core.crc32c import crc32c
from appliance.errors import StorageError
from appliance.fs import File, FileSystem

MAGIC: Final = 0x4C4D5143
"""LMQC."""
VERSION: Final = 2
COPY_SIZE: Final = 4096
"""A page each: no write of one touches the other."""
STATES_KEPT: Final = 2
"""The newest state, and the one that serves if its files are damaged."""

BODY: Final = struct.Struct(">IHxxqqq16sqqIi")
STATE: Final = struct.Struct(">qqII")
CRC: Final = struct.Struct(">I")
VERSIONED: Final = struct.Struct(">IH")
"""Magic and version, which stand there in every version."""
COPY: Final = struct.Struct(f"{BODY.format}{STATE.format[1:] * STATES_KEPT}I")

NO_CLUSTER: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log it is, and what a start must know of it although the log is not there.

    Attributes:
        cluster: that the log belongs to.
        start: log position of the first byte that is kept.
        own_from: flushed marks of frames from this log position on are about this disk; a slave
            has the frames below it from its master, whose disk their marks are about.
        salt: begins the CRC of every frame but heads.
        epoch: the newest one.
    """

    cluster: UUID = NO_CLUSTER
    start: int = 0
    own_from: int = 0
    salt: int = 0
    epoch: int = -1


_NO_STATE: Final = (-1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state of all that follows from the log, and the control file that leads to its parts."""

    applied: int
    """It is what follows from every frame below this log position, and from none behind."""
    number: int
    """The control file is named by it; above 0."""
    size: int
    """Bytes of the control file."""
    crc: int
    """CRC32C of the control file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions of the log; 0 <= flushed <= reach. The newest state comes first."""

    sequence: int
    flushed: int
    reach: int
    states: tuple[SavedState, ...] = ()
    log: LogIdentity = LogIdentity()

    @property
    def knows_log(self) -> bool:
        """It tells of a log that had frames."""
        return self.log.cluster != NO_CLUSTER and (self.flushed > 0 or bool(self.states))


def encode(checkpoint: Checkpoint) -> bytes:
    """One copy, without the padding behind it."""
    assert len(checkpoint.states) <= STATES_KEPT
    body = BODY.pack(
        MAGIC,
        VERSION,
        checkpoint.sequence,
        checkpoint.flushed,
        checkpoint.reach,
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
    """Say whether another latermq wrote this, in a form that this one does not read."""
    if len(copy) < COPY_SIZE:
        return False
    magic, version = VERSIONED.unpack_from(copy)
    return bool(magic == MAGIC and version != VERSION)


def decode(copy: bytes) -> Checkpoint | None:
    """Read one copy; None if it is not whole, or of another version."""
    if len(copy) < COPY.size:
        return None
    magic, version, sequence, flushed, reach, cluster, start, own_from, salt, epoch, *rest = (
        COPY.unpack_from(copy)
    )
    *fields, crc = rest
    if crc32c(copy[: COPY.size - CRC.size]) != crc:
        return None
    if magic != MAGIC or version != VERSION or not 0 <= flushed <= reach:
        return None
    found = [tuple(fields[at : at + 4]) for at in range(0, len(fields), 4)]
    states = tuple(SavedState(*state) for state in found if state[0] >= 0)
    log = LogIdentity(UUID(bytes=cluster), start, own_from, salt, epoch)
    return Checkpoint(sequence, flushed, reach, states, log)


class CheckpointFile:
    """The file of both copies. `open` comes first; all others may be on any thread.

    Attributes:
        log: which log it is about; written into every copy.
        last: what the next copy goes out from: the newest whole one, None if there is none.
        copies: what each place in the file holds, as far as it is whole.
    """

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._file: File | None = None
        self._lock = threading.Lock()
        self._sequence = 0
        self._other_versions: list[int] = []
        """Places in the file, bytes, of copies in a form that this latermq does not read."""
        self.log = LogIdentity()
        self.last: Checkpoint | None = None
        self.copies: list[Checkpoint | None] = [None, None]

    def open(self) -> None:
        """Read what is there; changes nothing. A place that cannot be read holds nothing.

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
        """Make the file if it is missing; comes before anything is written.

        Raises:
            StorageError: it cannot be made.
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
        """Every state that a whole copy names, those of the newest copy first, each once."""
        whole = sorted(
            (copy for copy in self.copies if copy is not None),
            key=lambda copy: -copy.sequence,
        )
        return tuple(dict.fromkeys(state for copy in whole for state in copy.states))

    def believe(self, states: Sequence[SavedState], *, is_own: bool) -> None:
        """Let the next copy go on from what was found out about the last one.

        Args:
            states: those that are whole and fit the log.
            is_own: False: the copies speak of another log, so their positions mean nothing.
        """
        if self.last is not None:
            flushed, reach = (self.last.flushed, self.last.reach) if is_own else (0, 0)
            kept = tuple(states)[:STATES_KEPT]
            self.last = replace(self.last, flushed=flushed, reach=reach, states=kept)

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
            self._write(flushed, reach if before is None else max(before.reach, reach), ())

    def note_flushed(self, flushed: int) -> None:
        """Say durably how far the log is durable, and nothing else.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        with self._lock:
            self._write(flushed, 0 if self.last is None else self.last.reach, ())

    def rewrite(self, flushed: int) -> None:
        """Write both copies anew: neither may go on saying what is not true of this log.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        for _ in self.copies:
            self.note_flushed(flushed)

    def save(self, state: SavedState, flushed: int) -> None:
        """Name a state whose every file is durable; `flushed` as with `write`.

        Raises:
            StorageError: it could not be written or synced; the process must stop.
        """
        assert state.applied <= flushed
        with self._lock:
            self._write(flushed, 0 if self.last is None else self.last.reach, (state,))

    def lower_flushed(self, end: int) -> None:
        """Let the next copy say no more than that the log is durable up to `end`, where it ends.

        A start calls it that found less of the log than was durable once: the same place will be
        written again, and what is torn then was not durable.
        """
        with self._lock:
            if self.last is not None and self.last.flushed > end:
                self.last = replace(self.last, flushed=end)

    def forget_states(self) -> None:
        """Let no copy name a state, durably; what they say of positions stays.

        Raises:
            StorageError: it could not be written or synced.
        """
        with self._lock:
            if self.last is not None:
                self.log = self.last.log
                self.last = replace(self.last, states=())
                for _ in self.copies:
                    self._write(self.last.flushed, self.last.reach, ())

    def end(self, flushed: int) -> None:
        """Say durably that the log ends at `flushed`, and that nothing was written behind it.

        Raises:
            StorageError: it could not be written or synced.
        """
        with self._lock:
            self._write(flushed, flushed, ())

    def _write(self, flushed: int, reach: int, states: tuple[SavedState, ...]) -> None:
        assert self._file is not None
        before = self.last
        if before is not None:
            # Who comes late from another thread must not take back what was said meanwhile.
            flushed = max(flushed, before.flushed)
            states = (states + before.states)[:STATES_KEPT]
        # Counted only when it is durable: what is tried again after a failure must go to the same
        # place, which may be torn now, and not over the only copy that is whole.
        sequence = self._sequence + 1
        reach = max(flushed, reach)
        checkpoint = Checkpoint(sequence, flushed, reach, states, self.log)
        # Else a later change of versions would find it and believe what was true long ago.
        for at in self._other_versions:
            self._file.pwritev([bytes(COPY_SIZE)], at)
        self._other_versions = []
        # The older copy is the one that is lost if this write is torn.
        self._file.pwritev([encode(checkpoint)], sequence % 2 * COPY_SIZE)
        self._file.fdatasync()
        self._sequence = sequence
        self.copies[sequence % 2] = checkpoint
        self.last = checkpoint

    def close(self) -> None:
        """Give the file back; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
