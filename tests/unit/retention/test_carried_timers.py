"""Pending timers do not keep their segments: they are carried to the end of the log, and stay."""

import random
from collections.abc import Callable, Iterator
from typing import Final, get_args

import pytest

from appliance.store.head.head_freer import FreeJob
from appliance.store.runs import run_set
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import (
    PATHS,
    crashed,
    rebuild,
    start,
    take_checkpoint,
    try_checkpoint,
)
from tests.support.harness.crash_points import CrashPoints, ignore_call
from tests.support.harness.tables import planned, rows_of
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.retention.test_freeing import (
    IDS,
    SEGMENT,
    bases_on,
    broker,
    check_restarts,
    fill,
    run,
    start_pos,
)

LONG_MS: Final = 30 * MS_PER_DAY
LATER: Final = Record(b"later", key=b"k", headers=(("h", b"v"), *delay(LONG_MS, IDS[0])))


def with_timers(disk: SimFileSystem | None = None, *, segments: float = 4) -> BrokerHarness:
    """A broker with three pending timers in its first segment, and expired records after them."""
    harness = broker(disk)
    harness.create_topic("t", 2)
    harness.produce("t", 0, [LATER, Record(b"unnamed", headers=delay(LONG_MS + 2))])
    harness.produce("t", 1, [Record(b"other", headers=delay(LONG_MS + 1, IDS[1]))])
    fill(harness, segments)
    return harness


def carried(disk: SimFileSystem | None = None) -> BrokerHarness:
    """The same, after the first segments are freed."""
    harness = with_timers(disk)
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    return harness


def last_value(harness: BrokerHarness, partition: int = 0) -> bytes:
    """The value of the last record of a partition."""
    return harness.fetch("t", partition, harness.partition(partition).next_offset - 1)[-1].value


def check_delivered(harness: BrokerHarness, wanted: dict[int, list[bytes]]) -> None:
    """All pending timers are delivered when they are due, each once."""
    firsts = {index: harness.partition(index).next_offset for index in wanted}
    harness.tick(LONG_MS)
    for index, values in wanted.items():
        found = harness.fetch("t", index, firsts[index])
        assert [each.value for each in found] == values
    assert harness.tick(MS_PER_DAY) == 0


def test_a_carried_timer_is_delivered_as_it_was_accepted() -> None:
    harness = with_timers()
    due_ms = harness.timer_state("t", IDS[0])[1]
    assert due_ms is not None
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    assert harness.timer_state("t", IDS[0]) == ("pending", due_ms, 0)
    check_restarts(harness)
    harness = harness.restart()
    first = harness.partition().next_offset
    assert harness.tick(due_ms - 1 - harness.clock.wall_ms()) == 0
    assert harness.tick(1) == 1
    assert harness.tick(1) == 1
    assert harness.tick(1) == 1
    named, unnamed = harness.fetch("t", 0, first)
    assert (named.key, named.value, unnamed.value) == (b"k", b"later", b"unnamed")
    assert dict(named.headers)["h"] == b"v"
    assert dict(named.headers)["x-due-id"] == IDS[0]
    assert int(dict(named.headers)["x-due-at"]) == due_ms
    assert harness.timer_state("t", IDS[0])[0] == "delivered"
    check_restarts(harness)


@pytest.mark.parametrize("end", ["clean", *get_args(CrashMode)])
def test_timers_are_carried_again_and_again(end: Stop) -> None:
    harness = with_timers()
    positions = []
    for number in range(4):
        run(harness, 6 * MS_PER_HOUR)
        positions.append(start_pos(harness))
        check_restarts(harness)
        harness = harness.reborn(end, number)
        assert harness.report.damage == ()
        assert start_pos(harness) == positions[-1]
        fill(harness, 3)
    assert positions == sorted(set(positions))
    check_delivered(harness, {0: [b"later", b"unnamed"], 1: [b"other"]})
    check_restarts(harness)


