"""Files: together with `file_lock`, the only module that accesses the operating system's files.

All others take a `FileSystem`, so that a test can count the calls, fail any of them and drop
unsynced data (`tests.support.simulator.sim_fs`). Durability:

- The bytes and the size of a file are durable after `fdatasync` of the file.
- A new, removed or changed name is durable after `sync_dir` of the directory that holds it.
- `make_dirs` syncs the directories that it makes.

Every failure of the operating system is a `StorageError`. Layer 1.
"""

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NoReturn, Protocol

from appliance.errors import StorageError
from appliance.system import file_lock
from appliance.units import MIB

Buffer = bytes | bytearray | memoryview
"""Types that can be written. A memoryview must have one-byte items."""

LOCK_NAME: Final = file_lock.LOCK_NAME

IOV_COUNT_MAX: Final = 1024
"""Buffers per pwritev call: UIO_MAXIOV of Linux."""

# Only the service may write messages; its group may read them (backups, the Spark reader).
_FILE_MODE: Final = 0o640
_DIR_MODE: Final = 0o750

_CLOSED: Final = 2**31 - 1  # no process has this descriptor: EBADF; Python itself rejects -1
_WAITS: Final = (errno.EAGAIN, errno.EIO, errno.EINVAL)
COPIED_MAX_BYTES: Final = 8 * MIB
"""More is read by a thread where the file system cannot say whether it is in memory."""

_syncfs = ctypes.CDLL(None, use_errno=True).syncfs


