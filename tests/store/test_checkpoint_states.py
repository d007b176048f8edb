"""States that are saved while a broker serves: what they hold, and of which log."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from _core.layout import KIND_OFFSET
from appliance.errors import LogRefusedError
from appliance.store.checkpoint import COPY_SIZE
from appliance.store.checkpointer import CheckpointJob
from appliance.store.control_file import read
from appliance.store.decisions import Fault as StateFault
from appliance.store.decisions import LogFault
from appliance.store.group_frames import (
    GROUP_DELETED,
    GroupFrame,
    decode_offsets,
)
from appliance.store.state import ENTRIES_PER_SLICE
from tests.support.broker_rig import BrokerRig
from tests.support.checkpoints import (
    DERIVED,
    PATHS,
    USER_IDS,
    change,
    check_loads,
    commit,
    crashed,
    newest_of,
    rebuilt,
    start,
    take_checkpoint,
    told_on,
)
from tests.support.configs import DATA_DIR, small_config
from tests.support.kafka_records import Producer, Record, delay
from tests.support.sim_fs import SimFileSystem


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t", 2)
    for number in range(6):
        change(rig, number)
    return rig


# What a state holds


def test_a_start_replays_what_follows_the_newest_state_alone(rig: BrokerRig) -> None:
    job = take_checkpoint(rig)
    assert job.saved is not None
    for number in range(6, 9):
        change(rig, number)
    rig.flush()
    report = check_loads(rig, crashed(rig), 1).report
    assert report.applied == job.saved.applied
    assert report.replayed_bytes == rig.broker.wrote_pos - job.saved.applied
    assert f"checkpoint 1 at {job.saved.applied}, replayed {report.frames} frames" in str(report)


def test_a_clean_stop_leaves_nothing_to_replay(rig: BrokerRig) -> None:
    rig.broker.close()
    started = check_loads(rig, rig.disk, 1)
    report = started.report
    assert report.is_clean
    assert (report.frames, report.replayed_bytes) == (0, 0)
    assert report.epoch == rig.broker.epoch + 1


def test_a_clean_start_reads_nothing_of_the_log_but_its_last_frame(rig: BrokerRig) -> None:
    rig.broker.close()
    last = rig.broker._store.tail.last_pos
    disk = crashed(rig)
    segment = PATHS.commit_log / f"{0:020d}"
    for at in range(0, last, 64):
        disk.flip(segment, at, 0xFF)
    report = start(rig, disk).report
    assert report.is_clean
    assert report.checkpoint == 1
    assert report.damage == ()


@pytest.mark.parametrize("is_delayed", [False, True])
def test_what_a_start_did_not_read_is_checked_before_it_is_served(is_delayed: bool) -> None:
    """Though the kernel has it in memory: it may have come from the disk with what was read."""
    rig = BrokerRig()
    rig.create_topic("t", 1)
    for value in (b"first", b"second"):
        headers = delay(1_000) if is_delayed else ()
        rig.produce("t", 0, [Record(value * 10, headers=headers)])
    rig.broker.close()
    disk = crashed(rig)
    segment = PATHS.commit_log / f"{0:020d}"
    disk.flip(segment, disk.files()[segment].index(b"first"), 1)
    started = start(rig, disk)
    assert started.report.frames == 0
    started.tick(2_000)
    assert [record.value for record in started.fetch("t", 0)] == [b"second" * 10]
    assert len(started.broker.damage) == 1
    # It is known to the next start, which reads no more of it than this one.
    assert take_checkpoint(started).error is None
    assert start(rig, crashed(started)).report.damage == tuple(started.broker.damage)


def test_what_changes_while_a_state_is_saved_is_not_in_it(rig: BrokerRig) -> None:
    rig.create_topic("gone", 1)
    rig.produce("gone", 0, [Record(b"x", headers=delay(10**6, b"id-1"))], Producer(5, 0, 0))
    commit(rig, "g1", 1, topic="gone")
    for number in range(3 * ENTRIES_PER_SLICE):
        commit(rig, f"many-{number:05d}", number)
    rig.flush()
    rig.broker.checkpoints.ask()
    assert rig.broker.checkpoints.step() is None
    number = 6
    rig.delete_topic("gone")
    rig.create_topic("new", 2)
    rig.broker.tell_group(GroupFrame(op=GROUP_DELETED, group="g2"))
    while (job := rig.broker.checkpoints.step()) is None:
        change(rig, number)
        commit(rig, f"many-{ENTRIES_PER_SLICE * 2 + number:05d}", 10**6)
        rig.flush()
        number += 1
    assert number > 8
    assert isinstance(job, CheckpointJob)
    change(rig, number)
    rig.flush()
    job.run()
    rig.broker.checkpoints.end(job)
    check_loads(rig, crashed(rig), 1)


def test_offsets_that_change_while_they_are_encoded_are_saved_as_they_were(
    rig: BrokerRig,
) -> None:
    for partition in range(2 * ENTRIES_PER_SLICE):
        commit(rig, "one", 1, partition)
    rig.flush()
    rig.broker.checkpoints.ask()
    number = 0
    while (job := rig.broker.checkpoints.step()) is None:
        commit(rig, "one", 2, 10_000 + number)
        commit(rig, "one", 2, 2 * ENTRIES_PER_SLICE - 1 - number)
        rig.flush()
        number += 1
    assert number > 2
    assert isinstance(job, CheckpointJob)
    job.run()
    rig.broker.checkpoints.end(job)
    assert job.saved is not None
    state = read(rig.disk, PATHS.control_file(job.saved.number), job.saved)
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
    check_loads(rig, crashed(rig), 1)


def test_a_producer_that_is_forgotten_meanwhile_is_saved_all_the_same() -> None:
    rig = BrokerRig(config=small_config(producer_id_expiry_ms=1_000))
    rig.create_topic("t", 2)
    rig.produce("t", 1, [Record(b"x")], Producer(7, 0, 0))
    rig.broker.checkpoints.ask()
    assert rig.broker.checkpoints.step() is None
    rig.clock.advance_ms(10_000)
    for _ in range(3):
        rig.housekeep()
    topic = rig.broker.find_topic("t")
    assert topic is not None
    assert not topic.partitions[1].producers
    take_checkpoint(rig)
    check_loads(rig, crashed(rig), 1)


def test_an_id_of_a_topic_is_not_given_again(rig: BrokerRig) -> None:
    rig.create_topic("last")
    last = rig.broker.find_topic("last")
    assert last is not None
    rig.delete_topic("last")
    started = rig.restart()
    assert started.report.checkpoint == 1
    started.create_topic("new")
    new = started.broker.find_topic("new")
    assert new is not None
    assert new.topic_id > last.topic_id


def test_the_epoch_rises_though_nothing_follows_the_state(rig: BrokerRig) -> None:
    first = rig.broker.epoch
    for epoch in range(first + 1, first + 4):
        rig = rig.crash("dropped", random.Random(0))
        assert rig.report.epoch == epoch
        take_checkpoint(rig)
        assert newest_of(rig.disk).states[0].applied == rig.broker.wrote_pos


def test_what_a_start_replays_is_durable_when_it_serves(rig: BrokerRig) -> None:
    take_checkpoint(rig)
    for number in range(30):
        rig.send_produce("t", 0, [Record(b"%d in the page cache alone" % number * 200)])
    assert len(rig.segment_paths()) > 2
    started = rig.crash("killed", random.Random(0))
    assert started.report.checkpoint == 1
    seen = started.fetch("t", 0)
    assert seen[-1].value.startswith(b"29 in")
    assert started.crash("dropped", random.Random(0)).fetch("t", 0) == seen


def test_what_was_lost_stays_known(rig: BrokerRig) -> None:
    at = rig.broker.wrote_pos
    rig.produce("t", 0, [Record(b"lost", headers=delay(10_000, b"id-1"))])
    change(rig, 6)
    rig.flush()
    disk = crashed(rig)
    disk.flip(PATHS.commit_log / f"{0:020d}", at + 60, 1)
    damaged = start(rig, disk)
    assert len(damaged.report.damage) == 1
    take_checkpoint(damaged)
    started = start(rig, crashed(damaged))
    assert started.report.checkpoint == 1
    assert started.report.damage == damaged.report.damage
    assert started.broker._store._state.lost == damaged.broker._store._state.lost != []


def test_each_state_follows_from_the_one_before(rig: BrokerRig) -> None:
    for number in range(6, 30):
        change(rig, number)
        if number % 3 == 0:
            assert take_checkpoint(rig).error is None
        if number % 10 == 9:
            rig = rig.crash("dropped", random.Random(number))
            assert rig.report.checkpoint > 0
    rig.flush()
    check_loads(rig, crashed(rig), newest_of(rig.disk).states[0].number)


def test_two_states_are_kept_and_all_older_files_removed(rig: BrokerRig) -> None:
    for number in range(6, 16):
        change(rig, number)
        take_checkpoint(rig)
    states = told_on(rig.disk).states
    # The older copy names one more; it goes when that is written over.
    assert [state.number for state in states] == [10, 9, 8]
    files = {path for path in rig.disk.files() if path.parent in DERIVED}
    assert {path for path in files if path.parent == PATHS.control} == {
        PATHS.control_file(state.number) for state in states
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


def test_a_checkpoint_of_another_cluster_is_not_believed(rig: BrokerRig) -> None:
    take_checkpoint(rig)
    other = BrokerRig()
    other.create_topic("t", 2)
    for number in range(9):
        change(other, number)
    take_checkpoint(other)
    mixed = copy_of(other.disk, lambda path: path.parent != PATHS.commit_log)
    mixed.remove_tree(PATHS.commit_log)
    log = {path: data for path, data in rig.disk.files().items() if path.parent == PATHS.commit_log}
    mixed.make_dirs(PATHS.commit_log)
    for path, content in log.items():
        mixed.open(path, create=True).pwritev([content], 0)
    expected = rebuilt(rig, mixed)
    with pytest.raises(LogRefusedError, match=LogFault.FOREIGN.value):
        start(rig, mixed)
    started = BrokerRig(mixed, rig.clock, rig.config, accepts_loss=True)
    assert started.report.checkpoint == 0
    assert {each.fault for each in started.report.rejected} == {StateFault.OTHER_LOG}
    assert started.report.damage == ()
    assert started.digest(USER_IDS) == expected


def test_a_log_that_ends_before_its_checkpoint_is_replayed_and_the_loss_reported(
    rig: BrokerRig,
) -> None:
    earlier = {
        path: data for path, data in rig.disk.files().items() if path.parent == PATHS.commit_log
    }
    for number in range(6, 9):
        change(rig, number)
    rig.broker.close()
    disk = crashed(rig)
    for path, content in earlier.items():
        disk.open(path).pwritev([content], 0)
    started = start(rig, disk)
    assert started.report.checkpoint == 0
    assert [each.fault for each in started.report.rejected] == [StateFault.OTHER_LOG]
    assert len(started.report.damage) == 1
    assert not started.report.is_clean  # so that the epoch rises


def test_a_state_of_other_settings_is_not_used(rig: BrokerRig) -> None:
    rig.broker.close()
    config = replace(rig.config, fired_id_memory_ms=1)
    started = BrokerRig(crashed(rig), rig.clock, config)
    assert [each.fault for each in started.report.rejected] == [StateFault.OTHER_SETTINGS]
    assert started.report.frames > 0


def test_numbers_are_not_used_twice_even_if_the_checkpoint_is_lost(rig: BrokerRig) -> None:
    take_checkpoint(rig)
    change(rig, 6)
    take_checkpoint(rig)
    disk = crashed(rig)
    disk.unlink(PATHS.checkpoint)
    started = start(rig, disk)
    job = take_checkpoint(started)
    assert job.saved is not None
    assert job.saved.number == 3
    assert {path for path in disk.files() if path.parent == PATHS.control} == {
        PATHS.control_file(3)
    }


def test_a_checkpoint_that_cannot_be_read_is_none(rig: BrokerRig) -> None:
    rig.broker.close()
    disk = crashed(rig)
    disk.spoil(PATHS.checkpoint, 0, 2 * COPY_SIZE)
    assert start(rig, disk).report.checkpoint == 0
