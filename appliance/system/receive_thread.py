"""A thread that receives large requests and frees their memory beside the event loop.

`_core.bytes.receive_loop` says why. Layer 1.
"""

import os
import threading
from contextlib import ExitStack

from _core.bytes.receive_loop import LargeInput, ReceiveLoop
from appliance.system.process import yield_to_others


class ReceiveThread:
    """Receives into the buffers of several requests at a time.

    Its methods are called on one thread, that of whoever polls `fileno`.
    """

    def __init__(self) -> None:
        """Start the thread.

        Raises:
            OSError: there is no descriptor for it.
            RuntimeError: the system starts no more threads.
        """
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with ExitStack() as undo:
            undo.callback(os.close, self._wake)
            self._notice = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._notice)
            self._loop = ReceiveLoop(self._wake, self._notice)
            self._thread = threading.Thread(
                # A daemon: an error on the way to `shutdown` must not keep the process alive.
                target=self._run,
                name="latermq-receive",
                daemon=True,
            )
            self._thread.start()
            undo.pop_all()

    def _run(self) -> None:
        yield_to_others()
        self._loop.run()

    def fileno(self) -> int:
        """Return the descriptor that is readable once a request has ended."""
        return self._notice

    def try_begin(self, given: LargeInput, connection: int) -> bool:
        """Receive the rest of a request, of which nobody else reads meanwhile.

        Args:
            given: its buffer.
            connection: descriptor of the socket, which may be closed meanwhile.

        Returns:
            False, with nothing done, if there is no descriptor or too much is received.
        """
        try:
            fd = os.dup(connection)
        except OSError:
            return False
        is_begun = self._loop.begin(given, fd)
        if not is_begun:
            os.close(fd)
        return is_begun

    def cancel(self, given: LargeInput) -> None:
        """Give a request up, and free its memory."""
        self._loop.cancel(given)

    def free(self, given: LargeInput) -> None:
        """Free the memory of a buffer."""
        self._loop.free(given)

    def take_ended(self) -> list[LargeInput]:
        """Return the buffers of requests that have arrived whole, or as far as they ever will."""
        try:
            os.eventfd_read(self._notice)
        except BlockingIOError:
            return []
        return self._loop.take_ended()

    def shutdown(self) -> None:
        """End the thread; requests that it receives are given up."""
        self._loop.stop()
        self._thread.join()
        os.close(self._wake)
        os.close(self._notice)