def test_timers_of_a_log_alone_are_carried_again() -> None:
    harness = carried()
    for _ in range(2):
        harness = rebuild(harness, crashed(harness))
        fill(harness, 4)
        before = start_pos(harness)
        run(harness, 6 * MS_PER_HOUR)
        assert start_pos(harness) >= before + 3 * SEGMENT
    check_delivered(harness, {0: [b"later", b"unnamed"], 1: [b"other"]})


def test_a_carried_timer_is_cancelled_and_replaced_by_its_id() -> None:
    harness = carried()
    harness.produce("t", 0, [Record(b"", headers=cancel(IDS[0]))])
    harness.produce("t", 1, [Record(b"sooner", headers=delay(MS_PER_HOUR, IDS[1]))])
    assert harness.timer_state("t", IDS[0])[0] == "cancelled"
    alone = rebuild(harness, crashed(harness))
    harness = harness.restart()
    for other in (alone, harness):
        firsts = [other.partition(index).next_offset for index in (0, 1)]
        other.clock.advance_ms(0 if other is harness else LONG_MS)
        assert other.deliver_all() == 2
        assert [each.value for each in other.fetch("t", 0, firsts[0])] == [b"unnamed"]
        assert [each.value for each in other.fetch("t", 1, firsts[1])] == [b"sooner"]
    check_restarts(harness)


def test_timers_of_a_deleted_topic_are_not_carried() -> None:
    harness = with_timers()
    harness.create_topic("u")
    fill(harness, 2, "u")
    harness.delete_topic("t")
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    assert harness.broker._store.carriers.timers.carried_bytes == 0
    check_restarts(harness)


def test_a_log_is_not_carried_while_it_is_less_than_twice_what_lives() -> None:
    harness = broker()
    harness.create_topic("t")
    while harness.broker.wrote_pos < 6 * SEGMENT:
        later = Record(b"x" * 4_000, headers=delay(LONG_MS))
        assert harness.produce("t", 0, [later]).error == 0
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) == 0
    assert harness.broker.head_freer.carried_bytes == 0
    fill(harness, 5)
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) == 0
    fill(harness, 4)
    run(harness, 6 * MS_PER_HOUR)
    assert start_pos(harness) > 0
    assert 1 < harness.broker.gauges(0).write_amplification < 2
    pending = harness.broker._store.state.projections.due.pending
    assert harness.tick(LONG_MS) == pending > 80
    check_restarts(harness)


def with_many_timers(batches: int, records: list[Record]) -> BrokerHarness:
    """A broker with batches of timers in its first segments, which it does not carry by itself."""
    harness = broker()
    harness.broker.head_freer.may_carry = lambda: False
    harness.create_topic("t")
    for _ in range(batches):
        assert harness.produce("t", 0, records).error == 0
    fill(harness, 1)
    run(harness, 4 * MS_PER_HOUR)
    assert start_pos(harness) == 0
    return harness


def test_a_carry_frame_takes_at_most_a_quarter_of_a_segment() -> None:
    harness = with_many_timers(60, [Record(b"y" * 2_000, headers=delay(LONG_MS))])
    harness.broker.head_freer.require(SEGMENT)
    run(harness, MS_PER_HOUR)
    assert start_pos(harness) == SEGMENT
    check_restarts(harness)
    harness = harness.restart()
    sizes = carry_frame_sizes(harness)
    assert SEGMENT // 8 < max(sizes) < SEGMENT // 4 + 400
    assert harness.tick(LONG_MS) == 60


def carry_frame_sizes(harness: BrokerHarness) -> list[int]:
    """Bytes of the carry frames of timers in the log of a broker."""
    plan = planned(crashed(harness))
    return [
        row["size"]
        for row in rows_of(harness.disk, "frames", plan)
        if row["kind"] == "carry" and row["timer_count"]
    ]


