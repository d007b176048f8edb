"""Snapshots of the log: what they have, that they stay so, and what a crash leaves of one."""

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import pytest

from appliance.errors import LogRefusedError, SnapshotError, StorageError
from appliance.kafka_facade import KAFKA_FACADE
from appliance.model import SnapshotStatus
from appliance.offline.check import Check
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Findings
from appliance.offline.rebuild import Rebuild
from appliance.store.log.segment import SpareJob
from appliance.store.log_snapshots import check_name
from appliance.store.paths import SPARE_NAME, DataPaths, segment_name
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import PATHS, change, start
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem
from tests.support.values.kafka_records import Record

SEGMENT = 64 * KIB


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with a bit of everything, in three segments."""
    found = BrokerHarness()
    found.create_topic("t", 2)
    fill(found, 29)
    return found


def fill(harness: BrokerHarness, count: int) -> None:
    for number in range(count):
        change(harness, number)
        harness.produce("t", 0, [Record(b"v" * 5_000)])
    harness.flush()


def create(harness: BrokerHarness, name: str | None = "s") -> SnapshotStatus:
    harness.flush()
    snapshots = harness.broker.snapshots
    return snapshots.create(snapshots.freeze(), name)


def log_of(disk: SimFileSystem, root: Path, end: int) -> bytes:
    """The bytes of the log of a directory up to a position."""
    paths = DataPaths(root)
    names = [name for name in disk.list_dir(paths.commit_log) if name != "spare"]
    whole = b"".join(disk.files()[paths.commit_log / name] for name in names)
    return whole[:end]


def check_snapshot(disk: SimFileSystem, status: SnapshotStatus, log: bytes) -> None:
    """Check that a snapshot is whole and has exactly that log."""
    root = Path(status.path)
    assert log_of(disk, root, status.end) == log
    faults: list[object] = []
    findings = Findings(faults.append)
    data = DataDir(disk, root, findings)
    data.open(may_be_live=False)
    check = Check(data, findings)
    for _ in check.run():
        pass
    data.close()
    assert faults == []
    assert check.report.is_snapshot
    assert check.report.end == status.end == len(log)


def test_a_snapshot_has_the_log_as_it_was_whatever_follows(harness: BrokerHarness) -> None:
    made = create(harness)
    end = harness.broker.flushed_pos
    log = log_of(harness.disk, PATHS.root, end)
    assert (made.start, made.end, made.created_at) == (0, end, harness.clock.wall_ms())
    assert made.size_bytes == 3 * SEGMENT
    assert end < 3 * SEGMENT, "the last segment grows"
    check_snapshot(harness.disk, made, log)
    fill(harness, 20)
    check_snapshot(harness.disk, made, log)
    harness = harness.restart()
    fill(harness, 5)
    check_snapshot(harness.disk, made, log)
    assert harness.broker.snapshots.all() == [made]
    # After a crash with a torn tail, too, which a start cuts.
    harness.send_produce("t", 0, [Record(b"x" * 3_000)])
    harness = harness.crash("torn", random.Random(1))
    fill(harness, 5)
    check_snapshot(harness.disk, made, log)


def test_only_what_is_flushed_is_in_a_snapshot(harness: BrokerHarness) -> None:
    harness.flush()
    end = harness.broker.flushed_pos
    harness.send_produce("t", 0, [Record(b"not flushed")])
    snapshots = harness.broker.snapshots
    part = snapshots.freeze()
    harness.flush()
    made = snapshots.create(part, "s")
    assert made.end == end < harness.broker.flushed_pos
    check_snapshot(harness.disk, made, log_of(harness.disk, PATHS.root, end))


def test_segments_that_the_log_loses_stay_in_the_snapshot(harness: BrokerHarness) -> None:
    made = create(harness)
    log = log_of(harness.disk, PATHS.root, made.end)
    free = harness.disk.free
    for number in range(2):
        harness.disk.unlink(PATHS.commit_log / segment_name(number * SEGMENT))
    assert harness.disk.free == free, "the snapshot keeps them"
    (listed,) = harness.broker.snapshots.all()
    assert (listed.size_bytes, listed.kept_bytes) == (3 * SEGMENT, 2 * SEGMENT)
    check_snapshot(harness.disk, made, log)
    harness.broker.snapshots.delete("s")
    assert harness.disk.free >= free + 2 * SEGMENT


def test_a_segment_in_a_snapshot_is_not_used_again(harness: BrokerHarness) -> None:
    disk = harness.disk
    made = create(harness)
    log = log_of(disk, PATHS.root, made.end)
    disk.rename(PATHS.commit_log / segment_name(0), PATHS.commit_log / SPARE_NAME)
    job = SpareJob(disk, PATHS.commit_log, 9 * SEGMENT, SEGMENT)
    job.run()
    job.prewrite()
    assert job.take().file.link_count() == 1
    assert not disk.exists(PATHS.commit_log / SPARE_NAME)
    check_snapshot(disk, made, log)


def test_names_are_safe(harness: BrokerHarness) -> None:
    for name in ("a", "A.b_c-1", "x" * 64, "1"):
        check_name(name)
    for name in ("", ".", "..", ".a", "-a", "a/b", "a b", "x" * 65, "ä", "a\n", "a\0"):
        with pytest.raises(SnapshotError, match="cannot be named") as caught:
            create(harness, name)
        assert caught.value.reason == "name"
    assert not harness.disk.exists(PATHS.snapshots)
    assert create(harness, None).name == "20260101T000005.800Z"


def test_a_name_is_taken_once(harness: BrokerHarness) -> None:
    made = create(harness)
    fill(harness, 1)
    with pytest.raises(SnapshotError, match="'s' already") as caught:
        create(harness)
    assert caught.value.reason == "exists"
    assert harness.broker.snapshots.all() == [made]


def test_snapshots_are_listed_oldest_first_and_deleted_one_by_one(harness: BrokerHarness) -> None:
    assert harness.broker.snapshots.all() == []
    made = []
    for name in ("c", "a", "b"):
        made.append(create(harness, name))
        harness.tick(1_000)
    assert harness.broker.snapshots.all() == made
    before = {path for path in harness.disk.files() if PATHS.log_snapshot("a") not in path.parents}
    assert harness.broker.snapshots.delete("a") == made[1]
    assert set(harness.disk.files()) == before
    assert harness.broker.snapshots.all() == [made[0], made[2]]
    for name in ("a", "..", ".", "", "c/commitlog"):
        with pytest.raises(SnapshotError, match="no snapshot") as caught:
            harness.broker.snapshots.delete(name)
        assert caught.value.reason == "unknown"


def test_no_broker_starts_on_a_snapshot(harness: BrokerHarness) -> None:
    root = Path(create(harness).path)
    digest = harness.disk.digest()
    config = replace(harness.config, data_dir=root)
    with pytest.raises(LogRefusedError, match="this is a snapshot"):
        BrokerHarness(harness.disk, harness.clock, config)
    with pytest.raises(LogRefusedError, match="this is a snapshot"):
        list(Rebuild(harness.disk, harness.clock, config, KAFKA_FACADE).run())
    assert harness.disk.digest() == digest


def test_a_copy_of_a_snapshot_without_its_mark_is_a_data_directory(harness: BrokerHarness) -> None:
    made = create(harness)
    fill(harness, 3)
    copy = SimFileSystem()
    for path, content in harness.disk.files().items():
        if path.is_relative_to(made.path) and path.name != PATHS.snapshot_mark.name:
            target = PATHS.root / path.relative_to(made.path)
            copy.make_dirs(target.parent)
            copy.open(target, create=True).pwritev([content], 0)
    started = start(harness, copy)
    assert started.report.damage == ()
    assert started.values()[:30] == harness.values()[:30]


# A start that ends the log before the end of a snapshot


LAST: Final = segment_name(2 * SEGMENT)


def make_unreadable(disk: SimFileSystem) -> None:
    """Make the last segment unreadable but for its first pages, which have records."""
    disk.spoil(PATHS.commit_log / LAST, 32 * KIB, 32 * KIB)


def recover(disk: SimFileSystem, made: BrokerHarness) -> BrokerHarness:
    return BrokerHarness(disk, made.clock, made.config, accepts_loss=True)


@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "checkpoint of the snapshot"])
def test_a_start_that_ends_the_log_early_leaves_a_snapshot_as_it_is(
    harness: BrokerHarness, lost: str
) -> None:
    made = create(harness)
    log = log_of(harness.disk, PATHS.root, made.end)
    disk = harness.disk.crashed("kept", random.Random(0))
    shared = Path(made.path) / "commitlog" / LAST
    make_unreadable(disk)
    if lost == "checkpoint":
        disk.unlink(PATHS.checkpoint)
    elif lost == "checkpoint of the snapshot":
        disk.open(DataPaths(Path(made.path)).checkpoint).pwritev([bytes(8 * KIB)], 0)
    started = recover(disk, harness)
    assert started.report.end_pos < made.end
    assert disk.open(PATHS.commit_log / LAST).link_count() == 1
    fill(started, 5)
    values = started.values()
    disk.repair(shared)
    assert disk.files()[shared][: made.end - 2 * SEGMENT] == log[2 * SEGMENT :]
    if lost != "checkpoint of the snapshot":
        check_snapshot(disk, made, log)
    assert started.restart().values() == values


def test_a_torn_tail_is_cut_without_a_copy(harness: BrokerHarness) -> None:
    create(harness)
    harness.send_produce("t", 0, [Record(b"x" * 500)])
    disk = harness.disk.crashed("kept", random.Random(0))
    disk.flip(PATHS.commit_log / LAST, harness.broker.wrote_pos - 2 * SEGMENT - 1, 1)
    started = recover(disk, harness)
    assert started.report.cut_bytes > 500
    assert disk.open(PATHS.commit_log / LAST).link_count() == 2


def test_a_crash_of_a_start_that_ends_the_log_early_leaves_a_snapshot_as_it_is(
    harness: BrokerHarness,
) -> None:
    made = create(harness)
    log = log_of(harness.disk, PATHS.root, made.end)
    shared = Path(made.path) / "commitlog" / LAST
    disk = harness.disk.crashed("kept", random.Random(0))
    make_unreadable(disk)
    readable = recover(disk, harness).values()
    assert 20 < len(readable) < len(harness.values())
    number, is_done = 0, False
    while not is_done:
        number += 1
        disk = harness.disk.crashed("kept", random.Random(0))
        make_unreadable(disk)
        disk.fail_at(disk.calls + number, SimCrash())
        try:
            recover(disk, harness)
            is_done = True
        except SimCrash:
            pass
        for mode in get_args(CrashMode):
            left = disk.crashed(mode, random.Random(number))
            started = recover(left, harness)
            assert started.values() == readable
            fill(started, 2)
            left.repair(shared)
            check_snapshot(left, made, log)
            values = started.values()
            assert started.restart().values() == values
    assert number > 10


def test_a_disk_without_room_for_the_copy_ends_a_start(harness: BrokerHarness) -> None:
    made = create(harness)
    log = log_of(harness.disk, PATHS.root, made.end)
    shared = Path(made.path) / "commitlog" / LAST
    disk = harness.disk.crashed("kept", random.Random(0))
    make_unreadable(disk)
    disk.free = SEGMENT - 4 * KIB
    with pytest.raises(StorageError) as caught:
        recover(disk, harness)
    assert caught.value.is_disk_full
    assert not disk.exists(PATHS.commit_log / SPARE_NAME)
    disk = disk.crashed("kept", random.Random(0))
    disk.free = 100 * SEGMENT
    fill(recover(disk, harness), 2)
    disk.repair(shared)
    check_snapshot(disk, made, log)


# Failures


@pytest.mark.parametrize(
    ("code", "operation", "reason"),
    [
        (errno.ENOSPC, "pwritev", "full"),
        (errno.ENOSPC, "mkdir", "full"),
        (errno.EDQUOT, "link", "full"),
        (errno.EPERM, "link", "unsupported"),
        (errno.EOPNOTSUPP, "link", "unsupported"),
        (errno.EXDEV, "link", "unsupported"),
        (errno.EIO, "link", None),
    ],
)
def test_a_failure_leaves_nothing_of_the_snapshot(
    harness: BrokerHarness,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    operation: str,
    reason: str | None,
) -> None:
    harness.flush()
    record_call = harness.disk.record_call

    def failing(called: str, path: Path, detail: str = "") -> object:
        if called == operation and PATHS.snapshots in (path, *path.parents):
            raise StorageError(path, called, code, "refused")
        return record_call(called, path, detail)

    with monkeypatch.context() as patched:
        patched.setattr(harness.disk, "record_call", failing)
        with pytest.raises((SnapshotError, StorageError)) as caught:
            create(harness)
    if reason is None:
        assert isinstance(caught.value, StorageError)
    else:
        assert isinstance(caught.value, SnapshotError)
        assert caught.value.reason == reason
    assert not harness.disk.exists(PATHS.log_snapshot("s"))
    create(harness)


def crash_at_each_call(
    play: Callable[[BrokerHarness], object], check: Callable[[BrokerHarness, bool], None]
) -> None:
    """Crash in all ways before each call of `play`; check what a start on the result has."""
    made = BrokerHarness()
    made.create_topic("t", 2)
    fill(made, 14)
    first = create(made, "old")
    log = log_of(made.disk, PATHS.root, first.end)
    number, is_done = 0, False
    while not is_done:
        number += 1
        disk = made.disk.crashed("killed", random.Random(0))
        harness = BrokerHarness(disk, made.clock, made.config)
        disk.fail_at(disk.calls + number, SimCrash())
        try:
            play(harness)
            is_done = True
        except SimCrash:
            pass
        for mode in get_args(CrashMode):
            for seed in range(3):
                left = disk.crashed(mode, random.Random(seed))
                started = BrokerHarness(left, made.clock, made.config)
                for each in started.broker.snapshots.all():
                    if each.name == "old":
                        check_snapshot(left, each, log)
                check(started, is_done)
    assert number > 5


def test_a_crash_at_any_step_leaves_a_whole_snapshot_or_none() -> None:
    def play(harness: BrokerHarness) -> None:
        snapshots = harness.broker.snapshots
        snapshots.create(snapshots.freeze(), "s")

    def check(started: BrokerHarness, is_done: bool) -> None:
        *_, last = started.broker.snapshots.all()
        names = started.disk.list_dir(PATHS.snapshots)
        assert names in (["old"], ["old", "s"])
        assert "s" in names or not is_done, "it was durable"
        if last.name == "s":
            log = log_of(started.disk, PATHS.root, last.end)
            check_snapshot(started.disk, last, log)

    crash_at_each_call(play, check)


def test_a_crash_at_any_step_of_a_deletion_leaves_the_whole_snapshot_or_nothing() -> None:
    def check(started: BrokerHarness, is_done: bool) -> None:
        names = started.disk.list_dir(PATHS.snapshots)
        assert names in ([], ["old"])
        assert not names or not is_done

    crash_at_each_call(lambda harness: harness.broker.snapshots.delete("old"), check)


def test_what_a_crash_left_is_removed_by_the_next_snapshot(harness: BrokerHarness) -> None:
    harness.disk.make_dirs(PATHS.log_snapshot("half") / "commitlog")
    assert harness.broker.snapshots.all() == []
    create(harness)
    assert harness.disk.list_dir(PATHS.snapshots) == ["s"]
