"""Clocks, and the timer of the kernel that wakes a loop at an instant."""

import os
import select
import time
from collections.abc import Iterator

import pytest

from appliance.errors import StorageError
from appliance.system.clock import MovableClock, SystemClock, WakeTimer


@pytest.fixture
def timer() -> Iterator[WakeTimer]:
    timer = WakeTimer(SystemClock())
    yield timer
    timer.close()


def fires(timer: WakeTimer, within_ms: int) -> bool:
    return bool(select.select([timer.fileno()], [], [], within_ms / 1_000)[0])


def test_the_wall_clock_is_the_machine_s_in_whole_milliseconds() -> None:
    before = time.time_ns()
    found = SystemClock().wall_ms()
    after = time.time_ns()
    assert before // 1_000_000 <= found <= after // 1_000_000


def test_the_wall_clock_has_a_finer_reading_of_the_same_time() -> None:
    before = time.time_ns()
    found = SystemClock().wall_ns()
    assert before <= found <= time.time_ns()


def test_monotonic_time_never_goes_back() -> None:
    clock = SystemClock()
    seen = [clock.monotonic_ns() for _ in range(100)]
    assert seen == sorted(seen)
    assert abs(seen[0] - time.monotonic_ns()) < 10**9


@pytest.mark.parametrize("ahead_ms", [1, 2, 5])
def test_a_timer_fires_and_not_before_it_is_due(timer: WakeTimer, ahead_ms: int) -> None:
    clock = SystemClock()
    for _ in range(5):
        due_ms = clock.wall_ms() + ahead_ms
        timer.arm(due_ms)
        # The machine may be busy, so how late it is says nothing here.
        assert fires(timer, within_ms=5_000)
        assert clock.wall_ms() >= due_ms
        timer.drain()
        assert not fires(timer, within_ms=0)


@pytest.mark.parametrize("due_ms", [-5, 0, 1, 999, 1_000_000_000_001])
def test_an_instant_that_has_passed_fires_at_once(timer: WakeTimer, due_ms: int) -> None:
    timer.arm(due_ms)
    assert fires(timer, within_ms=0)


def test_arming_again_replaces_what_was_armed(timer: WakeTimer) -> None:
    soon = SystemClock().wall_ms() + 3
    timer.arm(soon)
    timer.arm(soon + 3_600_000)
    assert not fires(timer, within_ms=6)
    timer.arm(soon)
    assert fires(timer, within_ms=5_000)


def test_a_disarmed_timer_does_not_fire(timer: WakeTimer) -> None:
    timer.arm(SystemClock().wall_ms() + 3)
    timer.arm(None)
    assert not fires(timer, within_ms=6)


def test_arming_for_later_takes_back_what_fired_and_was_not_drained(timer: WakeTimer) -> None:
    timer.arm(0)
    timer.arm(SystemClock().wall_ms() + 3_600_000)
    assert not fires(timer, within_ms=0)


def test_centuries_ahead_can_be_armed(timer: WakeTimer) -> None:
    timer.arm(SystemClock().wall_ms() + 100 * 366 * 86_400_000)
    assert not fires(timer, within_ms=0)


def test_draining_a_timer_that_did_not_fire_returns_at_once(timer: WakeTimer) -> None:
    timer.drain()
    timer.arm(SystemClock().wall_ms() + 3_600_000)
    timer.drain()


def test_a_closed_timer_refuses_and_gives_its_descriptor_back() -> None:
    timer = WakeTimer(SystemClock())
    fd = timer.fileno()
    assert not os.get_inheritable(fd)
    timer.close()
    timer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(StorageError, match="EBADF"):
        timer.arm(1)
    with pytest.raises(StorageError, match="EBADF"):
        timer.drain()


def test_a_virtual_clock_is_ahead_by_what_it_was_advanced_and_wakes_by_its_own_time() -> None:
    clock = MovableClock()
    machine = SystemClock()
    clock.advance(3_600_000)
    clock.advance(5)
    assert clock.ahead_ms == 3_600_005
    assert 0 <= clock.wall_ms() - clock.ahead_ms - machine.wall_ms() + 1_000 <= 1_000 + 1
    timer = WakeTimer(clock)
    timer.arm(clock.wall_ms() + 5)
    assert select.select([timer.fileno()], [], [], 30.0)[0]
    timer.arm(machine.wall_ms() + 3_600_000 + 60_000)
    timer.drain()
    assert not select.select([timer.fileno()], [], [], 0)[0]
    timer.close()
