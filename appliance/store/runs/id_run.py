"""Run files of users' ids, in which one id can be looked up.

    index/00000000000000000008

Rows are in the order of the hashes of ids, which are spread evenly. The directory has the first
word of the hash of the first row of each block, and before it is the filter of all ids. So a
look-up reads nothing if the filter knows no such id, and else one block. The first version of this
format has no directory: see `run_files`. Layer 2; any thread.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import RUN_ID_BLOCK_SIZE, RUN_ID_SIZE, RUN_ID_VERSION
from _core.timers.id_filter import IdFilter, find_rows
from appliance.store.runs.indexed_run import Directory, IndexedReader, IndexedWriter

KEY_SIZE: Final = 16
"""What a row begins with: two parts of a hash, and the topic."""

FILTER_UNIT: Final = 64
"""A filter has a multiple of this, bytes."""

DIRECTORY: Final = Directory(
    key=struct.Struct(">Q"),
    key_at=0,
    place=struct.Struct(">QqIII"),
    end=struct.Struct(">qIqqI"),  # ... where the filter begins, completed rows, CRC of the filter
    name="a run of ids",
)


class IdRunWriter(IndexedWriter):
    """Writes one file.

    Attributes:
        filter: of all ids written; the caller sets it before the first.
    """

    version = RUN_ID_VERSION
    directory = DIRECTORY
    filter: IdFilter

    def _begin(self) -> None:
        super()._begin()
        self._completed = 0

    def append(self, block: bytes, rows: int) -> None:
        """Write the next rows, as smaller blocks; see `RunWriter`."""
        self._completed += self.filter.add_rows(block)
        for at in range(0, len(block), RUN_ID_BLOCK_SIZE):
            part = block[at : at + RUN_ID_BLOCK_SIZE]
            super().append(part, len(part) // RUN_ID_SIZE)

    def _write_extra(self) -> tuple[int, ...]:
        begin, octets = self._size, self.filter.encode()
        self._write([octets])
        return begin, self._completed, crc32c(octets, crc32c(self._head))


class IdRunReader(IndexedReader):
    """Reads one file, and finds ids in it.

    Attributes:
        filter: says which ids it may have.
        completed: number of its rows whose timers are completed.
    """

    directory = DIRECTORY

    def _read_extra(self, at: int, extra: list[Any]) -> None:
        begin, self.completed, crc = extra
        self._filter_at = begin
        size = at - begin
        if size <= 0 or size % FILTER_UNIT:
            raise self._error(at, f"a filter of a multiple of {FILTER_UNIT} bytes", size)
        octets = self._file.pread(size, begin)
        if len(octets) != size:
            raise self._error(begin, f"{size} bytes of a filter", len(octets))
        found = crc32c(octets, self._head_crc)
        if found != crc:
            raise self._error(begin, f"the CRC {crc:#010x} of the filter", f"{found:#010x}")
        self.filter = IdFilter.decode(octets)

    def blocks(self) -> Iterator[bytes]:
        """Yield the rows block by block, each checked, as `RunReader`; the filter has them all."""
        for block in super().blocks():
            if not self.filter.has_all(block):
                raise self._error(self._filter_at, "a filter that has all ids", "others")
            yield block

    def find(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """Return the rows of those of some ids that it has, by their keys.

        Args:
            keys: what their rows begin with, KEY_SIZE bytes each, best in order.

        Raises:
            StorageError: it cannot be read.
            CorruptionError: a block is damaged.
        """
        wanted = self.filter.pick(keys)
        found, damaged = find_rows(self._packed, wanted, self._file.pread, self._head_crc)
        if damaged >= 0:
            self.read_block(self.place(damaged))  # says what is wrong
            raise self._error(self.place(damaged).offset, "the same as before", "another block")
        return found

    def __del__(self) -> None:
        """Close the file: look-ups on threads may have been the last to use it."""
        if hasattr(self, "_file"):
            self.close()
