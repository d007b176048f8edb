"""The clock that records age by: jumps of the wall clock count late, and backwards never."""

import random

import pytest

from appliance.store.state.age_clock import AGREED_MS, TOLERANCE_MS, AgeClock, SavedAge
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.simulator.virtual_clock import START_MS, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def age(clock: VirtualClock) -> AgeClock:
    """The clock of a store that is old enough to trust the wall clock."""
    return AgeClock(clock, SavedAge(0, clock.wall_ms()))


def run(age: AgeClock, clock: VirtualClock, duration_ms: int) -> int:
    """Let time pass in minutes; return by how much the age jumped."""
    jumped_ms = 0
    for _ in range(duration_ms // MS_PER_MINUTE):
        clock.advance_ms(MS_PER_MINUTE)
        jumped_ms += age.step()
    return jumped_ms


def test_it_counts_the_time_that_passes(clock: VirtualClock) -> None:
    age = AgeClock(clock)
    assert run(age, clock, AGREED_MS - MS_PER_MINUTE) == 0
    assert age.saved is None
    assert run(age, clock, MS_PER_DAY - AGREED_MS + MS_PER_MINUTE) == 0
    assert (age.age_ms, age.jump_ms) == (MS_PER_DAY, 0)
    assert age.saved == SavedAge(MS_PER_DAY, START_MS + MS_PER_DAY)


@pytest.mark.parametrize("jump_ms", [TOLERANCE_MS + 1, MS_PER_DAY, 3_650 * MS_PER_DAY])
def test_a_jump_counts_after_an_hour_in_which_the_clocks_agree(
    age: AgeClock, clock: VirtualClock, jump_ms: int
) -> None:
    clock.step_ms(jump_ms)
    assert run(age, clock, AGREED_MS) == 0
    assert (age.age_ms, age.jump_ms) == (AGREED_MS, jump_ms)
    assert run(age, clock, MS_PER_MINUTE) == jump_ms
    assert (age.age_ms, age.jump_ms) == (AGREED_MS + MS_PER_MINUTE + jump_ms, 0)
    assert run(age, clock, MS_PER_DAY) == 0


def test_the_first_clock_of_a_store_may_be_wrong(clock: VirtualClock) -> None:
    age = AgeClock(clock)
    run(age, clock, AGREED_MS // 2)
    clock.step_ms(56 * 365 * MS_PER_DAY)
    assert run(age, clock, MS_PER_DAY) == 0
    assert (age.age_ms, age.jump_ms) == (MS_PER_DAY + AGREED_MS // 2, 0)
    clock.step_ms(MS_PER_DAY)
    assert run(age, clock, AGREED_MS + MS_PER_MINUTE) == MS_PER_DAY


def test_a_jump_that_is_taken_back_never_counts(age: AgeClock, clock: VirtualClock) -> None:
    for _ in range(5):
        clock.step_ms(MS_PER_DAY)
        run(age, clock, AGREED_MS - MS_PER_MINUTE)
        clock.step_ms(-MS_PER_DAY)
        run(age, clock, MS_PER_MINUTE)
    assert (age.age_ms, age.jump_ms) == (5 * AGREED_MS, 0)


def test_a_clock_that_goes_back_does_not_stop_the_age(age: AgeClock, clock: VirtualClock) -> None:
    clock.step_ms(-10 * MS_PER_DAY)
    run(age, clock, MS_PER_DAY)
    assert (age.age_ms, age.jump_ms) == (MS_PER_DAY, 0)
    again = AgeClock(clock, age.saved)
    clock.advance_ms(MS_PER_HOUR)
    assert again.step() == 0
    assert again.age_ms == MS_PER_DAY + MS_PER_HOUR


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_that_is_set_right_after_hours_in_the_past_adds_nothing(
    age: AgeClock, clock: VirtualClock, is_restarted: bool
) -> None:
    run(age, clock, MS_PER_DAY)
    for back_ms in (START_MS, 10 * MS_PER_DAY):
        before_ms = age.age_ms
        clock.step_ms(-back_ms)  # as after a start without a battery clock
        for _ in range(2):
            age = AgeClock(clock, age.saved) if is_restarted else age
            assert run(age, clock, 5 * AGREED_MS) == 0
        clock.step_ms(back_ms)
        assert run(age, clock, 5 * AGREED_MS) == 0
        assert (age.age_ms, age.jump_ms) == (before_ms + 15 * AGREED_MS, 0)
    clock.step_ms(MS_PER_DAY)
    assert run(age, clock, 2 * AGREED_MS) == MS_PER_DAY


def test_an_operator_confirms_a_clock_that_went_back(age: AgeClock, clock: VirtualClock) -> None:
    clock.step_ms(-10 * MS_PER_DAY)
    run(age, clock, MS_PER_DAY)
    assert age.confirm() == 0
    clock.step_ms(7 * MS_PER_DAY)  # a stop
    again = AgeClock(clock, age.saved)
    assert run(again, clock, 2 * AGREED_MS) == 7 * MS_PER_DAY


def test_a_store_that_is_made_without_a_battery_clock_waits_for_a_right_one() -> None:
    clock = VirtualClock(wall_ms=0)
    age = AgeClock(clock)
    run(age, clock, MS_PER_DAY)
    assert age.saved is None
    clock.step_ms(START_MS)
    assert run(age, clock, MS_PER_DAY) == 0
    assert (age.age_ms, age.jump_ms) == (2 * MS_PER_DAY, 0)
    assert age.saved == SavedAge(2 * MS_PER_DAY, START_MS + 2 * MS_PER_DAY)


def test_a_stop_counts_after_an_hour_or_when_the_operator_says_so(clock: VirtualClock) -> None:
    saved = SavedAge(0, clock.wall_ms())
    clock.step_ms(7 * MS_PER_DAY)
    age = AgeClock(clock, saved)
    assert run(age, clock, MS_PER_MINUTE) == 0
    assert age.jump_ms == 7 * MS_PER_DAY
    assert age.confirm() == 7 * MS_PER_DAY
    assert (age.age_ms, age.jump_ms) == (7 * MS_PER_DAY + MS_PER_MINUTE, 0)
    assert age.confirm() == 0


@pytest.mark.parametrize("wrong_ms", [-20 * MS_PER_DAY, 20 * MS_PER_DAY])
def test_what_is_saved_while_the_clock_is_wrong_does_no_harm(
    age: AgeClock, clock: VirtualClock, wrong_ms: int
) -> None:
    clock.step_ms(wrong_ms)
    run(age, clock, MS_PER_MINUTE)
    saved = age.saved
    clock.step_ms(-wrong_ms)
    again = AgeClock(clock, saved)
    assert run(again, clock, 2 * AGREED_MS) == 0
    assert (again.age_ms, again.jump_ms) == (2 * AGREED_MS + MS_PER_MINUTE, 0)


def test_a_jump_in_doubt_stays_so_after_a_restart(clock: VirtualClock) -> None:
    saved = SavedAge(0, clock.wall_ms())
    clock.step_ms(7 * MS_PER_DAY)
    age = AgeClock(clock, saved)
    run(age, clock, AGREED_MS // 2)
    again = AgeClock(clock, age.saved)
    assert run(again, clock, AGREED_MS + MS_PER_MINUTE) == 7 * MS_PER_DAY


def test_a_clock_that_drifts_or_trembles_adds_nothing(age: AgeClock, clock: VirtualClock) -> None:
    rng, off_ms = random.Random(1), 0
    for _ in range(10_000):
        step_ms = rng.randrange(-200, 201) - off_ms // 4
        off_ms += step_ms
        clock.step_ms(step_ms)
        run(age, clock, MS_PER_MINUTE)
    assert 0 <= age.age_ms - 10_000 * MS_PER_MINUTE <= TOLERANCE_MS


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("by_ms", [0, 1_000, MS_PER_DAY])
def test_it_follows_a_clock_that_is_advanced_for_a_test_by_as_much(
    clock: VirtualClock, is_trusted: bool, by_ms: int
) -> None:
    age = AgeClock(clock)
    if is_trusted:
        clock.advance_ms(2 * MS_PER_HOUR)
        age.step()
    clock.advance_ms(10)
    age.step()
    before_ms = age.age_ms
    clock.step_ms(by_ms)
    age.follow(by_ms)
    assert age.age_ms == before_ms + by_ms
    assert (age.jump_ms, age.is_certain) == (0, True)
    clock.advance_ms(500)
    assert age.step() == 0
    assert age.age_ms == before_ms + by_ms + 500
