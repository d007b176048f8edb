"""Restored backups: what a broker on one has, which numbers it gives away, and what is refused."""

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.errors import BackupError, CorruptionError, LogRefusedError, StorageError
from appliance.offline.findings import Findings
from appliance.offline.restore import Restore
from appliance.store.paths import DataPaths, segment_name
from appliance.store.recovery.restored import JUMP, first_producer_id
from appliance.store.state.group_frames import GROUP_SAVED, GroupFrame
from tests.support.harness.backups import (
    BACKUP,
    RESTORED,
    SEGMENT,
    back_up_live,
    bytes_under,
    fill,
    filled,
    ignore,
    links_of,
    restore,
    start_on,
)
from tests.support.harness.broker_harness import BrokerHarness, produced
from tests.support.harness.checkpoints import commit
from tests.support.harness.offline_scenario import check
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Producer, Record, cancel, delay

HOUR_MS = 3_600_000
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
LOG = DataPaths(BACKUP).commit_log


@pytest.fixture
def harness() -> BrokerHarness:
    return filled()


def test_a_restored_broker_has_what_was_acknowledged_before_the_backup(
    harness: BrokerHarness,
) -> None:
    values = harness.values()
    made = back_up_live(harness)
    before = bytes_under(harness.disk, BACKUP)
    harness.produce("t", 0, [Record(b"after the backup")])
    plan = restore(harness)
    started = start_on(harness)
    assert started.report.damage == ()
    assert started.broker.cluster_id == made.cluster_id
    assert b"after the backup" not in started.values()
    assert started.values()[: len(values)] == values
    offset = started.produce("t", 0, [Record(b"goes on")]).base_offset
    assert offset == plan.partitions[0].next_offset
    assert started.values()[-1] == b"goes on"
    fill(started, 15)
    values = started.values()
    assert started.restart().values() == values
    assert bytes_under(harness.disk, BACKUP) == before, "the backup stays as it is"


def test_timers_that_are_pending_in_the_backup_are_delivered_once_after_the_restore() -> None:
    """Also those that were delivered, or cancelled, after the backup: it does not know of that."""

    def counts(broker: BrokerHarness) -> list[int]:
        values = broker.values("t", 1)
        return [values.count(name) for name in (b"soon", b"cancelled", b"later")]

    harness = filled(2)
    harness.tick(HOUR_MS)
    for name, delay_ms in ((b"soon", 1_000), (b"cancelled", 2_000), (b"later", HOUR_MS)):
        harness.produce("t", 1, [Record(name, headers=delay(delay_ms, name))])
    back_up_live(harness)
    harness.produce("t", 1, [Record(b"", headers=cancel(b"cancelled"))])
    harness.tick(5_000)
    assert counts(harness) == [1, 0, 0]
    plan = restore(harness)
    assert plan.pending_timers == 3
    started = start_on(harness)
    started.deliver_all()
    assert counts(started) == [1, 1, 0]
    started.tick(HOUR_MS)
    assert counts(started) == [1, 1, 1]
    again = started.restart()
    again.tick(HOUR_MS)
    assert counts(again) == [1, 1, 1]


def test_groups_continue_from_the_offsets_of_the_backup(harness: BrokerHarness) -> None:
    commit(harness, "readers", 3)
    back_up_live(harness)
    commit(harness, "readers", 9)
    harness.flush()
    plan = restore(harness)
    assert "readers" in plan.groups
    started = start_on(harness)
    topic_id = started.topic().topic_id
    assert started.broker.groups.offsets("readers")[topic_id, 0].offset == 3


# Numbers


def test_the_epoch_is_above_all_that_the_broker_of_the_backup_began(
    harness: BrokerHarness,
) -> None:
    back_up_live(harness)
    for _ in range(3):
        harness.clock.advance_ms(1_000)
        harness = harness.restart()
    harness.clock.advance_ms(1_000)
    plan = restore(harness)
    started = start_on(harness)
    assert started.broker.epoch == plan.epoch > harness.broker.epoch
    assert not plan.is_clock_behind


