"""`latermq dump` prints what is there, all of it or what is asked for, and cannot be misused."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.docs import golden_dump, golden_frames
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.command_line import CommandLine

FIRST = "0" * 20


@pytest.mark.parametrize("name", golden_dump.DUMPS)
def test_what_is_printed_is_what_it_was(
    left_directory: Path, command: CommandLine, name: str
) -> None:
    """After a wanted change: make regenerate."""
    found = golden_dump.dumped(command, left_directory, golden_dump.DUMPS[name])
    assert found == (golden_dump.GOLDEN / name).read_text()


def items(command: CommandLine, directory: Path, arguments: str) -> list[Any]:
    return command.ok(f"dump {directory} {arguments} --json").json_lines()


def test_every_frame_stands_where_the_one_before_it_ends(
    left_directory: Path, command: CommandLine
) -> None:
    frames = items(command, left_directory, "frames")
    ends = [frame["position"] + frame["size"] for frame in frames]
    assert [frame["position"] for frame in frames[1:]] == ends[:-1]
    assert {frame["kind"] for frame in frames} >= {
        *("accept", "deliver", "cancel", "topic", "offset", "producer", "epoch", "blank")
    }


def test_positions_choose_frames_also_in_the_middle_of_the_log(
    left_directory: Path, command: CommandLine
) -> None:
    everything = items(command, left_directory, "frames")
    for first, end in ((0, 700), (70_000, 100_000), (131_072, 140_000), (1 << 40, 1 << 41)):
        chosen = items(command, left_directory, f"frames --from {first} --to {end}")
        assert chosen == [each for each in everything if first <= each["position"] < end]


def test_filters_of_frames_are_joined(left_directory: Path, command: CommandLine) -> None:
    chosen = items(
        command, left_directory, "frames --topic orders --partition 1 --kind accept --kind cancel"
    )
    assert [frame["kind"] for frame in chosen] == ["accept", "cancel", "accept", "accept"]
    assert items(command, left_directory, "frames --topic none") == []


def test_offsets_choose_records(left_directory: Path, command: CommandLine) -> None:
    records = items(command, left_directory, "records --topic orders --partition 0 --offsets 3:6")
    assert [record["offset"] for record in records] == [3, 4, 5]
    units = items(command, left_directory, "queues --topic orders --partition 0 --offsets 20:")
    assert [unit["offset"] for unit in units] == [20, 21]


@pytest.mark.parametrize("text", ["5", "a:b", "3:-1", "1:2:3"])
def test_offsets_have_one_form(left_directory: Path, command: CommandLine, text: str) -> None:
    said = command.fails(f"dump {left_directory} records --offsets {text}", 2)
    assert said == f"latermq: --offsets {text!r} is invalid: use FROM:TO\n"


def test_a_timer_is_found_by_its_id(left_directory: Path, command: CommandLine) -> None:
    (timer,) = items(command, left_directory, "timers --id reminder-2")
    assert (timer["state"], timer["value"]) == ("cancelled", "in an hour")
    assert items(command, left_directory, "timers --id reminder-2 --pending") == []


def test_what_records_hold_cannot_steer_a_terminal(
    left_directory: Path, command: CommandLine
) -> None:
    for what in ("frames --content", "records", "timers", "state"):
        outcome = command.run(f"dump {left_directory} {what}", on_terminal=True)
        assert outcome.status == 0
        assert all(char.isprintable() or char == "\n" for char in outcome.stdout)
        assert len(outcome.stdout.splitlines()) == outcome.stdout.count("\n")


def test_damage_is_reported_where_it_is_met(directory: Path, command: CommandLine) -> None:
    path = directory / "commitlog" / FIRST
    with path.open("r+b") as file:
        file.seek(scenario.FIRST_TIMERS_POS + 33)
        file.write(b"\xee")
    outcome = command.run(f"dump {directory} records --topic orders --json")
    assert outcome.status == 1
    lines = outcome.json_lines()
    (fault,) = [line for line in lines if line.get("type") == "fault"]
    assert (fault["file"], fault["offset"], fault["size"]) == (
        str(path),
        scenario.FIRST_TIMERS_POS,
        scenario.FIRST_TIMERS_SIZE,
    )
    assert "red" not in outcome.stdout
    offsets = [line["offset"] for line in lines if "value" in line and line["partition"] == 1]
    assert offsets == [1], "what follows the damage is shown"
    text = command.run(f"dump {directory} records")
    assert text.stderr.startswith(
        f"latermq: fault: {path} at byte {scenario.FIRST_TIMERS_RANGE}: expected"
    )


def test_a_batch_that_cannot_be_unpacked_is_reported(directory: Path, command: CommandLine) -> None:
    """The CRC of a batch says that it is as it was sent, not that anybody can read it."""
    from _core.bytes.crc32c import crc32c

    path = directory / "commitlog" / FIRST
    log = bytearray(path.read_bytes())
    pos = scenario.FIRST_RECORDS_POS
    start = pos + 160
    log[start + 22] |= 4  # says: compressed with Zstandard
    log[start + 17 : start + 21] = crc32c(bytes(log[start + 21 : start + 85])).to_bytes(4, "big")
    size = int.from_bytes(log[start + 8 : start + 12], "big") + 12
    log[start + 17 : start + 21] = crc32c(bytes(log[start + 21 : start + size])).to_bytes(4, "big")
    covered = bytes(log[pos : pos + 156]) + bytes(log[start : start + 21])
    log[pos + 156 : pos + 160] = crc32c(covered).to_bytes(4, "big")
    path.write_bytes(log)
    found = items(command, directory, "frames --content --to 1200")
    (frame,) = [each for each in found if each["position"] == pos]
    assert frame["batch"] == {"codec": "zstd"}
    (record,) = frame["records"]
    assert "zstd" in record["problem"].lower() or "frame" in record["problem"]


def test_changes_of_a_group_are_printed(tmp_path: Path, command: CommandLine) -> None:
    harness = BrokerHarness()
    for frame in (golden_frames.GROUP_FRAME, golden_frames.GROUP_CHANGED):
        harness.broker.groups.save_group(frame)
    harness.broker.close()
    directory = scenario.export(harness.disk, tmp_path)
    (change,) = items(command, directory, "frames --kind group-delta --content")
    assert change["payload"]["left"] == [1]
    assert change["payload"]["changed"][0]["values"]["member_id"] == "w-3"
    text = command.ok(f"dump {directory} frames --kind group-delta --content").stdout
    assert "member_id" in text
    assert command.ok(f"check {directory}")