def test_timers_of_a_batch_stay_in_one_frame_whatever_its_size() -> None:
    """One place is known for all of them; the rows of these batches fill more than one block."""
    harness = with_many_timers(24, [Record(b"", headers=delay(LONG_MS))] * 250)
    cut = harness.broker.wrote_pos // SEGMENT * SEGMENT
    harness.broker.head_freer.require(cut)
    run(harness, MS_PER_HOUR)
    assert start_pos(harness) >= cut
    assert min(carry_frame_sizes(harness)) > SEGMENT // 4
    check_restarts(harness)
    assert harness.restart().tick(LONG_MS) == 6_000


def steps_of_a_pass(harness: BrokerHarness) -> Iterator[None]:
    """Free the head, and stop before each job and after each step."""
    for _ in range(8):
        harness.expire()
    freer = harness.broker.head_freer
    for _ in range(1_000):
        job = freer.step(harness.broker.retention.kept_from)
        yield
        if job is not None:
            job.run()
            yield
            freer.end(job)
            if isinstance(job, FreeJob):
                return
        harness.flush()
    raise AssertionError("nothing was freed")


def ready_to_carry(disk: SimFileSystem | None = None) -> BrokerHarness:
    """A broker that carries the timers of three segments in its next housekeeping."""
    harness = with_timers(disk)
    for _ in range(6 * 30):
        harness.clock.advance_ms(2 * MS_PER_MINUTE)
        harness.expire()
        harness.flush()
    take_checkpoint(harness)
    assert start_pos(harness) == 0
    return harness


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_many_changes_are_saved_before_a_pass_copies_them(
    monkeypatch: pytest.MonkeyPatch, is_disk_full: bool
) -> None:
    monkeypatch.setattr(run_set, "COPIED_MAX_BYTES", 2_000)
    harness = ready_to_carry()
    harness.produce("t", 1, [Record(b"", headers=cancel(IDS[1]))])
    for _ in range(8):
        harness.expire()
    freer, runs = harness.broker.head_freer, harness.broker._store.carriers.timers._runs
    attempts = 0
    while start_pos(harness) == 0:
        more = [Record(b"", headers=delay(1_000))] * 60
        assert harness.produce("t", 1, more).error == 0
        job = freer.step(harness.broker.retention.kept_from)
        if job is not None:
            job.run()
            freer.end(job)
        elif runs.is_due:
            # If it fails, the head is freed all the same: that makes room.
            harness.disk.free = 0 if is_disk_full else 1 << 30
            assert try_checkpoint(harness) is not is_disk_full
            harness.disk.free = 1 << 30
            harness.clock.advance_ms(5_000)
            attempts += 1
        harness.flush()
    assert attempts == 3  # for the search, the timers and the ids
    check_restarts(harness)


def cancel_all(harness: BrokerHarness) -> None:
    for partition, user_id in enumerate(IDS[:2]):
        harness.produce("t", partition, [Record(b"", headers=cancel(user_id))])


def deliver_named(harness: BrokerHarness) -> None:
    harness.tick(LONG_MS)


def delete_topic(harness: BrokerHarness) -> None:
    harness.delete_topic("t")


@pytest.mark.parametrize("act", [cancel_all, deliver_named, delete_topic])
def test_what_completes_a_timer_while_it_is_carried_counts(
    act: Callable[[BrokerHarness], None],
) -> None:
    prepared = ready_to_carry()
    count = sum(1 for _ in steps_of_a_pass(start(prepared, crashed(prepared))))
    assert count > 8
    for number in range(count):
        harness = start(prepared, crashed(prepared))
        for at, _ in enumerate(steps_of_a_pass(harness)):
            if at == number:
                act(harness)
        assert start_pos(harness) > 0
        check_restarts(harness)
        harness = harness.restart()
        assert harness.broker._store.state.projections.completed_twice == 0
        assert harness.tick(2 * LONG_MS) == (1 if act is cancel_all else 0)
        check_restarts(harness)