class File(Protocol):
    """An open file, read and written at explicit positions only."""

    @property
    def path(self) -> Path:
        """The path by which it was opened; a later rename does not change it."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers in sequence from `offset` on, and return their total size.

        Not atomic: it may take several system calls, and after an error any part may be written.
        """

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset` on; fewer only where the file ends."""

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Read into writable memory from `offset` on, and return how many bytes were read.

        Reads fewer bytes than fit if the file ends or the disk cannot read the next bytes; such an
        error is raised only if nothing was read before it. The rest of the buffer may change.
        """

    def pread_hot_into(self, buffer: memoryview, offset: int) -> int:
        """Do as `pread_into` without waiting for the disk; return 0 if that is impossible."""

    def fdatasync(self) -> None:
        """Make written bytes and the size durable. A failure is fatal: never retry it."""

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it by a hole, to exactly `size` bytes."""

    def allocate(self, size: int) -> None:
        """Extend the file to `size` bytes of reserved zeros; a longer file keeps its size."""

    def size(self) -> int:
        """Return the size in bytes."""

    def link_count(self) -> int:
        """Return the number of its names; a snapshot or a backup may have a hard link to it."""

    def lock_hot(self, offset: int, size: int) -> memoryview | Literal[False] | None:
        """Map and lock a range of the file if all of it is in the page cache; None if it is not.

        Returns False if this process may not lock more memory. The map outlives `close`, and keeps
        this object alive; reading it after the file was truncated causes SIGBUS. The range has at
        most WINDOW_MAX_BYTES and must not extend past the end of the file.
        """

    def drop_cache(self, offset: int = 0, size: int = 0) -> None:
        """Drop clean cached pages, so that the next pread goes to the disk; advice only.

        Drops the pages that are entirely in the range; a size of 0 means to the end of the file.
        """

    def will_need(self, offset: int, size: int) -> None:
        """Start to read a range into memory; advice only."""

    def next_data(self, offset: int) -> int | None:
        """Return the first position from `offset` on that may hold written bytes, or None.

        Skips holes, and allocated blocks that were never written if the file system reports them.
        """

    def close(self) -> None:
        """Close the descriptor; maps from `lock_hot` stay valid. May be called twice."""


class Lock(Protocol):
    """The lock of a data directory, held by this process."""

    def release(self) -> None:
        """Release it; may be called twice. The end of the process releases it as well."""


class FileSystem(Protocol):
    """The broker's access to files. Each call may raise StorageError."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; with `create`, create it empty if it is missing (the caller syncs).

        A pipe is refused, without waiting for the other end of it.
        """

    def make_dirs(self, path: Path, *, is_synced: bool = True) -> None:
        """Make a directory and its missing parents; durable unless `is_synced` is False."""

    def list_dir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def exists(self, path: Path) -> bool:
        """Return whether the path exists."""

    def resolve(self, path: Path) -> Path:
        """Return the absolute path without symlinks; the last parts of it need not exist."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or directory; replace a file that has the new path."""

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name, which must not exist."""

    def unlink(self, path: Path) -> None:
        """Remove the name of a file that exists."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content, following no symlink; a missing one is no error."""

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def sync_tree(self, path: Path) -> None:
        """Make all files and names below a directory durable, and possibly others."""

    def lock(self, path: Path) -> Lock:
        """Lock a data directory exclusively, and write the process id to the file `lock` in it.

        Raises:
            DataDirectoryLockedError: another process, or this one, holds it.
            UnsafeDirectoryError: other users may have changed the directory or the file.
        """

    def lock_for_reading(self, path: Path) -> Lock:
        """Exclude brokers from a data directory, but not other readers; writes nothing.

        Raises:
            DataDirectoryLockedError: a broker holds it.
            UnsafeDirectoryError: `lock` is not a file, or that of another user.
        """

    def space(self, path: Path) -> tuple[int, int]:
        """Return the total and the available bytes of the file system that holds `path`."""

    def usage(self, path: Path) -> tuple[int, int]:
        """Return the used and the available bytes of that file system, as df does.

        Together they may be less than the total: some may be reserved for root.
        """


class OsFile:
    """A `File` of Linux. Any thread may call it."""

    __slots__ = ("__weakref__", "_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __del__(self) -> None:
        # A file of the log that was freed is closed when the last read of it ends: until then the
        # file system keeps its space.
        with suppress(StorageError):
            self.close()

    def fileno(self) -> int:
        """Return the descriptor, which is valid until `close`."""
        return self._fd

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        total = sum(map(len, buffers))
        done = 0
        try:
            if len(buffers) <= IOV_COUNT_MAX:
                done = os.pwritev(self._fd, buffers, offset) if total else 0
            if done < total:
                self._write_rest(buffers, offset, done)
        except OSError as error:
            self._fail("pwritev", error)
        return total

    def _write_rest(self, buffers: Sequence[Buffer], offset: int, done: int) -> None:
        """Write the rest after one call: buffers over its limit, or those after a short write."""
        offset += done
        rest: list[memoryview] = []
        for buffer in buffers:
            skipped = min(done, len(buffer))
            done -= skipped
            if skipped < len(buffer):
                rest.append(memoryview(buffer)[skipped:])
        start = 0
        while start < len(rest):
            written = os.pwritev(self._fd, rest[start : start + IOV_COUNT_MAX], offset)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            offset += written
            while start < len(rest) and written >= len(rest[start]):
                written -= len(rest[start])
                start += 1
            if written:
                rest[start] = rest[start][written:]

    def pread(self, size: int, offset: int) -> bytes:
        try:
            found = os.pread(self._fd, size, offset)
            if len(found) < size:
                found = self._read_rest(found, size, offset)
        except OSError as error:
            self._fail("pread", error)
        return found

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            if done == 0:
                self._fail("preadv", error)
        return done

    def pread_hot_into(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return self._copy_hot(buffer, offset)
            # A thread reads this again, waits for the disk, and handles a bad sector.
            if error.errno in _WAITS:
                return 0
            self._fail("preadv", error)

    def _copy_hot(self, buffer: memoryview, offset: int) -> int:
        """Do the same on a file system without RWF_NOWAIT: ZFS, NFS, virtiofs, FUSE or tmpfs."""
        size = min(len(buffer), self.size() - offset)
        window = self.lock_hot(offset, size) if 0 < size <= COPIED_MAX_BYTES else None
        if not window:
            return 0
        buffer[:size] = window
        return size

    def _read_rest(self, found: bytes, size: int, offset: int) -> bytes:
        """Continue after a short read, at the end of the file or at the 2 GiB limit of Linux."""
        parts = [found]
        done = len(found)
        while done < size and parts[-1]:
            parts.append(os.pread(self._fd, size - done, offset + done))
            done += len(parts[-1])
        return b"".join(parts)

    def fdatasync(self) -> None:
        with _reporting(self.path, "fdatasync"):
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        with _reporting(self.path, "ftruncate"):
            os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                self._fail("posix_fallocate", error)
            if size > self.size():
                self.truncate(size)

    def size(self) -> int:
        with _reporting(self.path, "fstat"):
            return os.fstat(self._fd).st_size

    def link_count(self) -> int:
        with _reporting(self.path, "fstat"):
            return os.fstat(self._fd).st_nlink

    def lock_hot(self, offset: int, size: int) -> memoryview | Literal[False] | None:
        # Imported here because most commands read files and need no compiled module.
        from _core.log.locked_window import lock_window

        return lock_window(self._fd, offset, size, self)

    def drop_cache(self, offset: int = 0, size: int = 0) -> None:
        with _reporting(self.path, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def will_need(self, offset: int, size: int) -> None:
        with _reporting(self.path, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def next_data(self, offset: int) -> int | None:
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return offset if offset < self.size() else None
            self._fail("lseek", error)

    def close(self) -> None:
        if self._fd != _CLOSED:
            fd, self._fd = self._fd, _CLOSED
            with _reporting(self.path, "close"):
                os.close(fd)

    def _fail(self, operation: str, error: OSError) -> NoReturn:
        _fail(self.path, operation, error)


class OsFileSystem:
    """The files of Linux."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        # Opening a pipe to read it would wait for somebody who writes to it.
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY | os.O_NONBLOCK)
        if create:
            flags |= os.O_CREAT
        with _reporting(path, "open"):
            fd = os.open(path, flags, _FILE_MODE)
        file = OsFile(path, fd)
        with _reporting(path, "open"):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise OSError(errno.ESPIPE, "it is a pipe, not a file")
        return file

    def make_dirs(self, path: Path, *, is_synced: bool = True) -> None:
        missing: list[Path] = []
        while not self.exists(path):
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with _reporting(directory, "mkdir"):
                os.mkdir(directory, _DIR_MODE)
            if is_synced:
                self.sync_dir(directory.parent)

    def list_dir(self, path: Path) -> list[str]:
        with _reporting(path, "listdir"):
            return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            _fail(path, "stat", error)
        return True

    def resolve(self, path: Path) -> Path:
        with _reporting(path, "realpath"):
            return Path(os.path.realpath(path))

    def rename(self, old: Path, new: Path) -> None:
        with _reporting(old, "rename"):
            os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        with _reporting(new, "link"):
            os.link(old, new)

    def unlink(self, path: Path) -> None:
        with _reporting(path, "unlink"):
            os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        # rmtree uses directory descriptors, so no symlink can be inserted meanwhile.
        assert shutil.rmtree.avoids_symlink_attacks
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            _fail(path, "rmtree", error)

    def sync_dir(self, path: Path) -> None:
        with _reporting(path, "open"):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _reporting(path, "fsync"):
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_tree(self, path: Path) -> None:
        # With thousands of files, each fdatasync would wait for its own journal commit.
        with _reporting(path, "open"):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(fd) != 0:
                _fail(path, "syncfs", OSError(ctypes.get_errno(), ""))
        finally:
            os.close(fd)

    def lock(self, path: Path) -> Lock:
        with _reporting(path / LOCK_NAME, "flock"):
            return file_lock.take(path)

    def lock_for_reading(self, path: Path) -> Lock:
        with _reporting(path / LOCK_NAME, "flock"):
            return file_lock.take_for_reading(path)

    def space(self, path: Path) -> tuple[int, int]:
        with _reporting(path, "statvfs"):
            found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def usage(self, path: Path) -> tuple[int, int]:
        with _reporting(path, "statvfs"):
            found = os.statvfs(path)
        used_blocks = found.f_blocks - found.f_bfree
        return used_blocks * found.f_frsize, found.f_bavail * found.f_frsize


@contextmanager
def _reporting(path: Path, operation: str) -> Iterator[None]:
    """Raise a failure of the operating system in the block as a StorageError."""
    try:
        yield
    except OSError as error:
        _fail(path, operation, error)


def _fail(path: Path, operation: str, error: OSError) -> NoReturn:
    code = error.errno or errno.EIO
    raise StorageError(path, operation, code, error.strerror or os.strerror(code)) from error
