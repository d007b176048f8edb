"""`latermq dump` and `check` read what was carried out of segments before they are freed."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import offline_scenario as scenario
from tests.support.harness.carried_log import CarriedLog, lived
from tests.support.harness.command_line import CommandLine
from tests.support.harness.tables import rows_of


@pytest.fixture
def log() -> CarriedLog:
    return lived(5)


def items(command: CommandLine, log: CarriedLog, root: Path, what: str) -> list[Any]:
    directory = scenario.export(log.disk, root)
    return command.ok(f"dump {directory} {what} --json").json_lines()


@pytest.mark.parametrize("is_freed", [False, True])
def test_records_and_timers_are_shown_once(
    log: CarriedLog, command: CommandLine, tmp_path: Path, is_freed: bool
) -> None:
    records = items(command, log, tmp_path / "before", "records")
    cut = log.bases[2]
    log.carry(cut)
    log.carry(log.bases[1])
    if is_freed:
        log.free(cut)
    after = items(command, log, tmp_path / "after", "records")
    names = ("topic", "partition", "offset", "key", "value", "timestamp")

    def places(rows: list[Any]) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.get(name) for name in names) for row in rows), key=repr)

    assert places(after) == places(records)
    carried = [row for row in after if row["kind"] == "carried records"]
    assert bool(carried) == is_freed
    assert all(row["original_position"] < cut <= row["position"] for row in carried)
    timers = items(command, log, tmp_path / "timers", "timers")
    expected = rows_of(log.disk, "timers")
    assert [(row["accept_position"], row["index"], row["state"], row["due"]) for row in timers] == [
        (row["position"], row["index"], row["delay_state"], row["due_at"]) for row in expected
    ]
    assert any("position" in row for row in timers) == is_freed


def test_frames_show_all_that_they_hold(
    log: CarriedLog, command: CommandLine, tmp_path: Path
) -> None:
    log.carry(log.bases[2])
    frames = items(command, log, tmp_path / "frames", "frames --content")
    carried = [row for row in frames if row["kind"] == "carried records"]
    assert carried
    assert all(row["records"] and row["carried_at"] == log.now_ms for row in carried)
    timers = [row for row in frames if row["kind"] == "carry" and "payload" not in row]
    assert timers
    assert all(len(row["timers"]) == row["timer_count"] for row in timers)


def test_a_log_with_carried_frames_has_no_contradictions(log: CarriedLog) -> None:
    log.carry(log.bases[2])
    assert contradictions(log) == []
    log.free(log.bases[2])
    assert contradictions(log) == []


def test_what_contradicts_the_log_is_reported(log: CarriedLog) -> None:
    rows = rows_of(log.disk, "timers")
    done = next(row for row in rows if row["delay_state"] != "pending")
    waiting = next(row for row in rows if row["delay_state"] == "pending")
    at = carry(log, done, 1)
    (fault,) = contradictions(log)
    assert fault[0] == at + 160
    assert fault[1].startswith("a timer that is pending")
    at = carry(log, waiting, 2)
    assert at + 160 + 64 in [each[0] for each in contradictions(log)]


def carry(log: CarriedLog, row: dict[str, Any], times: int) -> int:
    """Append a carry frame that has a timer so many times; return its position."""
    frame = next(each for each in log.frames() if each.pos == row["position"])
    timer = next(each for each in frame.timers() if each["index"] == row["index"])
    return log.carry_timers(frame.topic_id, frame.header["partition"], [timer] * times)


def contradictions(log: CarriedLog) -> list[tuple[int, str]]:
    """Log position and expectation of each fault between frames."""
    checked = scenario.check(log.disk)
    return [
        (fault.position, fault.expected)
        for fault in checked.faults
        if fault.position is not None and not fault.expected.startswith("a flushed mark")
    ]