def test_an_id_that_is_used_again_during_a_pass_names_its_new_timer() -> None:
    prepared = ready_to_carry()
    prepared.produce("t", 1, [Record(b"", headers=cancel(IDS[1]))])
    again = Record(b"again", headers=delay(LONG_MS, IDS[1]))
    count = sum(1 for _ in steps_of_a_pass(start(prepared, crashed(prepared))))
    for number in range(count):
        harness = start(prepared, crashed(prepared))
        assert harness.timer_state("t", IDS[1])[0] == "cancelled"
        for at, _ in enumerate(steps_of_a_pass(harness)):
            if at == number:
                assert harness.produce("t", 1, [again]).error == 0
        assert harness.timer_state("t", IDS[1])[0] == "pending"
        check_restarts(harness)


def test_a_checkpoint_between_any_two_steps_of_a_carry_keeps_all_timers() -> None:
    prepared = ready_to_carry()
    count = sum(1 for _ in steps_of_a_pass(start(prepared, crashed(prepared))))
    for number in range(count):
        harness = start(prepared, crashed(prepared))
        for at, _ in enumerate(steps_of_a_pass(harness)):
            if at == number:
                take_checkpoint(harness)
        check_restarts(harness)
        check_delivered(harness.restart(), {0: [b"later", b"unnamed"], 1: [b"other"]})


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_a_crash_at_any_call_of_a_carry_loses_and_doubles_no_timer(mode: CrashMode) -> None:
    disk = CrashPoints()
    harness = ready_to_carry(disk)
    rng = random.Random(11)
    starts = set()

    def observe() -> None:
        observer, disk.observer = disk.observer, ignore_call
        started = BrokerHarness(disk.crashed(mode, rng), harness.clock, harness.config)
        assert started.report.damage == ()
        assert started.broker._store.state.projections.due.pending == 3
        starts.add(start_pos(started))
        assert rebuild(started, started.disk).broker._store.state.projections.due.pending == 3
        disk.observer = observer

    disk.observer = observe
    for _ in steps_of_a_pass(harness):
        pass
    disk.observer = ignore_call
    assert starts == {0, start_pos(harness)}
    check_delivered(harness, {0: [b"later", b"unnamed"], 1: [b"other"]})


def frame_of_timer(harness: BrokerHarness) -> int:
    """Log position of the accept frame of the first timer."""
    found = harness.broker.timers.listed(harness.topic("t"), IDS[0])
    assert found is not None
    return found[1]


