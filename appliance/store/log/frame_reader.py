"""Reads frames of the log into blocks of `LogView`, and checks them: the only way to its bytes.

`read_hot` runs on the loop and takes what is in the page cache: large ranges are locked in place,
small ones are copied. `read` may run on any thread, and waits for the disk. Both are safe on bad
disks: a bad sector is the error of a system call, and the CRCs detect bit rot. Layer 2.
"""

from typing import Final

import _core.log.locked_window  # noqa: F401 (`File.lock_hot` would load it, on the loop)
from _core.bytes.layout import FRAME_HEADER_SIZE
from _core.log.view import Block
from appliance.errors import StorageError
from appliance.store.log.commit_log import CommitLog
from appliance.units import KIB, MIB

HOT_FRAME_MAX_BYTES: Final = 4 * MIB
"""The loop reads no larger frame; this one takes about a millisecond."""

LOCKED_MIN_BYTES: Final = 64 * KIB
"""Less is copied, which costs no more than mapping it."""


class FrameReader:
    """Reads frames of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def read_hot(self, pos: int, size: int) -> None:
        """Put the frame at a log position into the view if it is in the page cache.

        Args:
            pos: where it begins.
            size: of the frame in bytes, or 0. A sequential read also takes the bytes after it.
        """
        log = self._log
        room = min(log.readable_from(pos), HOT_FRAME_MAX_BYTES)
        want = min(max(log.view.window(pos), size), room)
        while want >= FRAME_HEADER_SIZE:
            block = self._lock(pos, want) if want >= LOCKED_MIN_BYTES else None
            if block is None:
                block = Block(log.view.memory, pos, want)
                block.check(log.read_hot(pos, block.room))
            if block.size:
                log.view.put(block)
            if block.size or block.fault or not want < block.wanted <= room:
                return
            want = block.wanted

    def _lock(self, pos: int, size: int) -> Block | None:
        """Lock and check a window of the segment; None if it is not cached or cannot be locked."""
        log = self._log
        window = log.lock_hot(pos, size)
        if window is False:
            # The limit on locked memory is used up: unlock cached blocks and try again.
            log.view.unlock(size)
            window = log.lock_hot(pos, size)
        if not window:
            return None
        block = Block(log.view.memory, pos, size, window)
        block.check(size)
        return block

    def read(self, pos: int, size: int) -> Block | str:
        """Read the frame at a log position, and the bytes after it; or say what is wrong with it.

        Waits for the disk; may run on any thread.

        Args:
            pos: where it begins.
            size: bytes to read; more if the frame is larger.
        """
        log = self._log
        room = log.readable_from(pos)
        want = min(size, room)
        while want >= FRAME_HEADER_SIZE:
            block = Block(log.view.memory, pos, want)
            try:
                count = log.read_some(pos, block.room)
                block.check(count)
                if block.size:
                    return block
                if block.fault is not None:
                    return block.fault
                if count < min(block.wanted, want):
                    # A part is unreadable: read it alone to get the error.
                    log.read_some(pos + count, block.room[: want - count])
            except StorageError as error:
                return str(error)
            if not want < block.wanted <= room:
                break
            want = block.wanted
        return "it extends past the end of its segment or of the log"
