"""A pair's master writes nothing into its log before it is told to go on, also if it is stopped."""

import random
from collections.abc import Iterator
from typing import get_args

import pytest

from appliance.broker import Broker
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.comparison import Comparison
from appliance.store.paths import segment_name
from appliance.store.recovery.report import Progress
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem
from tests.support.values.kafka_records import Record, delay
from tests.unit.store.test_follower import write_some


def log_files(disk: SimFileSystem) -> dict[str, bytes]:
    names = disk.list_dir(DATA_DIR / "commitlog")
    return {name: disk.files()[DATA_DIR / "commitlog" / name] for name in names}


def to_comparison(harness: BrokerHarness, disk: SimFileSystem) -> Broker:
    """A broker whose start has come to the comparison."""
    broker = Broker(harness.clock, disk, harness.config, KAFKA_FACADE, compares=True)
    for _ in broker.recover():
        if broker.comparison is not None:
            return broker
    raise AssertionError("it compares nothing")


def written(*, is_clean: bool) -> tuple[BrokerHarness, SimFileSystem]:
    """What a master leaves, with a torn tail unless it stopped cleanly."""
    harness = BrokerHarness(config=small_config(replication="async"))
    write_some(harness, random.Random(1))
    if is_clean:
        harness.broker.close()
        return harness, harness.disk
    harness.create_topic("torn", 1)
    harness.broker.commit()
    return harness, harness.disk.crashed("torn", random.Random(2))


@pytest.mark.parametrize("is_clean", [True, False])
def test_log_is_unchanged_until_it_goes_on(*, is_clean: bool) -> None:
    harness, disk = written(is_clean=is_clean)
    before = log_files(disk)
    broker = to_comparison(harness, disk)
    comparison = broker.comparison
    assert comparison is not None
    assert log_files(disk) == before
    assert comparison.cluster
    assert comparison.node == 1
    assert comparison.epochs()[0] == harness.epoch_starts()[0]
    assert comparison.crc_at(comparison.epochs()[0][1]) is not None
    broker.close()
    assert log_files(disk) == before
    assert disk.exists(DATA_DIR / "abort") is not is_clean
    again = BrokerHarness(disk, harness.clock, harness.config)
    assert again.report.is_clean is is_clean
    assert again.broker.epoch > comparison.epoch


def test_a_log_that_is_compared_can_be_read_for_a_slave_that_repairs_its_own() -> None:
    harness, disk = written(is_clean=False)
    comparison = to_comparison(harness, disk).comparison
    assert comparison is not None
    files = sorted(log_files(disk).items())
    assert len(files) > 1
    pos = comparison.start_pos
    while pos < comparison.committed_pos:
        data = comparison.read(pos, 60_000)
        base = max(int(name) for name, _ in files if int(name) <= pos)
        assert data == dict(files)[segment_name(base)][pos - base : pos - base + len(data)]
        assert data, "nothing before the end"
        pos += len(data)
    assert pos == comparison.committed_pos


def test_start_that_goes_on_is_as_any_start() -> None:
    harness, disk = written(is_clean=True)
    broker = Broker(harness.clock, disk, harness.config, KAFKA_FACADE, compares=True)
    waited = 0
    for progress in broker.recover():
        if broker.comparison is not None and not broker.comparison.is_over:
            assert progress.phase == "comparing"
            waited += 1
            if waited == 3:
                broker.comparison.go_on()
    assert waited == 3
    assert broker.report.is_clean
    assert broker.epoch > harness.epoch_starts()[-1][0]
    broker.close()


def test_broker_that_is_alone_compares_nothing() -> None:
    harness = BrokerHarness()
    harness.broker.close()
    broker = Broker(harness.clock, harness.disk, harness.config, KAFKA_FACADE, compares=True)
    for _ in broker.recover():
        assert broker.comparison is None
    broker.close()


class Comparing:
    """A broker whose start has come to the comparison, and goes on later.

    Attributes:
        broker, comparison: what it is made of.
    """

    def __init__(self, harness: BrokerHarness, disk: SimFileSystem) -> None:
        self._harness, self._disk = harness, disk
        self.broker = Broker(harness.clock, disk, harness.config, KAFKA_FACADE, compares=True)
        self._start: Iterator[Progress] = iter(self.broker.recover())
        while self.broker.comparison is None:
            next(self._start)
        self.comparison: Comparison = self.broker.comparison

    def take(self, slave: SlaveHarness, rng: random.Random) -> None:
        """Take what the slave has beyond this log, in pieces of any size."""
        pos = self.comparison.committed_pos
        while pos < slave.follower.end_pos:
            data = slave.follower.read(pos, rng.choice([1, 100, 5_000]))
            self.comparison.write(pos, data)
            pos += len(data)
        self.comparison.flush()

    def finish(self) -> BrokerHarness:
        """Go on, and return a broker on the same disk."""
        self.comparison.go_on()
        for _ in self._start:
            pass
        self.broker.close()
        return BrokerHarness(self._disk, self._harness.clock, self._harness.config)


