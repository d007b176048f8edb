"""The lock of a data directory: a flock on a file in it. A part of `files`; layer 1.

The functions raise OSError, which `files` converts to StorageError.
"""

import fcntl
import os
from pathlib import Path
from typing import NoReturn

from appliance.errors import DataDirectoryLockedError


class OsLock:
    """A flock on the lock file of a data directory; the kernel frees it when the process ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def take(fd: int, directory: Path) -> OsLock:
    """Take the lock exclusively, and write the process id into the file.

    Args:
        fd: of the lock file; closed if this raises.
        directory: the directory to lock.

    Raises:
        DataDirectoryLockedError: another process holds it.
    """
    _lock(fd, fcntl.LOCK_EX, directory)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(fd)
        raise
    return OsLock(fd)


def take_for_reading(fd: int, directory: Path) -> OsLock:
    """Take the lock shared: it excludes brokers, not other readers.

    Args:
        fd: of the lock file; closed if this raises.
        directory: the directory to lock.

    Raises:
        DataDirectoryLockedError: a process holds it exclusively.
    """
    _lock(fd, fcntl.LOCK_SH, directory)
    return OsLock(fd)


def _lock(fd: int, how: int, directory: Path) -> None:
    """Take the flock or raise; `fd` is closed if this raises."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        _refuse_held(directory, fd)
    except OSError:
        os.close(fd)
        raise


def _refuse_held(directory: Path, fd: int) -> NoReturn:
    """Raise an error that names the holder of a data directory; close `fd`, its lock file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Only readers hold it: the process id in the file is that of a former broker.
        pid, is_read = None, True
    except OSError:
        holder = os.pread(fd, 32, 0).strip()
        pid, is_read = int(holder) if holder.isdigit() else None, False
    os.close(fd)
    raise DataDirectoryLockedError(directory, pid, is_read=is_read) from None
