"""Runs of the key index: files of sorted rows, hash and position, for a range of the log.

    keyindex/00000000000000000000-00000000000134217728    the rows of the frames between the two

    file := head page, filter page*, row page*, topic page*

A run is written under another name, synced and renamed, so that a file with the name of a run is
complete. It is never changed. Each page has a CRC, which is checked when the page is read. The last
frame of the range is named in the head: a run of a log that has another frame there is not used.
docs/FORMAT.md describes the format. Layer 2; any thread.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from _core.bytes.crc32c import crc32c
from _core.tables.key_pages import (
    KEY_ROWS_PER_PAGE,
    PAGE_SIZE,
    PAGE_USED_MAX,
    FilterPages,
    RowMerge,
    filter_has,
    filter_lines,
    filter_place,
    find_row,
    open_page,
    positions_of,
    row_pages,
    seal,
)
from _core.tables.key_scan import KEY_ROW_SIZE
from appliance.errors import CorruptionError, StorageError
from appliance.store.keys.log_part import LogPart
from appliance.store.paths import parse_range_name, range_name
from appliance.system.files import File, FileSystem
from appliance.units import MIB

HEAD: Final = struct.Struct(">IHxxqqqqIIqIxxxxqq")
"""Magic, version, from, to, rows, filter lines, row pages, topics, position and CRC of the last
frame, lowest and highest store time."""

KEY_RUN_MAGIC: Final = 0x4C4D514B
KEY_RUN_VERSION: Final = 1

TEMPORARY_SUFFIX: Final = ".new"

PAGES_AT_ONCE: Final = 64

SYNC_BYTES: Final = 8 * MIB
"""Bytes between syncs: an fdatasync of hundreds of MB would delay that of the log."""

TOPICS_PER_PAGE: Final = PAGE_USED_MAX // 4

GUESSES_MAX: Final = 4
"""Pages tried where a uniform hash should be, before the search halves the rest."""

assert HEAD.size <= PAGE_USED_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What is known of a range of the log besides its rows.

    Attributes:
        from_pos, to_pos: the range; frames begin there.
        stored: lowest and highest store time in it, epoch ms; None if it has no frame.
        left_out: ids of topics that it has frames of, but no rows.
        last_pos, last_crc: position and field crc of its last frame.
    """

    from_pos: int
    to_pos: int
    stored: tuple[int, int] | None
    left_out: frozenset[int]
    last_pos: int
    last_crc: int

    def joined(self, other: "Covered") -> "Covered":
        """Return what is known of this range and the one that follows it."""
        assert self.to_pos == other.from_pos
        times = [*(self.stored or ()), *(other.stored or ())]
        return Covered(
            from_pos=self.from_pos,
            to_pos=other.to_pos,
            stored=(min(times), max(times)) if times else None,
            left_out=self.left_out | other.left_out,
            last_pos=max(self.last_pos, other.last_pos),
            last_crc=self.last_crc if other.last_pos < 0 else other.last_crc,
        )


def join(pieces: Sequence["MemoryPiece | KeyRun"]) -> Covered:
    """Return what is known of the ranges of adjacent pieces."""
    covered = pieces[0].covered
    for piece in pieces[1:]:
        covered = covered.joined(piece.covered)
    return covered


class MemoryPiece:
    """Rows that are in no file yet. Never changes."""

    def __init__(self, covered: Covered, rows: bytes) -> None:
        self.covered = covered
        self.from_pos, self.to_pos = covered.from_pos, covered.to_pos
        self.stored, self.left_out = covered.stored, covered.left_out
        self._rows = rows
        self.row_count = len(rows) // KEY_ROW_SIZE

    def positions(self, digest: int, start: int) -> Iterator[int]:
        """See `Piece`."""
        size = len(self._rows)
        yield from positions_of(self._rows, size, find_row(self._rows, size, digest, start), digest)

    def blocks(self) -> Iterator[bytes]:
        """Yield all rows, ascending."""
        yield self._rows


def merged(pieces: Sequence["MemoryPiece | KeyRun"]) -> MemoryPiece:
    """Join adjacent pieces in memory."""
    merge = RowMerge([piece.blocks() for piece in pieces])
    return MemoryPiece(join(pieces), merge.take(sum(piece.row_count for piece in pieces)))


def seed_of(cluster: UUID, salt: int, from_pos: int, to_pos: int) -> int:
    """Return what the CRCs of a run begin with."""
    return crc32c(cluster.bytes + struct.pack(">Iqq", salt, from_pos, to_pos))


