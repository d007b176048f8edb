"""A disk with sectors that cannot be read: a real file system, whose reads there end in EIO.

A loop device returns an error for reads after the end of its image. So blocks of a file are moved
to the end of an ext4 without a journal, whose last blocks no other file gets; then the image is
truncated before them while it is mounted. The rest of the disk stays intact.

    disk = BadDisk(tmp_path, data_dir / "commitlog")      # mounted there and nowhere else
    ... a broker writes, and stops ...
    disk.move_to_edge(segment, 20 * MIB)                  # no file may be open meanwhile
    disk.spoil()                                          # also while files are open
    disk.heal()                                           # readable again, with the same bytes

Reading such a block through a mapping raises SIGBUS. Needs root, but no device mapper.
"""

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.units import MIB
from tests.support.disks.loop_disk import BLOCK_SIZE, DiskRefusedError, Tmpfs, run_command, unmount

EDGE_BLOCKS: Final = 64
"""The last blocks of the disk. They are on the list of bad blocks, so no file gets them."""

FEATURES: Final = "^has_journal,^resize_inode,^metadata_csum,^64bit"
"""Without metadata checksums a block can be moved by editing the image."""

INODE_PLACE: Final = re.compile(r"located at block (\d+), offset (0x[0-9a-f]+)")

EXTENT_MAGIC: Final = 0xF30A
EXTENTS_IN_INODE: Final = 4
EXTENTS_IN_LEAF: Final = (BLOCK_SIZE - 12) // 12
UNWRITTEN: Final = 1 << 15
"""Added to an extent's length if it was allocated and never written."""

_HEADER: Final = struct.Struct("<HHHHI")
_EXTENT: Final = struct.Struct("<IHHI")
_INDEX: Final = struct.Struct("<IIHH")
_AT_EXTENTS: Final = 40
"""Where in an inode its extent tree begins."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Blocks of a file that are contiguous on the disk."""

    block: int
    count: int
    place: int
    is_written: bool

    def part(self, begin: int, end: int) -> "Extent":
        """The part of it that holds the blocks [begin, end) of the file."""
        begin, end = max(begin, self.block), min(end, self.block + self.count)
        return Extent(begin, end - begin, self.place + begin - self.block, self.is_written)

    def packed(self) -> bytes:
        count = self.count + (0 if self.is_written else UNWRITTEN)
        return _EXTENT.pack(self.block, count, self.place >> 32, self.place & 0xFFFFFFFF)