def lose_tail(rng: random.Random) -> tuple[BrokerHarness, SlaveHarness, int]:
    """A master with a tail that it acknowledged and did not flush, and a slave that has it.

    Returns:
        Both, and where the master's log ends durably.
    """
    config = small_config(replication="async", flush="async")
    master, slave = BrokerHarness(config=config), SlaveHarness()
    write_some(master, rng)
    master.flush()
    durable = master.broker.flushed_pos
    for number in range(30):
        master.send_produce("t", 0, [Record(b"acknowledged %d" % number)])
        master.broker.commit()
    slave.receive(master)
    slave.flush()
    return master, slave, durable


def damaged_master(rng: random.Random) -> tuple[BrokerHarness, SlaveHarness, SimFileSystem]:
    """A master with two damaged parts in its log, and a slave that has all of it."""
    master, slave = BrokerHarness(config=small_config(replication="async")), SlaveHarness()
    write_some(master, rng, 60)
    master.produce("t", 0, [Record(b"pending", headers=delay(10_000_000))])
    master.flush()
    end = master.broker.flushed_pos
    slave.receive(master)
    slave.flush()
    disk = master.disk.crashed("killed", rng)
    for pos in (end // 4, end // 2):
        base = max(each for each in slave.log_bases() if each <= pos)
        disk.flip(DATA_DIR / "commitlog" / segment_name(base), pos - base, 0x40)
    return master, slave, disk


def repair(comparing: Comparing, slave: SlaveHarness) -> int:
    """Replace what is damaged by what the slave has; return how many parts that were."""
    damaged = comparing.comparison.damaged()
    for begin, end in damaged:
        pos = begin
        while pos < end:
            data = slave.follower.read(pos, end - pos)
            comparing.comparison.write(pos, data)
            pos += len(data)
    comparing.comparison.flush()
    return len(damaged)


def test_damage_is_repaired_from_the_slave_before_a_verdict() -> None:
    rng = random.Random(4)
    master, slave, disk = damaged_master(rng)
    unrepaired = Comparing(master, disk.crashed("killed", rng)).finish()
    assert unrepaired.report.damage, "it would be lost otherwise"
    comparing = Comparing(master, disk)
    assert repair(comparing, slave) == 2
    assert comparing.comparison.wants_start
    comparing.broker.close()
    again = Comparing(master, disk.crashed("dropped", rng))
    assert again.comparison.damaged() == []
    assert not again.comparison.wants_start
    harness = again.finish()
    assert harness.report.damage == ()
    expected = slave.promote()
    assert harness.values() == expected.values()
    assert harness.digest().pending == expected.digest().pending


def test_damage_that_the_slave_cannot_repair_is_tried_once() -> None:
    rng = random.Random(5)
    master, _, disk = damaged_master(rng)
    comparing = Comparing(master, disk)
    found = comparing.comparison.damaged()
    assert found
    comparing.comparison.damage.tried = frozenset(found)
    assert comparing.comparison.damaged() == []
    assert comparing.finish().report.damage


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_crash_at_any_call_of_a_repair_leaves_the_rest_to_repair(mode: CrashMode) -> None:
    number, is_done = 0, False
    while not is_done:
        number += 1
        rng = random.Random(number)
        master, slave, disk = damaged_master(rng)
        comparing = Comparing(master, disk)
        disk.fail_at(disk.calls + number, SimCrash())
        try:
            repair(comparing, slave)
            is_done = True
        except SimCrash:
            pass
        left = disk.crashed(mode, rng)
        repair(Comparing(master, left), slave)
        harness = Comparing(master, left.crashed("killed", rng)).finish()
        assert harness.report.damage == ()
        assert harness.values() == slave.promote().values()
    assert number > 2


def log_of(disk: SimFileSystem, end: int) -> bytes:
    return b"".join(data for _, data in sorted(log_files(disk).items()))[:end]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["dropped", "torn", "names"])
def test_master_that_lost_its_unflushed_tail_has_it_again_from_its_slave(
    mode: CrashMode, seed: int
) -> None:
    rng = random.Random(seed)
    master, slave, durable = lose_tail(rng)
    disk = master.disk.crashed(mode, rng)
    comparing = Comparing(master, disk)
    end = slave.follower.end_pos
    assert durable <= comparing.comparison.committed_pos
    comparing.take(slave, rng)
    assert comparing.comparison.committed_pos == end
    comparing.broker.close()  # it is stopped before it serves
    left = disk.crashed("dropped", rng)
    again = Comparing(master, left)
    assert again.comparison.committed_pos == end
    assert log_of(left, end) == log_of(slave.disk, end)
    harness = again.finish()
    assert harness.values() == slave.promote().values()
    assert harness.values()[-1] == b"acknowledged 29"
    assert harness.report.damage == ()


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_crash_at_any_call_of_taking_leaves_a_log_that_takes_the_rest(mode: CrashMode) -> None:
    number, is_done = 0, False
    while not is_done:
        number += 1
        rng = random.Random(number)
        master, slave, durable = lose_tail(rng)
        disk = master.disk.crashed("dropped", rng)
        comparing = Comparing(master, disk)
        disk.fail_at(disk.calls + number, SimCrash())
        try:
            comparing.take(slave, rng)
            comparing.comparison.go_on()
            is_done = True
        except SimCrash:
            pass
        again = Comparing(master, disk.crashed(mode, rng))
        assert durable <= again.comparison.committed_pos <= slave.follower.end_pos
        again.take(slave, rng)
        harness = again.finish()
        assert harness.values() == slave.promote().values()
        assert harness.report.damage == ()