def write_run(
    fs: FileSystem,
    directory: Path,
    pieces: Sequence["MemoryPiece | KeyRun"],
    *,
    cluster: UUID,
    salt: int,
    goes_on: Callable[[], bool] = lambda: True,
) -> Path | None:
    """Write adjacent pieces as one run, durably.

    Args:
        fs, directory: where to.
        pieces: what to write.
        cluster, salt: of the log.
        goes_on: called often; nothing is left if it returns False.

    Returns:
        The path of the run; None if it was given up.

    Raises:
        StorageError: it could not be written; nothing is left of it under its name.
        CorruptionError: a piece is damaged.
    """
    covered = join(pieces)
    path = directory / range_name(covered.from_pos, covered.to_pos)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    writer = _Writer(fs, temporary, seed_of(cluster, salt, covered.from_pos, covered.to_pos))
    try:
        is_written = writer.write(pieces, covered, goes_on)
    except (StorageError, CorruptionError):
        writer.discard()
        raise
    if not is_written:
        writer.discard()
        return None
    fs.rename(temporary, path)
    fs.sync_dir(directory)
    return path


class _Writer:
    """Writes the pages of one run."""

    def __init__(self, fs: FileSystem, path: Path, seed: int) -> None:
        self._fs = fs
        self._path = path
        self._seed = seed
        self._file: File | None = None
        self._unsynced = 0

    def write(
        self,
        pieces: Sequence["MemoryPiece | KeyRun"],
        covered: Covered,
        goes_on: Callable[[], bool],
    ) -> bool:
        """Write everything and sync it; return False if it was given up."""
        self._file = self._fs.open(self._path, create=True)
        self._file.truncate(0)
        row_count = sum(piece.row_count for piece in pieces)
        lines = filter_lines(row_count)
        pages = FilterPages(lines, self._seed)
        filter_at = 1
        row_at = first_row = 1 + _filter_page_count(lines)
        merge = RowMerge([piece.blocks() for piece in pieces])
        while rows := merge.take(KEY_ROWS_PER_PAGE * PAGES_AT_ONCE):
            filter_at = self._write_pages(filter_at, pages.add(rows))
            row_at = self._write_pages(row_at, row_pages(rows, row_at, self._seed))
            if not goes_on():
                return False
        filter_at = self._write_pages(filter_at, pages.finish())
        assert filter_at == first_row
        topics = sorted(covered.left_out)
        for at in range(0, len(topics), TOPICS_PER_PAGE):
            some = topics[at : at + TOPICS_PER_PAGE]
            content = struct.pack(f">{len(some)}i", *some)
            number = row_at + at // TOPICS_PER_PAGE
            self._write_pages(number, seal(number, content, self._seed))
        stored = covered.stored or (1, 0)
        head = HEAD.pack(
            KEY_RUN_MAGIC,
            KEY_RUN_VERSION,
            covered.from_pos,
            covered.to_pos,
            row_count,
            lines,
            row_at - first_row,
            len(topics),
            covered.last_pos,
            covered.last_crc,
            *stored,
        )
        self._write_pages(0, seal(0, head, self._seed))
        self._file.fdatasync()
        self._file.close()
        return True

    def _write_pages(self, number: int, pages: bytes) -> int:
        """Write pages from a number on; return the number after them."""
        assert self._file is not None
        if pages:
            self._file.pwritev([pages], number * PAGE_SIZE)
            self._unsynced += len(pages)
        if self._unsynced >= SYNC_BYTES:
            self._file.fdatasync()
            self._unsynced = 0
        return number + len(pages) // PAGE_SIZE

    def discard(self) -> None:
        """Try to remove the file; the next start does otherwise."""
        if self._file is not None:
            with suppress(StorageError):
                self._file.close()
                self._fs.unlink(self._path)


def _filter_page_count(lines: int) -> int:
    return filter_place((1 << 64) - 1, lines)[0] + 1


