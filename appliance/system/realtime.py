"""Realtime scheduling for the event loop and the thread that syncs, while they take little.

An ordinary thread that wakes often waits for the next tick of the kernel, up to 4 ms, while another
one computes, whatever their priorities. A realtime thread preempts it at once. See sched(7).

A realtime thread that does not sleep starves the ordinary ones on its processor. One of them may
be a thread of the kernel that ends a write, so a sync takes 40 ms then; and after 0.95 s the kernel
lets them run for 0.05 s, and the loop waits for so long. So the loop is realtime only while it
sleeps often. One that does not is ordinary: it rarely has to wake. Layer 1; reads no clock.
"""

import os
import resource
import threading
from contextlib import suppress
from typing import Final

from appliance.system.process import wake_sooner
from appliance.units import MS_PER_SECOND, NS_PER_MS

SYNC_THREAD: Final = "latermq-sync"
"""Name of the thread that the loop waits for before it answers."""

AWAKE_NS: Final = NS_PER_MS // 2
"""A loop that computes for so long without sleep is ordinary from then on."""

INTERVAL_S: Final = 0.1
"""Between two looks at what the loop took: the kernel waits for 0.95 s."""

BUSY: Final = 0.8
CALM: Final = 0.4
"""Parts of a processor: a loop that takes more than the first is ordinary, until it takes less than
the second."""

NS_PER_SECOND: Final = MS_PER_SECOND * NS_PER_MS

PRIORITY: Final = 1
"""The lowest: above all ordinary threads, below all other realtime threads."""


class RealtimeClaim:
    """The claim of one event loop.

    Attributes:
        is_granted: the loop is realtime whenever it takes little.
    """

    def __init__(self) -> None:
        """Claim nothing yet."""
        self.is_granted = False
        self._loop = 0
        self._is_on = False
        self._at_ns = self._took_ns = 0
        self._sleep_count = self._woke_ns = 0

    def begin(self, now_ns: int) -> bool:
        """Make the thread of the loop, which calls this, and the one that syncs realtime.

        Threads and processes that these start later are ordinary; where these two have a negative
        nice value, those have 0.

        Args:
            now_ns: monotonic ns.

        Returns:
            False, and nothing changes, if the system does not permit it, or has one processor.
        """
        if len(os.sched_getaffinity(0)) < 2:
            return False
        self._loop = threading.get_native_id()
        self._at_ns, self._took_ns = now_ns, _usage()[0]
        self._is_on = self.is_granted = _set_realtime(self._loop)
        for thread in threading.enumerate():
            if self.is_granted and thread.name == SYNC_THREAD and thread.native_id is not None:
                _set_realtime(thread.native_id)
        return self.is_granted

    def step(self, now_ns: int) -> None:
        """Look at what the loop took since the last step. On its thread, every INTERVAL_S.

        Args:
            now_ns: monotonic ns.
        """
        took_ns, _ = _usage()
        part = (took_ns - self._took_ns) / max(1, now_ns - self._at_ns)
        self._at_ns, self._took_ns = now_ns, took_ns
        if not self.is_granted:
            return
        if self._is_on and part > BUSY:
            self._yield()
        elif not self._is_on and part < CALM:
            self._is_on = _set_realtime(self._loop)

    def look(self) -> None:
        """Look whether the loop sleeps. On its thread, about once for each AWAKE_NS of work."""
        if not self.is_granted:
            return
        took_ns, sleep_count = _usage()
        if sleep_count != self._sleep_count:
            self._sleep_count, self._woke_ns = sleep_count, took_ns
            if not self._is_on:
                self._is_on = _set_realtime(self._loop)
        elif self._is_on and took_ns - self._woke_ns >= AWAKE_NS:
            self._yield()

    def end(self) -> None:
        """Give the claim up, because nobody calls `step` and `look` from now on."""
        if self._is_on:
            self._yield()
        self.is_granted = False

    def _yield(self) -> None:
        self._is_on = False
        _set_ordinary(self._loop)
        wake_sooner()  # it is forgotten with the policy


def _set_realtime(thread: int) -> bool:
    try:
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(thread, policy, os.sched_param(PRIORITY))
    except OSError:  # not permitted, or it has ended
        return False
    return True


def _set_ordinary(thread: int) -> None:
    with suppress(OSError):  # a filter of system calls
        policy = os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(thread, policy, os.sched_param(0))


def _usage() -> tuple[int, int]:
    """How many ns of a processor the calling thread took, and how often it slept."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return int((usage.ru_utime + usage.ru_stime) * NS_PER_SECOND), usage.ru_nvcsw
