"""A file of the simulated file system: what it holds, and what a crash would leave of it."""

import random
from dataclasses import dataclass
from typing import Final, Literal

from appliance.units import PAGE_SIZE_BYTES

SECTOR_SIZE_BYTES: Final = 512
"""What a disk writes whole or not at all."""

CrashMode = Literal["kept", "dropped", "torn"]
"""kept: the process was killed, the kernel was not. dropped: only what was synced is there.
torn: of what was not synced, each part may be there or not."""

Image = tuple[bytes, frozenset[int]]
"""Bytes of a file and the numbers of its pages that were ever written."""

EMPTY: Final[Image] = (b"", frozenset())


def pages(offset: int, size: int) -> range:
    """Return the numbers of the pages that a range touches."""
    if size == 0:
        return range(0)
    return range(offset // PAGE_SIZE_BYTES, (offset + size - 1) // PAGE_SIZE_BYTES + 1)


class Content:
    """An `Image` that changes, and whose maps see the changes."""

    __slots__ = ("_outgrown", "data", "written")

    def __init__(self, image: Image) -> None:
        self.data = bytearray(image[0])
        self.written = set(image[1])
        # A bytearray cannot change its size while it is mapped: older maps keep an older one, which
        # is written as well.
        self._outgrown: list[bytearray] = []

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        if end > len(self.data):
            self.resize(end)
        self.data[offset:end] = data
        self.written.update(pages(offset, len(data)))
        for old in self._outgrown:
            part = data[: max(len(old) - offset, 0)]
            old[offset : offset + len(part)] = part

    def resize(self, size: int) -> None:
        missing = size - len(self.data)
        try:
            if missing >= 0:
                self.data.extend(bytes(missing))
            else:
                del self.data[size:]
        except BufferError:
            self._outgrown.append(self.data)
            self.data = self.data[:size] + bytes(max(missing, 0))
        if missing < 0:
            self.written.intersection_update(pages(0, size))

    def image(self) -> Image:
        return bytes(self.data), frozenset(self.written)


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at an offset."""

    offset: int
    data: bytes

    def apply(self, content: Content) -> None:
        content.write(self.offset, self.data)

    def tear(self, content: Content, rng: random.Random, *, is_last: bool) -> None:
        """Write some of its sectors; the last write of a file may also stop after any byte."""
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
    """A truncate, or an allocate, which only grows."""

    size: int
    only_grows: bool

    def apply(self, content: Content) -> None:
        if not self.only_grows or self.size > len(content.data):
            content.resize(self.size)


Change = Write | Resize


class SimNode:
    """A file without its name."""

    __slots__ = ("_base", "_pending", "_synced", "_synced_bytes", "bad", "cold", "content", "lost")

    def __init__(self, base: Image = EMPTY) -> None:
        self.content = Content(base)
        self.cold: set[int] = set()
        """Pages that are not in memory."""
        self.bad: list[tuple[int, int]] = []
        """Ranges (offset, size) that the disk cannot read."""
        self.lost = False
        # Durable is `base` changed by `synced`, which costs less than to copy the content at every
        # sync; `pending` is what was done since.
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
        if self._synced_bytes > len(self.content.data) and not self.lost:
            self._base = self.content.image()
            self._synced.clear()
            self._synced_bytes = 0

    def lose_pending(self) -> None:
        """Fail a sync as Linux does: the pages count as clean, and no later sync writes them."""
        self._pending.clear()
        self.lost = True

    def drop_cache(self) -> None:
        """Make all pages cold that do not have to be written first."""
        if not self._pending:
            self.cold.update(pages(0, len(self.content.data)))

    def flip(self, offset: int, mask: int) -> None:
        """Change bits in memory and on the disk."""
        change = Write(offset, bytes([self.content.data[offset] ^ mask]))
        change.apply(self.content)
        self._synced.append(change)

    def crashed(self, mode: CrashMode, rng: random.Random) -> "SimNode":
        """Return the file as a restart finds it, all of it durable."""
        if mode == "kept":
            return SimNode(self.content.image())
        if not self._synced and (mode == "dropped" or not self._pending):
            return SimNode(self._base)
        content = Content(self._base)
        for change in self._synced:
            change.apply(content)
        if mode == "torn":
            self._apply_some_pending(content, rng)
        return SimNode(content.image())

    def _apply_some_pending(self, content: Content, rng: random.Random) -> None:
        for number, change in enumerate(self._pending, start=1):
            fate = rng.choice(("kept", "dropped", "torn"))
            if fate == "torn" and isinstance(change, Write):
                change.tear(content, rng, is_last=number == len(self._pending))
            elif fate != "dropped":
                change.apply(content)
