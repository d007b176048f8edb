"""Time: the clocks, and a timer that wakes a loop at an instant.

This is the only module that reads a clock; all others take a `Clock`, so that tests run years in a
second. Wall time is for due times and store times, monotonic time for durations, boottime for those
that a suspended machine must not stretch. Layer 1.
"""

import ctypes
import errno
import os
import time
from pathlib import Path
from typing import Final, Protocol

from appliance.errors import StorageError
from appliance.units import MS_PER_SECOND, NS_PER_MS


class Clock(Protocol):
    """The broker's source of time."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970 UTC, rounded down; may step backwards."""

    def wall_ns(self) -> int:
        """Return the nanoseconds since 1970 UTC, as `wall_ms` before it is rounded."""

    def monotonic_ns(self) -> int:
        """Return the nanoseconds since some fixed instant; never steps backwards."""

    def boottime_ns(self) -> int:
        """Return the nanoseconds since another fixed instant, with those of suspended machines.

        For what another machine counts on meanwhile, such as a lease.
        """


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def wall_ms(self) -> int:
        # Rounded down: a record is due when the rounded time reaches its due time, never early.
        return time.time_ns() // NS_PER_MS

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class MovableClock(SystemClock):
    """The machine's clocks, but that the wall clock can be advanced, for tests of applications.

    It runs on as the machine's does; durations are measured in real time.
    """

    __slots__ = ("_ahead_ns",)

    def __init__(self) -> None:
        self._ahead_ns = 0

    @property
    def ahead_ms(self) -> int:
        """How far it is ahead of the machine's wall clock, in milliseconds."""
        return self._ahead_ns // NS_PER_MS

    def advance(self, by_ms: int) -> None:
        """Advance the wall clock; nothing that waits for it notices.

        Args:
            by_ms: from 0 on.
        """
        assert by_ms >= 0
        self._ahead_ns += by_ms * NS_PER_MS

    def wall_ms(self) -> int:
        return self.wall_ns() // NS_PER_MS

    def wall_ns(self) -> int:
        return time.time_ns() + self._ahead_ns


def local_hour(wall_ms: int) -> int:
    """Return the hour of the day, 0 to 23, of an instant in the time zone of the machine."""
    return time.localtime(wall_ms // MS_PER_SECOND).tm_hour


class _TimeSpec(ctypes.Structure):
    """struct timespec of 64-bit Linux: time_t and long are both 64 bits wide."""

    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the interval stays zero, so that a timer fires once."""

    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


# From <sys/timerfd.h> and <time.h>; the same on x86-64 and aarch64.
_CLOCK_REALTIME: Final = 0
_TFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_TFD_TIMER_CANCEL_ON_SET: Final = 2

# Stands for the path in errors about a timer.
_TIMER_PATH: Final = Path("timerfd")


class WakeTimer:
    """A file descriptor that becomes readable at an instant of the wall clock.

    If armed, it also becomes readable when that clock is set. After either, call `drain` and read
    the clock: a step can make anything due, or nothing. An instant in the past makes it readable at
    once. It belongs to the loop that polls it.

    Args:
        clock: by whose wall clock it wakes; if that is advanced, arm it again.

    Raises:
        StorageError: the kernel cannot create a timer (too many open files).
    """

    __slots__ = ("_armed", "_fd", "_libc", "_virtual")

    def __init__(self, clock: Clock) -> None:
        self._virtual = clock if isinstance(clock, MovableClock) else None
        # PyDLL keeps the GIL: these calls never wait.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._armed = _TimerSpec()
        self._fd: int = self._libc.timerfd_create(_CLOCK_REALTIME, _TFD_FLAGS)
        if self._fd < 0:
            raise _timer_error("timerfd_create", ctypes.get_errno())

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._fd

    def arm(self, due_ms: int | None) -> None:
        """Wake at `due_ms` (epoch ms), instead of the instant armed before; None never wakes.

        Raises:
            StorageError: the system call failed, which happens only after `close`.
        """
        value = self._armed.value
        if due_ms is not None and self._virtual is not None:
            due_ms -= self._virtual.ahead_ms
        if due_ms is None:
            value.seconds = value.nanoseconds = 0
        elif due_ms <= 0:
            # All zeros would disarm, and the kernel rejects negative seconds.
            value.seconds, value.nanoseconds = 0, 1
        else:
            value.seconds = due_ms // MS_PER_SECOND
            value.nanoseconds = due_ms % MS_PER_SECOND * NS_PER_MS
        flags = _TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET
        if self._libc.timerfd_settime(self._fd, flags, ctypes.byref(self._armed), None) != 0:
            code = ctypes.get_errno()
            # ECANCELED: the clock was set since the last read. The timer is armed nevertheless, and
            # for an absolute instant, which no step moves.
            if code != errno.ECANCELED:
                raise _timer_error("timerfd_settime", code)

    def drain(self) -> None:
        """Make the descriptor unreadable until it fires again; harmless if it has not fired.

        Raises:
            StorageError: the descriptor is closed.
        """
        try:
            os.read(self._fd, 8)
        except OSError as error:
            code = error.errno or 0
            if code not in (errno.EAGAIN, errno.ECANCELED):
                raise _timer_error("read", code) from error

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _timer_error(operation: str, code: int) -> StorageError:
    return StorageError(_TIMER_PATH, operation, code, os.strerror(code))
