"""When a broker saves a state, and what may go wrong meanwhile."""

import errno
import random
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from appliance.broker import Broker
from appliance.errors import StorageError
from appliance.main import KAFKA_FACADE
from appliance.store.checkpointer import IDLE_NS, RETRY_NS, CheckpointJob, MarkJob
from appliance.store.decisions import Fault as StateFault
from appliance.store.runs import Runs, RunsJob
from appliance.units import KIB, NS_PER_MS
from tests.support.broker_rig import BrokerRig
from tests.support.checkpoints import (
    PATHS,
    USER_IDS,
    capture,
    change,
    check_loads,
    crashed,
    newest_of,
    rebuilt,
    start,
    take_checkpoint,
)
from tests.support.configs import small_config
from tests.support.kafka_records import Record, delay
from tests.support.sim_fs import CrashMode, Fault, SimFileSystem


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t", 2)
    for number in range(6):
        change(rig, number)
    return rig


# What may go wrong


def test_damage_to_the_newest_state_costs_no_more_than_the_one_before(rig: BrokerRig) -> None:
    take_checkpoint(rig)
    change(rig, 6)
    take_checkpoint(rig)
    change(rig, 7)
    rig.flush()
    disk = crashed(rig)
    disk.flip(PATHS.control_file(2), 30, 1)
    expected = rebuilt(rig, disk)
    started = start(rig, disk)
    assert started.report.checkpoint == 1
    (rejected,) = started.report.rejected
    assert (rejected.number, rejected.fault) == (2, StateFault.CONTROL_DAMAGED)
    assert "checkpoint 2" in str(rejected)
    assert [state.number for state in newest_of(disk).states] == [1]
    assert started.digest(USER_IDS) == expected


def test_the_number_of_a_state_whose_file_is_missing_is_not_given_again(rig: BrokerRig) -> None:
    """A copy of the checkpoint names it still, and the file may come back."""
    for number in (6, 7):
        change(rig, number)
        take_checkpoint(rig)
    disk = crashed(rig)
    disk.unlink(PATHS.control_file(2))
    started = start(rig, disk)
    assert started.report.checkpoint == 1
    change(started, 8)
    saved = take_checkpoint(started).saved
    assert saved is not None
    assert saved.number == 3


