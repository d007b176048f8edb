"""A slave frees what its master freed, once its own log is complete without it."""

import errno
import random
from pathlib import Path
from typing import get_args

import pytest

from appliance.errors import StorageError
from appliance.store.head.head_freer import RETRY_NS, FreeJob
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.carrying import (
    SEGMENT,
    carry,
    carry_and_free,
    free_below,
    last_base,
    raw_records,
)
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import CrashMode, SimCrash
from tests.unit.retention.test_carry_faults import fill, keep, ready_to_carry
from tests.unit.store.test_follower import assert_equal_logs


def note(slave: SlaveHarness, master: BrokerHarness) -> None:
    """Tell the slave what a BEAT of the master says now."""
    log = master.broker.log
    slave.follower.head.note_master(log.start_pos, log.pointers.committed)


def freed_pair() -> tuple[BrokerHarness, SlaveHarness]:
    """A master that freed its head, and a slave that has the log before that."""
    master, slave = ready_to_carry(), SlaveHarness()
    slave.receive(master)
    slave.flush()
    carry_and_free(master)
    assert master.broker.log.start_pos > 0
    note(slave, master)
    return master, slave


def assert_slave_serves_the_same(master: BrokerHarness, slave: SlaveHarness) -> None:
    expected = raw_records(master, "kept")
    digest = master.digest()
    promoted = slave.promote()
    assert promoted.digest() == digest
    assert raw_records(promoted, "kept") == expected


def test_slave_frees_what_the_master_freed_and_no_more() -> None:
    master, slave = freed_pair()
    slave.work()
    assert slave.follower.start_pos == 0, "it lacks what the master carried"
    slave.receive(master)
    slave.work()
    assert slave.follower.start_pos == 0, "that is not durable yet"
    slave.flush()
    slave.work()
    start = master.broker.log.start_pos
    assert slave.follower.start_pos == start
    assert slave.log_bases() == master.broker.log.files.bases
    assert slave.follower.head.freed_bytes == start
    fill(master, 2)
    slave.receive(master)
    slave.flush()
    slave.work()
    assert slave.follower.start_pos == start
    assert_equal_logs(master, slave)
    slave = slave.restart()
    assert slave.follower.start_pos == start
    assert_slave_serves_the_same(master, slave)


def test_slave_frees_again_and_again_so_that_its_disk_does_not_fill_up() -> None:
    master, slave = freed_pair()
    for number in range(4):
        keep(master, number)
        fill(master, 2)
        master.broker.topics.delete_records(master.topic(), {0: master.partition().next_offset})
        slave.receive(master)
        carry_and_free(master)
        slave.receive(master)
        note(slave, master)
        slave.flush()
        slave.work()
        assert slave.log_bases() == master.broker.log.files.bases
    assert_slave_serves_the_same(master, slave)


def test_log_without_the_freed_part_is_complete_without_a_saved_state() -> None:
    master, slave = freed_pair()
    slave.receive(master)
    slave.flush()
    slave.work()
    slave.broker.abandon()
    for path in list(slave.disk.files()):
        if path.parent.name == "control":
            slave.disk.unlink(path)
    again = SlaveHarness(slave.disk, slave.clock)
    assert again.follower.start_pos == master.broker.log.start_pos
    assert again.follower.end_pos == master.broker.log.pointers.committed
    assert_slave_serves_the_same(master, again)


def test_crash_at_any_call_while_segments_are_freed_loses_nothing() -> None:
    modes: tuple[CrashMode, ...] = get_args(CrashMode)
    source = ready_to_carry()
    before = SlaveHarness()
    before.receive(source)
    before.flush()
    carry_and_free(source)
    expected = raw_records(source, "kept")
    number, is_done = 0, False
    while not is_done:
        number += 1
        slave = before.crash("kept", random.Random(0))
        slave.receive(source)
        slave.flush()
        note(slave, source)
        slave.disk.fail_at(slave.disk.calls + number, SimCrash())
        try:
            slave.work()
            is_done = True
        except SimCrash:
            pass
        again = slave.crash(modes[number % len(modes)], random.Random(number))
        again.receive(source)
        note(again, source)
        again.flush()
        again.work()
        assert again.log_bases() == source.broker.log.files.bases, number
        promoted = again.promote()
        assert raw_records(promoted, "kept") == expected, number
    assert number > 20


