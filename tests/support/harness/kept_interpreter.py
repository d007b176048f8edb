"""Waits for a descriptor as a busy event loop would: without letting go of the interpreter."""

import ctypes
import select


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def becomes_readable(fd: int, within_ms: int) -> bool:
    """Return whether a descriptor becomes readable while no thread of Python can run."""
    polled = _PollFd(fd, select.POLLIN, 0)
    return bool(ctypes.PyDLL(None).poll(ctypes.byref(polled), 1, within_ms) == 1)
