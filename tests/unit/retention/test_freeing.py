"""Segments that nothing needs are freed, and the log that is left is complete by itself."""

import errno
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, get_args

import pytest

from appliance.errors import StorageError
from appliance.store.paths import parse_segment_name
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Digest, Stop
from tests.support.harness.checkpoints import (
    PATHS,
    change,
    commit,
    crashed,
    rebuild,
    take_checkpoint,
)
from tests.support.harness.configs import small_config
from tests.support.harness.crash_points import CrashPoints, ignore_call
from tests.support.harness.tables import planned, rows_of
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Producer, Record, cancel, delay

SEGMENT: Final = 64 * 1024
KEEP_MS: Final = MS_PER_HOUR
MEMORY_MS: Final = 2 * MS_PER_HOUR
IDS: Final = tuple(b"id-%d" % number for number in range(8))


def broker(disk: SimFileSystem | None = None) -> BrokerHarness:
    """A broker that keeps records for an hour and ids for two."""
    config = small_config(retention_time_ms=KEEP_MS, completed_id_memory_ms=MEMORY_MS)
    return BrokerHarness(disk, config=config)


def run(harness: BrokerHarness, duration_ms: int, step_ms: int = 2 * MS_PER_MINUTE) -> None:
    """Let time pass, with the housekeeping that a broker does meanwhile."""
    for _ in range(duration_ms // step_ms):
        harness.tick(step_ms)
        harness.housekeep()
        while harness.broker.checkpoints.is_capturing or harness.broker.checkpoints._is_asked:
            take_checkpoint(harness)
    harness.flush()


def fill(harness: BrokerHarness, segments: float, topic: str = "t") -> None:
    """Write that many segments of records."""
    target = harness.broker.wrote_pos + int(segments * SEGMENT)
    while harness.broker.wrote_pos < target:
        assert harness.produce(topic, 0, [Record(b"x" * 4_000)]).error == 0


def free(harness: BrokerHarness) -> None:
    """Let all records so far expire, and the segments go."""
    run(harness, KEEP_MS + MEMORY_MS + MS_PER_HOUR)


def start_pos(harness: BrokerHarness) -> int:
    return harness.broker.log.start_pos


def bases_on(disk: SimFileSystem) -> list[int]:
    names = map(parse_segment_name, disk.list_dir(PATHS.commit_log))
    return sorted(base for base in names if base is not None)


def state_of(harness: BrokerHarness) -> Digest:
    """The digest, with topics by name: a replay may meet them in another order.

    Each start allocates producer ids from the next block.
    """
    found = harness.digest(IDS)
    topics, ids = tuple(sorted(found.topics)), tuple(sorted(found.ids))
    return replace(found, topics=topics, ids=ids, next_producer_id=0)


def check_restarts(harness: BrokerHarness) -> None:
    """A start with the saved state, and one from the log alone, give the same state."""
    disk = harness.disk.crashed("kept", random.Random(0))
    alone = rebuild(harness, disk)
    loaded = BrokerHarness(disk, harness.clock, harness.config)
    assert loaded.report.checkpoint > 0
    assert loaded.report.damage == alone.report.damage == ()
    assert start_pos(loaded) == start_pos(alone) == start_pos(harness)
    expected = state_of(harness)
    for other in (state_of(loaded), state_of(alone)):
        # An id that has expired since the last saved state may live a little longer.
        known = {(topic, name) for topic, name, (state, *_) in expected.ids if state != "unknown"}
        ids = tuple(
            (topic, name, found if (topic, name) in known else ("unknown", None, None))
            for topic, name, found in other.ids
        )
        assert replace(other, ids=ids) == expected


def test_segments_whose_records_have_expired_are_freed() -> None:
    harness = broker()
    harness.create_topic("t")
    fill(harness, 5)
    before = bases_on(harness.disk)
    free(harness)
    assert start_pos(harness) == before[-1]
    assert bases_on(harness.disk)[0] == before[-1]
    assert harness.broker.head_freer.freed_bytes == start_pos(harness)
    partition = harness.partition()
    assert partition.start_offset == partition.next_offset
    written = harness.produce("t", 0, [Record(b"next")])
    assert written.base_offset == partition.start_offset
    assert [each.value for each in harness.fetch("t", 0, written.base_offset)] == [b"next"]
    check_restarts(harness)


def test_all_that_is_known_outlives_the_segments_that_said_it() -> None:
    harness = broker()
    harness.create_topic("t", 2)
    harness.create_topic("quiet", 3, {"retention.ms": "-1"})
    for number in range(24):
        change(harness, number)
    commit(harness, "reader", 7, topic="quiet")
    harness.produce("quiet", 1, [])
    harness.broker.stages.change("enqueue", is_stopped=True)
    again = Producer(50, 0, 0)
    first = harness.produce("t", 1, [Record(b"once")], again)
    fill(harness, 4)
    free(harness)
    assert start_pos(harness) >= 3 * SEGMENT
    disk = harness.disk.crashed("kept", random.Random(0))
    for other in (rebuild(harness, disk), harness):
        repeated = other.produce("t", 1, [Record(b"once")], again)
        assert (repeated.error, repeated.base_offset) == (0, first.base_offset)
        assert other.broker.stages.is_stopped("enqueue")
    check_restarts(harness)


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_freeing_goes_on_after_restarts(end: Stop) -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("u", 2)
    positions = []
    for number in range(4):
        commit(harness, "g", number, topic="u")
        fill(harness, 3)
        free(harness)
        positions.append(start_pos(harness))
        harness = harness.reborn(end, number)
        assert start_pos(harness) == positions[-1]
        assert bases_on(harness.disk)[0] == positions[-1]
    assert positions == sorted(set(positions))
    assert harness.broker.wrote_pos - positions[-1] < 3 * SEGMENT
    check_restarts(harness)


def test_a_record_that_another_topic_keeps_outlives_its_segment() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("kept", 1, {"retention.ms": "-1"})
    fill(harness, 2)
    harness.produce("kept", 0, [Record(b"mine")])
    at = harness.broker.wrote_pos // SEGMENT * SEGMENT
    fill(harness, 3)
    free(harness)
    assert start_pos(harness) > at
    for other in (rebuild(harness, crashed(harness)), harness):
        assert [each.value for each in other.fetch("kept", 0)] == [b"mine"]
    check_restarts(harness)


def test_a_deleted_topic_gives_its_segments_back() -> None:
    harness = broker()
    harness.create_topic("t", 1, {"retention.ms": "-1"})
    commit(harness, "g", 1)
    fill(harness, 4)
    free(harness)
    assert start_pos(harness) == 0
    harness.delete_topic("t")
    run(harness, 6 * MS_PER_MINUTE)
    assert start_pos(harness) >= 3 * SEGMENT
    check_restarts(harness)


def test_a_remembered_id_outlives_the_segments_that_named_it() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"later", headers=delay(100, IDS[0]))])
    harness.produce("t", 0, [Record(b"never", headers=delay(200, IDS[1]))])
    harness.produce("t", 0, [Record(b"", headers=cancel(IDS[1]))])
    harness.tick(100)
    fill(harness, 3)
    run(harness, MEMORY_MS - 4 * MS_PER_MINUTE)
    assert start_pos(harness) > 0
    check_restarts(harness)
    alone = rebuild(harness, crashed(harness))
    for other in (alone, harness):
        assert other.timer_state("t", IDS[0])[0] == "delivered"
        assert other.timer_state("t", IDS[1])[0] == "cancelled"
    fill(alone, 3)
    before = start_pos(alone)
    run(alone, KEEP_MS + 10 * MS_PER_MINUTE)
    assert start_pos(alone) > before
    assert alone.timer_state("t", IDS[0])[0] == "delivered"
    run(harness, 12 * MS_PER_MINUTE)
    assert harness.timer_state("t", IDS[0])[0] == "unknown"
    check_restarts(harness)


