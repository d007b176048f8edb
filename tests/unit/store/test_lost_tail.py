"""What a start cuts off the log is set aside, bounded, and reported by `check`."""

import random

import pytest

from appliance.store.checkpoint import COPY_SIZE
from appliance.store.recovery import lost
from appliance.units import KIB, PAGE_SIZE_BYTES
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import PATHS
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record


def torn(harness: BrokerHarness, values: list[bytes]) -> tuple[SimFileSystem, int, bytes]:
    """A disk after a kill whose last flush looks like a torn one; its position."""
    start = harness.broker.wrote_pos
    for value in values:
        harness.send_produce("t", 0, [Record(value)])
    harness.flush()
    end = harness.broker.wrote_pos
    disk = harness.disk.crashed("kept", random.Random(0))
    disk.unlink(PATHS.checkpoint)
    path = PATHS.commit_log / f"{0:020d}"
    disk.flip(path, start + 10, 1)
    return disk, start, disk.files()[path][start:end]


def test_a_tail_that_may_have_been_durable_is_set_aside_before_it_is_zeroed() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"kept")])
    disk, start, data = torn(harness, [b"a" * 900, b"b" * 900])
    found = BrokerHarness(disk, harness.clock, harness.config)
    assert found.report.damage == ()
    assert found.values() == [b"kept"]
    path = PATHS.lost_file(start, found.broker.epoch)
    assert disk.files()[path].rstrip(b"\0") == data.rstrip(b"\0")
    found.broker.close()
    (note,) = [note for note in offline_scenario.check(disk).notes if note.path == path]
    assert str(start) in note.text
    assert offline_scenario.check(disk).faults == []


def test_a_sector_that_cannot_be_read_in_what_is_cut_is_named() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"kept")])
    disk, start, data = torn(harness, [b"a" * 6_000, b"b" * 6_000])
    path = PATHS.commit_log / f"{0:020d}"
    bad = (start // PAGE_SIZE_BYTES + 1) * PAGE_SIZE_BYTES
    disk.spoil(path, bad, PAGE_SIZE_BYTES)
    found = BrokerHarness(disk, harness.clock, harness.config)
    (damage,) = found.report.damage
    assert (damage.path, damage.offset, damage.size) == (path, bad, PAGE_SIZE_BYTES)
    assert "cannot be read: " in damage.fault
    kept = disk.files()[PATHS.lost_file(start, found.broker.epoch)]
    assert kept[: bad - start] == data[: bad - start]
    found.produce("t", 0, [Record(b"next")])
    assert found.values() == [b"kept", b"next"]


def test_nothing_is_set_aside_where_nothing_was_written() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"kept")])
    found = harness.crash("kept", random.Random(0))
    assert not found.disk.exists(PATHS.lost)


def test_what_is_set_aside_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "CUT_MAX_BYTES", 2 * KIB)
    monkeypatch.setattr(lost, "TOTAL_MAX_BYTES", 5 * KIB)
    harness = with_topic()
    for number in range(6):
        harness.produce("t", 0, [Record(b"kept %d" % number)])
        disk, _, _ = torn(harness, [b"a" * 900] * 5)
        harness.clock.advance_ms(1_000)
        harness = BrokerHarness(disk, harness.clock, harness.config)
    found = lost.cuts(harness.disk, PATHS)
    assert len(found) >= 2
    assert all(cut.size <= 2 * KIB for cut in found)
    assert sum(cut.size for cut in found) <= 5 * KIB
    assert found[-1].epoch == harness.broker.epoch


def test_a_full_disk_sets_nothing_aside_and_starts() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"kept")])
    disk, _, _ = torn(harness, [b"a" * 900])
    disk.free = 2 * COPY_SIZE  # for the checkpoint alone
    found = BrokerHarness(disk, harness.clock, harness.config)
    assert found.values() == [b"kept"]
