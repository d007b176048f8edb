"""The lock of a data directory: a flock on the directory itself, and one on a file in it.

The lock of the directory holds whatever happens to its content: whoever removes or replaces the
file does not admit a second broker. The file has the process id of the holder. It is locked too,
for versions of latermq and for file systems that lock files only (NFS). It is opened without
following a link, and checked before anything is written to it. A part of `files`; layer 1.

The functions raise OSError, which `files` converts to StorageError.
"""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from appliance.errors import DataDirectoryLockedError, UnsafeDirectoryError

LOCK_NAME: Final = "lock"

_MODE: Final = 0o640

_NOT_OF_DIRECTORIES: Final = (
    errno.EBADF,  # NFS, which locks only what is open for writing
    errno.EINVAL,
    errno.EISDIR,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
)
"""Errors of a file system that locks files only."""

_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A link or a pipe in the place of the file is noticed: neither followed nor waited for."""


class OsLock:
    """The locks of one directory; the kernel frees them when the process ends."""

    __slots__ = ("_fds",)

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def take(directory: Path) -> OsLock:
    """Take the lock exclusively, and write the process id into the file.

    Raises:
        DataDirectoryLockedError: another process holds it.
        UnsafeDirectoryError: other users may have changed the directory or the file.
    """
    return _take(directory, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)


def take_for_reading(directory: Path) -> OsLock:
    """Take the lock shared: it excludes brokers, not other readers. Makes no file.

    Raises:
        DataDirectoryLockedError: a process holds it exclusively.
        UnsafeDirectoryError: the file is something else.
    """
    return _take(directory, fcntl.LOCK_SH, os.O_RDONLY)


def _take(directory: Path, how: int, flags: int) -> OsLock:
    held = OsLock([])
    try:
        _add_locks(held._fds, directory, how, flags)
    except BaseException:
        held.release()
        raise
    return held


def _add_locks(fds: list[int], directory: Path, how: int, flags: int) -> None:
    """Lock the directory, then the file in it; `fds` gets what is open."""
    is_broker = how == fcntl.LOCK_EX
    if is_broker:
        _check_link(directory)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fds.append(top)
    if is_broker:
        _check_directory(directory, os.fstat(top))
    try:
        _flock(top, how, directory, top)
    except OSError as error:
        if error.errno not in _NOT_OF_DIRECTORIES:
            raise
    path = directory / LOCK_NAME
    try:
        file = os.open(LOCK_NAME, flags | _OPEN, _MODE, dir_fd=top)
    except FileNotFoundError:
        return  # to read, the lock of the directory suffices
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            fault = "is a link" if error.errno == errno.ELOOP else "is not a file"
            raise _unsafe(path, fault) from None
        raise
    fds.append(file)
    _check_file(path, os.fstat(file), os.fstat(top))
    _flock(file, how, directory, top)
    if is_broker:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)


def _check_link(directory: Path) -> None:
    """Refuse a link to the directory that another user made: it may lead anywhere tomorrow."""
    found = os.lstat(directory)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise UnsafeDirectoryError(
            f"{directory} is a link that belongs to user {found.st_uid}: use the directory itself"
        )


def _check_directory(directory: Path, found: os.stat_result) -> None:
    """Refuse what any user could put links into, for root to write through."""
    if os.geteuid() == 0 and found.st_mode & stat.S_IWOTH:
        raise UnsafeDirectoryError(
            f"{directory} is writable by every user (mode {stat.S_IMODE(found.st_mode):o}), and "
            f"this process is root: chmod o-w {directory}, or run latermq as another user"
        )


def _check_file(path: Path, found: os.stat_result, top: os.stat_result) -> None:
    """Refuse a file that another user may have put there."""
    if not stat.S_ISREG(found.st_mode):
        raise _unsafe(path, "is not a file")
    if found.st_nlink > 1:
        raise _unsafe(path, "has another name too")
    if found.st_uid not in (0, os.geteuid(), top.st_uid):
        raise _unsafe(path, f"belongs to user {found.st_uid}, who does not own the directory")
    if found.st_mode & stat.S_IWOTH:
        raise _unsafe(path, f"is writable by every user (mode {stat.S_IMODE(found.st_mode):o})")


def _unsafe(path: Path, fault: str) -> UnsafeDirectoryError:
    return UnsafeDirectoryError(
        f"{path} {fault}: nothing was written to it; find out who did that, then remove it"
    )


def _flock(fd: int, how: int, directory: Path, top: int) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Only readers hold it: the process id in the file is that of a former broker.
        pid, is_read = None, True
    except OSError:
        pid, is_read = _find_holder(top), False
    raise DataDirectoryLockedError(directory, pid, is_read=is_read)


def _find_holder(top: int) -> int | None:
    """The process id in the lock file of a directory; None if there is none."""
    try:
        fd = os.open(LOCK_NAME, os.O_RDONLY | _OPEN, dir_fd=top)
    except OSError:
        return None
    try:
        content = os.pread(fd, 32, 0).strip()
    except OSError:
        return None
    finally:
        os.close(fd)
    return int(content) if content.isdigit() else None
