"""A file system in memory that counts calls, fails and crashes as a test requests.

It guarantees the durability that `appliance.system.files` requires and no more: what is not synced
may be lost in any combination, as on a disk that reorders writes.
`tests/unit/system/test_fs_contract.py` runs the same tests on it and on the real file system.

    disk = SimFileSystem()
    disk.fail_at(7, SimCrash())          # neither its seventh call nor a later one happens
    ... run until SimCrash ...
    found = disk.crashed("torn", rng)    # what a restart may find

Calls are counted, from 1, where they reach the disk: open, pwritev (once for 1,024 buffers),
fdatasync, ftruncate, posix_fallocate, mkdir, rename, link, unlink, rmdir, fsync (of a directory),
flock.
Reads are not counted: a crash before a read equals one before the next write.
"""

import errno
import os
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn, Self

from appliance.errors import StorageError
from appliance.system.files import IOV_COUNT_MAX, LOCK_NAME, Buffer, File, Lock
from appliance.units import PAGE_SIZE_BYTES
from tests.support.simulator.sim_file import CrashMode, Resize, SimNode, Write, pages
from tests.support.simulator.sim_tree import (
    Copies,
    Entry,
    Link,
    SimDir,
    count_links,
    durable_copy,
    set_entry,
)

__all__ = ["CrashMode", "Fault", "SimCrash", "SimFile", "SimFileSystem"]

TRACE_LENGTH_MAX: Final = 1_000
DISK_SIZE_BYTES: Final = 1 << 40


class SimCrash(BaseException):
    """The machine stops here; no `except Exception` catches it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The arguments of `SimFileSystem.fail_at`."""

    call_number: int
    error: BaseException
    is_sticky: bool
    is_short_write: bool


