"""`store.delete_when`: what costs writes waits for its hours, in the time zone of the machine."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from appliance.config.setting import parse_hours
from appliance.store.head.quiet_hours import QuietHours
from appliance.units import MIB, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.simulator.virtual_clock import START_MS, VirtualClock

BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
"""The last Sundays of March and October, as the rule of the zone; no file of zones is needed."""


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def set_to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


def utc_ms(*instant: int) -> int:
    return int(datetime(*instant, tzinfo=UTC).timestamp()) * MS_PER_SECOND  # type: ignore[misc]


def permitted(hours: str, begin_ms: int, count: int = 24) -> list[int]:
    """Which of the half hours from an instant on are permitted."""
    clock = VirtualClock(wall_ms=begin_ms)
    quiet = QuietHours(clock, parse_hours(hours), lambda: False)
    found = []
    for number in range(2 * count):
        if quiet.may_carry():
            found.append(number)
        clock.advance_ms(MS_PER_HOUR // 2)
    return found


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("", []),
        ("  ", []),
        ("04", [4]),
        ("4", [4]),
        ("04;16", [4, 16]),
        ("04, 16", [4, 16]),
        ("22-02", [0, 1, 22, 23]),
        ("22-00", [22, 23]),
        ("22-24", [22, 23]),
        ("02-05;12", [2, 3, 4, 12]),
        ("00-24", list(range(24))),
    ],
)
def test_hours_are_a_list_of_hours_and_ranges(text: str, hours: list[int]) -> None:
    assert sorted(parse_hours(text)) == hours


@pytest.mark.parametrize("text", ["24", "x", "04;", "-1", "4-", "004", "04:30", "05-05", "1-25"])
def test_a_text_without_hours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an hour|ends when"):
        parse_hours(text)


def test_a_range_goes_over_midnight(set_zone: Callable[[str], None]) -> None:
    set_zone("UTC")
    begin = utc_ms(2026, 3, 1, 20)
    assert permitted("22-01", begin, 30) == [*range(4, 10), *range(52, 58)]
    assert permitted("", begin, 2) == [0, 1, 2, 3]


def test_hours_are_those_of_the_machine(set_zone: Callable[[str], None]) -> None:
    set_zone(BERLIN)
    assert permitted("04", utc_ms(2026, 1, 10)) == [6, 7]
    assert permitted("04", utc_ms(2026, 7, 10)) == [4, 5]


def test_an_hour_that_is_skipped_in_spring_comes_the_day_after(
    set_zone: Callable[[str], None],
) -> None:
    set_zone(BERLIN)
    begin = utc_ms(2026, 3, 28, 23)  # midnight; at 02:00 it is 03:00
    assert permitted("02", begin, 48) == [50, 51]
    assert permitted("03", begin) == [4, 5]


def test_an_hour_that_comes_twice_in_autumn_is_permitted_twice(
    set_zone: Callable[[str], None],
) -> None:
    set_zone(BERLIN)
    begin = utc_ms(2026, 10, 24, 22)  # midnight; at 03:00 it is 02:00 again
    assert permitted("02", begin) == [4, 5, 6, 7]
    assert permitted("03", begin) == [8, 9]


def test_a_disk_that_fills_up_waits_for_no_hour(set_zone: Callable[[str], None]) -> None:
    set_zone("UTC")
    harness = BrokerHarness(config=small_config(delete_when="04"))
    harness.disk.size_bytes = 100 * MIB

    def is_held_back(free_percent: int) -> bool:
        harness.disk.free = free_percent * MIB
        harness.clock.advance_ms(MS_PER_MINUTE)
        harness.housekeep()
        freer = harness.broker.head_freer
        assert harness.broker.gauges(0).carry_held_back is not freer.may_carry()
        return not freer.may_carry()

    assert utc_ms(2026, 1, 1) == START_MS
    assert is_held_back(90)
    assert not is_held_back(25)
    assert not is_held_back(5)
    assert is_held_back(50)
    harness.clock.advance_ms(4 * MS_PER_HOUR)
    assert not is_held_back(90)


def test_without_hours_nothing_is_held_back() -> None:
    harness = BrokerHarness()
    for _ in range(24):
        harness.clock.advance_ms(MS_PER_HOUR)
        assert harness.broker.head_freer.may_carry()
        assert not harness.broker.gauges(0).carry_held_back
