"""The priorities of the threads of a process, and its code in memory."""

import platform
import resource
import subprocess
import sys

import pytest

from appliance.system import process
from appliance.system.process import (
    CAP_IPC_LOCK,
    COMPUTING_SLICE_NS,
    LOCK_LIMIT_MIN_BYTES,
    WAKING_SLICE_NS,
    lock_code,
)
from appliance.units import MIB

PRIORITIES = """
import os, threading
from appliance.system.process import YIELD_NICE, set_priority, yield_to_others
begin = os.getpriority(os.PRIO_PROCESS, 0)
end = threading.Event()

def thread(first=lambda: None):
    ready = threading.Event()
    def run():
        first()
        ready.set()
        end.wait()
    started = threading.Thread(target=run)
    started.start()
    ready.wait()
    return started.native_id

early, yields_early = thread(), thread(yield_to_others)
assert set_priority(begin + 2)
late, yields_late = thread(), thread(yield_to_others)
found = [os.getpriority(os.PRIO_PROCESS, each)
         for each in (0, early, yields_early, late, yields_late)]
end.set()
# The tests may run at a low priority themselves; 19 is the lowest.
lower = [2, 2, YIELD_NICE, 2, 2 + YIELD_NICE]
assert found == [min(19, begin + each) for each in lower], found
assert set_priority(begin + 2)
print("as expected")
"""


def test_the_priority_is_that_of_all_threads_but_those_that_yield() -> None:
    # Not here: who lowers a priority may have no right to raise it again.
    run = [sys.executable, "-c", PRIORITIES]
    assert subprocess.check_output(run, text=True) == "as expected\n"


LOCKED = """
import re, sys
from pathlib import Path
import _core.log.view
from appliance.system.process import lock_code
locked = lock_code()
status = Path("/proc/self/status").read_text()
(held,) = re.findall(r"VmLck:\\s*(\\d+) kB", status)
assert int(held) * 1024 >= locked, (held, locked)
code = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines()]
library = False
for words in code:
    if "-" in words[0] and not words[0].endswith(":"):
        library = words[1] == "r-xp" and "_core/log/view" in words[-1]
    elif library and words[0] == "Locked:":
        print(locked, int(words[1]) > 0)
"""


def test_the_code_of_the_process_stays_in_memory_if_that_is_permitted() -> None:
    run = [sys.executable, "-c", LOCKED]
    size, is_locked = subprocess.check_output(run, text=True).split()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_low = limit != resource.RLIM_INFINITY and limit < LOCK_LIMIT_MIN_BYTES
    if is_low and not process._has_capability(CAP_IPC_LOCK):
        assert (size, is_locked) == ("0", "False")
    else:
        assert int(size) > MIB
        assert is_locked == "True"


def test_a_low_limit_of_locked_memory_is_left_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if root runs the broker in a container, without the right to exceed the limit."""
    monkeypatch.setattr(process, "_has_capability", lambda _: False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 8 * MIB))
    assert lock_code() == 0


SLICES = """
import ctypes, os, struct, threading
from appliance.system.process import _SCHED_ATTR, set_priority, wake_sooner, yield_to_others

def slice_of(thread):
    found = ctypes.create_string_buffer(56)
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]  # sched_getattr(2)
    ctypes.CDLL(None).syscall(number, thread, found, 56, 0)
    return _SCHED_ATTR.unpack_from(found.raw)[5]

def start(begin):
    ids, go = [], threading.Event()
    def run():
        begin()
        ids.append(threading.get_native_id())
        go.wait()
    threading.Thread(target=run, daemon=True).start()
    while not ids:
        pass
    return ids[0]

other, computing = start(lambda: None), start(yield_to_others)
wake_sooner()
later = start(yield_to_others)
print(*map(slice_of, (os.getpid(), other, computing, later)))
"""


def test_threads_that_wake_have_short_slices_and_those_that_compute_long_ones() -> None:
    found = subprocess.check_output([sys.executable, "-c", SLICES], text=True)
    slices = [int(each) for each in found.split()]
    if not any(slices):
        pytest.skip("this Linux has no slices of threads: 6.12 has")
    assert slices == [WAKING_SLICE_NS] * 2 + [COMPUTING_SLICE_NS] * 2


def test_a_system_call_that_is_not_permitted_or_known_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_SCHED_SETATTR", {})
    process.wake_sooner()
    monkeypatch.setattr(process, "_SCHED_SETATTR", {platform.machine(): -1})
    process.wake_sooner()
