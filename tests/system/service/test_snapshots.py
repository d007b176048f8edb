"""`latermq snapshot`, and what reads one, by a real broker that goes on meanwhile."""

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.support.harness.command_line import CommandLine

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

LIMIT_S = 30.0
"""How long the broker may take to publish what it has flushed."""


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    with running_appliance(tmp_path) as running:
        yield running


@pytest.fixture
def latermq(appliance: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(monkeypatch, appliance.kafka, appliance.admin)


def rows_of(directory: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table, in the order of the log."""
    pytest.importorskip("pyarrow")
    from compat.tables.table import Query, open_plan, tasks

    found = tasks(open_plan(directory), Query(table=table))
    return [row for task in found for batch in task.batches() for row in batch.to_pylist()]


def wait_for_messages(directory: Path, count: int) -> None:
    """Wait until the running broker has published that so many records are flushed."""
    end_s = time.monotonic() + LIMIT_S
    while len(rows_of(directory, "messages")) < count:
        assert time.monotonic() < end_s, "the broker does not publish its flushed position"


def write(latermq: CommandLine, numbers: range) -> None:
    """Send some records, and some timers; cancel one timer."""
    lines = b"\n".join(b"value-%d" % number for number in numbers)
    latermq.ok("send t --partition 0", lines)
    for number in numbers[:3]:
        latermq.ok(f"send t later-{number} --delay 1h --id id-{number} --partition 0")
    latermq.ok(f"timers cancel t id-{numbers[1]}")


def test_a_snapshot_has_the_rows_of_its_time(
    latermq: CommandLine, appliance: ApplianceProcess, tmp_path: Path
) -> None:
    latermq.ok("topics create t --partitions 1")
    write(latermq, range(100))
    (printed,) = latermq.ok("snapshot create before").lines
    directory = Path(printed)
    assert directory == appliance.data_dir / "snapshots" / "before"
    rows = {table: rows_of(directory, table) for table in ("messages", "timers", "frames")}
    assert [row["value"] for row in rows["messages"]] == [b"value-%d" % n for n in range(100)]
    states = {row["id"]: row["delay_state"] for row in rows["timers"]}
    assert states == {b"id-0": "pending", b"id-1": "cancelled", b"id-2": "pending"}
    write(latermq, range(100, 200))
    latermq.ok("timers cancel t id-0")
    for table, found in rows.items():
        assert rows_of(directory, table) == found
    wait_for_messages(appliance.data_dir, 200)
    checked = latermq.ok(f"check {directory} --json").json_lines()[-1]
    assert (checked["faults"], checked["is_snapshot"]) == (0, True)
    dumped = latermq.ok(f"dump {directory} records --json").json_lines()
    assert [each["value"] for each in dumped] == [f"value-{n}" for n in range(100)]
    assert latermq.ok(f"check {directory}").stdout.endswith("this is a snapshot\n")


def test_snapshots_are_listed_and_deleted(
    latermq: CommandLine, appliance: ApplianceProcess
) -> None:
    assert latermq.ok("snapshot list").stderr.startswith("latermq: there are no snapshots")
    latermq.ok("topics create t")
    made = [latermq.ok("snapshot create --json").json(), latermq.ok("snapshot create b --json")]
    assert "there is a snapshot 'b' already" in latermq.fails("snapshot create b")
    assert "cannot be named '../b'" in latermq.fails("snapshot create ../b")
    listed = latermq.ok("snapshot list --json").json()
    assert listed == [made[0], made[1].json()]
    head, first, second = latermq.ok("snapshot list").lines
    assert head.split() == ["SNAPSHOT", "CREATED", "LOG", "POSITION", "BYTES", "KEPT", "DIRECTORY"]
    assert first.startswith(made[0]["name"])
    assert second.split()[-1] == str(appliance.data_dir / "snapshots" / "b")
    assert latermq.ok("snapshot delete b").lines == ["deleted b"]
    assert "there is no snapshot 'b'" in latermq.fails("snapshot delete b")
    assert latermq.ok("snapshot list --json").json() == [made[0]]
    directory = Path(made[0]["path"])
    for path in (directory, *directory.rglob("*")):
        wanted = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_no_broker_serves_a_snapshot(latermq: CommandLine, appliance: ApplianceProcess) -> None:
    directory = latermq.ok("snapshot create s").lines[0]
    complaint = latermq.fails(f"serve --data-dir {directory} --listen 127.0.0.1:0", 74)
    assert "this is a snapshot" in complaint
    assert "cp -r" in complaint


def test_a_start_after_damage_leaves_the_file_of_a_snapshot_as_it_is(
    latermq: CommandLine, appliance: ApplianceProcess
) -> None:
    latermq.ok("topics create t --partitions 1")
    write(latermq, range(100))
    directory = Path(latermq.ok("snapshot create before").lines[0])
    (segment,) = (directory / "commitlog").iterdir()
    end = latermq.ok("snapshot list --json").json()[0]["end"]
    appliance.kill()
    with segment.open("r+b") as file:
        file.seek(end - 2_000)
        file.write(b"damage" * 1_000)
    damaged = segment.read_bytes()
    live = appliance.data_dir / "commitlog" / segment.name
    assert live.samefile(segment)
    appliance.start()
    latermq.ok("send t --partition 0", b"after")
    assert segment.read_bytes() == damaged
    assert segment.stat().st_nlink == 1
    assert not live.samefile(segment)
    assert latermq.ok("tail t --json").json_lines()[-1]["value"] == "after"
