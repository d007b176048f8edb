"""The TimerLog: run files of timers in the order of due times, in which a reader can seek.

    timerlog/00000000000000000009

    file := head block* place* end
    block := size, count of rows, rows, CRC

The rows are those of a run of timers, in the order of delivery. The directory after the blocks has
a place for each: the due time of its first row, where it is, and its CRC. So a start checks the
directory, which is small, and reads the blocks of the timers that are due next; each is checked
when it is read. A CRC covers the head of the file and the place of what it belongs to, so that a
block of another file or place is detected. docs/FORMAT.md describes the format. Layer 2; any
thread.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import RUN_BLOCK_SIZE_MAX, RUN_DUE
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

PLACE: Final = struct.Struct(">qqIII")
"""The stored form of a BlockPlace."""
END: Final = struct.Struct(">qI")
"""Where the places begin, and how many there are; their CRC follows."""
POSITION: Final = struct.Struct(">q")

_DUE_AT: Final = 16
"""Where a row of either kind has its due time."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a file: due time of its first row, offset, bytes of rows, rows, CRC."""

    due_ms: int
    offset: int
    size: int
    rows: int
    crc: int


class TimerLogWriter(RunWriter):
    """Writes one file of the TimerLog."""

    def _write_block(self, parts: list[bytes]) -> None:
        head, block = parts
        place = crc32c(POSITION.pack(self._size), crc32c(self._head))
        crc = crc32c(block, crc32c(head, place))
        size, rows = BLOCK_HEAD.unpack(head)
        (due_ms,) = POSITION.unpack_from(block, _DUE_AT)
        self._places.append(PLACE.pack(due_ms, self._size, size, rows, crc))
        self._write([*parts, CRC.pack(crc)])

    def _begin(self) -> None:
        self._places: list[bytes] = []

    def _write_end(self) -> None:
        end = END.pack(self._size, len(self._places))
        places = b"".join(self._places)
        self._crc = crc32c(end, crc32c(places, crc32c(self._head)))
        self._write([places, end, CRC.pack(self._crc)])


class TimerLogReader(RunReader):
    """Reads one file of the TimerLog, from any due time on, and checks all that it returns.

    Attributes:
        places: its blocks, in order.
    """

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
        self.places = self._read_places()

    def _read_places(self) -> list[BlockPlace]:
        tail_size = END.size + CRC.size
        tail_at = self._size - tail_size
        tail = self._file.pread(tail_size, max(tail_at, 0))
        if tail_at < HEAD.size or len(tail) < tail_size:
            raise self._error(self._size, "the end of a TimerLog file", f"{self._size} bytes")
        at, count = END.unpack_from(tail)
        if at < HEAD.size or at + count * PLACE.size != tail_at:
            raise self._error(tail_at, f"places that end at {tail_at}", f"{count} from {at} on")
        packed = self._file.pread(tail_at - at, at)
        if len(packed) != tail_at - at:
            raise self._error(at, f"{tail_at - at} bytes of places", len(packed))
        crc = crc32c(tail[: END.size], crc32c(packed, self._head_crc))
        (found,) = CRC.unpack_from(tail, END.size)
        if crc != found or (self._expected is not None and self._expected.crc != crc):
            raise self._error(tail_at + END.size, f"the CRC {crc:#010x}", f"{found:#010x}")
        places = [BlockPlace(*fields) for fields in PLACE.iter_unpack(packed)]
        if self._expected is not None and self._expected.rows != sum(each.rows for each in places):
            raise self._error(at, f"{self._expected.rows} rows", sum(each.rows for each in places))
        return places

    def blocks(self) -> Iterator[bytes]:
        """Yield the rows block by block, each block checked; see `RunReader`."""
        return self.blocks_from(0)

    def blocks_from(self, due_ms: int) -> Iterator[bytes]:
        """Yield the blocks that may have a row due from a time on, epoch ms, each one checked.

        Raises:
            StorageError: it cannot be read.
            CorruptionError: the next block is damaged; all blocks yielded before are valid.
        """
        first = max(bisect_left(self.places, due_ms, key=lambda place: place.due_ms) - 1, 0)
        self._check = RowCheck(RUN_DUE)
        for place in self.places[first:]:
            yield self._read_block(place)

    def _read_block(self, place: BlockPlace) -> bytes:
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
        block = data[BLOCK_HEAD.size : -CRC.size]
        self._check_rows(block, place.rows, place.offset + BLOCK_HEAD.size)
        return block