def test_a_full_disk_leaves_the_state_before_and_is_tried_again(rig: BrokerRig) -> None:
    state = take_checkpoint(rig).saved
    nth, failed = 0, 0
    while True:
        nth += 1
        change(rig, 5 + nth)
        job = capture(rig)
        assert isinstance(job, CheckpointJob)
        calls = FailingCalls(rig.disk, nth)
        job.run()
        calls.stop()
        rig.broker.checkpoints.end(job)
        if not calls.has_failed:
            break
        if job.saved is None:
            failed += 1
            assert job.error is not None
            assert state is not None
            assert newest_of(rig.disk).states[0] == state
            check_loads(rig, crashed(rig), state.number)
            assert rig.broker.checkpoints.step() is None  # not at once
            assert not rig.broker.checkpoints.is_capturing
            rig.clock.advance_ms(RETRY_NS // NS_PER_MS)
        state = take_checkpoint(rig).saved
        assert state is not None
        check_loads(rig, crashed(rig), state.number)
    assert failed > 5


class FailingCalls:
    """Lets the nth call but those that sync fail as on a full disk."""

    def __init__(self, disk: SimFileSystem, nth: int) -> None:
        self._disk = disk
        self._left = nth
        self._reach = disk.reach
        self.has_failed = False
        disk.reach = self._count  # type: ignore[method-assign]

    def _count(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        if operation not in ("fdatasync", "fsync"):
            self._left -= 1
            if self._left == 0:
                self.has_failed = True
                raise StorageError(path, operation, errno.ENOSPC, "full")
        return self._reach(operation, path, detail)

    def stop(self) -> None:
        self._disk.reach = self._reach  # type: ignore[method-assign]


def test_units_that_do_not_fit_on_the_disk_put_the_state_off(rig: BrokerRig) -> None:
    take_checkpoint(rig)
    rig.create_topic("new")
    rig.produce("new", 0, [Record(b"x")])
    rig.disk.free = 0
    rig.broker.checkpoints.ask()
    while rig.broker.checkpoints.failure is None:
        assert rig.broker.checkpoints.step() is None
    rig.disk.free = 1 << 30
    assert not rig.broker.checkpoints.is_capturing
    assert rig.broker.checkpoints.step() is None  # not at once
    rig.clock.advance_ms(RETRY_NS // NS_PER_MS)
    assert take_checkpoint(rig).error is None
    check_loads(rig, crashed(rig), newest_of(rig.disk).states[0].number)


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_a_crash_while_a_state_is_saved_leaves_one_that_is_whole(
    rig: BrokerRig, mode: CrashMode
) -> None:
    take_checkpoint(rig)
    change(rig, 6)
    job = capture(rig)
    disks = [crashed(rig)]
    reach = rig.disk.reach

    def observed(operation: str, path: Path, detail: str = "") -> object:
        disks.append(rig.disk.crashed(mode, random.Random(len(disks))))
        return reach(operation, path, detail)

    rig.disk.reach = observed  # type: ignore[assignment,method-assign]
    job.run()
    rig.disk.reach = reach  # type: ignore[method-assign]
    disks.append(rig.disk.crashed(mode, random.Random(0)))
    expected = rebuilt(rig, crashed(rig))
    numbers = set()
    for disk in disks:
        started = start(rig, disk)
        numbers.add(started.report.checkpoint)
        assert started.report.rejected == ()
        assert started.digest(USER_IDS) == expected
    assert numbers == {1, 2}
    assert len(disks) > 8


@pytest.mark.parametrize("operation", ["fdatasync", "fsync"])
def test_a_sync_that_fails_ends_the_process(rig: BrokerRig, operation: str) -> None:
    job = capture(rig)
    reach = rig.disk.reach

    def failing(called: str, path: Path, detail: str = "") -> object:
        if called == operation:
            raise StorageError(path, operation, errno.EIO, "broken")
        return reach(called, path, detail)

    rig.disk.reach = failing  # type: ignore[assignment,method-assign]
    with pytest.raises(StorageError, match="broken"):
        job.run()
    rig.disk.reach = reach  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="broken"):
        rig.broker.close()
    assert not start(rig, crashed(rig)).report.is_clean


def test_a_stop_on_a_full_disk_is_clean_and_says_why_there_is_no_checkpoint(
    rig: BrokerRig,
) -> None:
    take_checkpoint(rig)
    change(rig, 6)
    rig.flush()
    rig.disk.free = 0
    error = rig.broker.close()
    assert isinstance(error, StorageError)
    assert error.is_disk_full
    started = check_loads(rig, rig.disk, 1)
    assert started.report.is_clean
    assert started.report.replayed_bytes > 0


# When


def test_a_state_is_saved_when_the_log_has_grown() -> None:
    rig = BrokerRig(config=small_config(checkpoint_interval_bytes=64 * KIB))
    rig.create_topic("t", 1)
    take_checkpoint(rig)
    taken = []
    for _ in range(40):
        rig.produce("t", 0, [Record(b"x" * 7_000)])
        job = rig.broker.checkpoints.step()
        while job is None and rig.broker.checkpoints.is_capturing:
            job = rig.broker.checkpoints.step()
        if job is not None:
            job.run()
            rig.broker.checkpoints.end(job)
            taken.append(rig.broker.wrote_pos)
    assert 3 <= len(taken) <= 4
    assert all(after - before >= 64 * KIB for before, after in pairwise(taken))


def test_a_new_store_saves_a_state_at_once() -> None:
    rig = BrokerRig()
    while (job := rig.broker.checkpoints.step()) is None:
        assert rig.broker.checkpoints.is_capturing
    assert isinstance(job, CheckpointJob)


def test_nothing_is_saved_that_is_not_flushed(rig: BrokerRig) -> None:
    rig.flush()
    rig.send_produce("t", 0, [Record(b"not flushed")])
    rig.broker.checkpoints.ask()
    for _ in range(50):
        assert rig.broker.checkpoints.step() is None
    rig.flush()
    assert rig.broker.checkpoints.step() is not None


def test_an_idle_broker_says_once_how_far_the_log_is_durable(rig: BrokerRig) -> None:
    take_checkpoint(rig)
    rig.produce("t", 0, [Record(b"last")])
    assert rig.broker.checkpoints.step() is None
    rig.clock.advance_ms(IDLE_NS // NS_PER_MS)
    job = rig.broker.checkpoints.step()
    assert isinstance(job, MarkJob)
    calls = rig.disk.calls
    job.run()
    assert rig.disk.calls == calls + 2
    rig.broker.checkpoints.end(job)
    assert newest_of(rig.disk).flushed == rig.broker.flushed_pos
    rig.clock.advance_ms(10_000)
    assert rig.broker.checkpoints.step() is None


def test_the_mark_of_a_checkpoint_tells_damage_from_a_torn_tail(rig: BrokerRig) -> None:
    """No frame behind the last one carries a mark."""
    take_checkpoint(rig)
    before = rig.broker.wrote_pos
    rig.produce("t", 0, [Record(b"last")])
    rig.clock.advance_ms(IDLE_NS // NS_PER_MS)
    for mark in (False, True):
        disk = crashed(rig)
        disk.flip(PATHS.commit_log / f"{0:020d}", before + 200, 1)
        report = start(rig, disk).report
        assert bool(report.damage) == mark
        if not mark:
            while (job := rig.broker.checkpoints.step()) is None:
                rig.clock.advance_ms(IDLE_NS // NS_PER_MS)
            job.run()
            rig.broker.checkpoints.end(job)


def test_a_log_that_lost_its_end_is_told_of_once_and_is_clean_after_a_clean_stop(
    rig: BrokerRig,
) -> None:
    """What is written in the place of what was lost was not durable before it is."""
    take_checkpoint(rig)
    last = rig.broker.wrote_pos
    rig.produce("t", 0, [Record(b"x" * 2_000)])
    rig.clock.advance_ms(IDLE_NS // NS_PER_MS)
    while (job := rig.broker.checkpoints.step()) is None:
        rig.clock.advance_ms(IDLE_NS // NS_PER_MS)
    job.run()
    disk = crashed(rig)
    disk.flip(PATHS.commit_log / f"{0:020d}", last, 1)
    started = start(rig, disk)
    (told,) = started.report.damage
    assert newest_of(disk).flushed <= started.broker.flushed_pos
    before = started.broker.wrote_pos
    started.send_produce("t", 0, [Record(b"torn")])
    torn = crashed(started)
    torn.flip(PATHS.commit_log / f"{0:020d}", before, 1)
    assert start(rig, torn).report.damage in ((), (told,))
    for _ in range(2):
        epoch = started.report.epoch
        started = started.restart()
        assert started.report.is_clean
        assert started.report.epoch == epoch + 1
        assert started.report.damage == (told,)


def test_a_replay_on_a_full_disk_does_not_try_again_at_each_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    for number in range(400):
        rig.produce("t", 0, [Record(b"x", headers=delay(10_000 + number, b"%d" % number))])
    rig.broker.close()
    disk = rig.disk
    for state in newest_of(disk).states:
        disk.unlink(PATHS.control_file(state.number))
    disk.remove_tree(PATHS.consume_queue)
    disk.free = 0
    tried: list[int] = []
    freeze = Runs.freeze

    def count(runs: Runs, pos: int, now_ms: int) -> RunsJob:
        tried.append(pos)
        disk.free = 0  # also what was made free by a removal
        return freeze(runs, pos, now_ms)

    monkeypatch.setattr(Runs, "freeze", count)
    defaults = Runs.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "delta_max_bytes", 1)
    monkeypatch.setattr("appliance.store.start.SCAN_SLICE_BYTES", 4 * KIB)
    started = start(rig, disk)
    assert started.report.checkpoint == 0
    assert started.report.replayed_bytes > 20 * 4 * KIB
    assert 0 < len(tried) <= 3, tried
    monkeypatch.undo()
    disk.free = 1 << 30
    assert take_checkpoint(started).error is None
    check_loads(started, crashed(started), newest_of(disk).states[0].number)


def test_a_topic_that_is_deleted_while_its_units_are_synced_does_not_put_the_state_off(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create_topic("gone")
    rig.produce("gone", 0, [Record(b"x")])
    job = capture(rig)
    sync_dir = rig.disk.sync_dir

    def sync_after_deletion(path: Path) -> None:
        if path == PATHS.consume_queue / "gone" and rig.broker.find_topic("gone") is not None:
            rig.delete_topic("gone")
        sync_dir(path)

    monkeypatch.setattr(rig.disk, "sync_dir", sync_after_deletion)
    job.run()
    rig.broker.checkpoints.end(job)
    assert rig.broker.find_topic("gone") is None
    assert job.error is None
    check_loads(rig, crashed(rig), newest_of(rig.disk).states[0].number)


def test_starts_that_are_killed_in_a_replay_do_not_fill_the_disk(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoint(rig)
    for number in range(200):
        rig.produce("t", 0, [Record(b"x", headers=delay(60_000 + number, b"%d" % number))])
    disk = crashed(rig)
    defaults = Runs.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "delta_max_bytes", 1)
    monkeypatch.setattr("appliance.store.start.SCAN_SLICE_BYTES", 4 * KIB)
    counts = []
    for _ in range(3):
        for progress in Broker(rig.clock, disk, rig.config, KAFKA_FACADE).recover():
            if progress.phase == "replaying" and progress.recovered_bytes > 32 * KIB:
                break
        counts.append(len(disk.list_dir(PATHS.timer)))
        disk = disk.crashed("kept", random.Random(0))
    assert counts[0] > 5
    assert len(set(counts)) == 1, counts
    check_loads(rig, disk, 1)
