"""When a broker saves a state, and what may go wrong meanwhile."""

import errno
import random
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from appliance.broker import Broker
from appliance.errors import StorageError
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.recovery.decisions import Fault as StateFault
from appliance.store.runs.run_set import Runs
from appliance.store.runs.runs_job import RunsJob
from appliance.store.state.checkpointer import RETRY_NS, CheckpointJob
from appliance.store.state.flushed_mark import MARK_NS, MarkJob
from appliance.units import KIB, NS_PER_MS
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import (
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
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import CrashMode, Fault, SimFileSystem
from tests.support.values.kafka_records import Record, delay

# What may go wrong


def test_damage_to_the_newest_state_costs_no_more_than_the_one_before(
    harness: BrokerHarness,
) -> None:
    take_checkpoint(harness)
    change(harness, 6)
    take_checkpoint(harness)
    change(harness, 7)
    harness.flush()
    disk = crashed(harness)
    disk.flip(PATHS.snapshot(2), 30, 1)
    expected = rebuilt(harness, disk)
    started = start(harness, disk)
    assert started.report.checkpoint == 1
    (rejected,) = started.report.rejected
    assert (rejected.number, rejected.fault) == (2, StateFault.CONTROL_DAMAGED)
    assert "checkpoint 2" in str(rejected)
    assert [state.number for state in newest_of(disk).states] == [1]
    assert started.digest(USER_IDS) == expected


def test_the_number_of_a_state_whose_file_is_missing_is_not_given_again(
    harness: BrokerHarness,
) -> None:
    """A copy of the checkpoint names it still, and the file may come back."""
    for number in (6, 7):
        change(harness, number)
        take_checkpoint(harness)
    disk = crashed(harness)
    disk.unlink(PATHS.snapshot(2))
    started = start(harness, disk)
    assert started.report.checkpoint == 1
    change(started, 8)
    saved = take_checkpoint(started).saved
    assert saved is not None
    assert saved.number == 3


def test_a_full_disk_leaves_the_state_before_and_is_tried_again(harness: BrokerHarness) -> None:
    state = take_checkpoint(harness).saved
    nth, failed = 0, 0
    while True:
        nth += 1
        change(harness, 5 + nth)
        job = capture(harness)
        assert isinstance(job, CheckpointJob)
        calls = FailingCalls(harness.disk, nth)
        job.run()
        calls.stop()
        harness.broker.checkpoints.end(job)
        if not calls.has_failed:
            break
        if job.saved is None:
            failed += 1
            assert job.error is not None
            assert state is not None
            assert newest_of(harness.disk).states[0] == state
            check_loads(harness, crashed(harness), state.number)
            assert harness.broker.checkpoints.step() is None  # not at once
            assert not harness.broker.checkpoints.is_capturing
            harness.clock.advance_ms(RETRY_NS // NS_PER_MS)
        state = take_checkpoint(harness).saved
        assert state is not None
        check_loads(harness, crashed(harness), state.number)
    assert failed > 5


class FailingCalls:
    """Lets the nth call but those that sync fail as on a full disk."""

    def __init__(self, disk: SimFileSystem, nth: int) -> None:
        self._disk = disk
        self._left = nth
        self._record_call = disk.record_call
        self.has_failed = False
        disk.record_call = self._count  # type: ignore[method-assign]

    def _count(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        if operation not in ("fdatasync", "fsync"):
            self._left -= 1
            if self._left == 0:
                self.has_failed = True
                raise StorageError(path, operation, errno.ENOSPC, "full")
        return self._record_call(operation, path, detail)

    def stop(self) -> None:
        self._disk.record_call = self._record_call  # type: ignore[method-assign]


def test_units_that_do_not_fit_on_the_disk_put_the_state_off(harness: BrokerHarness) -> None:
    take_checkpoint(harness)
    harness.create_topic("new")
    harness.produce("new", 0, [Record(b"x")])
    harness.disk.free = 0
    harness.broker.checkpoints.ask()
    while harness.broker.checkpoints.failure is None:
        assert harness.broker.checkpoints.step() is None
    harness.disk.free = 1 << 30
    assert not harness.broker.checkpoints.is_capturing
    assert harness.broker.checkpoints.step() is None  # not at once
    harness.clock.advance_ms(RETRY_NS // NS_PER_MS)
    assert take_checkpoint(harness).error is None
    check_loads(harness, crashed(harness), newest_of(harness.disk).states[0].number)


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_a_crash_while_a_state_is_saved_leaves_one_that_is_whole(
    harness: BrokerHarness, mode: CrashMode
) -> None:
    take_checkpoint(harness)
    change(harness, 6)
    job = capture(harness)
    disks = [crashed(harness)]
    record_call = harness.disk.record_call

    def observed(operation: str, path: Path, detail: str = "") -> object:
        disks.append(harness.disk.crashed(mode, random.Random(len(disks))))
        return record_call(operation, path, detail)

    harness.disk.record_call = observed  # type: ignore[assignment,method-assign]
    job.run()
    harness.disk.record_call = record_call  # type: ignore[method-assign]
    disks.append(harness.disk.crashed(mode, random.Random(0)))
    expected = rebuilt(harness, crashed(harness))
    numbers = set()
    for disk in disks:
        started = start(harness, disk)
        numbers.add(started.report.checkpoint)
        assert started.report.rejected == ()
        assert started.digest(USER_IDS) == expected
    assert numbers == {1, 2}
    assert len(disks) > 8


@pytest.mark.parametrize("operation", ["fdatasync", "fsync"])
def test_a_sync_that_fails_ends_the_process(harness: BrokerHarness, operation: str) -> None:
    job = capture(harness)
    record_call = harness.disk.record_call

    def failing(called: str, path: Path, detail: str = "") -> object:
        if called == operation:
            raise StorageError(path, operation, errno.EIO, "broken")
        return record_call(called, path, detail)

    harness.disk.record_call = failing  # type: ignore[assignment,method-assign]
    with pytest.raises(StorageError, match="broken"):
        job.run()
    harness.disk.record_call = record_call  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="broken"):
        harness.broker.close()
    assert not start(harness, crashed(harness)).report.is_clean


def test_a_checkpoint_whose_units_do_not_fit_is_reported_and_tried_again(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else shows it: the broker serves on, and the next start replays more."""
    take_checkpoint(harness)
    harness.produce("t", 0, [Record(b"unsaved")])
    record_call = harness.disk.record_call

    def failing(called: str, path: Path, detail: str = "") -> object:
        if path.is_relative_to(PATHS.consume_queue):
            raise StorageError(path, called, errno.ENOSPC, "full")
        return record_call(called, path, detail)

    harness.disk.record_call = failing  # type: ignore[assignment,method-assign]
    checkpoints = harness.broker.checkpoints
    checkpoints.ask()
    for _ in range(100):
        assert checkpoints.step() is None
    assert not checkpoints.is_capturing
    (line,) = caplog.messages
    assert line.startswith("checkpoint 2 failed, the last one stays: ")
    harness.disk.record_call = record_call  # type: ignore[method-assign]
    harness.tick(RETRY_NS // NS_PER_MS)
    assert take_checkpoint(harness).error is None


def test_a_stop_on_a_full_disk_is_clean_and_says_why_there_is_no_checkpoint(
    harness: BrokerHarness,
) -> None:
    take_checkpoint(harness)
    change(harness, 6)
    harness.flush()
    harness.disk.free = 0
    error = harness.broker.close()
    assert isinstance(error, StorageError)
    assert error.is_disk_full
    started = check_loads(harness, harness.disk, 1)
    assert started.report.is_clean
    assert started.report.replayed_bytes > 0


# When


def test_a_state_is_saved_when_the_log_has_grown() -> None:
    harness = with_topic(config=small_config(checkpoint_interval_bytes=64 * KIB))
    take_checkpoint(harness)
    taken = []
    for _ in range(40):
        harness.produce("t", 0, [Record(b"x" * 7_000)])
        job = harness.broker.checkpoints.step()
        while job is None and harness.broker.checkpoints.is_capturing:
            job = harness.broker.checkpoints.step()
        if job is not None:
            job.run()
            harness.broker.checkpoints.end(job)
            taken.append(harness.broker.wrote_pos)
    assert 3 <= len(taken) <= 4
    assert all(after - before >= 64 * KIB for before, after in pairwise(taken))


def test_a_new_store_saves_a_state_at_once() -> None:
    harness = BrokerHarness()
    while (job := harness.broker.checkpoints.step()) is None:
        assert harness.broker.checkpoints.is_capturing
    assert isinstance(job, CheckpointJob)


def test_nothing_is_saved_that_is_not_flushed(harness: BrokerHarness) -> None:
    harness.flush()
    harness.send_produce("t", 0, [Record(b"not flushed")])
    harness.broker.checkpoints.ask()
    for _ in range(50):
        assert harness.broker.checkpoints.step() is None
    harness.flush()
    assert harness.broker.checkpoints.step() is not None


# The published position

MARK_MS = MARK_NS // NS_PER_MS


def mark(harness: BrokerHarness) -> MarkJob | None:
    """Publish the flushed position if it is time, as the pump does."""
    job = harness.broker.flushed_mark.step()
    if job is not None:
        job.run()
        harness.broker.flushed_mark.end(job)
    return job


def test_an_idle_broker_says_once_how_far_the_log_is_durable(harness: BrokerHarness) -> None:
    take_checkpoint(harness)
    harness.produce("t", 0, [Record(b"last")])
    calls = harness.disk.calls
    assert mark(harness) is not None
    assert harness.disk.calls == calls + 2
    assert newest_of(harness.disk).flushed == harness.broker.flushed_pos
    harness.clock.advance_ms(10_000)
    assert mark(harness) is None


def test_a_broker_that_is_written_to_without_pause_says_each_second_how_far_the_log_is_durable(
    harness: BrokerHarness,
) -> None:
    take_checkpoint(harness)
    turn_ms, begin_ms = 10, harness.clock.monotonic_ns() // NS_PER_MS
    wrote_ms = []
    missing_since_ms = None
    for _ in range(5_000 // turn_ms):
        harness.clock.advance_ms(turn_ms)
        harness.produce("t", 0, [Record(b"x")])
        now_ms = harness.clock.monotonic_ns() // NS_PER_MS - begin_ms
        if mark(harness) is not None:
            wrote_ms.append(now_ms)
        is_missing = newest_of(harness.disk).flushed < harness.broker.flushed_pos
        missing_since_ms = (missing_since_ms or now_ms) if is_missing else None
        assert missing_since_ms is None or now_ms - missing_since_ms <= MARK_MS
    assert wrote_ms == [turn_ms + each * MARK_MS for each in range(5)]


def test_the_flushed_position_is_published_while_a_checkpoint_is_taken(
    harness: BrokerHarness,
) -> None:
    harness.broker.checkpoints.ask()
    assert harness.broker.checkpoints.step() is None
    assert harness.broker.checkpoints.is_capturing
    for _ in range(2):
        harness.produce("t", 0, [Record(b"x")])
        assert mark(harness) is not None
        assert newest_of(harness.disk).flushed == harness.broker.flushed_pos
        harness.clock.advance_ms(MARK_MS)
    job = capture(harness)
    harness.produce("t", 0, [Record(b"x")])
    assert mark(harness) is not None
    marked = newest_of(harness.disk).flushed
    job.run()
    harness.broker.checkpoints.end(job)
    assert newest_of(harness.disk).flushed == marked == harness.broker.flushed_pos
    check_loads(harness, crashed(harness), newest_of(harness.disk).states[0].number)


def test_what_is_not_flushed_is_not_published(harness: BrokerHarness) -> None:
    mark(harness)
    harness.clock.advance_ms(MARK_MS)
    harness.send_produce("t", 0, [Record(b"not flushed")])
    assert mark(harness) is None


def test_one_mark_is_written_at_a_time(harness: BrokerHarness) -> None:
    harness.flush()
    job = harness.broker.flushed_mark.step()
    assert job is not None
    harness.produce("t", 0, [Record(b"x")])
    harness.clock.advance_ms(MARK_MS)
    assert harness.broker.flushed_mark.step() is None
    job.run()
    harness.broker.flushed_mark.end(job)
    assert mark(harness) is not None


def test_a_mark_that_failed_while_the_broker_stops_is_no_clean_stop(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.flush()
    job = harness.broker.flushed_mark.step()
    assert job is not None
    error = StorageError(PATHS.checkpoint, "fdatasync", errno.EIO, "bad")

    def refuse(_: int) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(job.checkpoint, "note_flushed", refuse)
        with pytest.raises(StorageError):
            job.run()
    with pytest.raises(StorageError) as caught:
        harness.broker.close()
    assert caught.value is error


def test_the_mark_of_a_checkpoint_separates_damage_from_a_torn_tail(harness: BrokerHarness) -> None:
    """No frame after the last one carries a mark."""
    take_checkpoint(harness)
    before = harness.broker.wrote_pos
    harness.produce("t", 0, [Record(b"last")])
    for is_marked in (False, True):
        disk = crashed(harness)
        disk.flip(PATHS.commit_log / f"{0:020d}", before + 200, 1)
        report = start(harness, disk).report
        assert bool(report.damage) == is_marked
        if not is_marked:
            assert mark(harness) is not None


def test_a_log_that_lost_its_end_is_reported_once_and_is_clean_after_a_clean_stop(
    harness: BrokerHarness,
) -> None:
    """What is written in the place of what was lost was not durable before it is."""
    take_checkpoint(harness)
    last = harness.broker.wrote_pos
    harness.produce("t", 0, [Record(b"x" * 2_000)])
    assert mark(harness) is not None
    disk = crashed(harness)
    disk.flip(PATHS.commit_log / f"{0:020d}", last, 1)
    started = start(harness, disk)
    (reported,) = started.report.damage
    assert newest_of(disk).flushed <= started.broker.flushed_pos
    before = started.broker.wrote_pos
    started.send_produce("t", 0, [Record(b"torn")])
    torn = crashed(started)
    torn.flip(PATHS.commit_log / f"{0:020d}", before, 1)
    assert start(harness, torn).report.damage in ((), (reported,))
    for _ in range(2):
        epoch = started.report.epoch
        started = started.restart()
        assert started.report.is_clean
        assert started.report.epoch == epoch + 1
        assert started.report.damage == (reported,)


def test_a_replay_on_a_full_disk_does_not_try_again_at_each_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = with_topic()
    for number in range(400):
        harness.produce("t", 0, [Record(b"x", headers=delay(10_000 + number, b"%d" % number))])
    harness.broker.close()
    disk = harness.disk
    for state in newest_of(disk).states:
        disk.unlink(PATHS.snapshot(state.number))
    disk.remove_tree(PATHS.consume_queue)
    disk.free = 0
    tried: list[int] = []
    freeze = Runs.freeze

    def count(runs: Runs, pos: int, *, is_replay: bool) -> RunsJob:
        tried.append(pos)
        disk.free = 0  # also what was made free by a removal
        return freeze(runs, pos, is_replay=is_replay)

    monkeypatch.setattr(Runs, "freeze", count)
    defaults = Runs.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "delta_max_bytes", 1)
    monkeypatch.setattr("appliance.store.recovery.start.SCAN_SLICE_BYTES", 4 * KIB)
    started = start(harness, disk)
    assert started.report.checkpoint == 0
    assert started.report.replayed_bytes > 20 * 4 * KIB
    assert 0 < len(tried) <= 3, tried
    monkeypatch.undo()
    disk.free = 1 << 30
    assert take_checkpoint(started).error is None
    check_loads(started, crashed(started), newest_of(disk).states[0].number)


def test_a_topic_that_is_deleted_while_its_units_are_synced_does_not_put_the_state_off(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("gone")
    harness.produce("gone", 0, [Record(b"x")])
    job = capture(harness)
    sync_dir = harness.disk.sync_dir

    def sync_after_deletion(path: Path) -> None:
        if path == PATHS.consume_queue / "gone" and harness.broker.topics.find("gone") is not None:
            harness.delete_topic("gone")
        sync_dir(path)

    monkeypatch.setattr(harness.disk, "sync_dir", sync_after_deletion)
    job.run()
    harness.broker.checkpoints.end(job)
    assert harness.broker.topics.find("gone") is None
    assert job.error is None
    check_loads(harness, crashed(harness), newest_of(harness.disk).states[0].number)


def test_starts_that_are_killed_in_a_replay_do_not_fill_the_disk(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoint(harness)
    for number in range(200):
        harness.produce("t", 0, [Record(b"x", headers=delay(60_000 + number, b"%d" % number))])
    disk = crashed(harness)
    defaults = Runs.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "delta_max_bytes", 1)
    monkeypatch.setattr("appliance.store.recovery.start.SCAN_SLICE_BYTES", 4 * KIB)
    counts = []
    for _ in range(3):
        for progress in Broker(harness.clock, disk, harness.config, KAFKA_FACADE).recover():
            if progress.phase == "replaying" and progress.recovered_bytes > 32 * KIB:
                break
        counts.append(len(disk.list_dir(PATHS.timer)))
        disk = disk.crashed("kept", random.Random(0))
    assert counts[0] > 5
    assert len(set(counts)) == 1, counts
    check_loads(harness, disk, 1)