class BadDisk:
    """An ext4 file system of which chosen blocks can be made unreadable, and readable again.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, root: Path, path: Path, *, size_bytes: int = 128 * MIB) -> None:
        """Make and mount it.

        Args:
            root: an existing directory for the image.
            path: where it is mounted; made if it is missing.
            size_bytes: of the disk.

        Raises:
            DiskRefusedError: mounting is not permitted here.
        """
        self.path = path
        self._size_bytes = size_bytes
        self._edge = self._blocks = size_bytes // BLOCK_SIZE
        self._spare = self._blocks - EDGE_BLOCKS
        self._kept = b""
        self._is_mounted = False
        path.mkdir(parents=True, exist_ok=True)
        self._backing = Tmpfs(root / "backing", size_bytes + 16 * MIB)
        self._image = self._backing.path / "image"
        try:
            with self._image.open("wb") as image:
                image.truncate(size_bytes)
            bad = self._backing.path / "edge"
            first = self._blocks - EDGE_BLOCKS
            bad.write_text("".join(f"{block}\n" for block in range(first, self._blocks)))
            options = ("-O", FEATURES, "-N", "128", "-b", str(BLOCK_SIZE), "-l", str(bad))
            run_command("mkfs.ext4", "-q", "-F", "-m", "0", *options, str(self._image))
            self._mount()
            (path / "lost+found").rmdir()
        except DiskRefusedError:
            self.close()
            raise

    def _mount(self) -> None:
        # The loop device goes with the mount.
        run_command("mount", "-o", "loop", str(self._image), str(self.path))
        self._is_mounted = True

    def _unmount(self) -> None:
        if self._is_mounted:
            unmount(self.path)
            self._is_mounted = False

    def move_to_edge(self, path: Path, offset: int, size: int = 1) -> None:
        """Move the blocks of a file that hold a range to the edge, for `spoil`.

        Args:
            path: of the file; no file of this disk is open.
            offset, size: of the range, which was written.
        """
        name = path.relative_to(self.path)
        begin, end = offset // BLOCK_SIZE, (offset + size - 1) // BLOCK_SIZE + 1
        self._unmount()
        self._edge -= end - begin
        assert self._edge > self._spare, "the edge has no room for more"
        with self._image.open("r+b", buffering=0) as image:
            at = self._inode_at(str(name))
            extents = _read_extents(image.fileno(), at)
            (whole,) = [
                each
                for each in extents
                if each.block <= begin and end <= each.block + each.count and each.is_written
            ]
            moved = Extent(begin, end - begin, self._edge, is_written=True)
            index = extents.index(whole)
            parts = [whole.part(0, begin), moved, whole.part(end, 1 << 32)]
            extents[index : index + 1] = [part for part in parts if part.count > 0]
            if _write_extents(image.fileno(), at, extents, self._spare):
                self._spare += 1
            old = whole.part(begin, end)
            data = os.pread(image.fileno(), old.count * BLOCK_SIZE, old.place * BLOCK_SIZE)
            os.pwrite(image.fileno(), data, moved.place * BLOCK_SIZE)
            self._kept = data + self._kept
        self._mount()

    def _inode_at(self, name: str) -> int:
        """Return where in the image the inode of a file is."""
        output = run_command("debugfs", "-R", f"imap {name}", str(self._image))
        found = INODE_PLACE.search(output)
        assert found, output
        return int(found[1]) * BLOCK_SIZE + int(found[2], 16)

    def spoil(self) -> None:
        """Make the blocks at the edge unreadable."""
        self._forget_pages()
        os.truncate(self._image, self._edge * BLOCK_SIZE)

    def heal(self) -> None:
        """Make the blocks at the edge readable again, as they were when moved there."""
        os.truncate(self._image, self._size_bytes)
        with self._image.open("r+b", buffering=0) as image:
            os.pwrite(image.fileno(), self._kept, self._edge * BLOCK_SIZE)
        self._forget_pages()

    def _forget_pages(self) -> None:
        """Drop the page cache of the disk, so that the next read goes to it."""
        for path in self.path.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)

    def close(self) -> None:
        """Unmount it and delete its content."""
        self._unmount()
        self._backing.close()


def _read_extents(image: int, at: int) -> list[Extent]:
    """Read the extents of the inode at a place in the image."""
    _, leaf = _root(image, at)
    start = leaf * BLOCK_SIZE if leaf else at + _AT_EXTENTS
    magic, count, _, depth, _ = _HEADER.unpack(os.pread(image, _HEADER.size, start))
    assert (magic, depth) == (EXTENT_MAGIC, 0)
    extents = []
    for index in range(count):
        place = start + _HEADER.size + index * _EXTENT.size
        block, length, high, low = _EXTENT.unpack(os.pread(image, _EXTENT.size, place))
        is_written = length <= UNWRITTEN
        length -= 0 if is_written else UNWRITTEN
        extents.append(Extent(block, length, high << 32 | low, is_written))
    return extents


def _root(image: int, at: int) -> tuple[int, int]:
    """Depth of an inode's extent tree, and its leaf block; 0 if the extents are in the inode."""
    root = os.pread(image, _HEADER.size + _INDEX.size, at + _AT_EXTENTS)
    magic, count, _, depth, _ = _HEADER.unpack_from(root)
    assert magic == EXTENT_MAGIC
    assert depth == 0 or (depth, count) == (1, 1), "the file is in too many pieces"
    return depth, _INDEX.unpack_from(root, _HEADER.size)[1] if depth else 0


def _write_extents(image: int, at: int, extents: list[Extent], spare: int) -> bool:
    """Write the extents of an inode; return whether `spare` is its leaf now."""
    depth, leaf = _root(image, at)
    packed = b"".join(extent.packed() for extent in extents)
    if depth == 0 and len(extents) <= EXTENTS_IN_INODE:
        header = _HEADER.pack(EXTENT_MAGIC, len(extents), EXTENTS_IN_INODE, 0, 0)
        os.pwrite(image, header + packed, at + _AT_EXTENTS)
        return False
    assert len(extents) <= EXTENTS_IN_LEAF
    header = _HEADER.pack(EXTENT_MAGIC, len(extents), EXTENTS_IN_LEAF, 0, 0)
    os.pwrite(image, (header + packed).ljust(BLOCK_SIZE, b"\0"), (leaf or spare) * BLOCK_SIZE)
    if leaf:
        return False
    root = _HEADER.pack(EXTENT_MAGIC, 1, EXTENTS_IN_INODE, 1, 0) + _INDEX.pack(0, spare, 0, 0)
    os.pwrite(image, root, at + _AT_EXTENTS)
    return True
