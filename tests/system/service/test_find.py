"""`latermq find` and its index, by a real broker that is killed, and without one."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.support.harness.command_line import CommandLine

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

LIMIT_S = 30.0
"""How long the broker may take to index what it has."""


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    with running_appliance(tmp_path) as running:
        yield running


@pytest.fixture
def latermq(appliance: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(monkeypatch, appliance.kafka, appliance.admin)


def wait_for_index(latermq: CommandLine) -> None:
    """Wait until everything that is flushed is indexed."""
    end_s = time.monotonic() + LIMIT_S
    while latermq.ok("status --json").json()["key_index"]["lag_bytes"]:
        assert time.monotonic() < end_s, "the index does not follow the log"


def wait_for_mark(latermq: CommandLine, directory: Path) -> None:
    """Wait until the broker has published that all of the last key's records are flushed."""
    end_s = time.monotonic() + LIMIT_S
    while len(latermq.run(f"find --key blue --json --limit 100 --dir {directory}").lines) < 40:
        assert time.monotonic() < end_s, "the broker does not publish its flushed position"


def find(latermq: CommandLine, options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = latermq.ok(f"find --json {options}").json_lines()
    return found


def values(found: list[dict[str, Any]]) -> list[str]:
    return [item["value"] for item in found]


def send(latermq: CommandLine, key: str, first: int, count: int) -> None:
    lines = b"\n".join(b"%s-%d" % (key.encode(), n) for n in range(first, first + count))
    latermq.ok(f"send t --partition 0 --key {key}", lines)


def check(latermq: CommandLine, key: str, options: str = "") -> None:
    """Check that the 40 records of a key are found, and each by its offset and position."""
    found = find(latermq, f"--key {key} --limit 100 {options}")
    assert values(found) == [f"{key}-{n}" for n in range(40)]
    for item in found[::13]:
        place = f"t/0@{item['offset']}"
        assert values(find(latermq, f"--offset {place} {options}")) == [item["value"]]
        at = find(latermq, f"--position {item['position']} --limit 100 {options}")
        assert item in at


def test_keys_are_found_after_a_kill_and_after_the_index_was_deleted(
    latermq: CommandLine, appliance: ApplianceProcess
) -> None:
    latermq.ok("topics create t --partitions 1")
    for first in (0, 20):
        for key in ("red", "green", "blue"):
            send(latermq, key, first, 20)
    for key in ("red", "green", "blue"):
        check(latermq, key)
    wait_for_index(latermq)
    assert latermq.ok("status --json").json()["key_index"]["rows"] > 0
    check(latermq, "green")
    wait_for_mark(latermq, appliance.data_dir)
    appliance.kill()
    check(latermq, "red", f"--dir {appliance.data_dir}")
    appliance.start()
    check(latermq, "blue")
    wait_for_index(latermq)
    check(latermq, "blue")
    appliance.kill()
    for path in (appliance.data_dir / "keyindex").glob("*"):
        path.unlink()
    appliance.start()
    check(latermq, "red")
    wait_for_index(latermq)
    check(latermq, "red")
    outcome = latermq.run("find --key yellow")
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr == "latermq: nothing was found\n"


def test_what_was_done_to_a_timer_is_found_by_its_id(
    latermq: CommandLine, appliance: ApplianceProcess
) -> None:
    latermq.ok("topics create t --partitions 1")
    latermq.ok("send t first --delay 1h --id order --key k --partition 0")
    latermq.ok("send t second --delay 2h --id order --key k --partition 0")
    latermq.ok("timers cancel t order")
    latermq.ok("send t third --delay 3h --id order --key k --partition 0")
    latermq.ok("send t soon --delay 1ms --id other --key k --partition 0")
    end_s = time.monotonic() + LIMIT_S
    while len(find(latermq, "--id other")) < 2:
        assert time.monotonic() < end_s, "the record is not delivered"
    found = find(latermq, "--id order")
    assert [(item["what"], item.get("state")) for item in found] == [
        ("timer", "completed"),
        ("timer", "completed"),
        ("cancelled", None),
        ("timer", "pending"),
    ]
    assert found[2]["accept_position"] == found[1]["position"]
    timer, delivered = find(latermq, "--id other")
    assert (timer["what"], timer["state"], timer["value"]) == ("timer", "delivered", "soon")
    assert (delivered["what"], delivered["offset"], delivered["value"]) == ("delivered", 0, "soon")
    assert [item["what"] for item in find(latermq, "--key k")] == ["timer"] * 4 + ["delivered"]
    (line,) = latermq.ok("find --offset t/0@0").lines
    assert line.startswith("delivered topic=t partition=0 offset=0 timestamp=")
    assert 'key="k" value="soon"' in line
    appliance.stop()
    found = find(latermq, f"--dir {appliance.data_dir} --id order")
    assert [item.get("state") for item in found] == ["replaced", "cancelled", None, "pending"]
    appliance.start()


def test_a_time_and_a_limit_narrow_what_is_found(
    latermq: CommandLine, appliance: ApplianceProcess
) -> None:
    latermq.ok("topics create t --partitions 1")
    latermq.ok("topics create u --partitions 1")
    send(latermq, "k", 0, 10)
    latermq.ok("send u other --key k --partition 0")
    first = find(latermq, "--key k --limit 1")[0]["stored_at"]
    assert len(find(latermq, f"--between {first} 2100-01-01T00:00:00Z")) == 11
    assert len(find(latermq, f"--between {first} 2100-01-01T00:00:00Z --topic u")) == 1
    assert latermq.run(f"find --key k --between 2020-01-01T00:00:00Z {first}").status == 1
    found, after = [], ""
    while True:
        outcome = latermq.ok(f"find --key k --json --limit 3 {after}")
        found += outcome.json_lines()
        if not outcome.stderr:
            break
        after = outcome.stderr.split("continue with ")[1]
    assert values(found) == [*(f"k-{n}" for n in range(10)), "other"]


def test_what_cannot_be_found_is_said_in_a_sentence(
    latermq: CommandLine, appliance: ApplianceProcess
) -> None:
    latermq.ok("topics create t --partitions 1")
    send(latermq, "k", 0, 1)
    position = find(latermq, "--key k")[0]["position"]
    for options in ("", f"--dir {appliance.data_dir}"):
        if options:
            appliance.stop()
        not_there = latermq.fails(f"find --position {position + 8} {options}")
        assert f"no frame begins at position {position + 8}" in not_there
        assert "is not below" in latermq.fails(f"find --position 99999999999 {options}")
        assert "does not exist yet: it ends at 1" in latermq.fails(f"find --offset t/0@1 {options}")
        assert "there is no topic 'x'" in latermq.fails(f"find --key k --topic x {options}")
        latermq.fails(f"find --offset t/7@1 {options}")
        latermq.fails(f"find --offset t/7 {options}")
    appliance.start()
    assert "use one of --key" in latermq.fails("find --limit 5", 2)
    assert "use one of --key" in latermq.fails("find --key a --id b", 2)
    assert "is not before" in latermq.fails("find --key a --between 1h 2h", 2)
