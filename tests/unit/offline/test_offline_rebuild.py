"""`latermq rebuild` makes what follows from the log again, and a kill on the way harms nothing."""

import random
from pathlib import Path

import pytest

from appliance.errors import DataDirectoryLockedError
from appliance.kafka_facade import KAFKA_FACADE
from appliance.offline.rebuild import Rebuild
from appliance.system.files import OsFileSystem
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.broker_harness import BrokerHarness, Digest
from tests.support.harness.command_line import CommandLine
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.sim_fs import SimCrash, SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock

USER_IDS = (b"reminder-1", b"reminder-2", b"reminder-3")
DERIVED = ("consumequeue", "timer", "timerlog", "index", "control")


def rebuild(disk: SimFileSystem) -> Rebuild:
    run = Rebuild(disk, VirtualClock(), small_config(), KAFKA_FACADE)
    for _ in run.run():
        pass
    return run


def digest_of(disk: SimFileSystem) -> Digest:
    copy = disk.crashed("kept", random.Random(0))
    return BrokerHarness(copy, VirtualClock()).digest(USER_IDS)


@pytest.mark.parametrize("has_junk", [False, True])
def test_a_rebuilt_directory_is_whole_and_the_same_whatever_is_beside_the_log(
    *, has_junk: bool
) -> None:
    disk = scenario.stopped()
    expected = digest_of(disk)
    for name in DERIVED if has_junk else ():
        disk.make_dirs(DATA_DIR / name / "ghost")
        disk.open(DATA_DIR / name / "ghost" / "x", create=True).pwritev([b"junk" * 99], 0)
    if has_junk:
        disk.open(DATA_DIR / "checkpoint").pwritev([b"\xee" * 8192], 0)
    run = rebuild(disk)
    assert (run.report.is_clean, run.report.epoch) == (not has_junk, scenario.EPOCH + 1)
    assert scenario.check(disk).faults == []
    assert digest_of(disk) == expected
    assert not any("ghost" in str(path) for path in disk.files())


def test_after_a_crash_it_is_a_start() -> None:
    disk = scenario.killed()
    run = rebuild(disk)
    assert not run.report.is_clean
    assert run.report.epoch == scenario.EPOCH + 1
    checked = scenario.check(disk)
    assert checked.faults == []
    assert checked.report.is_clean


def test_a_kill_at_any_moment_harms_nothing() -> None:
    seed = 6
    rng = random.Random(seed)
    found = scenario.stopped()
    expected = digest_of(found)
    disk = found.crashed("kept", rng)
    rebuild(disk)
    calls = disk.calls
    assert calls > 20
    for number in range(1, calls + 1):
        disk = found.crashed("kept", rng)
        disk.fail_at(number, SimCrash())
        with pytest.raises(SimCrash):
            rebuild(disk)
        for mode in ("kept", "torn"):
            left = disk.crashed(mode, rng)
            assert scenario.check(left).faults == [], f"call {number}, {mode}, seed {seed}"
            assert digest_of(left) == expected, f"call {number}, {mode}, seed {seed}"


def test_the_command(directory: Path, command: CommandLine) -> None:
    (directory / "consumequeue" / "orders" / "0" / ("0" * 20)).write_bytes(b"\xee" * 100)
    assert command.run(f"check {directory}").status == 1
    outcome = command.ok(f"rebuild {directory}")
    assert outcome.lines[0].startswith(
        "rebuilt: recovered after a clean stop: no checkpoint, replayed 42 frames"
    )
    command.ok(f"check {directory}")
    report = command.ok(f"rebuild {directory} --json").json()
    assert report.pop("epoch") > scenario.EPOCH
    assert report.pop("end") > scenario.LOG_END  # with an epoch frame of each rebuild
    assert report == {"type": "report", "frames": 43, "cut_bytes": 0, "damage": 0}


def test_damage_of_the_log_is_reported(directory: Path, command: CommandLine) -> None:
    path = directory / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(scenario.FIRST_TIMERS_POS + 33)
        file.write(b"\xee")
    outcome = command.run(f"rebuild {directory}")
    assert outcome.status == 1
    assert outcome.lines[0].startswith(f"{path} is damaged at byte {scenario.FIRST_TIMERS_RANGE}: ")


def test_it_refuses_what_is_in_use_or_is_no_data_directory(
    directory: Path, tmp_path: Path, command: CommandLine
) -> None:
    lock = OsFileSystem().lock(directory)
    assert "holds" in command.fails(f"rebuild {directory}", 2)
    lock.release()
    lock = OsFileSystem().lock_for_reading(directory)
    assert "is reading" in command.fails(f"rebuild {directory}", 2)
    with pytest.raises(DataDirectoryLockedError):
        OsFileSystem().lock(directory)
    lock.release()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a latermq data directory" in command.fails(f"rebuild {empty}", 2)
    assert list(empty.iterdir()) == []
