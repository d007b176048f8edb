"""Log lines that clients cause are limited by kind and address, by kind, and in all."""

import logging
from typing import get_args

import pytest

from appliance.client_log import (
    ANYBODY,
    INTERVAL_MS,
    KIND_LINES_MAX,
    LINES_MAX,
    SOURCE_LINES_MAX,
    SOURCES_MAX,
    SUMMARIES_MAX,
    ClientLog,
    LineKind,
)
from tests.support.simulator.virtual_clock import VirtualClock

KINDS: tuple[LineKind, ...] = get_args(LineKind)


class Lines:
    """A log with a virtual clock, and what it wrote."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.clock = VirtualClock()
        self.log = ClientLog(self.clock)

    def write(self, kind: LineKind, address: str, count: int = 1) -> None:
        for number in range(count):
            log = logging.getLogger("test")
            self.log.write(log, logging.INFO, (kind, address), "%s %d", address, number)

    def pass_interval(self) -> None:
        self.clock.advance_ms(INTERVAL_MS)
        self.log.tick()

    def said(self) -> list[str]:
        """The lines since the last call."""
        found = [each.getMessage() for each in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


def left_out(count: int, kind: str, address: str) -> str:
    return f'left out {count} lines kind="{kind}" address={address} interval_ms={INTERVAL_MS}'


def test_each_source_has_a_few_lines_in_each_interval(lines: Lines) -> None:
    """One address takes nothing from another, and one kind nothing from another."""
    lines.write("delay request", "10.0.0.1", SOURCE_LINES_MAX + 7)
    lines.write("delay request", "10.0.0.2")
    lines.write("closed connection", "10.0.0.1")
    mine = [f"10.0.0.1 {number}" for number in range(SOURCE_LINES_MAX)]
    assert lines.said() == [*mine, "10.0.0.2 0", "10.0.0.1 0"]
    lines.clock.advance_ms(INTERVAL_MS - 1)
    lines.write("delay request", "10.0.0.1")
    assert lines.said() == []


def test_what_was_left_out_is_said_at_the_end_of_the_interval(lines: Lines) -> None:
    """Without a further line of anybody, and once."""
    lines.write("delay request", "10.0.0.1", SOURCE_LINES_MAX + 7)
    lines.write("closed connection", "10.0.0.1", SOURCE_LINES_MAX + 9)
    lines.said()
    lines.pass_interval()
    assert lines.said() == [
        left_out(9, "closed connection", "10.0.0.1"),
        left_out(7, "delay request", "10.0.0.1"),
    ]
    lines.write("delay request", "10.0.0.1")
    assert lines.said() == ["10.0.0.1 0"]
    lines.pass_interval()
    assert lines.said() == []


def test_a_kind_and_all_lines_have_limits(lines: Lines) -> None:
    """So that many addresses neither fill the disk nor hide the lines of another kind."""
    for number in range(KIND_LINES_MAX + 5):
        lines.write("closed connection", f"10.0.0.{number}")
    assert len(lines.said()) == KIND_LINES_MAX
    for number in range(KIND_LINES_MAX):
        lines.write("delay request", f"10.0.0.{number}")
    assert len(lines.said()) == LINES_MAX - KIND_LINES_MAX


def test_an_unknown_address_has_the_limit_of_its_kind(lines: Lines) -> None:
    lines.write("changed topic", ANYBODY, KIND_LINES_MAX + 3)
    assert len(lines.said()) == KIND_LINES_MAX
    lines.pass_interval()
    assert lines.said() == [left_out(3, "changed topic", ANYBODY)]


def test_what_is_remembered_is_bounded(lines: Lines) -> None:
    """Also the number of lines about what was left out."""
    for number in range(4 * SOURCES_MAX):
        for kind in KINDS[:2]:
            lines.write(kind, f"10.0.{number // 256}.{number % 256}")
    assert lines.log.remembered_count <= LINES_MAX + SOURCES_MAX + len(KINDS)
    assert len(lines.said()) == LINES_MAX
    lines.pass_interval()
    said = lines.said()
    assert len(said) <= SUMMARIES_MAX + len(KINDS)
    total = sum(int(line.split()[2]) for line in said)
    assert total == 8 * SOURCES_MAX - LINES_MAX
    assert lines.log.remembered_count == 0


def test_the_traceback_of_an_error_is_written(
    lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("a bug")
    source: tuple[LineKind, str] = ("internal error", "10.0.0.1")
    lines.log.write(logging.getLogger("test"), logging.ERROR, source, "failed", error=error)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