def test_no_producer_id_of_a_broker_or_of_another_restore_is_given_again(
    harness: BrokerHarness,
) -> None:
    back_up_live(harness)
    given = {harness.broker.allocate_producer_id() for _ in range(2_500)}
    for target in (RESTORED, Path("/again")):
        harness.clock.advance_ms(1_000)
        plan = restore(harness, target=target)
        started = start_on(harness, target)
        own = {started.broker.allocate_producer_id() for _ in range(2_500)}
        assert min(own) == plan.producer_id == first_producer_id(started.broker.epoch)
        assert max(own) < 1 << 53, "JavaScript"
        assert not own & given
        given |= own
        started.flush()
        again = started.crash("dropped", random.Random(0))
        assert again.broker.allocate_producer_id() > max(own)


def test_no_generation_and_no_topic_id_is_given_again(harness: BrokerHarness) -> None:
    harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group="known", generation=7))
    harness.flush()
    back_up_live(harness)
    harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group="known", generation=60))
    harness.create_topic("after")
    restore(harness)
    started = start_on(harness)
    assert started.broker.groups.groups["known"].generation == 7 + JUMP
    assert started.broker.groups.generation_floor >= JUMP
    started.create_topic("other")
    assert started.topic("other").topic_id > harness.topic("after").topic_id


def test_only_the_first_start_skips_numbers(harness: BrokerHarness) -> None:
    back_up_live(harness)
    restore(harness)
    mark = DataPaths(RESTORED).restored_mark
    assert harness.disk.exists(mark)
    started = start_on(harness)
    assert any("broker of the backup" in skip for skip in started.report.skips)
    assert not harness.disk.exists(mark)
    assert started.restart().report.skips == ()


def test_a_clock_that_is_behind_is_named(harness: BrokerHarness) -> None:
    back_up_live(harness)
    harness.clock.step_ms(-10 * HOUR_MS)
    assert restore(harness).is_clock_behind


def test_a_consumer_that_has_read_beyond_the_backup_finds_the_end_of_its_epoch_before(
    harness: BrokerHarness,
) -> None:
    back_up_live(harness)
    seen = harness.produce("t", 1, [Record(b"seen")]).base_offset
    harness.clock.advance_ms(1_000)
    restore(harness)
    started = start_on(harness)
    assert started.produce("t", 1, [Record(b"other")]).base_offset == seen
    started.read_cold([(started.partition(1).handle, seen)])
    found = started.broker.search.find_end_of_epoch(started.partition(1), harness.broker.epoch)
    assert found is not None
    assert found[1] <= seen


