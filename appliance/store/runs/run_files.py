"""Run files: sorted rows of one kind up to a log position, with checksums.

    timer/00000000000000000007    pending timers, and completed ones whose timers are in older runs
    timerlog/00000000000000000009 the same by due time: see `timer_log`
    index/00000000000000000008    users' ids: see `id_run`

    file  := head block* end
    block := size, count of rows, rows, CRC        end := 0, 0, CRC

Every CRC covers all bytes of the file before it, except for the CRCs. So a block from another place
or file is detected, a file can be checked while it is read, and the last CRC covers the whole file;
the state snapshot that names the file stores that one. Files with a directory have other CRCs: see
`indexed_run`.
docs/FORMAT.md describes the format. Layer 2; any thread.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import (
    RUN_BLOCK_SIZE_MAX,
    RUN_COMPLETED_DUE_SIZE,
    RUN_COMPLETED_SIZE,
    RUN_DUE,
    RUN_ID_SIZE,
    RUN_ID_VERSION,
    RUN_IDS,
    RUN_MAGIC,
    RUN_ROW_COMPLETED,
    RUN_ROW_PENDING,
    RUN_TIMER_AT_KIND,
    RUN_TIMER_SIZE,
    RUN_TIMERS,
    RUN_VERSION,
)
from _core.timers.run_merge import RowCheck
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths, segment_name
from appliance.system.files import File, FileSystem
from appliance.units import MIB

HEAD: Final = struct.Struct(">IHBxqqq")
"""Magic, version, kind, number, from and to position."""
BLOCK_HEAD: Final = struct.Struct(">II")
"""Bytes of rows, count of rows."""
CRC: Final = struct.Struct(">I")
ENTRY: Final = struct.Struct(">BxxxIqqqqq")
"""The stored form of a RunEntry."""
_ENTRY_FIELDS: Final = ("kind", "crc", "number", "size", "rows", "from_pos", "to_pos")
_entry_fields: Final = attrgetter(*_ENTRY_FIELDS)

SYNC_BYTES: Final = 8 * MIB
"""Bytes between syncs: an fdatasync of hundreds of MB would delay that of the log."""

TIMER_ROW: Final = struct.Struct(">qiBBxxqqiiq")
COMPLETED_ROW: Final = struct.Struct(">qiBxxx")
COMPLETED_DUE_ROW: Final = struct.Struct(">qiBxxxq")
ID_ROW: Final = struct.Struct(">QIiqqqiiBxxx")

assert TIMER_ROW.size == RUN_TIMER_SIZE
assert COMPLETED_ROW.size == RUN_COMPLETED_SIZE
assert COMPLETED_DUE_ROW.size == RUN_COMPLETED_DUE_SIZE
assert ID_ROW.size == RUN_ID_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """The description of one run file in a checkpoint.

    Attributes:
        kind: RUN_TIMERS or RUN_IDS.
        number: its name; no other file of the directory ever had it.
        size: bytes of the file.
        crc: its last CRC.
        rows: number of rows.
        from_pos, to_pos: it holds the changes by frames between these log positions.
    """

    kind: int
    number: int
    size: int
    crc: int
    rows: int
    from_pos: int
    to_pos: int

    def path(self, paths: DataPaths) -> Path:
        """The path of the file."""
        return run_directory(paths, self.kind) / segment_name(self.number)


def encode_entry(entry: RunEntry) -> bytes:
    """Encode an entry as ENTRY.size bytes."""
    return ENTRY.pack(*_entry_fields(entry))


def decode_entry(data: bytes | memoryview, offset: int = 0) -> RunEntry:
    """Decode an entry; the reader of the file checks it."""
    return RunEntry(**dict(zip(_ENTRY_FIELDS, ENTRY.unpack_from(data, offset), strict=True)))


def run_directory(paths: DataPaths, kind: int) -> Path:
    """The directory of the runs of a kind."""
    return {RUN_TIMERS: paths.timer, RUN_DUE: paths.timer_log}.get(kind, paths.index)


class RunWriter:
    """Writes one run file. After an error call `discard`, which removes the partial file.

    Attributes:
        version: of the format.
        path: of the file.
        kind: of its rows.
        rows: number of rows written.
    """

    version = RUN_VERSION

    def __init__(
        self,
        fs: FileSystem,
        paths: DataPaths,
        *,
        kind: int,
        number: int,
        from_pos: int,
        to_pos: int,
    ) -> None:
        """Touch no file yet; `append` creates it. See `RunEntry` for the arguments."""
        self._fs = fs
        self.path = run_directory(paths, kind) / segment_name(number)
        self.kind = kind
        self._head = HEAD.pack(RUN_MAGIC, self.version, kind, number, from_pos, to_pos)
        self._file: File | None = None
        self._size = 0
        self._synced = 0
        self._crc = 0
        self.rows = 0
        self._begin()

    def _begin(self) -> None:
        """Prepare what a kind of file needs besides."""

    def append(self, block: bytes, rows: int) -> None:
        """Write the next rows.

        Args:
            block: 1 to RUN_BLOCK_SIZE_MAX bytes.
            rows: number of rows in it.

        Raises:
            StorageError: it could not be written or synced.
        """
        assert 0 < len(block) <= RUN_BLOCK_SIZE_MAX
        if self._file is None:
            self._file = self._fs.open(self.path, create=True)
            self._write([self._head])
            self._crc = crc32c(self._head)
        self._write_block([BLOCK_HEAD.pack(len(block), rows), block])
        self.rows += rows
        if self._size - self._synced >= SYNC_BYTES:
            self._file.fdatasync()
            self._synced = self._size

    def _write_block(self, parts: list[bytes]) -> None:
        for part in parts:
            self._crc = crc32c(part, self._crc)
        self._write([*parts, CRC.pack(self._crc)])

    def _write(self, parts: list[bytes]) -> None:
        assert self._file is not None
        self._size += self._file.pwritev(parts, self._size)

    def finish(self) -> RunEntry | None:
        """End the file and make it durable; the caller syncs the directory for its name.

        Returns:
            Its description; None if it has no rows, in which case there is no file.

        Raises:
            StorageError: it could not be written or synced.
        """
        if self._file is None:
            return None
        self._write_end()
        self._file.fdatasync()
        self._file.close()
        _, _, kind, number, from_pos, to_pos = HEAD.unpack(self._head)
        return RunEntry(
            kind=kind,
            number=number,
            size=self._size,
            crc=self._crc,
            rows=self.rows,
            from_pos=from_pos,
            to_pos=to_pos,
        )

    def _write_end(self) -> None:
        self._write_block([BLOCK_HEAD.pack(0, 0)])

    def discard(self) -> None:
        """Try to remove the file; if that fails, no checkpoint ever names it."""
        if self._file is not None:
            with suppress(StorageError):
                self._file.close()
                self._fs.unlink(self.path)


class RunReader:
    """Reads one run file block by block, and checks all that it returns.

    Attributes:
        path: of the file.
        kind, version: what the head of the file says.
    """

    def __init__(self, fs: FileSystem, path: Path, entry: RunEntry | None = None) -> None:
        """Open the file.

        Args:
            fs: where it is.
            path: its path.
            entry: its description in the checkpoint; None: trust the head of the file.

        Raises:
            StorageError: it is missing, or cannot be read.
            CorruptionError: it is not the file that the entry describes.
        """
        self.path = path
        self._file = fs.open(path, writable=False)
        self._expected = entry
        self._size = self._file.size()
        self._read_head(entry)

    def _read_head(self, entry: RunEntry | None) -> None:
        head = self._file.pread(HEAD.size, 0)
        if entry is not None and self._size != entry.size:
            raise self._error(min(self._size, entry.size), f"{entry.size} bytes", self._size)
        if len(head) < HEAD.size:
            raise self._error(len(head), f"a head of {HEAD.size} bytes", "the end of the file")
        magic, version, *fields = HEAD.unpack(head)
        if magic != RUN_MAGIC:
            raise self._error(0, f"the magic of a run, {RUN_MAGIC:#x}", f"{magic:#x}")
        is_indexed = fields[0] == RUN_IDS and version == RUN_ID_VERSION
        if version != RUN_VERSION and not is_indexed:
            raise self._error(4, f"version {RUN_VERSION}", version)
        if entry is not None and fields != [
            entry.kind,
            entry.number,
            entry.from_pos,
            entry.to_pos,
        ]:
            raise self._error(6, f"the head of {entry}", fields)
        if fields[0] not in (RUN_TIMERS, RUN_IDS, RUN_DUE):
            raise self._error(6, "a known kind of run", fields[0])
        self.kind: int = fields[0]
        self.version: int = version
        self._crc = crc32c(head)
        self._at = HEAD.size
        self._check = RowCheck(self.kind)

    def _error(self, offset: int, expected: object, found: object) -> CorruptionError:
        return CorruptionError(self.path, offset, expected, found)

    def blocks(self) -> Iterator[bytes]:
        """Yield the rows block by block, each block checked; call it once.

        Raises:
            StorageError: it cannot be read.
            CorruptionError: the next block is damaged; all blocks yielded before are valid.
        """
        head = self._file.pread(BLOCK_HEAD.size, self._at)
        while True:
            if len(head) < BLOCK_HEAD.size:
                raise self._error(self._at + len(head), "the next block", "the end of the file")
            size, rows = BLOCK_HEAD.unpack(head)
            if size > RUN_BLOCK_SIZE_MAX:
                raise self._error(self._at, f"at most {RUN_BLOCK_SIZE_MAX} bytes of rows", size)
            start = self._at + BLOCK_HEAD.size
            # Read the head of the next block along with this one.
            data = self._file.pread(size + CRC.size + BLOCK_HEAD.size, start)
            if len(data) < size + CRC.size:
                raise self._error(start + len(data), "the rest of a block", "the end of the file")
            block = data[:size]
            self._crc = crc32c(block, crc32c(head, self._crc))
            (crc,) = CRC.unpack_from(data, size)
            if crc != self._crc:
                raise self._error(start + size, f"the CRC {self._crc:#010x}", f"{crc:#010x}")
            self._at = start + size + CRC.size
            if size == 0:
                self._check_end(rows)
                return
            self._check_rows(block, rows, start)
            yield block
            head = data[size + CRC.size :]

    def _check_rows(self, block: bytes, rows: int, start: int) -> None:
        """Check the order of rows: another program may have written a file with valid CRCs."""
        before = self._check.rows
        unsound = self._check.find_unsound(block)
        if unsound >= 0:
            raise self._error(start + unsound, "a valid row in order", "something else")
        if self._check.rows - before != rows:
            raise self._error(start, f"{rows} rows in this block", self._check.rows - before)

    def _check_end(self, rows: int) -> None:
        if rows != 0:
            raise self._error(self._at, "no rows at the end", rows)
        if self._at != self._size:
            raise self._error(self._at, "the end of the file", f"{self._size - self._at} bytes")
        if self._expected is None:
            return
        if self._crc != self._expected.crc:
            expected = f"the CRC {self._expected.crc:#010x} of this run"
            raise self._error(self._at - CRC.size, expected, f"{self._crc:#010x}")
        if self._check.rows != self._expected.rows:
            raise self._error(self._at, f"{self._expected.rows} rows", self._check.rows)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class TimerRow:
    """A pending timer of a run; `partition` is its index in the topic."""

    accept_pos: int
    index: int
    level: int
    due_ms: int
    level_offset: int
    topic_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class CompletedRow:
    """A timer that was delivered or cancelled; a row of the TimerLog has its due time."""

    accept_pos: int
    index: int
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class IdRow:
    """The timer of a user's id; the id is stored only as a hash of topic and id."""

    hash_high: int
    hash_low: int
    topic_id: int
    accept_pos: int
    due_ms: int
    completed_pos: int
    index: int
    partition: int
    state: int


def rows_of(kind: int, block: bytes) -> Iterator[TimerRow | CompletedRow | IdRow]:
    """Yield the rows of an intact block."""
    at = 0
    while at < len(block):
        if kind == RUN_IDS:
            yield IdRow(*ID_ROW.unpack_from(block, at))
            at += RUN_ID_SIZE
        elif block[at + RUN_TIMER_AT_KIND] == RUN_ROW_PENDING:
            pos, index, _, level, *rest, _ = TIMER_ROW.unpack_from(block, at)
            yield TimerRow(pos, index, level, *rest)
            at += RUN_TIMER_SIZE
        elif block[at + RUN_TIMER_AT_KIND] == RUN_ROW_COMPLETED:
            pos, index, _ = COMPLETED_ROW.unpack_from(block, at)
            yield CompletedRow(pos, index)
            at += RUN_COMPLETED_SIZE
        else:
            pos, index, _, due_ms = COMPLETED_DUE_ROW.unpack_from(block, at)
            yield CompletedRow(pos, index, due_ms)
            at += RUN_COMPLETED_DUE_SIZE
