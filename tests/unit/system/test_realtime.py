"""The event loop and the thread that syncs are realtime threads while the loop sleeps often."""

import os
import subprocess
import sys
import threading
from typing import Final

import pytest

from appliance.system import realtime
from appliance.system.realtime import (
    AWAKE_NS,
    BUSY,
    CALM,
    NS_PER_SECOND,
    SYNC_THREAD,
    RealtimeClaim,
)

LOOP: Final = threading.get_native_id()


class Kernel:
    """What the claim asks the kernel for, and what the loop took of a processor so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_permitted = True
        self.is_realtime: dict[int, bool] = {}
        self.took_ns = self.sleep_count = self.now_ns = 0
        monkeypatch.setattr(realtime, "_set_realtime", self._set_realtime)
        monkeypatch.setattr(realtime, "_set_ordinary", self._set_ordinary)
        monkeypatch.setattr(realtime, "wake_sooner", lambda: None)
        monkeypatch.setattr(realtime, "_usage", lambda: (self.took_ns, self.sleep_count))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    def _set_realtime(self, thread: int) -> bool:
        if self.is_permitted:
            self.is_realtime[thread] = True
        return self.is_permitted

    def _set_ordinary(self, thread: int) -> None:
        self.is_realtime[thread] = False

    def compute(self, ns: int, *, sleeps: bool) -> None:
        self.took_ns += ns
        self.sleep_count += sleeps

    def step(self, claim: RealtimeClaim, part: float) -> bool:
        """Let a second pass of which the loop took a part; return whether it is realtime."""
        self.now_ns += NS_PER_SECOND
        self.compute(int(part * NS_PER_SECOND), sleeps=True)
        claim.step(self.now_ns)
        return self.is_realtime[LOOP]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_the_loop_and_the_thread_that_syncs_become_realtime_and_no_other(kernel: Kernel) -> None:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, name=name) for name in (SYNC_THREAD, "other")]
    for thread in threads:
        thread.start()
    try:
        assert RealtimeClaim().begin(0)
        assert kernel.is_realtime == {LOOP: True, threads[0].native_id: True}
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_nothing_changes_where_it_is_not_permitted(kernel: Kernel) -> None:
    kernel.is_permitted = False
    claim = RealtimeClaim()
    assert not claim.begin(0)
    claim.step(1)
    claim.look()
    assert kernel.is_realtime == {}


def test_nothing_changes_with_one_processor(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop would keep everything else from it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert not RealtimeClaim().begin(0)
    assert kernel.is_realtime == {}


def test_a_loop_that_does_not_sleep_is_ordinary_until_it_sleeps(kernel: Kernel) -> None:
    claim = RealtimeClaim()
    claim.begin(0)
    seen = []
    for sleeps in (True, False, False, True):
        kernel.compute(AWAKE_NS, sleeps=sleeps)
        claim.look()
        seen.append(kernel.is_realtime[LOOP])
    assert seen == [True, False, False, True]


def test_a_loop_that_sleeps_often_stays_realtime(kernel: Kernel) -> None:
    claim = RealtimeClaim()
    claim.begin(0)
    for _ in range(20):
        kernel.compute(AWAKE_NS, sleeps=True)
        claim.look()
        kernel.compute(AWAKE_NS - 1, sleeps=False)
        claim.look()
        assert kernel.is_realtime[LOOP]


def test_a_loop_that_takes_nearly_all_of_a_processor_is_ordinary_until_it_is_calm(
    kernel: Kernel,
) -> None:
    """Though it sleeps now and then: what waits for that processor gets too little of it."""
    claim = RealtimeClaim()
    claim.begin(0)
    parts = (BUSY - 0.05, BUSY + 0.05, CALM + 0.05, CALM - 0.05, BUSY - 0.05)
    assert [kernel.step(claim, part) for part in parts] == [True, False, False, True, True]


def test_a_claim_that_ends_leaves_the_loop_ordinary(kernel: Kernel) -> None:
    """A broker that becomes a slave looks no more whether its loop sleeps."""
    claim = RealtimeClaim()
    claim.begin(0)
    claim.end()
    assert not kernel.is_realtime[LOOP]
    assert not kernel.step(claim, 0.0)
    kernel.compute(AWAKE_NS, sleeps=True)
    claim.look()
    assert not kernel.is_realtime[LOOP]
    assert claim.begin(kernel.now_ns)
    assert kernel.is_realtime[LOOP]


REAL = """
import os, sys, threading, time
from appliance.system.realtime import RealtimeClaim, SYNC_THREAD
end = threading.Event()
sync = threading.Thread(target=end.wait, name=SYNC_THREAD, daemon=True)
sync.start()
claim = RealtimeClaim()
granted = claim.begin(time.monotonic_ns())
if not granted:
    os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
def policies():
    later = []
    thread = threading.Thread(target=lambda: later.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    ids = 0, sync.native_id
    return [*(os.sched_getscheduler(i) & ~os.SCHED_RESET_ON_FORK for i in ids), *later]
before = policies()
ordinary = os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
while os.sched_getscheduler(0) != ordinary and time.thread_time_ns() < 10_000_000_000:
    until = time.thread_time_ns() + 1_000_000
    while time.thread_time_ns() < until:
        pass
    claim.look()
print(int(granted), *before, *policies())
"""


def test_a_real_thread_is_realtime_if_that_is_permitted_and_threads_it_starts_are_not() -> None:
    found = subprocess.check_output([sys.executable, "-c", REAL], text=True)
    granted, *policies = (int(each) for each in found.split())
    if granted:
        assert policies[:3] == [os.SCHED_FIFO, os.SCHED_FIFO, os.SCHED_OTHER]
        assert policies[4:] == [os.SCHED_FIFO, os.SCHED_OTHER]
    else:
        assert policies == [os.SCHED_OTHER] * 6
