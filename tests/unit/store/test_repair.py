"""A slave whose log is damaged waits with it unchanged, and takes the master's bytes."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import get_args

import pytest

from appliance.broker import Broker
from appliance.errors import LogRefusedError
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.paths import DataPaths, segment_name
from appliance.store.recovery.report import Progress
from appliance.store.repair import Repair
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem
from tests.unit.store.test_follower import write_some

PATHS = DataPaths(DATA_DIR)

STEPS_MAX = 10_000


class Waiting:
    """A slave whose start has come to the repair.

    Attributes:
        broker, log: what it is made of.
    """

    def __init__(self, slave: SlaveHarness, disk: SimFileSystem) -> None:
        self.broker = Broker(slave.clock, disk, slave.config, KAFKA_FACADE)
        self._start: Iterator[Progress] = iter(self.broker.recover())
        for _ in range(STEPS_MAX):
            if self.broker.repair is not None or self.broker.follower is not None:
                break
            next(self._start)

    @property
    def log(self) -> Repair:
        """What is to be repaired."""
        assert self.broker.follower is None, "it repairs nothing"
        assert self.broker.repair is not None
        return self.broker.repair

    def go_on(self) -> None:
        """Let the start go on."""
        self.log.give_up()
        next(self._start)


def damaged_slave(rng: random.Random) -> tuple[BrokerHarness, SlaveHarness, SimFileSystem]:
    """A master, its slave, and what is left of the slave: two damaged parts, no checkpoint."""
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng, 60)
    master.flush()
    slave.receive(master)
    slave.flush()
    end = slave.follower.end_pos
    slave.broker.close()
    disk = slave.disk.crashed("killed", rng)
    for name in disk.list_dir(PATHS.control):
        disk.unlink(PATHS.control / name)
    for pos in (end // 4, end // 2):
        base = max(each for each in slave.log_bases() if each <= pos)
        disk.flip(PATHS.commit_log / segment_name(base), pos - base, 0x40)
    return master, slave, disk


def repair(log: Repair, master: BrokerHarness) -> None:
    """Replace what is damaged by what the master has."""
    for begin, end in log.damaged():
        pos = begin
        while pos < end:
            data = master.broker.log.read(pos, min(end - pos, 700))
            log.write(pos, data)
            pos += len(data)
    log.flush()


def log_of(disk: SimFileSystem) -> dict[str, bytes]:
    return {name: disk.files()[PATHS.commit_log / name] for name in disk.list_dir(PATHS.commit_log)}


def test_a_repaired_slave_has_the_log_of_its_master_and_goes_on() -> None:
    rng = random.Random(1)
    master, slave, disk = damaged_slave(rng)
    waiting = Waiting(slave, disk)
    before = log_of(disk)
    assert len(waiting.log.damaged()) == 2
    assert waiting.log.end_pos == master.broker.flushed_pos
    assert waiting.log.cluster == master.broker.source_log().cluster
    repair(waiting.log, master)
    waiting.broker.close()
    assert log_of(disk) != before
    again = SlaveHarness(disk.crashed("dropped", rng), slave.clock)
    write_some(master, rng, 10)
    again.receive(master)
    again.flush()
    expected, found = master, again.promote()
    assert found.report.damage == ()
    assert found.values() == expected.values()
    assert found.digest().pending == expected.digest().pending


def test_what_stood_there_is_kept_and_no_snapshot_is_changed() -> None:
    rng = random.Random(5)
    master, slave, disk = damaged_slave(rng)
    waiting = Waiting(slave, disk)
    damaged = waiting.log.damaged()
    before = {begin: waiting.log._log.files.read_raw(begin, end - begin) for begin, end in damaged}
    names = disk.list_dir(PATHS.commit_log)
    for name in names:
        disk.link(PATHS.commit_log / name, DATA_DIR / f"of a snapshot {name}")
    linked = {name: disk.files()[DATA_DIR / f"of a snapshot {name}"] for name in names}
    repair(waiting.log, master)
    assert waiting.log.damaged() == damaged, "until the next start"
    kept = disk.list_dir(PATHS.lost)
    assert sorted(int(name.split("-")[0]) for name in kept) == sorted(before)
    for name in kept:
        data = before[int(name.split("-")[0])]
        assert disk.files()[PATHS.lost / name] == data.rstrip(b"\0")
    assert {name: disk.files()[DATA_DIR / f"of a snapshot {name}"] for name in names} == linked
    waiting.broker.close()
    assert SlaveHarness(disk, slave.clock).promote().values() == master.values()


def test_a_part_that_crosses_a_segments_end_is_repaired_in_two() -> None:
    master, slave, disk = damaged_slave(random.Random(6))
    waiting = Waiting(slave, disk)
    (first, size), (second, _) = waiting.log._log.files.places[:2]
    waiting.log.damage._start = SimpleNamespace(  # type: ignore[assignment]
        state=SimpleNamespace(verdicts=[]),
        scan=SimpleNamespace(damage=[(second - 100, second + 50, "made up")], epoch=1),
    )
    assert first + size == second
    assert waiting.log.damaged() == [(second - 100, second), (second, second + 50)]
    repair(waiting.log, master)
    waiting.broker.close()


def test_a_stop_during_a_repair_leaves_the_log_as_it_is_and_the_damage_to_find() -> None:
    _, slave, disk = damaged_slave(random.Random(2))
    before = log_of(disk)
    waiting = Waiting(slave, disk)
    found = waiting.log.damaged()
    waiting.broker.close()
    assert log_of(disk) == before
    assert Waiting(slave, disk).log.damaged() == found


def test_a_log_that_cannot_be_repaired_is_refused_as_it_is() -> None:
    _, slave, disk = damaged_slave(random.Random(3))
    before = log_of(disk)
    waiting = Waiting(slave, disk)
    with pytest.raises(LogRefusedError, match="the slave's log is damaged"):
        waiting.go_on()
    assert log_of(disk) == before


def test_what_was_repaired_in_vain_is_not_tried_again() -> None:
    _, slave, disk = damaged_slave(random.Random(4))
    waiting = Waiting(slave, disk)
    found = waiting.log.damaged()
    waiting.log.damage.tried = frozenset(found[:1])
    assert waiting.log.damaged() == found[1:]
    waiting.broker.close()


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_crash_at_any_call_of_a_repair_leaves_the_rest_to_repair(mode: CrashMode) -> None:
    number, is_done = 0, False
    while not is_done:
        number += 1
        assert number < STEPS_MAX
        rng = random.Random(number)
        master, slave, disk = damaged_slave(rng)
        waiting = Waiting(slave, disk)
        disk.fail_at(disk.calls + number, SimCrash())
        try:
            repair(waiting.log, master)
            is_done = True
        except SimCrash:
            pass
        left = disk.crashed(mode, rng)
        rest = Waiting(slave, left)
        if rest.broker.repair is not None:
            repair(rest.log, master)
        rest.broker.abandon()
        again = SlaveHarness(left.crashed("killed", rng), slave.clock)
        assert again.promote().values() == master.values()
    assert number > 2