def test_a_timer_that_cannot_be_read_keeps_its_segment(caplog: pytest.LogCaptureFixture) -> None:
    harness = ready_to_carry()
    path, offset = harness.broker.log.path_of(frame_of_timer(harness))
    harness.make_cold()
    harness.disk.spoil(path, offset, 64)
    run(harness, 4 * MS_PER_HOUR)
    assert start_pos(harness) == 0
    assert caplog.text.count("cannot be read, and holds a pending timer") == 1
    harness.disk.repair(path)
    run(harness, 4 * MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    check_delivered(harness, {0: [b"later", b"unnamed"], 1: [b"other"]})
    check_restarts(harness)


def test_a_frame_that_cannot_be_read_costs_no_timer_of_an_earlier_segment() -> None:
    """A timer that was carried comes first, in the order of acceptance, and lies later."""
    harness = broker()
    harness.broker.head_freer.may_carry = lambda: False
    harness.create_topic("t", 2)
    harness.produce("t", 0, [LATER])
    fill(harness, 1.5)
    harness.produce("t", 1, [Record(b"other", headers=delay(LONG_MS + 1, IDS[1]))])
    fill(harness, 2)
    run(harness, 4 * MS_PER_HOUR)
    harness.broker.head_freer.require(SEGMENT)
    run(harness, MS_PER_HOUR)
    assert start_pos(harness) == SEGMENT
    place = harness.broker._store.state.projections.moved.place(frame_of_timer(harness))
    base = place // SEGMENT * SEGMENT
    assert base > SEGMENT
    fill(harness, 2)
    run(harness, 4 * MS_PER_HOUR)

    path, offset = harness.broker.log.path_of(place)
    harness.make_cold()
    harness.disk.spoil(path, offset, 64)
    harness.broker.head_freer.require(base + SEGMENT)
    run(harness, MS_PER_HOUR)
    assert start_pos(harness) == base
    harness.disk.repair(path)
    run(harness, MS_PER_HOUR)
    assert start_pos(harness) > base
    check_restarts(harness)
    check_delivered(harness.restart(), {0: [b"later"], 1: [b"other"]})


def test_a_log_line_says_that_the_timers_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    harness = ready_to_carry()
    freer = harness.broker.head_freer
    for _ in range(8):
        harness.expire()
    while not freer.is_carrying:
        job = freer.step(harness.broker.retention.kept_from)
        assert job is not None
        job.run()
        freer.end(job)
    (name,) = harness.disk.list_dir(PATHS.timer)
    harness.disk.evict(PATHS.timer / name)
    harness.disk.spoil(PATHS.timer / name, 0, 64)
    harness.free_head()
    assert start_pos(harness) == 0
    (line,) = [each for each in caplog.messages if "the timers cannot be read" in each]
    assert name in line
    harness.disk.repair(PATHS.timer / name)
    run(harness, MS_PER_HOUR)
    assert start_pos(harness) >= 3 * SEGMENT
    check_delivered(harness, {0: [b"later", b"unnamed"], 1: [b"other"]})


def test_a_carried_timer_outlives_damage_of_the_frame_that_accepted_it() -> None:
    harness = ready_to_carry()
    with harness.broker.head_freer.paused():
        for _ in range(20):
            harness.free_head()
            harness.flush()
    assert start_pos(harness) == 0
    path, offset = harness.broker.log.path_of(frame_of_timer(harness))
    disk = crashed(harness)
    disk.flip(path, offset + 200, 1)
    started = rebuild(harness, disk)
    assert len(started.report.damage) == 1
    check_delivered(started, {0: [b"later", b"unnamed"], 1: [b"other"]})
    started.produce("t", 0, [Record(b"after")])
    assert last_value(started) == b"after"


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_damage_of_a_carry_frame_is_reported_and_costs_its_timers_alone(
    has_checkpoint: bool,
) -> None:
    harness = carried()
    place = harness.broker._store.state.projections.moved.place(frame_of_timer(harness))
    path, offset = harness.broker.log.path_of(place)
    harness.make_cold()
    disk = crashed(harness)
    disk.flip(path, offset + 200, 1)
    started = start(harness, disk) if has_checkpoint else rebuild(harness, disk)
    started.produce("t", 0, [Record(b"after")])
    assert started.tick(LONG_MS) == 1
    assert last_value(started, 1) == b"other"
    assert last_value(started) == b"after"


def test_a_timer_that_damage_took_keeps_no_segment() -> None:
    harness = ready_to_carry()
    for _ in steps_of_a_pass(harness):
        pass
    # The saved state is from before: it has the timer in the segment that is freed now.
    place = harness.broker._store.state.projections.moved.place(frame_of_timer(harness))
    path, offset = harness.broker.log.path_of(place)
    disk = crashed(harness)
    disk.flip(path, offset + 200, 1)
    started = start(harness, disk)
    assert len(started.report.damage) == 1
    for _ in range(2):
        before = start_pos(started)
        fill(started, 4)
        run(started, 6 * MS_PER_HOUR)
        assert start_pos(started) >= before + 3 * SEGMENT
        started = started.restart()
    assert started.report.damage == ()
    first = started.partition().next_offset
    assert started.tick(LONG_MS) == 1
    assert last_value(started, 1) == b"other"
    assert started.partition().next_offset == first


def test_the_check_of_a_log_with_carried_timers_finds_nothing() -> None:
    harness = carried()
    harness.broker.close()
    assert offline_scenario.check(harness.disk).fault_rows == []
    assert bases_on(harness.disk)[0] == start_pos(harness)
