"""States that are saved while a broker serves: what they hold, and of which log."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from _core.bytes.layout import KIND_OFFSET
from appliance.errors import LogRefusedError
from appliance.store.checkpoint import COPY_SIZE
from appliance.store.recovery.decisions import Fault as StateFault
from appliance.store.recovery.decisions import LogFault
from appliance.store.state.checkpointer import CheckpointJob
from appliance.store.state.group_frames import GROUP_DELETED, GroupFrame, decode_offsets
from appliance.store.state.snapshot import read
from appliance.store.state.state import ENTRIES_PER_SLICE
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import (
    DERIVED,
    PATHS,
    USER_IDS,
    change,
    check_loads,
    checkpoint_file_on,
    commit,
    crashed,
    newest_of,
    rebuilt,
    start,
    take_checkpoint,
)
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Producer, Record, delay

# What a state holds


def test_a_start_replays_what_follows_the_newest_state_alone(harness: BrokerHarness) -> None:
    job = take_checkpoint(harness)
    assert job.saved is not None
    for number in range(6, 9):
        change(harness, number)
    harness.flush()
    report = check_loads(harness, crashed(harness), 1).report
    assert report.applied == job.saved.applied
    assert report.replayed_bytes == harness.broker.wrote_pos - job.saved.applied
    begin = f"checkpoint 1 at log position {job.saved.applied}"
    assert f"{begin}, replayed {report.frames} frames" in str(report)


def test_a_clean_stop_leaves_nothing_to_replay(harness: BrokerHarness) -> None:
    harness.broker.close()
    started = check_loads(harness, harness.disk, 1)
    report = started.report
    assert report.is_clean
    assert (report.frames, report.replayed_bytes) == (0, 0)
    assert report.epoch == harness.broker.epoch + 1


def test_a_clean_start_reads_nothing_of_the_log_but_its_last_frame(harness: BrokerHarness) -> None:
    harness.broker.close()
    last = harness.broker._store.log.tail.last_pos
    disk = crashed(harness)
    segment = PATHS.commit_log / f"{0:020d}"
    for at in range(0, last, 64):
        disk.flip(segment, at, 0xFF)
    report = start(harness, disk).report
    assert report.is_clean
    assert report.checkpoint == 1
    assert report.damage == ()


@pytest.mark.parametrize("is_delayed", [False, True])
def test_what_a_start_did_not_read_is_checked_before_it_is_served(is_delayed: bool) -> None:
    """Though the kernel has it in memory: it may have come from the disk with what was read."""
    harness = with_topic()
    for value in (b"first", b"second"):
        headers = delay(1_000) if is_delayed else ()
        harness.produce("t", 0, [Record(value * 10, headers=headers)])
    harness.broker.close()
    disk = crashed(harness)
    segment = PATHS.commit_log / f"{0:020d}"
    disk.flip(segment, disk.files()[segment].index(b"first"), 1)
    started = start(harness, disk)
    assert started.report.frames == 0
    started.tick(2_000)
    assert started.values() == [b"second" * 10]
    assert len(started.broker.damage) == 1
    # It is known to the next start, which reads no more of it than this one.
    assert take_checkpoint(started).error is None
    assert start(harness, crashed(started)).report.damage == tuple(started.broker.damage)


def test_what_changes_while_a_state_is_saved_is_not_in_it(harness: BrokerHarness) -> None:
    harness.create_topic("gone", 1)
    harness.produce("gone", 0, [Record(b"x", headers=delay(10**6, b"id-1"))], Producer(5, 0, 0))
    commit(harness, "g1", 1, topic="gone")
    for number in range(3 * ENTRIES_PER_SLICE):
        commit(harness, f"many-{number:05d}", number)
    harness.flush()
    harness.broker.checkpoints.ask()
    assert harness.broker.checkpoints.step() is None
    number = 6
    harness.delete_topic("gone")
    harness.create_topic("new", 2)
    harness.broker.groups.save_group(GroupFrame(op=GROUP_DELETED, group="g2"))
    while (job := harness.broker.checkpoints.step()) is None:
        change(harness, number)
        commit(harness, f"many-{ENTRIES_PER_SLICE * 2 + number:05d}", 10**6)
        harness.flush()
        number += 1
    assert number > 8
    assert isinstance(job, CheckpointJob)
    change(harness, number)
    harness.flush()
    job.run()
    harness.broker.checkpoints.end(job)
    check_loads(harness, crashed(harness), 1)


def test_offsets_that_change_while_they_are_encoded_are_saved_as_they_were(
    harness: BrokerHarness,
) -> None:
    for partition in range(2 * ENTRIES_PER_SLICE):
        commit(harness, "one", 1, partition)
    harness.flush()
    harness.broker.checkpoints.ask()
    number = 0
    while (job := harness.broker.checkpoints.step()) is None:
        commit(harness, "one", 2, 10_000 + number)
        commit(harness, "one", 2, 2 * ENTRIES_PER_SLICE - 1 - number)
        harness.flush()
        number += 1
    assert number > 2
    assert isinstance(job, CheckpointJob)
    job.run()
    harness.broker.checkpoints.end(job)
    assert job.saved is not None
    state = read(harness.disk, PATHS.snapshot(job.saved.number), job.saved)
    entries = [
        entry
        for value in state.values
        if value.kind == KIND_OFFSET
        for entry in decode_offsets(value.payload)
        if entry.group == "one"
    ]
    assert [(entry.partition, entry.offset) for entry in entries] == [
        (partition, 1) for partition in range(2 * ENTRIES_PER_SLICE)
    ]
    check_loads(harness, crashed(harness), 1)


def test_a_producer_that_is_forgotten_meanwhile_is_saved_all_the_same() -> None:
    harness = with_topic(2, config=small_config(producer_id_expiry_ms=1_000))
    harness.produce("t", 1, [Record(b"x")], Producer(7, 0, 0))
    harness.broker.checkpoints.ask()
    assert harness.broker.checkpoints.step() is None
    harness.age(200_000)
    topic = harness.topic()
    assert not topic.partitions[1].producers
    take_checkpoint(harness)
    check_loads(harness, crashed(harness), 1)


def test_an_id_of_a_topic_is_not_given_again(harness: BrokerHarness) -> None:
    harness.create_topic("last")
    last = harness.topic("last")
    harness.delete_topic("last")
    started = harness.restart()
    assert started.report.checkpoint == 1
    started.create_topic("new")
    new = started.topic("new")
    assert new.topic_id > last.topic_id


def test_the_epoch_rises_though_nothing_follows_the_state(harness: BrokerHarness) -> None:
    first = harness.broker.epoch
    for epoch in range(first + 1, first + 4):
        harness = harness.crash("dropped", random.Random(0))
        assert harness.report.epoch == epoch
        take_checkpoint(harness)
        assert newest_of(harness.disk).states[0].applied == harness.broker.wrote_pos


def test_what_a_start_replays_is_durable_when_it_serves(harness: BrokerHarness) -> None:
    take_checkpoint(harness)
    for number in range(30):
        harness.send_produce("t", 0, [Record(b"%d in the page cache alone" % number * 200)])
    assert len(harness.segment_paths()) > 2
    started = harness.crash("killed", random.Random(0))
    assert started.report.checkpoint == 1
    seen = started.fetch("t", 0)
    assert seen[-1].value.startswith(b"29 in")
    assert started.crash("dropped", random.Random(0)).fetch("t", 0) == seen


def test_what_was_lost_stays_known(harness: BrokerHarness) -> None:
    at = harness.broker.wrote_pos
    harness.produce("t", 0, [Record(b"lost", headers=delay(10_000, b"id-1"))])
    change(harness, 6)
    harness.flush()
    disk = crashed(harness)
    disk.flip(PATHS.commit_log / f"{0:020d}", at + 60, 1)
    damaged = start(harness, disk)
    assert len(damaged.report.damage) == 1
    take_checkpoint(damaged)
    started = start(harness, crashed(damaged))
    assert started.report.checkpoint == 1
    assert started.report.damage == damaged.report.damage
    assert started.broker._store.state.lost == damaged.broker._store.state.lost != []


def test_each_state_follows_from_the_one_before(harness: BrokerHarness) -> None:
    for number in range(6, 30):
        change(harness, number)
        if number % 3 == 0:
            assert take_checkpoint(harness).error is None
        if number % 10 == 9:
            harness = harness.crash("dropped", random.Random(number))
            assert harness.report.checkpoint > 0
    harness.flush()
    check_loads(harness, crashed(harness), newest_of(harness.disk).states[0].number)


def test_two_states_are_kept_and_all_older_files_removed(harness: BrokerHarness) -> None:
    for number in range(6, 16):
        change(harness, number)
        take_checkpoint(harness)
    states = checkpoint_file_on(harness.disk).states
    # The older copy names one more; it goes when that is written over.
    assert [state.number for state in states] == [10, 9, 8]
    files = {path for path in harness.disk.files() if path.parent in DERIVED}
    assert {path for path in files if path.parent == PATHS.control} == {
        PATHS.snapshot(state.number) for state in states
    }
    assert len([path for path in files if path.parent == PATHS.timer]) < 10


# Which log


def copy_of(disk: SimFileSystem, wanted: Callable[[Path], bool]) -> SimFileSystem:
    copy = SimFileSystem()
    copy.make_dirs(DATA_DIR)
    for path, content in disk.files().items():
        if wanted(path):
            copy.make_dirs(path.parent)
            copy.open(path, create=True).pwritev([content], 0)
    return copy


def test_a_checkpoint_of_another_cluster_is_not_believed(harness: BrokerHarness) -> None:
    take_checkpoint(harness)
    other = with_topic(2)
    for number in range(9):
        change(other, number)
    take_checkpoint(other)
    mixed = copy_of(other.disk, lambda path: path.parent != PATHS.commit_log)
    mixed.remove_tree(PATHS.commit_log)
    log = {
        path: data for path, data in harness.disk.files().items() if path.parent == PATHS.commit_log
    }
    mixed.make_dirs(PATHS.commit_log)
    for path, content in log.items():
        mixed.open(path, create=True).pwritev([content], 0)
    expected = rebuilt(harness, mixed)
    with pytest.raises(LogRefusedError, match=LogFault.FOREIGN.value):
        start(harness, mixed)
    started = BrokerHarness(mixed, harness.clock, harness.config, accepts_loss=True)
    assert started.report.checkpoint == 0
    assert {each.fault for each in started.report.rejected} == {StateFault.OTHER_LOG}
    assert started.report.damage == ()
    assert started.digest(USER_IDS) == expected


def test_a_log_that_ends_before_its_checkpoint_is_replayed_and_the_loss_reported(
    harness: BrokerHarness,
) -> None:
    earlier = {
        path: data for path, data in harness.disk.files().items() if path.parent == PATHS.commit_log
    }
    for number in range(6, 9):
        change(harness, number)
    harness.broker.close()
    disk = crashed(harness)
    for path, content in earlier.items():
        disk.open(path).pwritev([content], 0)
    started = start(harness, disk)
    assert started.report.checkpoint == 0
    assert [each.fault for each in started.report.rejected] == [StateFault.OTHER_LOG]
    assert len(started.report.damage) == 1
    assert not started.report.is_clean  # so that the epoch rises


def test_a_state_of_other_settings_is_not_used(harness: BrokerHarness) -> None:
    harness.broker._store.state.settings = "other"
    harness.broker.close()
    started = start(harness, crashed(harness))
    assert [each.fault for each in started.report.rejected] == [StateFault.OTHER_SETTINGS]
    assert started.report.frames > 0


def test_numbers_are_not_used_twice_even_if_the_checkpoint_is_lost(harness: BrokerHarness) -> None:
    take_checkpoint(harness)
    change(harness, 6)
    take_checkpoint(harness)
    disk = crashed(harness)
    disk.unlink(PATHS.checkpoint)
    started = start(harness, disk)
    job = take_checkpoint(started)
    assert job.saved is not None
    assert job.saved.number == 3
    assert {path for path in disk.files() if path.parent == PATHS.control} == {PATHS.snapshot(3)}


def test_a_checkpoint_that_cannot_be_read_is_none(harness: BrokerHarness) -> None:
    harness.broker.close()
    disk = crashed(harness)
    disk.spoil(PATHS.checkpoint, 0, 2 * COPY_SIZE)
    assert start(harness, disk).report.checkpoint == 0
