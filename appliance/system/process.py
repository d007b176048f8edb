"""This process: how it is scheduled, its open files, and which modules it loads. Layer 1."""

import ctypes
import os
import platform
import resource
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from appliance.units import MIB

SWITCH_INTERVAL_S: Final = 0.0001
"""How long a thread may keep the interpreter from another one that waits for it."""


HAND_OVER_S: Final = 0.00005
"""Longer than a thread takes to wake up."""

LOCK_LIMIT_MIN_BYTES: Final = 256 * MIB
"""With a lower limit on locked memory, all of it is left for the log."""

CAP_IPC_LOCK: Final = 14
"""The capability to lock more memory than RLIMIT_MEMLOCK. Its number in linux/capability.h."""

YIELD_NICE: Final = 5
"""A thread that computes waits so much more than the loop: as long as other programs do, with the
default of process.priority. Waiting longer than they do, it would keep the interpreter from the
loop if it has it."""


WAKING_SLICE_NS: Final = 100_000
"""The shortest slice that Linux gives."""

COMPUTING_SLICE_NS: Final = 10_000_000
"""Longer than those of other programs, 3 ms, so that these preempt such a thread as well."""

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which no libc before glibc 2.41 has; by architecture."""

_SCHED_ATTR: Final = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice, priority, slice in ns, and two fields of other policies."""


def set_priority(nice: int) -> bool:
    """Ask to wait less, or more, behind other processes.

    Linux has a priority for each thread. Those that differ from this one keep theirs; later threads
    have that of the thread that starts them.

    Args:
        nice: -20 waits least, 19 most.

    Returns:
        False if the system does not permit it.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before == nice:
        return True  # systemd did it, and then forbids it
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        for name in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                if os.getpriority(os.PRIO_PROCESS, int(name)) == before:
                    os.setpriority(os.PRIO_PROCESS, int(name), nice)
    except OSError:  # not permitted, or /proc is not mounted
        return os.getpriority(os.PRIO_PROCESS, 0) == nice
    return True


def wake_sooner() -> None:
    """Let the threads with the priority of this one preempt those that compute, when they wake.

    Otherwise a thread that wakes waits until the one that computes has used up its slice, 3 ms,
    whatever their priorities. Since Linux 6.12, it preempts a thread with longer slices. Earlier
    versions ignore the request. See sched_setattr(2).
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):  # /proc is not mounted
        for name in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                if os.getpriority(os.PRIO_PROCESS, int(name)) == nice:
                    _set_slice(int(name), WAKING_SLICE_NS)


def _set_slice(thread: int, slice_ns: int) -> None:
    """Ask for slices of a length for a thread; nothing happens if that fails."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    with suppress(OSError):  # it has ended, or a filter of system calls
        if os.sched_getscheduler(thread) == os.SCHED_OTHER:
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            fields = os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0
            attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, *fields)
            ctypes.CDLL(None).syscall(number, thread, attributes, 0)


def yield_to_others() -> None:
    """Let this thread wait for a processor longer than the process does, and preempt none.

    See `wake_sooner`.
    """
    # The first thread has that of the process. One that a realtime thread started may have another.
    nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + YIELD_NICE
    with suppress(PermissionError):  # a filter of system calls
        os.setpriority(os.PRIO_PROCESS, 0, min(19, nice))
    _set_slice(threading.get_native_id(), COMPUTING_SLICE_NS)


def let_others_in() -> None:
    """Leave the interpreter to a thread that waits for it.

    Python hands it over after SWITCH_INTERVAL_S. But a thread that releases and takes it again
    sooner, as each system call does, makes the one that waits begin to wait anew. For a thread that
    does many short pieces of work, between two of them.
    """
    time.sleep(HAND_OVER_S)


def raise_file_limit() -> int:
    """Raise the limit on open files as far as it goes; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def lock_code() -> int:
    """Keep the code of this process in memory, so that no step of the loop waits for it.

    While producers fill the page cache, the kernel drops code that was not used for some seconds.
    To read it again takes 40 ms on a busy disk. See mlock(2).

    Returns:
        How many bytes are locked. 0 if RLIMIT_MEMLOCK is low, because all of it is left for the
        log, or if /proc is not mounted.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_low = limit != resource.RLIM_INFINITY and limit < LOCK_LIMIT_MIN_BYTES
    if is_low and not _has_capability(CAP_IPC_LOCK):
        return 0
    mlock = ctypes.CDLL(None).mlock
    locked = 0
    for begin, end in _code_ranges():
        if mlock(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)) == 0:
            locked += end - begin
    return locked


def _has_capability(number: int) -> bool:
    """Whether this thread has a capability, which root in a container may lack; capabilities(7)."""
    try:
        with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
            effective = [line.split()[1] for line in file if line.startswith("CapEff:")]
    except OSError:
        return False
    return any(int(each, 16) >> number & 1 for each in effective)


def _code_ranges() -> list[tuple[int, int]]:
    """The addresses of the code and the constants of the program and its libraries."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            fields = [line.rstrip("\n").split(maxsplit=5) for line in file]
    except OSError:
        return []
    mapped = [each for each in fields if len(each) == 6 and each[4] != "0"]  # inode 0: no file
    programs = {each[5] for each in mapped if each[1] == "r-xp"}
    found = []
    for addresses, rights, _, _, _, path in mapped:
        if path in programs and rights in ("r-xp", "r--p"):
            begin, end = addresses.split("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def process_id() -> int:
    """Return the number by which the system knows this process."""
    return os.getpid()


def anonymous_bytes() -> int:
    """Return the anonymous resident memory of this process: what it has allocated and touched.

    RssAnon of /proc/PID/status. Neither the mapped files nor the page cache count. It also has what
    is free and not returned to the system. 0 if /proc is not mounted.
    """
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read(256).split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def total_memory_bytes() -> int:
    """Return the memory of this machine; 0 if the kernel does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def has_terminal() -> bool:
    """Return whether a terminal controls this process, whose end sends it SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def share_interpreter() -> None:
    """Let a thread that waits for the interpreter have it after SWITCH_INTERVAL_S.

    With Python's 5 ms, the thread that flushes the log would wait twice as long for a busy event
    loop as for the disk.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


@contextmanager
def without_modules(*names: str) -> Iterator[None]:
    """Import what the block imports as if some modules were not installed.

    For libraries that load much which they can do without, and which is not used here.

    Args:
        names: of modules, each of which raises ImportError in the block.
    """
    hidden = {name: sys.modules.get(name) for name in names}
    # None is how the import system says that a module is known not to be there.
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in hidden.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
