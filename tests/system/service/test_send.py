"""`latermq send`, to a real broker in a process of its own."""

import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from appliance.commands import send
from tests.support.harness.command_line import CommandLine

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_records_of_the_arguments_are_sent_and_distinguished(
    latermq: CommandLine, topic: str
) -> None:
    sent = latermq.ok(f"send {topic} one two --partition 1 --key k --header a=b=c --header d=")
    assert sent.lines == [f"{topic}/1, offset 0", f"{topic}/1, offset 1"]
    first, second = latermq.ok(f"tail {topic} --json").json_lines()
    assert (first["value"], second["value"]) == ("one", "two")
    assert (first["key"], first["headers"]) == ("k", [["a", "b=c"], ["d", ""]])
    assert (first["topic"], first["partition"], first["offset"]) == (topic, 1, 0)
    assert first["due_at"] is None
    assert abs(first["timestamp"] - time.time() * 1000) < 60_000


def test_lines_of_the_input_are_records(latermq: CommandLine, topic: str) -> None:
    lines = [b"%d" % number for number in range(2_000)] + [b"", b"\xff\x00", b"last"]
    sent = latermq.ok(f"send {topic} --partition 0", b"\n".join(lines))
    assert sent.stdout == ""
    assert sent.stderr == f"latermq: 2003 records sent to {topic}\n"
    values = [each["value"] for each in latermq.ok(f"tail {topic} --json").json_lines()]
    expected = [line.decode() for line in lines if line != b"\xff\x00"]
    assert [value for value in values if isinstance(value, str)] == expected
    assert {"base64": "/wA="} in values


def test_a_delayed_record_comes_when_it_is_due(latermq: CommandLine, topic: str) -> None:
    sent = latermq.ok(f"send {topic} later --delay 50ms --id a --partition 0")
    assert re.fullmatch(rf"{topic}/0, delayed by 50ms, due 2\S+Z, id a", sent.stdout.strip())
    assert latermq.ok(f"send {topic} x --delay 1h --json").json()["offset"] is None
    (record,) = latermq.ok(f"tail {topic} --from 0 --follow --count 1 --json").json_lines()
    assert record["value"] == "later"
    assert record["due_at"] > record["timestamp"]
    # What was there before it was looked at may have come at any time.
    (record,) = latermq.ok(f"tail {topic} --json").json_lines()
    assert record["late_ms"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--level 18", "delayed by level 18"),
        ("--delay PT1H --id 'a b'", "delayed by PT1H, id a b"),
        ("--delay 3600000ms", "delayed by 3600000ms"),
    ],
)
def test_each_way_to_ask_for_a_delay_is_a_header(
    latermq: CommandLine, topic: str, options: str, words: str
) -> None:
    line = re.sub(", due 2[^,]*Z", "", latermq.ok(f"send {topic} x {options}").lines[0])
    assert line.endswith(f", {words}")
    assert latermq.ok(f"tail {topic}").stdout == ""


@pytest.mark.parametrize(
    "options",
    ["--level 0", "--delay 0", "--delay=-5", "--at 2020-01-01T00:00:00Z"],
    ids=["level", "zero", "negative", "past"],
)
def test_a_record_that_is_not_held_back_is_not_called_delayed(
    latermq: CommandLine, topic: str, options: str
) -> None:
    sent = latermq.ok(f"send {topic} x --partition 0 --id a {options}")
    assert sent.lines == [f"{topic}/0, offset 0, not delayed, id a"]
    counted = latermq.ok(f"send {topic} {options}", b"x\ny\n")
    assert counted.stderr == f"latermq: 2 records sent to {topic}, not delayed\n"


def test_an_instant_is_one_too(latermq: CommandLine, topic: str) -> None:
    due_ms = int(time.time() * 1000) + 3_600_000
    sent = latermq.ok(f"send {topic} x --at {due_ms} --id a")
    assert sent.lines[0].endswith(f", to be delivered at {due_ms}, id a")
    assert latermq.ok(f"timers show {topic} a --json").json()["due_at"] == due_ms


def test_a_record_can_be_cancelled_by_its_id(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} x --delay 1h --id a")
    assert latermq.ok(f"timers show {topic} a").stdout.startswith("a: pending, due ")
    assert latermq.ok(f"send {topic} --cancel a").lines[0].endswith(", cancels a")
    assert latermq.ok(f"timers show {topic} a --json").json()["state"] == "cancelled"


def test_a_delay_without_a_unit_is_refused_with_both_readings(
    latermq: CommandLine, topic: str
) -> None:
    for delay in ("30", "1500", "0030"):
        assert latermq.fails(f"send {topic} x --delay '\"{delay}\"'", 2) != ""
        said = latermq.fails(f"send {topic} x --delay {delay}", 2)
        assert f"--delay {delay} is {delay}ms or {delay}s?" in said
    assert "offset 0, not delayed" in latermq.ok(f"send {topic} x --delay 0 -p 0").stdout
    before_ms = int(time.time() * 1000)
    (line,) = latermq.ok(f"send {topic} x --delay 1h --partition 0").lines
    due = datetime.fromisoformat(line.split(", due ")[1])
    assert 0 <= due.timestamp() * 1000 - before_ms - 3_600_000 < 60_000


def test_the_due_time_counts_from_the_record_and_not_from_the_start_of_the_command(
    latermq: CommandLine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed_ms = 0

    def typed_later() -> Iterator[bytes]:
        nonlocal typed_ms
        time.sleep(0.02)
        typed_ms = int(time.time() * 1000)
        yield b"x"

    monkeypatch.setattr(send, "_input_lines", typed_later)
    said = latermq.ok(f"send {topic} --delay 1h").stderr
    due = datetime.fromisoformat(said.strip().split(", due ")[1])
    assert typed_ms <= round(due.timestamp() * 1000) - 3_600_000
