"""A log that is not the one that was served from here before: refused, and nothing is changed."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from appliance.errors import LogRefusedError
from appliance.store.recovery.decisions import LOG_FAULTS, LogFault
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import PATHS, newest_of
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

SEGMENT_SIZE_BYTES: Final = 64 * KIB
AWAY: Final = DATA_DIR.with_name("away")


def served() -> BrokerHarness:
    """A broker whose log has four segments, stopped cleanly."""
    harness = with_topic()
    harness.produce("t", 0, [Record(b"later", headers=delay(60_000))])
    while harness.broker.wrote_pos < 3 * SEGMENT_SIZE_BYTES + 5_000:
        harness.produce("t", 0, [Record(b"x" * 3_000)])
    harness.broker.close()
    return harness


def start(disk: SimFileSystem, harness: BrokerHarness, **settings: bool) -> BrokerHarness:
    config = small_config(**settings) if settings else harness.config
    return BrokerHarness(disk, harness.clock, config)


def refusal(disk: SimFileSystem, harness: BrokerHarness, **settings: bool) -> LogRefusedError:
    """Start, and see that it is refused and that nothing was changed."""
    before = disk.files(), disk.list_dir(DATA_DIR)
    with pytest.raises(LogRefusedError) as refused:
        start(disk, harness, **settings)
    assert (disk.files(), disk.list_dir(DATA_DIR)) == before
    return refused.value


def go_away(disk: SimFileSystem) -> None:
    disk.rename(PATHS.commit_log, AWAY)


def be_empty(disk: SimFileSystem) -> None:
    disk.rename(PATHS.commit_log, AWAY)
    disk.make_dirs(PATHS.commit_log)


def lose(*numbers: int) -> Callable[[SimFileSystem], None]:
    def change(disk: SimFileSystem) -> None:
        for number in numbers:
            disk.unlink(PATHS.commit_log / f"{number * SEGMENT_SIZE_BYTES:020d}")

    return change


def be_another(disk: SimFileSystem) -> None:
    disk.remove_tree(PATHS.commit_log)
    disk.make_dirs(PATHS.commit_log)
    for path, data in served().disk.files().items():
        if path.parent == PATHS.commit_log:
            disk.open(path, create=True).pwritev([data], 0)


def get_one_of_another(disk: SimFileSystem) -> None:
    path = PATHS.commit_log / f"{SEGMENT_SIZE_BYTES:020d}"
    disk.open(path).pwritev([served().disk.files()[path]], 0)


CHANGES: Final = {
    LogFault.GONE: [go_away, be_empty, lose(0, 1, 2, 3)],
    LogFault.FOREIGN: [be_another],
    LogFault.MIXED: [get_one_of_another],
    LogFault.BEGINS_LATE: [lose(0)],
    LogFault.GAP: [lose(1), lose(1, 2)],
    LogFault.ENDS_EARLY: [lose(3), lose(2, 3)],
}


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("fault", "nth"),
    [(fault, nth) for fault, found in CHANGES.items() for nth in range(len(found))],
)
def test_a_log_that_lacks_something_is_refused_and_served_when_it_is_back(
    fault: LogFault, nth: int, *, is_clean: bool
) -> None:
    harness = served()
    if not is_clean:
        harness.disk.open(PATHS.abort, create=True).close()
    disk = harness.disk.crashed("kept", random.Random(0))
    known = newest_of(disk)
    CHANGES[fault][nth](disk)
    error = refusal(disk, harness)
    assert error.fault == fault.value
    if fault is not LogFault.MIXED:
        assert str(known.log.cluster) in error.message
        assert str(known.flushed) in error.message
    assert "--accept-loss" in error.message
    refusal(disk, harness)  # the lock was given back
    # What was away is back.
    for path, data in harness.disk.files().items():
        if path.parent == PATHS.commit_log:
            disk.make_dirs(path.parent)
            disk.open(path, create=True).truncate(0)
            disk.open(path).pwritev([data], 0)
    again = start(disk, harness)
    assert again.values() == [b"x" * 3_000] * again.broker.topics.all()[0].partitions[0].next_offset
    assert again.broker.cluster_id == harness.broker.cluster_id
    assert again.broker.pending_timers == 1
    assert again.report.damage == ()


def test_every_fault_that_is_seen_before_the_replay_is_tried() -> None:
    assert set(CHANGES) | {LogFault.LOST_TOO_MUCH} == set(LOG_FAULTS)


def test_a_start_goes_on_without_the_log_if_that_is_accepted() -> None:
    harness = served()
    go_away(harness.disk)
    fresh = BrokerHarness(harness.disk, harness.clock, harness.config, accepts_loss=True)
    assert fresh.broker.topics.all() == []
    assert fresh.broker.cluster_id != harness.broker.cluster_id
    assert fresh.broker.epoch > harness.broker.epoch
    assert fresh.broker.pending_timers == 0
    fresh.create_topic("t")
    fresh.produce("t", 0, [Record(b"new")])
    assert fresh.restart().values() == [b"new"]
    assert fresh.crash("kept", random.Random(0)).values() == [b"new"]


@pytest.mark.parametrize("fault", [LogFault.GAP, LogFault.ENDS_EARLY, LogFault.BEGINS_LATE])
def test_a_start_goes_on_without_segments_if_that_is_accepted(fault: LogFault) -> None:
    harness = served()
    before = start(harness.disk.crashed("kept", random.Random(0)), harness)
    known = {record.offset: record.value for record in before.fetch("t", 0)}
    CHANGES[fault][0](harness.disk)
    again = BrokerHarness(harness.disk, harness.clock, harness.config, accepts_loss=True)
    found = again.fetch("t", 0, again.broker.topics.all()[0].partitions[0].start_offset)
    assert found
    assert all(known[record.offset] == record.value for record in found)
    offset = again.produce("t", 0, [Record(b"new")]).base_offset
    assert offset > max(known)
    # Accepted once: the next starts need no flag.
    assert again.restart().fetch("t", 0, offset)[0].value == b"new"
    assert again.crash("kept", random.Random(0)).fetch("t", 0, offset)[0].value == b"new"


def test_a_fresh_directory_and_a_log_without_its_checkpoint_start() -> None:
    harness = served()
    harness.disk.unlink(PATHS.checkpoint)
    again = start(harness.disk, harness)
    assert not again.report.is_clean
    assert again.broker.cluster_id == harness.broker.cluster_id
    assert again.broker.pending_timers == 1


@pytest.mark.parametrize("names", [(), ("lost+found",)], ids=["empty", "foreign"])
def test_a_directory_that_must_exist_is_not_made(names: tuple[str, ...]) -> None:
    harness = served()
    disk = SimFileSystem()
    with pytest.raises(LogRefusedError, match="must_exist"):
        start(disk, harness, must_exist=True)
    assert not disk.exists(DATA_DIR)
    disk.make_dirs(DATA_DIR)
    for name in names:
        disk.make_dirs(DATA_DIR / name)
    error = refusal(disk, harness, must_exist=True)
    assert "must_exist" in error.message
    start(disk, harness)
    assert start(harness.disk, harness, must_exist=True).broker.pending_timers == 1


def segment(number: int) -> Path:
    return PATHS.commit_log / f"{number * SEGMENT_SIZE_BYTES:020d}"


def test_a_start_that_would_judge_much_lost_is_refused() -> None:
    harness = served()
    data = harness.disk.files()[segment(1)]
    harness.disk.open(segment(1)).pwritev([bytes(SEGMENT_SIZE_BYTES)], 0)
    harness.disk.unlink(PATHS.checkpoint)
    disk = harness.disk.crashed("kept", random.Random(0))
    error = refusal(disk, harness)
    assert error.fault == LogFault.LOST_TOO_MUCH.value
    assert str(SEGMENT_SIZE_BYTES) in error.found
    accepted = BrokerHarness(
        disk.crashed("kept", random.Random(0)), harness.clock, harness.config, accepts_loss=True
    )
    assert accepted.report.lost_bytes == SEGMENT_SIZE_BYTES
    disk.open(segment(1)).pwritev([data], 0)
    assert start(disk, harness).report.damage == ()


def test_the_limit_of_what_a_start_judges_lost_can_be_set() -> None:
    harness = served()
    harness.disk.flip(segment(1), 5_000, 1)
    harness.disk.unlink(PATHS.checkpoint)
    config = small_config(loss_max_bytes=100)
    with pytest.raises(LogRefusedError, match="loss_max_bytes"):
        BrokerHarness(harness.disk, harness.clock, config)
    assert start(harness.disk, harness).report.lost_bytes > 100
