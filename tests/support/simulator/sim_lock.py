"""Who holds a directory of the simulated file system."""

import os
from pathlib import Path

from appliance.errors import DataDirectoryLockedError


class SimLock:
    """A lock of a directory.

    Args:
        holders: all locks of the directory.
    """

    def __init__(self, holders: "list[SimLock]") -> None:
        self._holders = holders
        self._holders.append(self)

    def release(self) -> None:
        if self in self._holders:
            self._holders.remove(self)


class SimLocks:
    """The lock of one directory: one broker, or any number of readers."""

    __slots__ = ("_brokers", "_readers")

    def __init__(self) -> None:
        self._brokers: list[SimLock] = []
        self._readers: list[SimLock] = []

    def take(self, path: Path) -> SimLock:
        """Lock it as a broker does."""
        if self._readers:
            raise DataDirectoryLockedError(path, None, is_read=True)
        self._refuse_second_broker(path)
        return SimLock(self._brokers)

    def take_for_reading(self, path: Path) -> SimLock:
        """Lock it beside other readers."""
        self._refuse_second_broker(path)
        return SimLock(self._readers)

    def _refuse_second_broker(self, path: Path) -> None:
        if self._brokers:
            raise DataDirectoryLockedError(path, os.getpid())
