"""What a start cuts off the log is set aside, bounded, and told of by `check`."""

import random

import pytest

from appliance.store import lost
from appliance.store.checkpoint import COPY_SIZE
from appliance.units import KIB, PAGE_SIZE_BYTES
from tests.support import offline_scene
from tests.support.broker_rig import BrokerRig
from tests.support.checkpoints import PATHS
from tests.support.kafka_records import Record
from tests.support.sim_fs import SimFileSystem


def torn(rig: BrokerRig, values: list[bytes]) -> tuple[SimFileSystem, int, bytes]:
    """A disk after a kill whose last flush cannot be told from a torn one; where it lies."""
    start = rig.broker.wrote_pos
    for value in values:
        rig.send_produce("t", 0, [Record(value)])
    rig.flush()
    end = rig.broker.wrote_pos
    disk = rig.disk.crashed("kept", random.Random(0))
    disk.unlink(PATHS.checkpoint)
    path = PATHS.commit_log / f"{0:020d}"
    disk.flip(path, start + 10, 1)
    return disk, start, disk.files()[path][start:end]


def test_a_tail_that_may_have_been_durable_is_set_aside_before_it_is_zeroed() -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    rig.produce("t", 0, [Record(b"kept")])
    disk, start, data = torn(rig, [b"a" * 900, b"b" * 900])
    found = BrokerRig(disk, rig.clock, rig.config)
    assert found.report.damage == ()
    assert [record.value for record in found.fetch("t", 0)] == [b"kept"]
    path = PATHS.lost_file(start, found.broker.epoch)
    assert disk.files()[path].rstrip(b"\0") == data.rstrip(b"\0")
    found.broker.close()
    (note,) = [note for note in offline_scene.check(disk).notes if note.path == path]
    assert str(start) in note.text
    assert offline_scene.check(disk).faults == []


def test_a_sector_that_cannot_be_read_in_what_is_cut_is_named() -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    rig.produce("t", 0, [Record(b"kept")])
    disk, start, data = torn(rig, [b"a" * 6_000, b"b" * 6_000])
    path = PATHS.commit_log / f"{0:020d}"
    bad = (start // PAGE_SIZE_BYTES + 1) * PAGE_SIZE_BYTES
    disk.spoil(path, bad, PAGE_SIZE_BYTES)
    found = BrokerRig(disk, rig.clock, rig.config)
    (damage,) = found.report.damage
    assert (damage.path, damage.offset, damage.size) == (path, bad, PAGE_SIZE_BYTES)
    assert "cannot be read: " in damage.fault
    kept = disk.files()[PATHS.lost_file(start, found.broker.epoch)]
    assert kept[: bad - start] == data[: bad - start]
    found.produce("t", 0, [Record(b"next")])
    assert [record.value for record in found.fetch("t", 0)] == [b"kept", b"next"]


def test_nothing_is_set_aside_where_nothing_was_written() -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    rig.produce("t", 0, [Record(b"kept")])
    found = rig.crash("kept", random.Random(0))
    assert not found.disk.exists(PATHS.lost)


def test_what_is_set_aside_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "CUT_MAX_BYTES", 2 * KIB)
    monkeypatch.setattr(lost, "TOTAL_MAX_BYTES", 5 * KIB)
    rig = BrokerRig()
    rig.create_topic("t")
    for number in range(6):
        rig.produce("t", 0, [Record(b"kept %d" % number)])
        disk, _, _ = torn(rig, [b"a" * 900] * 5)
        rig.clock.advance_ms(1_000)
        rig = BrokerRig(disk, rig.clock, rig.config)
    found = lost.cuts(rig.disk, PATHS)
    assert len(found) >= 2
    assert all(cut.size <= 2 * KIB for cut in found)
    assert sum(cut.size for cut in found) <= 5 * KIB
    assert found[-1].epoch == rig.broker.epoch


def test_a_full_disk_sets_nothing_aside_and_starts() -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    rig.produce("t", 0, [Record(b"kept")])
    disk, _, _ = torn(rig, [b"a" * 900])
    disk.free = 2 * COPY_SIZE  # for the checkpoint alone
    found = BrokerRig(disk, rig.clock, rig.config)
    assert [record.value for record in found.fetch("t", 0)] == [b"kept"]