class SimFile:
    """A `File` in memory."""

    def __init__(self, disk: "SimFileSystem", path: Path, node: SimNode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._is_writable = writable
        self._is_open = True

    @property
    def path(self) -> Path:
        return self._path

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._check("pwritev", writes=True)
        start = offset
        for first in range(0, len(buffers), IOV_COUNT_MAX):
            data = b"".join(buffers[first : first + IOV_COUNT_MAX])
            if data:
                self._write(data, offset)
                offset += len(data)
        return offset - start

    def _write(self, data: bytes, offset: int) -> None:
        fault = self._disk.record_call("pwritev", self._path, f"{len(data)} bytes at {offset}")
        if fault is not None:
            data = data[: len(data) // 2]
        self._disk.take_space("pwritev", self._path, max(offset + len(data) - self.size(), 0))
        self._node.do(Write(offset, data))
        self._node.cold.difference_update(pages(offset, len(data)))
        if fault is not None:
            self._disk.fail(fault, "pwritev", self._path)

    def pread(self, size: int, offset: int) -> bytes:
        self._check("pread")
        self._disk.reads += 1
        if self._node.is_bad(offset, size):
            _refuse(self._path, "pread", errno.EIO)
        self._node.cold.difference_update(pages(offset, size))
        return bytes(self._node.content.data[offset : offset + size])

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        self._check("preadv")
        self._disk.reads += 1
        size = min(len(buffer), max(self.size() - offset, 0))
        bad = next((page for page in pages(offset, size) if page in self._node.bad_pages()), None)
        if bad is not None:
            size = max(bad * PAGE_SIZE_BYTES - offset, 0)
            if size == 0:
                _refuse(self._path, "preadv", errno.EIO)
        self._node.cold.difference_update(pages(offset, size))
        buffer[:size] = self._node.content.data[offset : offset + size]
        return size

    def pread_hot_into(self, buffer: memoryview, offset: int) -> int:
        self._check("preadv")
        size = min(len(buffer), max(self.size() - offset, 0))
        away = self._node.cold | self._node.bad_pages()
        cold = next((page for page in pages(offset, size) if page in away), None)
        if cold is not None:
            size = max(cold * PAGE_SIZE_BYTES - offset, 0)
        buffer[:size] = self._node.content.data[offset : offset + size]
        return size

    def fdatasync(self) -> None:
        self._check("fdatasync")
        try:
            self._disk.record_call("fdatasync", self._path)
        except Exception:
            self._node.lose_pending()
            raise
        if not self._disk.lies("fdatasync", self._path):
            self._node.sync()

    def truncate(self, size: int) -> None:
        self._check("ftruncate", writes=True)
        self._disk.record_call("ftruncate", self._path, f"to {size}")
        self._disk.take_space("ftruncate", self._path, min(size - self.size(), 0))
        self._node.do(Resize(size, only_grows=False))

    def allocate(self, size: int) -> None:
        self._check("posix_fallocate", writes=True)
        self._disk.record_call("posix_fallocate", self._path, f"to {size}")
        self._disk.take_space("posix_fallocate", self._path, max(size - self.size(), 0))
        self._node.do(Resize(size, only_grows=True))

    def size(self) -> int:
        self._check("fstat")
        return len(self._node.content.data)

    def link_count(self) -> int:
        self._check("fstat")
        return self._node.link_count

    def lock_hot(self, offset: int, size: int) -> memoryview | Literal[False] | None:
        self._check("mmap")
        assert size > 0
        assert offset + size <= self.size()
        if (self._node.cold | self._node.bad_pages()).intersection(pages(offset, size)):
            return None
        if not self._disk.may_lock:
            return False
        return self._node.lock(offset, size, self)

    def drop_cache(self, offset: int = 0, size: int = 0) -> None:
        self._check("posix_fadvise")
        self._node.drop_cache(offset, size or len(self._node.content.data))

    def will_need(self, offset: int, size: int) -> None:
        self._check("posix_fadvise")
        self._node.cold.difference_update(pages(offset, size))

    def next_data(self, offset: int) -> int | None:
        self._check("lseek")
        size = len(self._node.content.data)
        for page in pages(offset, max(size - offset, 0)):
            if page in self._node.content.written:
                return max(offset, page * PAGE_SIZE_BYTES)
        return None

    def close(self) -> None:
        self._is_open = False

    def _check(self, operation: str, *, writes: bool = False) -> None:
        if not self._is_open or (writes and not self._is_writable):
            _refuse(self._path, operation, errno.EBADF)


class SimFileSystem:
    """A `FileSystem` in memory. Belongs to one thread; a fault hits the call of any."""

    def __init__(self) -> None:
        self.calls = 0
        """How many calls reached the disk so far."""
        self.free = DISK_SIZE_BYTES
        """Free space, bytes."""
        self.size_bytes = DISK_SIZE_BYTES
        """The total that `space` and `usage` report; nothing else depends on it."""
        self.reads = 0
        """Number of reads that may wait for the disk."""
        self.may_lock = True
        """False: RLIMIT_MEMLOCK is used up. What is locked is a copy here."""
        self.is_dead = False
        """A SimCrash was raised: from then on every call raises it."""
        self._trace: deque[tuple[int, str, Path, str]] = deque(maxlen=TRACE_LENGTH_MAX)
        self._faults: list[Fault] = []
        self._root = SimDir()
        self._pending: list[Link] = []

    # What the broker calls.

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        parent, name = self._parent(path, "open")
        entry = parent.entries.get(name)
        self.record_call("open", path, "new" if entry is None and create else "")
        if isinstance(entry, SimDir):
            _refuse(path, "open", errno.EISDIR)
        if entry is None:
            if not create:
                _refuse(path, "open", errno.ENOENT)
            entry = SimNode()
            self._link((parent, name, entry))
        return SimFile(self, path, entry, writable=writable)

    def make_dirs(self, path: Path, *, is_synced: bool = True) -> None:
        directory = self._root
        names = _names(path)
        for depth, name in enumerate(names, start=1):
            parent = directory
            entry = parent.entries.get(name)
            if isinstance(entry, SimNode):
                _refuse(path, "mkdir", errno.ENOTDIR)
            if entry is None:
                done = Path(path.anchor).joinpath(*names[:depth])
                self.record_call("mkdir", done)
                entry = SimDir()
                self._link((parent, name, entry))
                if is_synced:
                    self.sync_dir(done.parent)
            directory = entry

    def list_dir(self, path: Path) -> list[str]:
        return sorted(self._dir(path, "listdir").entries)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def resolve(self, path: Path) -> Path:
        return Path(os.path.normpath(path))

    def rename(self, old: Path, new: Path) -> None:
        old_parent, old_name = self._parent(old, "rename")
        new_parent, new_name = self._parent(new, "rename")
        self.record_call("rename", old, f"to {new}")
        entry = old_parent.entries.get(old_name)
        if entry is None:
            _refuse(old, "rename", errno.ENOENT)
        replaced = new_parent.entries.get(new_name)
        if replaced is not entry:
            if isinstance(replaced, SimDir):
                _refuse(old, "rename", errno.ENOTEMPTY if replaced.entries else errno.EISDIR)
            self._give_space(replaced)
            self._link((new_parent, new_name, entry), (old_parent, old_name, None))

    def link(self, old: Path, new: Path) -> None:
        entry = self._find(old)
        parent, name = self._parent(new, "link")
        self.record_call("link", new, f"of {old}")
        if not isinstance(entry, SimNode):
            _refuse(new, "link", errno.ENOENT if entry is None else errno.EPERM)
        if name in parent.entries:
            _refuse(new, "link", errno.EEXIST)
        entry.link_count += 1
        self._link((parent, name, entry))

    def unlink(self, path: Path) -> None:
        parent, name = self._parent(path, "unlink")
        self.record_call("unlink", path)
        entry = parent.entries.get(name)
        if not isinstance(entry, SimNode):
            _refuse(path, "unlink", errno.ENOENT if entry is None else errno.EISDIR)
        self._give_space(entry)
        self._link((parent, name, None))

    def remove_tree(self, path: Path) -> None:
        entry = self._find(path)
        if entry is None:
            return
        if isinstance(entry, SimNode):
            _refuse(path, "rmtree", errno.ENOTDIR)
        for name in sorted(entry.entries):
            remove = self.remove_tree if isinstance(entry.entries[name], SimDir) else self.unlink
            remove(path / name)
        parent, name = self._parent(path, "rmtree")
        self.record_call("rmdir", path)
        self._link((parent, name, None))

    def sync_dir(self, path: Path) -> None:
        directory = self._dir(path, "open")
        self.record_call("fsync", path)
        if self.lies("fsync", path):
            return
        # A change is synced with every earlier one of the same names, also in other directories.
        places: set[tuple[int, str]] = set()
        synced: list[Link] = []
        for link in reversed(self._pending):
            is_here = any(changed is directory for changed, _, _ in link.changes)
            if is_here or not places.isdisjoint(link.places()):
                places |= link.places()
                synced.append(link)
        for link in reversed(synced):
            self._pending.remove(link)
            for changed, name, entry in link.changes:
                set_entry(changed.durable, name, entry)

    def sync_tree(self, path: Path) -> None:
        self.record_call("syncfs", path)
        for name, entry in self._dir(path, "open").entries.items():
            if isinstance(entry, SimDir):
                self.sync_tree(path / name)
            else:
                entry.sync()
        self.sync_dir(path)

    def lock(self, path: Path) -> Lock:
        lock = self._dir(path, "open").locks.take(path)
        try:
            self.open(path / LOCK_NAME, create=True)
            self.record_call("flock", path / LOCK_NAME)
        except StorageError:
            lock.release()
            raise
        return lock

    def lock_for_reading(self, path: Path) -> Lock:
        return self._dir(path, "open").locks.take_for_reading(path)

    def space(self, path: Path) -> tuple[int, int]:
        self._dir(path, "statvfs")
        return self.size_bytes, self.free

    def usage(self, path: Path) -> tuple[int, int]:
        self._dir(path, "statvfs")
        return self.size_bytes - self.free, self.free

    # What a test calls.

    def fail_at(
        self,
        call_number: int,
        error: BaseException,
        *,
        sticky: bool = False,
        short_write: bool = False,
    ) -> None:
        """Let a call fail instead of doing anything.

        Args:
            call_number: 1 is the first call since this file system was made; see `calls`.
            error: an OSError becomes the StorageError that the real file system raises; any other
                is raised as it is. After a SimCrash every call raises it.
            sticky: all later calls fail too.
            short_write: if it is a pwritev, half of it is written before it fails.
        """
        self._faults.append(Fault(call_number, error, sticky, short_write))

    def heal(self) -> None:
        """Cancel every `fail_at`."""
        self._faults.clear()

    def crashed(self, mode: CrashMode, rng: random.Random) -> Self:
        """Return a disk as a restart may find it; this one stays as it is."""
        disk = type(self)()
        disk.free, disk.size_bytes = self.free, self.size_bytes
        if mode == "killed":
            copies = Copies(rng)
            disk._root = copies.of_dir(self._root)
            disk._pending = [copies.of_link(link) for link in self._pending]
        else:
            disk._root = durable_copy(self._root, self._pending, mode, rng)
        count_links(disk._root)
        return disk

    def digest(self, under: Path = Path("/")) -> int:
        """A number that is equal, within one process, for disks with equal content.

        Args:
            under: only what is in this directory counts.
        """

        found = self._find(under)
        return found.digest() if isinstance(found, SimDir) else 0

    def files(self) -> dict[Path, bytes]:
        """Return the content of every file."""

        def walk(directory: SimDir, path: Path) -> Iterator[tuple[Path, bytes]]:
            for name, entry in directory.entries.items():
                if isinstance(entry, SimDir):
                    yield from walk(entry, path / name)
                else:
                    yield path / name, bytes(entry.content.data)

        return dict(walk(self._root, Path("/")))

    def peek(self, path: Path, size: int, offset: int) -> bytes:
        """Return a part of a file; the read is neither counted nor cached."""
        return bytes(self._node(path).content.data[offset : offset + size])

    def evict(self, path: Path) -> None:
        """Make a file cold: no page of it is resident until it is read with pread or written."""
        node = self._node(path)
        node.cold.update(pages(0, len(node.content.data)))

    def flip(self, path: Path, offset: int, mask: int) -> None:
        """Flip the bits of `mask` (1 to 255) in one byte, in memory and on the disk."""
        self._node(path).flip(offset, mask)

    def rot_in_memory(self, path: Path, offset: int, mask: int) -> None:
        """Flip bits of one byte in the page cache alone: a direct read finds them right."""
        self._node(path).rot(offset, mask)

    def spoil(self, path: Path, offset: int, size: int) -> None:
        """Make a range unreadable: a pread that touches it fails with EIO.

        A `pread_into` stops before the page that holds it, and `lock_hot` refuses it.
        """
        node = self._node(path)
        node.set_bad([*node.bad, (offset, size)])

    def repair(self, path: Path) -> None:
        """Make all of a file readable again, with its content."""
        self._node(path).set_bad([])

    def trace(self) -> str:
        """Return the latest calls, one a line, for the message of a failed test."""
        return "\n".join(
            f"{number:5} {operation} {path} {detail}".rstrip()
            for number, operation, path, detail in self._trace
        )

    # Shared by files and the calls above.

    def record_call(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        """Count a call, and raise its fault if there is one; a short write is returned instead."""
        if self.is_dead:
            raise SimCrash
        self.calls += 1
        self._trace.append((self.calls, operation, path, detail))
        for fault in self._faults:
            number = fault.call_number
            if self.calls == number or (fault.is_sticky and self.calls > number):
                if fault.is_short_write and operation == "pwritev":
                    return fault
                self.fail(fault, operation, path)
        return None

    def fail(self, fault: Fault, operation: str, path: Path) -> NoReturn:
        if isinstance(fault.error, OSError):
            _refuse(path, operation, fault.error.errno or errno.EIO)
        self.is_dead = isinstance(fault.error, SimCrash)
        raise fault.error

    def lies(self, operation: str, path: Path) -> bool:
        """Return whether a sync ("fdatasync", or "fsync" of a directory) is silently skipped.

        Mutants override it; the crash tests must detect them.
        """
        return False

    def take_space(self, operation: str, path: Path, growth: int) -> None:
        """Reserve space for a file that grows by `growth` bytes; negative if it shrinks."""
        if growth > self.free:
            _refuse(path, operation, errno.ENOSPC)
        self.free -= growth

    def _give_space(self, entry: SimNode | None) -> None:
        if entry is not None:
            entry.link_count -= 1
            self.free += 0 if entry.link_count else len(entry.content.data)

    def _link(self, *changes: tuple[SimDir, str, Entry | None]) -> None:
        self._pending.append(Link(changes))
        for directory, name, entry in changes:
            set_entry(directory.entries, name, entry)

    def _find(self, path: Path) -> Entry | None:
        found: Entry | None = self._root
        for name in _names(path):
            found = found.entries.get(name) if isinstance(found, SimDir) else None
        return found

    def _dir(self, path: Path, operation: str) -> SimDir:
        found = self._find(path)
        if not isinstance(found, SimDir):
            _refuse(path, operation, errno.ENOENT if found is None else errno.ENOTDIR)
        return found

    def _node(self, path: Path) -> SimNode:
        found = self._find(path)
        assert isinstance(found, SimNode), f"{path} is no file"
        return found

    def _parent(self, path: Path, operation: str) -> tuple[SimDir, str]:
        parent = self._find(path.parent)
        if not isinstance(parent, SimDir):
            _refuse(path, operation, errno.ENOENT if parent is None else errno.ENOTDIR)
        return parent, path.name


def _names(path: Path) -> Sequence[str]:
    """Return the names of a path; a relative path begins at the root."""
    return path.parts[1:] if path.is_absolute() else path.parts


def _refuse(path: Path, operation: str, code: int) -> NoReturn:
    raise StorageError(path, operation, code, os.strerror(code))
