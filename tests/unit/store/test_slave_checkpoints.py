"""A slave takes checkpoints as a broker does, so that a start replays the end of its log alone."""

import random
from typing import get_args

import pytest

from appliance.errors import ReplicaError
from appliance.offline.check import Check
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Findings
from appliance.store.checkpoint import NOT_OWN
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import newest_of
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem
from tests.unit.store.test_follower import assert_equal_logs, write_some

SEEDS = range(4)


def replayed_from(slave: SlaveHarness) -> int:
    """Log position at which the start of a slave began to replay."""
    return slave.follower._start.applied


def test_start_after_a_clean_stop_replays_nothing() -> None:
    rng = random.Random(1)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    slave.receive(master)
    again = slave.restart()
    assert replayed_from(again) == again.follower.end_pos == master.broker.log.pointers.committed
    assert again.follower.last_pos == master.broker.log.tail.last_pos
    assert again.follower.last_crc == master.broker.log.tail.last_crc
    assert again.follower.epochs() == master.epoch_starts()
    write_some(master, rng)
    again.receive(master, rng)
    again.flush()
    assert_equal_logs(master, again)
    assert again.promote().digest() == master.digest()


def test_start_after_a_crash_replays_what_came_after_the_checkpoint() -> None:
    rng = random.Random(2)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    slave.receive(master)
    slave.checkpoint()
    saved = slave.follower.end_pos
    write_some(master, rng)
    slave.receive(master)
    slave.flush()
    again = slave.crash("dropped", rng)
    assert replayed_from(again) == saved
    assert again.follower.end_pos == master.broker.log.pointers.committed
    assert newest_of(again.disk).log.own_from == NOT_OWN
    assert again.promote().digest() == master.digest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_crash_between_any_steps_of_a_checkpoint_loses_nothing(mode: CrashMode, seed: int) -> None:
    rng = random.Random(seed)
    master, slave = BrokerHarness(), SlaveHarness()
    for _ in range(8):
        write_some(master, rng, 15)
        end = master.broker.log.pointers.committed
        slave.receive(master, rng, end=rng.randrange(slave.follower.received_pos, end))
        slave.follower.checkpoints.ask()
        durable = 0
        for _ in range(rng.randrange(8)):
            if rng.random() < 0.5:
                slave.clock.advance_ms(1_000)  # so that the flushed position is written
                slave.flush()
                durable = slave.follower.end_pos
            job = slave.follower.step_job()
            if job is not None:
                job.run()
                if rng.random() < 0.7:
                    slave.follower.end_job(job)
            slave.receive(master, rng, end=rng.randrange(slave.follower.received_pos, end + 1))
        slave = slave.crash(mode, rng)
        assert slave.follower.end_pos >= durable
    slave.receive(master)
    slave.flush()
    assert_equal_logs(master, slave)
    assert slave.promote().digest() == master.digest()


def play(slave: SlaveHarness, master: BrokerHarness) -> None:
    """Follow with two checkpoints, and stop cleanly."""
    end = master.broker.log.pointers.committed
    for part in (end // 3, end // 3 * 2):
        slave.receive(master, end=part)
        slave.checkpoint()
    slave.receive(master)
    slave.broker.close()


def test_crash_at_any_call_loses_nothing() -> None:
    master = BrokerHarness()
    write_some(master, random.Random(3), 30)
    expected = master.digest()
    modes = get_args(CrashMode)
    number, is_done = 0, False
    while not is_done:
        number += 1
        slave = SlaveHarness()
        slave.disk.fail_at(slave.disk.calls + number, SimCrash())
        try:
            play(slave, master)
            is_done = True
        except SimCrash:
            pass
        again = slave.crash(modes[number % len(modes)], random.Random(number))
        again.receive(master)
        again.flush()
        assert_equal_logs(master, again)
        assert again.promote().digest() == expected, number
    assert number > 50


def check(disk: SimFileSystem) -> tuple[bool, list[object]]:
    """Return whether the last stop counts as clean, and what is wrong."""
    faults: list[object] = []
    findings = Findings(faults.append)
    data = DataDir(disk, DATA_DIR, findings)
    data.open(may_be_live=False)
    for _ in Check(data, findings).run():
        pass
    data.close()
    return data.is_clean, faults


def test_check_finds_a_slave_that_was_stopped_as_sound_as_a_broker() -> None:
    rng = random.Random(4)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    slave.receive(master, end=master.broker.log.pointers.committed - 5)  # a part of a frame
    slave.flush()
    slave.broker.close()
    assert check(slave.disk) == (True, [])
    assert slave.disk.list_dir(DATA_DIR / "control")


def test_log_is_not_cut_while_a_checkpoint_of_it_is_written() -> None:
    rng = random.Random(5)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    common = master.broker.log.pointers.committed
    slave.receive(master)
    slave.checkpoint()
    write_some(master, rng)
    slave.receive(master)
    slave.flush()
    slave.follower.checkpoints.ask()
    job = slave.follower.step_job()
    while job is None:
        job = slave.follower.step_job()
    for cut in (slave.follower.truncate, slave.follower.restart):
        with pytest.raises(ReplicaError, match="a checkpoint is being written"):
            cut(common)
        assert not slave.follower.wants_start
    job.run()
    slave.follower.end_job(job)
    with pytest.raises(ReplicaError, match="bytes that the master's lacks"):
        slave.follower.truncate(common)
    assert slave.follower.step_job() is None, "the log waits for a start"
    again = slave.crash("killed", rng)
    assert replayed_from(again) == again.follower.end_pos == common
    again.receive(master)
    assert again.promote().digest() == master.digest()


def test_promotion_gives_up_a_checkpoint_in_progress_and_the_master_takes_the_next() -> None:
    rng = random.Random(6)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    slave.receive(master)
    slave.checkpoint()
    write_some(master, rng)
    slave.receive(master)  # not flushed: the checkpoint waits
    slave.follower.checkpoints.ask()
    assert slave.follower.step_job() is None
    assert slave.follower.checkpoints.is_capturing
    promoted = slave.promote()
    assert promoted.digest() == master.digest()
    assert promoted.report.replayed_bytes == 0, "it stopped cleanly, with a checkpoint"
    assert promoted.report.rejected == ()


def test_slave_that_was_a_master_keeps_the_age_of_its_log() -> None:
    old = BrokerHarness()
    write_some(old, random.Random(7))
    old.tick(3_600_000)
    old.broker.close()
    returned = SlaveHarness(old.disk, old.clock, node=1)
    wanted = returned.broker._store.state.saved_age
    returned.checkpoint()
    assert returned.restart().broker._store.state.saved_age == wanted
