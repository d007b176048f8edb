"""Backup and restore at each call: a crash in every way, and calls that fail.

What is left is a whole backup or one that says that it is incomplete; a directory that a broker
serves with everything, or one on which none starts. The log that is backed up is never changed.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import pytest

from appliance.errors import BackupError, LogRefusedError, StorageError
from appliance.offline import manifest
from appliance.store.paths import DataPaths
from appliance.store.recovery.restored import first_producer_id
from appliance.store.state.epoch_starts import next_epoch
from tests.support.harness.backups import (
    BACKUP,
    RESTORED,
    back_up_live,
    bytes_under,
    filled,
    open_backup,
    restore,
    start_on,
)
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import PATHS
from tests.support.harness.offline_scenario import check
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem

How = Literal["once", "for good", "after half of it"]

RECORDS: Final = 12
"""They fill one segment and a part of a second."""

CRASHES: Final[tuple[CrashMode, ...]] = ("killed", "dropped")

OLD: Final = BACKUP.with_name("old")

Play = Callable[[BrokerHarness], object]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A broker that goes on, and a backup of it; not to be changed.

    Attributes:
        harness: the broker.
        values: of all its records.
        producer_id: a restored broker gives away none below it.
    """

    harness: BrokerHarness
    values: list[bytes]
    producer_id: int

    def on_copy(self) -> BrokerHarness:
        """Start the same broker on a copy of the disk."""
        return self.start(self.harness.disk.crashed("kept", random.Random(0)))

    def start(self, disk: SimFileSystem) -> BrokerHarness:
        return BrokerHarness(disk, self.harness.clock, self.harness.config)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    harness = filled(RECORDS)
    made = back_up_live(harness, OLD)
    epoch = next_epoch(made.epoch, harness.clock.wall_ms())
    return Prepared(harness, harness.values(), first_producer_id(epoch))


