"""How `check` and `dump` treat a directory: whose it is, exit statuses, and that it stays as is."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import DataDirectoryLockedError
from appliance.system.files import OsFileSystem
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.backups import BACKUP, back_up_live
from tests.support.harness.command_line import CommandLine
from tests.support.simulator.sim_fs import SimFileSystem

NOBODY = 65_534

READS = ("check", "dump", "dump --content", "dump timers", "dump queues", "dump state")


def words(verb: str, directory: Path) -> str:
    name, _, rest = verb.partition(" ")
    return f"{name} {directory} {rest.replace('--content', 'frames --content')}"


def fingerprint(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a directory that a write would change."""
    found = {}
    for path in sorted([directory, *directory.rglob("*")]):
        stat = os.stat(path)
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (stat.st_mtime_ns, stat.st_mode, content)
    return found


@pytest.mark.parametrize("verb", READS)
def test_nothing_in_the_directory_changes(directory: Path, command: CommandLine, verb: str) -> None:
    before = fingerprint(directory)
    command.ok(words(verb, directory))
    assert fingerprint(directory) == before


class ReadOnly:
    """A file system on which nothing can be written, and that says so of any attempt."""

    def __init__(self, disk: SimFileSystem) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        assert name in {"list_dir", "exists", "lock_for_reading"}, f"{name} on a read-only disk"
        return getattr(self._disk, name)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Any:
        assert not create
        assert not writable
        return self._disk.open(path, writable=False)


def test_a_read_only_disk_can_be_checked() -> None:
    checked = scenario.check(ReadOnly(scenario.stopped()))
    assert checked.faults == []


def test_a_backup_on_a_read_only_disk_can_be_checked() -> None:
    harness = scenario.play()
    back_up_live(harness)
    checked = scenario.check(ReadOnly(harness.disk), BACKUP)
    assert checked.faults == []
    assert checked.report.is_backup


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, if that is who runs the tests."""
    user = os.geteuid()
    if user:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_what_this_user_may_not_read(directory: Path, command: CommandLine) -> None:
    (directory / "commitlog" / ("0" * 20)).chmod(0)
    command.ok("version")
    with as_nobody():
        said = command.fails(f"check {directory}", 2)
    assert "EACCES" in said
    assert "run the command as the owner of the directory, or as a member of its group" in said


def test_the_verdict(directory: Path, command: CommandLine) -> None:
    assert command.ok(f"check {directory}").lines == [
        f"whole: 42 frames from log position 0 to {scenario.LOG_END}, 24 queue units, "
        f"1 saved states, epoch {scenario.EPOCH}; "
        "the broker stopped cleanly"
    ]
    assert command.ok(f"check {directory} --json").json() == {
        "type": "report",
        "start": 0,
        "end": scenario.LOG_END,
        "frames": 42,
        "units": 24,
        "states": 1,
        "epoch": scenario.EPOCH,
        "is_clean": True,
        "is_live": False,
        "is_snapshot": False,
        "is_backup": False,
        "faults": 0,
    }


def test_faults_are_reported_and_counted(directory: Path, command: CommandLine) -> None:
    path = directory / "consumequeue" / "orders" / "1" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\x01")
    outcome = command.run(f"check {directory}")
    assert outcome.status == 1
    assert outcome.lines == [
        f"fault: {path} at byte 20, 20 bytes: expected the unit position {scenario.DELIVER_POS} "
        f"size {scenario.DELIVER_SIZE} tags 0 of offset 1, found the unit position "
        f"{(1 << 56) + scenario.DELIVER_POS} size {scenario.DELIVER_SIZE} tags 0",
        f"1 faults: 42 frames from log position 0 to {scenario.LOG_END}, 24 queue units, "
        f"1 saved states, epoch {scenario.EPOCH}; the broker stopped cleanly",
    ]
    fault, report = command.run(f"check {directory} --json").json_lines()
    assert fault["type"] == "fault"
    assert (fault["file"], fault["offset"], fault["size"]) == (str(path), 20, 20)
    assert report["faults"] == 1


def test_a_torn_tail_is_a_note_and_no_fault(tmp_path: Path, command: CommandLine) -> None:
    disk = scenario.killed()
    path = scenario.segments(disk)[-1]
    end = len(disk.files()[path].rstrip(b"\x00"))
    disk.open(path).pwritev([b"LM torn"], (end + 7) // 8 * 8)
    outcome = command.ok(f"check {scenario.export(disk, tmp_path)}")
    assert outcome.lines[0].startswith(f"note: {tmp_path / 'commitlog' / path.name} at byte ")
    assert "torn tail of about 8 bytes" in outcome.lines[0]


@pytest.mark.parametrize("verb", READS)
def test_what_is_no_data_directory(tmp_path: Path, command: CommandLine, verb: str) -> None:
    said = command.fails(words(verb, tmp_path), 2)
    assert said == f"latermq: {tmp_path} is not a latermq data directory: it has no commitlog/\n"
    assert list(tmp_path.iterdir()) == []


def test_no_broker_starts_while_a_directory_is_read(directory: Path) -> None:
    fs = OsFileSystem()
    lock = fs.lock_for_reading(directory)
    with pytest.raises(DataDirectoryLockedError, match="latermq check or dump is reading"):
        fs.lock(directory)
    lock.release()
    fs.lock(directory).release()


def test_a_copy_of_the_log_alone_is_enough(
    left_directory: Path, tmp_path: Path, command: CommandLine
) -> None:
    (tmp_path / "commitlog").mkdir()
    for path in (left_directory / "commitlog").iterdir():
        (tmp_path / "commitlog" / path.name).write_bytes(path.read_bytes())
    assert command.ok(f"check {tmp_path}").lines[0].startswith("whole: 42 frames")


@pytest.fixture
def appliance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A broker with a topic that has a record."""
    process = ApplianceProcess(tmp_path / "data")
    process.start()
    client = CommandLine(monkeypatch, process.kafka, process.admin)
    client.ok("topics create orders")
    client.ok("send orders hello")
    yield process
    process.close()


def test_a_running_broker_is_looked_at_only_on_request(
    appliance: ApplianceProcess, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
    client.ok("send orders later --delay 1h --id one")
    for verb in READS:
        said = command.fails(words(verb, appliance.data_dir), 2)
        assert f"a broker (pid {appliance.pid}) is running" in said
        assert "--live" in said
        assert command.run(words(verb, appliance.data_dir) + " --live").status == 0
    checked = command.ok(f"check {appliance.data_dir} --live")
    assert checked.lines[0].startswith("whole: ")
    assert checked.lines[0].endswith("; the broker is running")
    (record,) = command.ok(f"dump {appliance.data_dir} records --live --json").json_lines()
    assert record["value"] == "hello"
    (timer,) = command.ok(f"dump {appliance.data_dir} timers --live --pending --json").json_lines()
    assert (timer["value"], timer["id"]) == ("later", "one")


def test_a_killed_broker_leaves_what_is_whole(
    appliance: ApplianceProcess, command: CommandLine
) -> None:
    appliance.kill()
    assert command.ok(f"check {appliance.data_dir}").lines[-1].endswith("; the broker crashed")
    appliance.start()
    appliance.stop(signal.SIGTERM)
    last = command.ok(f"check {appliance.data_dir}").lines[-1]
    assert last.endswith("; the broker stopped cleanly")
