"""A thread that makes files durable, and never waits for the interpreter while it does.

`_core.log.sync_loop` says why. Layer 1.
"""

import os
import threading
from collections.abc import Sequence

from _core.log.sync_loop import SYNC_FILES_MAX, SyncLoop
from appliance.errors import StorageError
from appliance.system.files import File, OsFile
from appliance.system.realtime import SYNC_THREAD


class SyncThread:
    """Syncs the files of one request at a time.

    Its methods are called on one thread, that of whoever polls `fileno`.

    Attributes:
        is_busy: a request is in progress, or its end was not looked at.
    """

    def __init__(self) -> None:
        """Start the thread.

        Raises:
            OSError: there is no descriptor for it.
        """
        self._notice = os.eventfd(0, os.EFD_CLOEXEC)
        self._loop = SyncLoop(self._notice)
        self._files: Sequence[File] = ()
        self._thread = threading.Thread(
            # A daemon: an error on the way to `shutdown` must not keep the process alive.
            target=self._loop.run,
            name=SYNC_THREAD,
            daemon=True,
        )
        self._thread.start()
        self.is_busy = False

    def fileno(self) -> int:
        """Return the descriptor that is readable once the request is done."""
        return self._notice

    def try_begin(self, files: Sequence[File]) -> bool:
        """Begin to sync files in order; return False if it must be done otherwise.

        Args:
            files: at least one. Those of a test are not the system's, and too many are refused.
        """
        fds = [file.fileno() for file in files if isinstance(file, OsFile)]
        if len(fds) < len(files) or len(fds) > SYNC_FILES_MAX:
            return False
        self._files = files  # they stay open
        self.is_busy = True
        self._loop.begin(fds)
        return True

    def end(self) -> None:
        """Wait for the end of the request, if it is not there yet.

        Raises:
            StorageError: a sync failed. Never retry it: the kernel has dropped the error.
        """
        os.eventfd_read(self._notice)
        self.is_busy = False
        files, self._files = self._files, ()
        failure = self._loop.end()
        if failure is not None:
            index, code = failure
            raise StorageError(files[index].path, "fdatasync", code, os.strerror(code))

    def shutdown(self) -> None:
        """End the thread after the request in progress; `end` may still be called."""
        self._loop.stop()
        self._thread.join()

    def close(self) -> None:
        """Close the descriptor, after `shutdown`."""
        os.close(self._notice)