def crash_at_each_call(
    prepared: Prepared, play: Play, look: Callable[[SimFileSystem, bool], None]
) -> int:
    """Crash in all ways before each call of `play`, then look; return how many calls there are."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        harness = prepared.on_copy()
        harness.disk.fail_at(harness.disk.calls + number, SimCrash())
        try:
            play(harness)
            is_done = True
        except SimCrash:
            pass
        seen: set[int] = set()
        for mode in get_args(CrashMode):
            left = harness.disk.crashed(mode, random.Random(number))
            if left.digest() not in seen:
                seen.add(left.digest())
                look(left, is_done)
    return number


def is_complete(disk: SimFileSystem, root: Path) -> bool:
    """Whether a directory is a backup that is whole; if not, it says so."""
    try:
        manifest.read(disk, root)
    except BackupError:
        return False
    assert check(disk, root).faults == []
    return True


def serves(prepared: Prepared, disk: SimFileSystem) -> bool:
    """Whether a broker starts on the restored directory, with everything."""
    if not disk.exists(DataPaths(RESTORED).commit_log):
        return False
    if disk.exists(DataPaths(RESTORED).snapshot_mark):
        with pytest.raises(LogRefusedError, match="not complete"):
            start_on(prepared.harness, RESTORED, disk)
        return False
    started = start_on(prepared.harness, RESTORED, disk)
    assert started.values() == prepared.values
    assert started.broker.allocate_producer_id() >= prepared.producer_id
    return True


def test_a_crash_at_any_call_leaves_a_whole_backup_or_one_that_says_that_it_is_none(
    prepared: Prepared,
) -> None:
    old = bytes_under(prepared.harness.disk, OLD)
    complete = 0
    started: set[int] = set()

    def look(left: SimFileSystem, is_done: bool) -> None:
        nonlocal complete
        is_whole = is_complete(left, BACKUP)
        assert is_whole or not is_done, "it was durable"
        complete += is_whole
        assert bytes_under(left, OLD) == old
        digest = left.digest(PATHS.root)
        if digest not in started:
            started.add(digest)
            assert prepared.start(left).values() == prepared.values

    assert crash_at_each_call(prepared, back_up_live, look) > 30
    assert complete > 10


def test_a_crash_at_any_call_leaves_a_restored_directory_or_one_that_no_broker_serves(
    prepared: Prepared,
) -> None:
    before = bytes_under(prepared.harness.disk, OLD)
    serving = 0

    def look(left: SimFileSystem, is_done: bool) -> None:
        nonlocal serving
        is_serving = serves(prepared, left)
        assert is_serving or not is_done, "it was durable"
        serving += is_serving
        assert bytes_under(left, OLD) == before

    assert crash_at_each_call(prepared, lambda each: restore(each, OLD), look) > 20
    assert serving > 5


def test_a_crash_of_the_first_start_on_a_restored_directory_costs_nothing(
    prepared: Prepared,
) -> None:
    harness = prepared.on_copy()
    restore(harness, OLD)
    before = bytes_under(harness.disk, OLD)
    number, is_done = 0, False
    while not is_done:
        number += 1
        disk = harness.disk.crashed("kept", random.Random(0))
        disk.fail_at(disk.calls + number, SimCrash())
        try:
            start_on(prepared.harness, RESTORED, disk)
            is_done = True
        except SimCrash:
            pass
        for mode in get_args(CrashMode):
            left = disk.crashed(mode, random.Random(number))
            assert serves(prepared, left)
            assert bytes_under(left, OLD) == before
    assert number > 15


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_a_call_that_fails_ends_it_with_an_error_and_leaves_nothing_that_looks_whole(
    prepared: Prepared, verb: str, code: int, how: How
) -> None:
    target = BACKUP if verb == "backup" else RESTORED
    number, is_done, left_over = 0, False, 0
    while not is_done:
        number += 1
        harness = prepared.on_copy()
        snapshots = harness.broker.snapshots
        held = Path(snapshots.create(snapshots.freeze(), "held").path)
        before = bytes_under(harness.disk, PATHS.root)
        kept = bytes_under(harness.disk, OLD)
        harness.disk.fail_at(
            harness.disk.calls + number,
            OSError(code, "injected"),
            sticky=how == "for good",
            short_write=how == "after half of it",
        )
        try:
            play(harness, verb, held)
            is_done = True
        except (StorageError, BackupError):
            pass
        harness.disk.heal()
        if harness.disk.exists(target) and not is_done:
            copy = harness.disk.crashed("killed", random.Random(0))
            left_over += verb == "backup" or not serves(prepared, copy)
        for mode in CRASHES:
            left = harness.disk.crashed(mode, random.Random(number))
            if verb == "backup":
                # What has its manifest and cannot be removed is whole all the same.
                assert is_complete(left, target) or not is_done
            else:
                assert serves(prepared, left) or not is_done
        after = bytes_under(harness.disk, PATHS.root)
        assert after == before, "the data directory stays as it is"
        assert bytes_under(harness.disk, OLD) == kept
    assert number > 15
    # A single failure leaves nothing; if nothing works any more, nothing can be removed.
    assert (left_over > 0) == (how == "for good")


def play(harness: BrokerHarness, verb: str, held: Path) -> None:
    if verb == "backup":
        open_backup(harness, held)
    else:
        restore(harness, OLD)


def test_a_restore_of_which_only_the_last_sync_fails_is_not_removed(prepared: Prepared) -> None:
    """No mark keeps brokers out by then: a crash while it is removed would leave a part of it."""
    harness = prepared.on_copy()
    before = harness.disk.calls
    restore(harness, OLD)
    count = harness.disk.calls - before
    harness = prepared.on_copy()
    harness.disk.fail_at(harness.disk.calls + count, OSError(errno.EIO, "injected"))
    with pytest.raises(StorageError, match="fsync"):
        restore(harness, OLD)
    assert serves(prepared, harness.disk.crashed("killed", random.Random(0)))
