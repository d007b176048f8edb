"""A file of the simulated file system: its content, and what a crash would leave of it."""

import random
import weakref
from dataclasses import dataclass
from typing import Final, Literal

from appliance.units import PAGE_SIZE_BYTES

SECTOR_SIZE_BYTES: Final = 512
"""What a disk writes atomically, bytes."""

CrashMode = Literal["killed", "kept", "dropped", "torn", "pages", "last", "names"]
"""killed: the process was killed; what was not synced can still be lost. kept: the same, and then
the kernel synced everything. The others are power cuts. dropped: only what was synced is left.
torn: of what was not synced, each write or sector and each name is left or lost. pages: each page
is as last synced or as it is now. last: all is left except a part of the last write of each file.
names: all bytes are left or none, and some names are lost."""

Image = tuple[bytes, frozenset[int]]
"""Bytes of a file and the numbers of the pages ever written. Immutable, so that many disks share
it, and Python hashes its bytes once."""

EMPTY: Final[Image] = (b"", frozenset())


def pages(offset: int, size: int) -> range:
    """Return the numbers of the pages that a range touches."""
    if size == 0:
        return range(0)
    return range(offset // PAGE_SIZE_BYTES, (offset + size - 1) // PAGE_SIZE_BYTES + 1)


class Content:
    """A mutable `Image`, copied on its first change."""

    __slots__ = ("_bytes", "_image", "written")

    def __init__(self, image: Image) -> None:
        self._image: Image | None = image
        self._bytes: bytearray | None = None
        self.written = set(image[1])

    @property
    def data(self) -> bytes | bytearray:
        """The current bytes; do not change them."""
        if self._bytes is not None:
            return self._bytes
        assert self._image is not None
        return self._image[0]

    def _copy(self) -> bytearray:
        if self._bytes is None:
            self._bytes = bytearray(self.data)
        return self._bytes

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        if end > len(self.data):
            self.resize(end)
        self._copy()[offset:end] = data
        self._image = None
        self.written.update(pages(offset, len(data)))

    def resize(self, size: int) -> None:
        missing = size - len(self.data)
        own = self._copy()
        self._image = None
        if missing >= 0:
            own.extend(bytes(missing))
        else:
            del own[size:]
        if missing < 0:
            self.written.intersection_update(pages(0, size))

    def image(self) -> Image:
        if self._image is None:
            self._image = bytes(self.data), frozenset(self.written)
        return self._image


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at an offset."""

    offset: int
    data: bytes

    def apply(self, content: Content) -> None:
        content.write(self.offset, self.data)

    def tear(self, content: Content, rng: random.Random, *, is_last: bool) -> None:
        """Apply some of its sectors; the last write of a file may also stop after any byte."""
        if is_last and rng.random() < 0.5:
            content.write(self.offset, self.data[: rng.randrange(len(self.data) + 1)])
            return
        start = 0
        while start < len(self.data):
            offset = self.offset + start
            end = start + SECTOR_SIZE_BYTES - offset % SECTOR_SIZE_BYTES
            if rng.random() < 0.5:
                content.write(offset, self.data[start:end])
            start = end


@dataclass(frozen=True, slots=True)
class Resize:
    """A truncate, or an allocate, which never shrinks."""

    size: int
    only_grows: bool

    def apply(self, content: Content) -> None:
        if not self.only_grows or self.size > len(content.data):
            content.resize(self.size)


Change = Write | Resize


class LockedBytes(bytearray):
    """A copy of bytes whose pages stay in memory as long as it lives."""

    owner: object = None


class SimNode:
    """A file without its name."""

    __slots__ = (
        *("_base", "_pending", "_synced", "_synced_bytes"),
        *("bad", "cold", "content", "link_count", "locked", "lost", "rotten"),
    )

    def __init__(self, base: Image = EMPTY) -> None:
        self.content = Content(base)
        self.link_count = 1
        self.cold: set[int] = set()
        """Pages that are not in memory."""
        self.bad: list[tuple[int, int]] = []
        """Unreadable ranges (offset, size); see `set_bad`."""
        self.locked: list[tuple[weakref.ref[LockedBytes], range]] = []
        """Locked bytes, and their pages."""
        self.lost = False
        self.rotten: dict[int, int] = {}
        """Bits by which bytes of cached pages differ from the disk, by offset."""
        # The durable content is `base` with `synced` applied, computed on demand; `pending` holds
        # the changes since.
        self._base = base
        self._synced: list[Change] = []
        self._synced_bytes = 0
        self._pending: list[Change] = []

    def do(self, change: Change) -> None:
        change.apply(self.content)
        self._pending.append(change)

    def sync(self) -> None:
        self._synced += self._pending
        for change in self._pending:
            if isinstance(change, Write):
                self._synced_bytes += len(change.data)
        self._pending.clear()
        if self._synced_bytes > len(self.content.data):
            self._durable()

    def lose_pending(self) -> None:
        """Fail a sync as Linux does: the pages count as clean, and no later sync writes them."""
        self._pending.clear()
        self.lost = True

    def drop_cache(self, offset: int = 0, length: int = 1 << 62) -> None:
        """Make all clean pages of a range cold.

        What a failed sync marked clean is lost then: the disk never had it.
        """
        dirty: set[int] = set()
        for change in self._pending:
            if isinstance(change, Write):
                dirty.update(pages(change.offset, len(change.data)))
        size = len(self.content.data)
        clean = set(pages(offset, max(min(length, size - offset), 0))) - dirty
        self.locked = [(data, numbers) for data, numbers in self.locked if data() is not None]
        clean.difference_update(*(numbers for _, numbers in self.locked))
        self.cold.update(clean)
        for place in [each for each in self.rotten if each // PAGE_SIZE_BYTES in clean]:
            self.content.write(place, bytes([self.content.data[place] ^ self.rotten.pop(place)]))
        if self.lost:
            durable = self._durable()[0].ljust(size, b"\0")
            for page in sorted(clean):
                start = page * PAGE_SIZE_BYTES
                self.content.write(start, durable[start : min(start + PAGE_SIZE_BYTES, size)])

    def set_bad(self, bad: list[tuple[int, int]]) -> None:
        """Make exactly these ranges unreadable."""
        self.bad = bad[:]

    def bad_pages(self) -> set[int]:
        """Pages with an unreadable byte."""
        return {page for bad in self.bad for page in pages(*bad)}

    def is_bad(self, offset: int, size: int) -> bool:
        """Whether a byte of a range cannot be read."""
        return any(offset < start + length and start < offset + size for start, length in self.bad)

    def lock(self, offset: int, size: int, owner: object = None) -> memoryview:
        """A view of a range; its pages stay in memory, and `owner` lives, while the result does."""
        data = LockedBytes(self.content.data[offset : offset + size])
        data.owner = owner
        self.locked.append((weakref.ref(data), pages(offset, size)))
        return memoryview(data).toreadonly()

    def rot(self, offset: int, mask: int) -> None:
        """Change bits in memory alone, until the page is dropped; do not crash afterwards."""
        self.rotten[offset] = mask
        self.content.write(offset, bytes([self.content.data[offset] ^ mask]))

    def flip(self, offset: int, mask: int) -> None:
        """Change bits in memory and on the disk."""
        change = Write(offset, bytes([self.content.data[offset] ^ mask]))
        change.apply(self.content)
        self._synced.append(change)

    def digest(self) -> int:
        """A number that is equal, within one process, for files with equal content."""
        if self._pending or self.lost:
            return hash((self.content.image(), self._durable()))
        return hash(self.content.image())

    def _left_by_process(self) -> "SimNode":
        node = SimNode(self.content.image())
        node.lost = self.lost
        node._base = self._durable()
        node._pending = self._pending[:]
        return node

    def crashed(self, mode: CrashMode, rng: random.Random) -> "SimNode":
        """Return the file as a restart finds it; durable unless the mode is "killed"."""
        node = self._crashed(mode, rng)
        node.set_bad(self.bad)
        return node

    def _crashed(self, mode: CrashMode, rng: random.Random) -> "SimNode":
        if mode == "killed":
            return self._left_by_process()
        if mode == "kept" or (not self._pending and not self.lost):
            return SimNode(self.content.image())
        durable = self._durable()
        if mode == "dropped" or (mode == "names" and rng.random() < 0.5):
            return SimNode(durable)
        content = Content(durable)
        if mode == "torn":
            self._apply_some_pending(content, rng)
        elif mode == "pages":
            self._apply_some_pages(content, rng)
        else:
            self._apply_pending(content, rng, is_torn=mode == "last")
        return SimNode(content.image())

    def _durable(self) -> Image:
        if self._synced:
            content = self.content
            if self._pending or self.lost:
                content = Content(self._base)
                for change in self._synced:
                    change.apply(content)
            self._base = content.image()
            self._synced.clear()
            self._synced_bytes = 0
        return self._base

    def _apply_some_pending(self, content: Content, rng: random.Random) -> None:
        for number, change in enumerate(self._pending, start=1):
            fate = rng.choice(("kept", "dropped", "torn"))
            if fate == "torn" and isinstance(change, Write):
                change.tear(content, rng, is_last=number == len(self._pending))
            elif fate != "dropped":
                change.apply(content)

    def _apply_some_pages(self, content: Content, rng: random.Random) -> None:
        """Write back as the kernel does: the size, and whole pages as of now, in any order."""
        touched: set[int] = set()
        for change in self._pending:
            if isinstance(change, Write):
                touched.update(pages(change.offset, len(change.data)))
        if rng.random() < 0.5:
            content.resize(len(self.content.data))
        share = rng.choice((0.1, 0.5, 0.9))
        for page in sorted(touched):
            start = page * PAGE_SIZE_BYTES
            if rng.random() < share:
                content.write(start, bytes(self.content.data[start : start + PAGE_SIZE_BYTES]))

    def _apply_pending(self, content: Content, rng: random.Random, *, is_torn: bool) -> None:
        *others, last = self._pending or [Resize(len(content.data), only_grows=False)]
        for change in others:
            change.apply(content)
        if is_torn and isinstance(last, Write):
            last.tear(content, rng, is_last=True)
        else:
            last.apply(content)