def ready_to_free(
    disk: SimFileSystem | None = None, timers: Sequence[Record] = ()
) -> BrokerHarness:
    """A broker whose next housekeeping frees three segments, which begin with `timers`."""
    harness = broker(disk)
    harness.create_topic("t")
    harness.create_topic("u", 2)
    commit(harness, "g", 5, topic="u")
    for number, timer in enumerate(timers):
        assert harness.produce("u", number % 2, [timer]).error == 0
    fill(harness, 3.5)
    for _ in range((MEMORY_MS + MS_PER_HOUR) // (2 * MS_PER_MINUTE)):
        harness.clock.advance_ms(2 * MS_PER_MINUTE)
        harness.expire()
        harness.flush()
    take_checkpoint(harness)
    return harness


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_a_crash_at_any_call_of_freeing_costs_nothing(mode: CrashMode) -> None:
    disk = CrashPoints()
    harness = ready_to_free(disk)
    expected = harness.topics_digest()
    rng = random.Random(11)
    starts = set()

    def observe() -> None:
        observer, disk.observer = disk.observer, ignore_call
        started = BrokerHarness(disk.crashed(mode, rng), harness.clock, harness.config)
        assert started.report.damage == ()
        assert sorted(started.topics_digest()) == sorted(expected)
        assert started.broker.groups.offsets("g")
        assert bases_on(started.disk)[0] == start_pos(started)
        starts.add(start_pos(started))
        assert started.produce("t", 0, [Record(b"after")]).error == 0
        disk.observer = observer

    disk.observer = observe
    harness.free_head()
    harness.flush()
    harness.free_head()
    disk.observer = ignore_call
    assert start_pos(harness) >= 3 * SEGMENT
    assert starts == {0, start_pos(harness)}
    check_restarts(harness)


def test_a_file_that_cannot_be_removed_is_removed_by_the_next_start() -> None:
    harness = ready_to_free()
    harness.free_head()
    harness.flush()
    # Two copies of the checkpoint are written and synced before the first file is removed.
    harness.disk.fail_at(harness.disk.calls + 5, OSError(errno.EIO, "Input/output error"))
    harness.free_head()
    assert start_pos(harness) > 0
    assert bases_on(harness.disk)[0] == 0
    fill(harness, 1)
    harness.disk.heal()
    started = harness.restart()
    assert bases_on(started.disk)[0] == start_pos(started) == start_pos(harness)
    check_restarts(started)


def test_the_next_start_refuses_a_log_whose_kept_segment_is_gone() -> None:
    harness = ready_to_free()
    for _ in range(2):
        harness.free_head()
        harness.flush()
    harness.broker.close()
    harness.disk.unlink(PATHS.commit_log / harness.disk.list_dir(PATHS.commit_log)[0])
    with pytest.raises(Exception, match="according to the checkpoint"):
        BrokerHarness(harness.disk, harness.clock, harness.config)


def test_a_timer_that_keeps_its_segment_is_looked_for_ever_more_seldom() -> None:
    harness = broker()
    harness.create_topic("t")
    later = Record(b"x" * 4_000, headers=delay(30 * MS_PER_DAY))
    while harness.broker.wrote_pos < 4 * SEGMENT:
        assert harness.produce("t", 0, [later]).error == 0
    run(harness, 4 * MS_PER_HOUR)
    found = 0
    for _ in range(60):
        harness.clock.advance_ms(MS_PER_MINUTE)
        job = harness.broker.head_freer.step(harness.broker.retention.kept_from)
        if job is not None:
            job.run()
            harness.broker.head_freer.end(job)
            found += 1
    assert 1 <= found <= 7
    assert start_pos(harness) == 0


def test_a_carry_that_does_not_fit_leaves_the_reserve_to_deliveries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ready_to_free()
    harness.produce("t", 0, [Record(b"due", headers=delay(MS_PER_HOUR))])
    for number in range(40):
        commit(harness, f"a-group-with-a-long-name-{number}", 1, topic="u")
    harness.flush()
    take_checkpoint(harness)
    harness.disk.free = 0
    while harness.produce("t", 0, [Record(bytes(500))]).error == 0:
        pass
    end = harness.broker.wrote_pos
    for _ in range(20):
        harness.clock.advance_ms(MS_PER_MINUTE)
        harness.free_head()
        harness.flush()
    assert (start_pos(harness), harness.broker.wrote_pos) == (0, end)
    assert len([each for each in caplog.messages if "no segment is freed" in each]) == 1
    assert harness.tick(MS_PER_HOUR) == 1

    harness.disk.free = 1 << 30
    harness.clock.advance_ms(MS_PER_MINUTE)
    assert harness.produce("t", 0, [Record(b"room again")]).error == 0
    for _ in range(2):
        harness.free_head()
        harness.flush()
    assert start_pos(harness) > 0
    check_restarts(harness)


def test_a_snapshot_has_all_segments_of_its_moment() -> None:
    harness = ready_to_free()
    with harness.broker.head_freer.paused():
        part = harness.broker.snapshots.freeze()
        for _ in range(2):
            harness.free_head()
            harness.flush()
        assert start_pos(harness) == 0
        harness.broker.snapshots.create(part, "whole")
    harness.free_head()
    assert start_pos(harness) > 0
    names = harness.disk.list_dir(PATHS.snapshots / "whole" / "commitlog")
    assert len(names) == len(part.bases)


def test_a_read_that_meets_freed_bytes_reports_no_damage() -> None:
    harness = ready_to_free()
    reading = harness.broker.log.read_some
    memory = memoryview(bytearray(4_096))
    assert reading(0, memory) == 4_096
    for _ in range(2):
        harness.free_head()
        harness.flush()
    with pytest.raises(StorageError, match="was freed"):
        reading(0, memory)
    harness.read_cold([0, 208])
    assert harness.broker.damage == []


def test_tables_checks_and_dumps_read_a_log_whose_head_was_freed() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("kept", 1, {"retention.ms": "-1"})
    harness.produce("t", 0, [Record(b"early", headers=delay(100, IDS[0]))])
    fill(harness, 1.5)
    harness.produce("t", 0, [Record(b"gone", headers=delay(2 * MS_PER_HOUR))])
    fill(harness, 2)
    free(harness)
    harness.produce("t", 0, [Record(b"new", headers=delay(100, IDS[1]))])
    harness.produce("kept", 0, [Record(b"mine")])
    harness.tick(100)
    fill(harness, 1)
    harness.flush()
    assert start_pos(harness) > SEGMENT
    take_checkpoint(harness)
    harness.broker.close()

    plan = planned(harness.disk)
    assert plan.damage == []
    messages = [row for row in rows_of(harness.disk, "messages", plan) if row["topic"] == "kept"]
    assert [row["value"] for row in messages] == [b"mine"]
    timers = rows_of(harness.disk, "timers", plan)
    # The second one was moved before it was due.
    assert [row["value"] for row in timers] == [b"gone", b"new"]
    assert {row["delay_state"] for row in timers} == {"delivered"}
    assert any(row["kind"] == "carry" for row in rows_of(harness.disk, "frames", plan))
    checked = offline_scenario.check(harness.disk)
    assert checked.faults == []


def test_the_delivery_of_a_timer_that_was_accepted_in_freed_segments_says_nothing() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"first", headers=delay(MS_PER_HOUR))])
    fill(harness, 2)
    harness.produce("t", 0, [Record(b"second", headers=delay(30 * MS_PER_DAY))])
    assert harness.tick(MS_PER_HOUR) == 1
    fill(harness, 1)
    free(harness)
    assert start_pos(harness) >= SEGMENT
    assert harness.broker.pending_timers == 1
    alone = rebuild(harness, harness.disk.crashed("kept", random.Random(0)))
    assert alone.broker.pending_timers == 1
    assert alone.broker._store.state.projections.completed_twice == 0
    check_restarts(harness)