class KeyRun:
    """One run, open for reading. Never changes.

    Attributes:
        path: of the file.
        covered, from_pos, to_pos, stored, left_out: see `Covered`.
        row_count: rows.
    """

    def __init__(self, path: Path, file: File, seed: int) -> None:
        """Read the head; see `open_run`."""
        self.path = path
        self._file = file
        self._seed = seed
        content = self._page(0)
        magic, version, *fields = HEAD.unpack_from(content[0])
        if (magic, version) != (KEY_RUN_MAGIC, KEY_RUN_VERSION):
            raise CorruptionError(path, 0, f"version {KEY_RUN_VERSION} of a run", version)
        from_pos, to_pos, rows, lines, row_page_count, topic_count, *last = fields
        self.row_count: int = rows
        self._lines: int = lines
        self._row_page_count: int = row_page_count
        self._first_row = 1 + _filter_page_count(lines)
        topic_pages = -(-topic_count // TOPICS_PER_PAGE)
        size = (self._first_row + row_page_count + topic_pages) * PAGE_SIZE
        if file.size() != size:
            raise CorruptionError(path, file.size(), f"{size} bytes", f"{file.size()} bytes")
        last_pos, last_crc, low, high = last
        self.covered = Covered(
            from_pos=from_pos,
            to_pos=to_pos,
            stored=(low, high) if low <= high else None,
            left_out=frozenset(self._topics(topic_count, topic_pages)),
            last_pos=last_pos,
            last_crc=last_crc,
        )
        self.from_pos, self.to_pos = from_pos, to_pos
        self.stored, self.left_out = self.covered.stored, self.covered.left_out

    @classmethod
    def open(cls, fs: FileSystem, path: Path, *, cluster: UUID, salt: int) -> Self:
        """Open a run.

        Raises:
            CorruptionError: it is no run of this log, or damaged.
            StorageError: it cannot be read.
        """
        named = parse_range_name(path.name)
        if named is None:
            raise CorruptionError(path, 0, "the name of a run", path.name)
        file = fs.open(path, writable=False)
        try:
            run = cls(path, file, seed_of(cluster, salt, *named))
            if (run.from_pos, run.to_pos) != named:
                raise CorruptionError(path, 0, named, (run.from_pos, run.to_pos))
        except BaseException:
            file.close()
            raise
        return run

    def fits(self, part: LogPart) -> bool:
        """Return whether the log still has the last frame of the range, or freed it.

        Raises:
            StorageError: the log cannot be read.
        """
        if self.to_pos > part.end:
            return False
        last = self.covered.last_pos
        return last < part.start or part.crc_at(last) == self.covered.last_crc

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def positions(self, digest: int, start: int) -> Iterator[int]:
        """See `Piece`. Reads one page if the filter excludes the hash, else some more."""
        if self._row_page_count == 0:
            return
        page, at = filter_place(digest, self._lines)
        if not filter_has(self._page(1 + page)[0], at, digest):
            return
        number = self._find_page(digest, start)
        while number < self._row_page_count:
            rows, size = self._row_page(number)
            place = find_row(rows, size, digest, start)
            found = positions_of(rows, size, place, digest)
            yield from found
            if place + len(found) * KEY_ROW_SIZE < size:
                return
            number += 1

    def _find_page(self, digest: int, start: int) -> int:
        """Return the first page whose last row is not before (digest, start)."""
        low, high = 0, self._row_page_count
        guess = digest * high >> 64
        tries = 0
        while low < high:
            number = min(max(guess, low), high - 1) if tries < GUESSES_MAX else (low + high) // 2
            tries += 1
            rows, size = self._row_page(number)
            place = find_row(rows, size, digest, start)
            if 0 < place < size:
                return number
            first = int.from_bytes(rows[:8], "big")
            if place == size:
                low = number + 1
            else:
                high = number
            guess = number + ((digest - first) * self._row_page_count >> 64)
        return low

    def blocks(self) -> Iterator[bytes]:
        """Yield all rows, ascending.

        Raises:
            CorruptionError, StorageError: the next block cannot be used.
        """
        for number in range(self._row_page_count):
            rows, size = self._row_page(number)
            yield rows[:size]

    def _row_page(self, number: int) -> tuple[bytes, int]:
        page, size = self._page(self._first_row + number)
        if size == 0 or size % KEY_ROW_SIZE:
            raise CorruptionError(
                self.path, (self._first_row + number) * PAGE_SIZE, "whole rows", f"{size} bytes"
            )
        return page, size

    def _topics(self, count: int, page_count: int) -> Iterator[int]:
        for number in range(page_count):
            page, size = self._page(self._first_row + self._row_page_count + number)
            yield from struct.unpack_from(f">{size // 4}i", page)

    def _page(self, number: int) -> tuple[bytes, int]:
        """Return a page, and how many bytes of it are content."""
        page = self._file.pread(PAGE_SIZE, number * PAGE_SIZE)
        size = open_page(page, number, self._seed)
        if size < 0:
            raise CorruptionError(
                self.path, number * PAGE_SIZE, f"page {number} of this run", "something else"
            )
        return page, size
