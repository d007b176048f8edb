"""How long an address is charged for its timers."""

import random
from typing import Final

import pytest

from _core.timers.due_charges import DueCharges
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND
from tests.support.compiled.timer_calls import charge, charged, credit
from tests.support.simulator.virtual_clock import START_MS

SHORTEST_MS: Final = 1_024

DELAYS_MS: Final = (
    *(0, 1, MS_PER_SECOND, 8_191, 8_192, MS_PER_MINUTE, MS_PER_HOUR),
    *(MS_PER_DAY, 3_650 * MS_PER_DAY, 36_500 * MS_PER_DAY),
)


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_a_charge_lasts_as_long_as_the_timer_and_at_most_a_quarter_longer(delay_ms: int) -> None:
    charges = DueCharges()
    due_ms = START_MS + delay_ms
    charge(charges, now_ms=START_MS, due_ms=due_ms, count=3)
    assert charged(charges, now_ms=START_MS) == 3
    assert charged(charges, now_ms=due_ms) == 3
    assert charged(charges, now_ms=due_ms + max(delay_ms // 4, SHORTEST_MS)) == 0


@pytest.mark.parametrize("seed", range(3))
def test_never_fewer_are_charged_than_are_pending(seed: int) -> None:
    """And not many more, as long as nobody cancels the timers of others."""
    rng = random.Random(seed)
    charges = DueCharges()
    pending: list[tuple[int, int]] = []
    now_ms = START_MS
    for _ in range(4_000):
        now_ms += rng.choice((0, 1, 100, 10_000, rng.randrange(MS_PER_HOUR)))
        pending = [each for each in pending if each[0] > now_ms]
        due_ms = now_ms + rng.choice(DELAYS_MS[:-2]) + rng.randrange(1_000)
        if pending and rng.random() < 0.4:
            cancelled = pending.pop(rng.randrange(len(pending)))
            credit(charges, cancelled[0])
        elif due_ms > now_ms:
            count = rng.randrange(1, 4)
            charge(charges, now_ms=now_ms, due_ms=due_ms, count=count)
            pending += [(due_ms, now_ms)] * count
        assert charged(charges, now_ms=now_ms) >= len(pending)
    late = [due_ms for due_ms, since_ms in pending]
    end_ms = max(late) + MS_PER_DAY // 4
    assert charged(charges, now_ms=end_ms) == 0


def test_to_cancel_early_timers_takes_no_charge_for_a_late_one_back() -> None:
    charges = DueCharges()
    charge(charges, now_ms=START_MS, due_ms=START_MS + 365 * MS_PER_DAY, count=10)
    for _ in range(20):
        due_ms = START_MS + 5_000
        charge(charges, now_ms=START_MS, due_ms=due_ms)
        credit(charges, due_ms)
        credit(charges, due_ms)  # that of somebody else
    assert charged(charges, now_ms=START_MS) == 10
    for _ in range(20):
        credit(charges, START_MS + 365 * MS_PER_DAY)
    assert charged(charges, now_ms=START_MS) == 0


def test_a_clock_that_steps_ends_charges_late_at_most() -> None:
    charges = DueCharges()
    charge(charges, now_ms=START_MS, due_ms=START_MS + MS_PER_HOUR)
    assert charged(charges, now_ms=START_MS + MS_PER_DAY) == 0
    charge(charges, now_ms=START_MS, due_ms=START_MS + MS_PER_HOUR)
    charge(charges, now_ms=START_MS - MS_PER_DAY, due_ms=START_MS)
    assert charged(charges, now_ms=START_MS - MS_PER_DAY) == 2
    assert charged(charges, now_ms=START_MS + 2 * MS_PER_DAY) == 0