def test_an_idempotent_producer_of_which_batches_are_lost_gets_an_error(
    harness: BrokerHarness,
) -> None:
    def produce(broker: BrokerHarness, producer: Producer) -> int:
        number = broker.send_produce("t", 1, [Record(b"v")], producer)
        broker.flush()
        return produced(broker.answers()[number]).error

    assert produce(harness, Producer(77, 0, 0)) == 0
    back_up_live(harness)
    assert produce(harness, Producer(77, 0, 1)) == 0
    restore(harness)
    started = start_on(harness)
    assert produce(started, Producer(77, 0, 2)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(started, Producer(77, 0, 1)) == 0
    assert produce(started, Producer(88, 0, 9)) == 0, "the backup does not know it"


def test_a_backup_of_a_restored_broker_is_restored_above_it(harness: BrokerHarness) -> None:
    back_up_live(harness)
    harness.clock.advance_ms(1_000)
    restore(harness)
    first = start_on(harness)
    given = {first.broker.allocate_producer_id() for _ in range(1_500)}
    two = BACKUP.with_name("two")
    back_up_live(first, two)
    given |= {first.broker.allocate_producer_id() for _ in range(1_500)}
    first.clock.advance_ms(1_000)
    restore(first, two, Path("/again"))
    second = start_on(first, Path("/again"))
    assert second.broker.allocate_producer_id() > max(given)
    assert second.report.damage == ()
    assert second.values() == first.values()


# Files


def test_full_segments_are_links_and_the_last_one_has_its_room(harness: BrokerHarness) -> None:
    back_up_live(harness, may_link=False)
    restore(harness)
    assert links_of(harness.disk, RESTORED) == [2, 2, 1]
    sizes = [
        len(harness.disk.files()[DataPaths(RESTORED).commit_log / segment_name(number * SEGMENT)])
        for number in range(3)
    ]
    assert sizes == [SEGMENT] * 3
    restore(harness, target=Path("/copied"), may_link=False)
    assert links_of(harness.disk, Path("/copied")) == [1, 1, 1]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_what_cannot_be_linked_is_copied(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    back_up_live(harness, may_link=False)

    def refuse(old: Path, new: Path) -> None:
        raise StorageError(new, "link", code, f"{old} is on another disk")

    with monkeypatch.context() as patched:
        patched.setattr(harness.disk, "link", refuse)
        restore(harness)
    assert links_of(harness.disk, RESTORED) == [1, 1, 1]
    assert start_on(harness).report.damage == ()


# What is refused


def examine(harness: BrokerHarness, target: Path = RESTORED) -> None:
    for _ in Restore(harness.disk, harness.clock, BACKUP, target).examine(Findings(ignore)):
        pass


def test_to_examine_changes_nothing(harness: BrokerHarness) -> None:
    back_up_live(harness)
    before = harness.disk.digest()
    examine(harness)
    assert harness.disk.digest() == before


def test_a_directory_that_is_not_empty_is_left_alone(harness: BrokerHarness) -> None:
    back_up_live(harness)
    harness.disk.make_dirs(Path("/full"))
    harness.disk.open(Path("/full/notes"), create=True)
    before = harness.disk.digest()
    with pytest.raises(BackupError, match="/full is not empty, it has notes"):
        examine(harness, Path("/full"))
    with pytest.raises(BackupError, match="is inside /backups/one"):
        examine(harness, BACKUP / "new")
    assert harness.disk.digest() == before
    harness.disk.make_dirs(Path("/mount/lost+found"))
    restore(harness, target=Path("/mount"))


def test_a_damaged_backup_is_restored_only_on_request(harness: BrokerHarness) -> None:
    back_up_live(harness, may_link=False)
    harness.disk.flip(LOG / segment_name(SEGMENT), 6_000, 1)
    with pytest.raises(BackupError, match=r"is damaged: .*--accept-loss"):
        restore(harness)
    assert not harness.disk.exists(RESTORED)
    assert restore(harness, accepts_loss=True).faults == 1
    assert len(start_on(harness).report.damage) == 1


def test_a_backup_that_lacks_a_file_is_restored_without_it_on_request(
    harness: BrokerHarness,
) -> None:
    back_up_live(harness)
    harness.disk.unlink(LOG / segment_name(SEGMENT))
    with pytest.raises(BackupError, match="is damaged"):
        restore(harness)
    restore(harness, accepts_loss=True)
    with pytest.raises(LogRefusedError, match="segments are missing in the middle"):
        start_on(harness)
    config = replace(harness.config, data_dir=RESTORED)
    started = BrokerHarness(harness.disk, harness.clock, config, accepts_loss=True)
    assert started.values()[0] == harness.values()[0]


def test_bytes_that_no_frame_has_are_compared_with_the_manifest(harness: BrokerHarness) -> None:
    """Here the second copy of the checkpoint: the check of the log does not need it."""
    back_up_live(harness)
    harness.disk.flip(DataPaths(BACKUP).checkpoint, 8_000, 1)
    with pytest.raises(CorruptionError, match="as the manifest says"):
        restore(harness)
    assert not harness.disk.exists(RESTORED)


def test_a_full_disk_is_named_with_figures_and_leaves_nothing(harness: BrokerHarness) -> None:
    back_up_live(harness)
    harness.disk.free = SEGMENT
    with pytest.raises(BackupError, match=r"/restored is full: .*, \d+ are free"):
        restore(harness, may_link=False)
    assert not harness.disk.exists(RESTORED)
    harness.disk.free = 100 * SEGMENT
    restore(harness)


def test_no_broker_starts_on_a_restore_that_did_not_end(harness: BrokerHarness) -> None:
    back_up_live(harness)
    run = Restore(harness.disk, harness.clock, BACKUP, RESTORED)
    for _ in run.examine(Findings(ignore)):
        pass
    steps = run.run()
    next(steps)
    left: SimFileSystem = harness.disk.crashed("kept", random.Random(0))
    with pytest.raises(LogRefusedError, match="the copy of a backup, and it is not complete"):
        start_on(harness, RESTORED, left)
    harness.disk = left
    assert "a restore did not end" in check(left, RESTORED).faults[0].found
    with pytest.raises(BackupError, match="a restore that did not end, which may be removed"):
        examine(harness)
