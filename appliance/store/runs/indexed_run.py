"""Run files with a directory, in which a reader can seek.

    file := head block* extra place* end
    block := size, count of rows, rows, CRC

The directory after the blocks has a place for each: the key of its first row, where it is, and its
CRC. So a start checks the directory, which is small; a block is checked when it is read. A CRC
covers the head of the file and the place of what it belongs to, so that a block of another file or
place is detected. docs/FORMAT.md describes the format. Layer 2; any thread.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import RUN_BLOCK_SIZE_MAX
from _core.timers.run_merge import RowCheck
from appliance.store.runs.run_files import (
    BLOCK_HEAD,
    CRC,
    HEAD,
    RunEntry,
    RunReader,
    RunWriter,
)
from appliance.system.files import FileSystem

POSITION: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a file: key of its first row, offset, bytes of rows, rows, CRC."""

    key: int
    offset: int
    size: int
    rows: int
    crc: int


@dataclass(frozen=True, slots=True)
class Directory:
    """What a kind of file has in its directory.

    Attributes:
        key: the key of a row, at `key_at` in it.
        place: the stored form of a BlockPlace.
        end: where the places begin, how many there are, and what else this kind has.
        name: what a file is called in errors.
    """

    key: struct.Struct
    key_at: int
    place: struct.Struct
    end: struct.Struct
    name: str


class IndexedWriter(RunWriter):
    """Writes one file."""

    directory: ClassVar[Directory]

    def _begin(self) -> None:
        self._places: list[bytes] = []

    def _write_block(self, parts: list[bytes]) -> None:
        head, block = parts
        place = crc32c(POSITION.pack(self._size), crc32c(self._head))
        crc = crc32c(block, crc32c(head, place))
        size, rows = BLOCK_HEAD.unpack(head)
        directory = self.directory
        (key,) = directory.key.unpack_from(block, directory.key_at)
        self._places.append(directory.place.pack(key, self._size, size, rows, crc))
        self._write([*parts, CRC.pack(crc)])

    def _write_end(self) -> None:
        extra = self._write_extra()
        end = self.directory.end.pack(self._size, len(self._places), *extra)
        places = b"".join(self._places)
        self._crc = crc32c(end, crc32c(places, crc32c(self._head)))
        self._write([places, end, CRC.pack(self._crc)])

    def _write_extra(self) -> tuple[int, ...]:
        """Write what comes before the places, and return what the end says of it."""
        return ()


class IndexedReader(RunReader):
    """Reads one file, and checks all that it returns.

    Attributes:
        place_count: number of blocks.
        rows: number of rows.
    """

    directory: ClassVar[Directory]

    def __init__(self, fs: FileSystem, path: Path, entry: RunEntry | None = None) -> None:
        """Open the file and read its directory.

        Args:
            fs: where it is.
            path: its path.
            entry: its description in the checkpoint; None: trust the file.

        Raises:
            StorageError: it is missing, or cannot be read.
            CorruptionError: it is not the file that the entry describes, or its directory is
                damaged.
        """
        super().__init__(fs, path, entry)
        self._head_crc = self._crc
        try:
            self._read_directory()
        except Exception:
            self.close()
            raise

    def _read_directory(self) -> None:
        directory = self.directory
        tail_size = directory.end.size + CRC.size
        tail_at = self._size - tail_size
        tail = self._file.pread(tail_size, max(tail_at, 0))
        if tail_at < HEAD.size or len(tail) < tail_size:
            raise self._error(self._size, f"the end of {directory.name}", f"{self._size} bytes")
        at, count, *extra = directory.end.unpack_from(tail)
        if at < HEAD.size or at + count * directory.place.size != tail_at:
            raise self._error(tail_at, f"places that end at {tail_at}", f"{count} from {at} on")
        packed = self._file.pread(tail_at - at, at)
        if len(packed) != tail_at - at:
            raise self._error(at, f"{tail_at - at} bytes of places", len(packed))
        crc = crc32c(tail[: directory.end.size], crc32c(packed, self._head_crc))
        (found,) = CRC.unpack_from(tail, directory.end.size)
        if crc != found or (self._expected is not None and self._expected.crc != crc):
            raise self._error(
                tail_at + directory.end.size, f"the CRC {crc:#010x}", f"{found:#010x}"
            )
        self._packed = packed
        self.place_count = count
        self.rows = sum(fields[3] for fields in directory.place.iter_unpack(packed))
        if self._expected is not None and self._expected.rows != self.rows:
            raise self._error(at, f"{self._expected.rows} rows", self.rows)
        self._read_extra(at, extra)

    def _read_extra(self, at: int, extra: list[Any]) -> None:
        """Read what ends at an offset, where the places begin, and of which the end says more."""

    def place(self, number: int) -> BlockPlace:
        """Return the place of a block by its number, from 0 on."""
        place = self.directory.place
        return BlockPlace(*place.unpack_from(self._packed, number * place.size))

    def key(self, number: int) -> int:
        """Return the key of the first row of a block."""
        key: int = self.directory.place.unpack_from(
            self._packed, number * self.directory.place.size
        )[0]
        return key

    def blocks(self) -> Iterator[bytes]:
        """Yield the rows block by block, each block checked; see `RunReader`."""
        return self._blocks_of(0)

    def _blocks_of(self, first: int) -> Iterator[bytes]:
        self._check = RowCheck(self.kind)
        for number in range(first, self.place_count):
            place = self.place(number)
            block = self.read_block(place)
            self._check_rows(block, place.rows, place.offset + BLOCK_HEAD.size)
            yield block

    def read_block(self, place: BlockPlace) -> bytes:
        """Return the rows of a block; its CRC is right, their order is not checked.

        Raises:
            StorageError: it cannot be read.
            CorruptionError: it is damaged.
        """
        if place.size > RUN_BLOCK_SIZE_MAX:
            raise self._error(place.offset, f"at most {RUN_BLOCK_SIZE_MAX} bytes", place.size)
        size = BLOCK_HEAD.size + place.size + CRC.size
        data = self._file.pread(size, place.offset)
        if len(data) < size:
            raise self._error(place.offset + len(data), "the rest of a block", "the end")
        seed = crc32c(POSITION.pack(place.offset), self._head_crc)
        crc = crc32c(memoryview(data)[: -CRC.size], seed)
        (stored,) = CRC.unpack_from(data, size - CRC.size)
        if (place.size, place.rows) != BLOCK_HEAD.unpack_from(data):
            expected = f"{place.size} bytes of {place.rows} rows"
            raise self._error(place.offset, expected, BLOCK_HEAD.unpack_from(data))
        if crc != place.crc or stored != crc:
            raise self._error(place.offset, f"the CRC {place.crc:#010x}", f"{crc:#010x}")
        return data[BLOCK_HEAD.size : -CRC.size]