def test_segment_that_cannot_be_removed_is_removed_later() -> None:
    master, slave = freed_pair()
    slave.receive(master)
    slave.flush()
    job = slave.next_job()
    while not isinstance(job, FreeJob):
        job.run()
        slave.follower.end_job(job)
        job = slave.next_job()
    unlink = slave.disk.unlink

    def fail(path: Path) -> None:
        raise StorageError(path, "unlink", errno.EIO, "Input/output error")

    slave.disk.unlink = fail  # type: ignore[method-assign]
    job.run()
    slave.disk.unlink = unlink  # type: ignore[method-assign]
    slave.follower.end_job(job)
    assert job.error is not None
    slave.work()
    assert slave.log_bases() != master.broker.log.files.bases
    slave.clock.advance_ms(RETRY_NS // 1_000_000)
    slave.work()
    assert slave.log_bases() == master.broker.log.files.bases
    assert last_base(master) in slave.log_bases()


def held_master() -> BrokerHarness:
    """A master with segments to free, and a connected slave that lacks them."""
    master = ready_to_carry()
    master.broker.head_freer.hold.note_slave(0)
    carry_and_wait(master)
    return master


def carry_and_wait(master: BrokerHarness) -> None:
    """Carry what lives, as far as the last segment, and free what no slave needs."""
    cut = last_base(master)
    master.flush()
    take_checkpoint(master)
    assert carry(master, cut).blocked_at is None
    master.flush()
    free_below(master, cut)


def test_master_keeps_what_its_connected_slave_lacks() -> None:
    master = held_master()
    hold, end = master.broker.head_freer.hold, last_base(master)
    assert master.broker.log.start_pos == 0
    assert hold.held_bytes >= end
    hold.note_slave(end)
    free_below(master, end)
    assert master.broker.log.start_pos > 0
    assert hold.held_bytes == 0
    assert not hold.has_given_up


def test_master_keeps_nothing_for_a_slave_that_is_away() -> None:
    master = held_master()
    master.broker.head_freer.hold.note_slave(None)
    free_below(master, last_base(master))
    assert master.broker.log.start_pos > 0
    assert not master.broker.head_freer.hold.has_given_up


def test_master_frees_up_to_where_its_slave_is() -> None:
    master = ready_to_carry()
    bases = master.broker.log.files.bases
    master.broker.head_freer.hold.note_slave(bases[-1] - 1)
    carry_and_wait(master)
    assert master.broker.log.start_pos == bases[-2]


def test_master_gives_a_slave_up_beyond_the_bound_until_it_connects_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    master = held_master()
    hold = master.broker.head_freer.hold
    hold._bytes_max = hold.held_bytes + 2 * SEGMENT
    fill(master, 1)
    master.free_head()
    assert master.broker.log.start_pos == 0
    fill(master, 1.5)
    master.flush()
    master.free_head()
    assert master.broker.log.start_pos > 0
    assert hold.has_given_up
    assert hold.held_bytes == 0
    assert "the slave is given up" in caplog.text
    assert "replication.keep_for_slave_bytes" in caplog.text
    hold.note_slave(10)
    assert not hold.is_held(last_base(master)), "it is the same connection"
    hold.note_slave(None)
    hold.note_slave(10)
    assert not hold.has_given_up


def test_master_gives_a_slave_up_when_its_disk_is_full() -> None:
    master = held_master()
    master.broker.log.is_full = True
    assert not master.broker.head_freer.hold.is_held(last_base(master))
    assert master.broker.head_freer.hold.has_given_up
