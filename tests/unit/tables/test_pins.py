"""A pinned part of a log has the same rows whenever it is read, or is an error."""

import random
from dataclasses import replace
from uuid import UUID

import pytest

from compat.tables.log_reader import SegmentGoneError
from compat.tables.pin import LogChangedError, Pin, take_pin
from compat.tables.schema import TABLE_NAMES
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.tables import planned, rows_of
from tests.support.oracles.tables_model import UsedBroker
from tests.support.simulator.sim_fs import SimFileSystem

LOG = DATA_DIR / "commitlog"
SEGMENT = 64 * 1024


def used_broker(seed: int, steps: int) -> UsedBroker:
    used = UsedBroker(random.Random(seed))
    used.use(steps)
    used.stop("clean")
    return used


def test_a_pinned_part_stays_the_same_while_the_log_grows() -> None:
    used = used_broker(3, 150)
    disk = used.harness.disk
    pin = take_pin(DATA_DIR, disk)
    before = {table: rows_of(disk, table) for table in TABLE_NAMES}
    used.use(150)
    used.stop("clean")
    disk = used.harness.disk
    for table in TABLE_NAMES:
        assert rows_of(disk, table, pin.plan(disk)) == before[table]
        assert rows_of(disk, table) != before[table]


def test_a_pin_without_a_checkpoint_ends_at_the_torn_tail() -> None:
    used = used_broker(4, 60)
    disk = used.harness.disk
    disk.unlink(DATA_DIR / "checkpoint")
    pin = take_pin(DATA_DIR, disk)
    assert (pin.start, pin.end) == (0, planned(disk).end)
    assert pin.plan(disk).end == pin.end


def test_a_pin_of_an_empty_log_has_no_rows() -> None:
    disk = SimFileSystem()
    disk.make_dirs(LOG)
    assert take_pin(DATA_DIR, disk) == Pin(DATA_DIR, 0, 0, "")
    assert take_pin(DATA_DIR, disk).plan(disk).zones == []


def test_a_log_of_another_cluster_is_refused() -> None:
    disk = used_broker(5, 20).harness.disk
    pin = take_pin(DATA_DIR, disk)
    other = replace(pin, cluster=str(UUID(int=7)))
    with pytest.raises(LogChangedError, match=f"it is of cluster {pin.cluster}, not of 0000"):
        other.plan(disk)


def test_a_log_that_is_shorter_than_its_pin_is_refused() -> None:
    disk = used_broker(5, 20).harness.disk
    pin = take_pin(DATA_DIR, disk)
    with pytest.raises(LogChangedError, match=f"ends at log position {pin.end}, and was read up"):
        replace(pin, end=pin.end + 8).plan(disk)


def test_a_head_that_is_gone_is_refused_unless_that_is_accepted() -> None:
    used = used_broker(6, 450)
    disk = used.harness.disk
    pin = take_pin(DATA_DIR, disk)
    messages = rows_of(disk, "messages")
    disk.unlink(LOG / f"{0:020d}")
    with pytest.raises(SegmentGoneError, match=f"{0:020d} is gone"):
        pin.plan(disk)
    plan = pin.plan(disk, fails_on_loss=False)
    left = rows_of(disk, "messages", plan, fails_on_loss=False)
    assert left == [row for row in messages if row["position"] >= SEGMENT] != messages


def test_a_plan_stops_where_it_is_told_to() -> None:
    disk = used_broker(7, 200).harness.disk
    frames = rows_of(disk, "frames")
    whole = planned(disk)
    plan = planned(disk, stop=frames[9]["position"])
    assert plan.end == frames[9]["position"]
    plan.advance(stop=plan.end + 1)
    assert plan.end == frames[10]["position"]
    plan.advance()
    assert plan.end == whole.end
    for table in TABLE_NAMES:
        assert rows_of(disk, table, plan) == rows_of(disk, table, whole)


def test_a_plan_forgets_zones_that_were_read() -> None:
    disk = used_broker(7, 200).harness.disk
    plan = planned(disk)
    middle = plan.zones[len(plan.zones) // 2].start
    kept = [zone for zone in plan.zones if zone.start >= middle]
    plan.forget(middle)
    assert plan.zones == kept
    assert plan.cluster == planned(disk).cluster


def test_damage_in_what_was_added_is_not_taken_for_a_torn_tail() -> None:
    """A plan that goes on knows how far the log is flushed now, not only at its beginning."""
    used = used_broker(8, 100)
    plan = planned(used.harness.disk)
    begin = plan.end
    used.use(100)
    used.stop("clean")
    disk = used.harness.disk
    frames = [row for row in rows_of(disk, "frames") if row["position"] > begin]
    last = frames[-1]["position"]
    disk.flip(LOG / f"{last - last % SEGMENT:020d}", last % SEGMENT + 40, 1)
    plan.advance()
    assert [(start, end) for start, end, _ in plan.damage] == [(last, plan.reader.end)]
