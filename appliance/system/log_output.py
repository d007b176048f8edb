"""Writes the lines of the log on a thread of its own, so that nobody waits for who reads them.

If standard error is a pipe that is full, or a disk that hangs, a write takes for ever. Lines then
wait in memory, a bounded number of bytes; those beyond are counted, and the count is a line once
lines can be written again. Layer 1.
"""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Final

QUEUED_MAX_BYTES: Final = 1 << 20
"""Bytes of lines that wait."""

FLUSH_S: Final = 2.0
"""The longest that `flush` waits."""


class LogOutput(logging.Handler):
    """A handler of the root logger. Any thread may log; none waits.

    Args:
        write: writes bytes; may block, and may raise OSError, which loses them.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write
        self._lines: list[bytes] = []
        self._size = 0
        self._lost_count = 0
        self._is_writing = False
        self._changed = threading.Condition(threading.Lock())
        thread = threading.Thread(target=self._run, name="latermq-log", daemon=True)
        thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record, or count it as lost."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 (what `logging` expects of a handler)
            self.handleError(record)
            return
        with self._changed:
            if self._lost_count or self._size + len(line) > QUEUED_MAX_BYTES:
                self._lost_count += 1
                return
            self._lines.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but at most FLUSH_S."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._is_writing), FLUSH_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                data = b"".join(self._lines) + self._loss()
                self._lines.clear()
                self._size = self._lost_count = 0
                self._is_writing = True
            try:
                self._write(data)
            except OSError:
                continue  # nobody is there to read them, nor to be told

    def _loss(self) -> bytes:
        if not self._lost_count:
            return b""
        text = f"{self._lost_count} lines are missing here: nobody read the log"
        record = logging.LogRecord("latermq", logging.WARNING, "", 0, text, None, None)
        return self.format(record).encode() + b"\n"


def to_standard_error() -> LogOutput:
    """Return a handler that writes to standard error."""

    def write(data: bytes) -> None:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    return LogOutput(write)
