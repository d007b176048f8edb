"""The role file: which node is the master, since which term, whatever crashes."""

import errno
import random
from dataclasses import replace
from typing import Any, Final, get_args

import pytest

from appliance.config.setting import Address
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.store.role_file import (
    SIZE_MAX_BYTES,
    TERM_MAX,
    RoleFile,
    RoleRecord,
    next_term,
    read_role,
    write_role,
)
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem
from tests.unit.store.test_follower import write_some

PATHS: Final = DataPaths(DATA_DIR)
RECORDS: Final = (
    RoleRecord(),
    RoleRecord(1, is_master=True),
    RoleRecord(2, is_master=False, peer=Address("10.0.0.1", 9292)),
    RoleRecord(TERM_MAX, is_master=False, peer=Address("::1", 1), has_yielded=True),
)


def make_disk() -> SimFileSystem:
    disk = SimFileSystem()
    disk.make_dirs(DATA_DIR)
    return disk


def content(disk: SimFileSystem) -> bytes:
    return disk.open(PATHS.role).pread(SIZE_MAX_BYTES, 0)


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_record_is_read_as_it_was_written(record: RoleRecord) -> None:
    disk = make_disk()
    assert read_role(disk, PATHS) is None
    write_role(disk, PATHS, RECORDS[-1])  # a longer one before it
    write_role(disk, PATHS, record)
    assert read_role(disk, PATHS) == record


def test_every_changed_bit_and_every_cut_is_refused_with_the_path() -> None:
    disk = make_disk()
    write_role(disk, PATHS, RECORDS[2])
    data = content(disk)
    broken = [data[:size] for size in range(len(data))]
    broken += [data + b"\n", data * 2, bytes(SIZE_MAX_BYTES), b"\xff" * 50]
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        broken.append(bytes(changed))
    for each in broken:
        file = disk.open(PATHS.role)
        file.truncate(len(each))
        file.pwritev([each], 0)
        with pytest.raises(CorruptionError, match="role"):
            read_role(disk, PATHS)


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_crash_at_any_call_of_a_change_leaves_the_old_record_or_the_new_one(
    mode: CrashMode,
) -> None:
    for before in (None, RECORDS[3]):
        number, is_done = 0, False
        while not is_done:
            number += 1
            disk = make_disk()
            if before is not None:
                write_role(disk, PATHS, before)
            disk.sync_dir(DATA_DIR)
            disk.fail_at(disk.calls + number, SimCrash())
            try:
                write_role(disk, PATHS, RECORDS[2])
                is_done = True
            except SimCrash:
                pass
            left = disk.crashed(mode, random.Random(number))
            found = read_role(left, PATHS)
            assert found in ((RECORDS[2],) if is_done else (before, RECORDS[2]))
            write_role(left, PATHS, RECORDS[1])  # whatever lies beside it
            assert read_role(left, PATHS) == RECORDS[1]
        assert number > 4


def test_terms_of_the_nodes_are_odd_and_even_and_rise() -> None:
    assert [next_term(term, 1) for term in range(4)] == [1, 3, 3, 5]
    assert [next_term(term, 2) for term in range(4)] == [2, 2, 4, 4]


def test_change_counts_once_it_is_on_the_disk() -> None:
    disk = make_disk()
    role = RoleFile(disk, PATHS, small_config(role="slave", master="127.0.0.1:1"))
    assert role.read() == RoleRecord(0, is_master=False, peer=Address("127.0.0.1", 1))
    disk.fail_at(disk.calls + 1, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError):
        role.change(term=2)
    assert role.record.term == 0
    role.change(term=2)
    assert read_role(disk, PATHS) == role.record == replace(role.record, term=2)


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        (RoleRecord(2, is_master=False, peer=Address("10.0.0.1", 9)), {"replication": "async"}),
        (RoleRecord(2, is_master=True), {"role": "slave", "master": "127.0.0.1:1"}),
    ],
)
def test_role_file_decides_over_the_configuration(
    record: RoleRecord, settings: dict[str, Any]
) -> None:
    disk = make_disk()
    write_role(disk, PATHS, record)
    role = RoleFile(disk, PATHS, small_config(**settings))
    assert role.read() == record
    assert role.is_slave is not record.is_master
    assert role.peer == (role.configured_peer or record.peer)


def test_node_that_yielded_is_no_slave_and_begins_a_term_if_it_goes_on() -> None:
    config = small_config(replication="async")
    harness = BrokerHarness(config=config)
    harness.broker.close()
    yielded = RoleRecord(2, is_master=False, has_yielded=True)
    write_role(harness.disk, PATHS, yielded)
    role = RoleFile(harness.disk, PATHS, config)
    role.read()
    assert not role.is_slave
    assert role.is_member
    again = BrokerHarness(harness.disk, harness.clock, config)
    assert again.broker.role == RoleRecord(3, is_master=True)


def test_broker_that_is_alone_has_no_role_file() -> None:
    harness = BrokerHarness()
    assert not harness.disk.exists(PATHS.role)
    assert harness.broker.role.term == 0


@pytest.mark.parametrize(("settings", "term"), [({}, 1), ({"node": 2}, 2)])
def test_first_master_of_a_pair_begins_a_term_and_keeps_it(
    settings: dict[str, Any], term: int
) -> None:
    config = small_config(replication="async", **settings)
    harness = BrokerHarness(config=config)
    assert harness.broker.role == RoleRecord(term, is_master=True)
    assert harness.restart().broker.role.term == term


def follow(term: int) -> tuple[BrokerHarness, SlaveHarness]:
    """Return a master, and a slave that follows it in a term."""
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, random.Random(1))
    slave.follower.adopt_term(term, Address("127.0.0.1", 1))
    slave.receive(master)
    slave.flush()
    return master, slave


def test_slave_keeps_the_term_of_its_master_and_a_promotion_begins_a_higher_one() -> None:
    _, slave = follow(7)
    slave = slave.restart()
    assert slave.follower.term == 7
    promoted = slave.promote()
    assert promoted.broker.role == RoleRecord(8, is_master=True, peer=Address("127.0.0.1", 1))


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_crash_at_any_call_of_a_promotion_leaves_a_slave_or_a_master_of_a_higher_term(
    mode: CrashMode,
) -> None:
    """And no epoch of its own is in the log before the term is durable."""
    number, is_done = 0, False
    outcomes = set()
    while not is_done:
        number += 1
        master, slave = follow(1)
        epochs = master.epoch_starts()
        slave.disk.fail_at(slave.disk.calls + number, SimCrash())
        try:
            promoted = slave.promote()
            is_done = True
        except SimCrash:
            pass
        disk = promoted.disk if is_done else slave.disk
        left = disk.crashed(mode, random.Random(number))
        role = RoleFile(left, PATHS, slave.config)
        record = role.read()
        outcomes.add(record.is_master)
        assert record.term == (2 if record.is_master else 1)
        if record.is_master:
            again = BrokerHarness(left, slave.clock, slave.config)
            assert again.values() == master.values()
        else:
            assert SlaveHarness(left, slave.clock).follower.epochs() == epochs
    assert outcomes == {True, False}
