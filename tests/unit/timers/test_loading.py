"""A start that leaves timers to be loaded while it serves: nothing depends on when that is."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from _core.bytes.layout import RUN_DUE
from _core.state.partition_rows import pending_rows
from appliance.errors import CorruptionError, StorageError
from appliance.pending_timers import EVER_MS
from appliance.store.paths import DataPaths
from appliance.store.runs.run_files import RunEntry
from appliance.store.runs.run_set import Runs
from appliance.store.runs.timer_log import TimerLogReader
from appliance.store.runs.timer_memory import TIMER_BYTES
from appliance.timer_loading import TimerLoading
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import USER_IDS, capture, rebuilt, take_checkpoint
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.loading import in_pieces
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

PATHS: Final = DataPaths(DATA_DIR)
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
EMPTY_BYTES: Final = 8_192
"""Nodes of the due tree, and chunks that are not full."""

COUNT: Final = 40
MANY: Final = 12_000
"""More than two blocks of the TimerLog hold."""


@pytest.fixture(autouse=True)
def pieces() -> Iterator[None]:
    with in_pieces():
        yield


def value(number: int) -> bytes:
    return b"%d" % number


def scheduled(count: int = COUNT) -> BrokerHarness:
    """A broker with a record due in each second, sent in mixed order; the even ones have ids."""
    harness = with_topic()
    numbers = list(range(count))
    random.Random(count).shuffle(numbers)
    for at in range(0, count, 100):
        records = [
            Record(
                value(number),
                headers=delay(
                    (number + 1) * SECOND_MS, b"id-%d" % number if number % 2 == 0 else None
                ),
            )
            for number in numbers[at : at + 100]
        ]
        assert harness.produce("t", 0, records).error == 0
    return harness


def timer_log(harness: BrokerHarness) -> list[RunEntry]:
    runs = harness.broker.checkpoints._runs.entries
    return [entry for entry in runs if entry.kind == RUN_DUE]


def flip(disk: SimFileSystem, entry: RunEntry) -> Path:
    """Damage the last block of a run: timers of the first one are loaded before it is read."""
    path = entry.path(PATHS)
    disk.flip(path, entry.size * 19 // 20, 1)
    return path


# As if all were loaded


def test_each_record_comes_when_it_is_due_and_no_more_is_loaded_than_that_needs() -> None:
    harness = scheduled().restart()
    assert not harness.is_loaded
    assert harness.broker.pending_timers == harness.broker.gauges(0).unloaded_timers == COUNT
    assert harness.broker.timers.is_any_due(harness.clock.wall_ms())  # one may be, for all it knows
    harness.tick(5 * SECOND_MS)
    assert not harness.broker.timers.is_any_due(harness.clock.wall_ms())
    assert harness.values() == [value(number) for number in range(5)]
    assert 5 < COUNT - harness.broker.gauges(0).unloaded_timers <= 9
    harness.run_until_idle()
    assert harness.values() == [value(number) for number in range(COUNT)]
    assert (harness.broker.pending_timers, harness.broker.gauges(0).unloaded_timers) == (0, 0)


def test_what_happens_to_timers_that_are_not_loaded_counts() -> None:
    harness = scheduled().restart()
    harness.cancel_timer("t", b"id-20")
    moved = Record(b"moved", headers=delay(90 * SECOND_MS, b"id-30"))
    early = Record(b"early", headers=delay(500))
    late = Record(b"late", headers=delay(35 * SECOND_MS + 1))
    assert harness.produce("t", 0, [moved, early, late]).error == 0
    assert harness.broker.pending_timers == COUNT + 1
    assert harness.timer_state("t", b"id-20")[0] == "cancelled"
    harness.run_until_idle()
    left = [value(number) for number in range(COUNT) if number not in (20, 30)]
    assert harness.values() == [b"early", *left[:33], b"late", *left[33:], b"moved"]


def test_a_topic_that_is_deleted_meanwhile_takes_its_timers_with_it() -> None:
    harness = scheduled()
    harness.create_topic("other")
    records = [Record(b"x", headers=delay(SECOND_MS * number)) for number in range(1, 20)]
    assert harness.produce("other", 0, records).error == 0
    harness = harness.restart()
    harness.tick(3 * SECOND_MS)
    harness.delete_topic("other")
    assert harness.broker.pending_timers == COUNT - 3
    due = harness.broker._store.state.projections.due
    assert not due.advance_wheels(harness.clock.wall_ms(), 1 << 20)  # it waits for the timers
    assert harness.digest(USER_IDS) == rebuilt(harness, harness.disk)
    harness.run_until_idle()
    assert harness.values() == [value(number) for number in range(COUNT)]
    assert due.cancelled_count == 0


@pytest.mark.parametrize("mode", ["killed", "dropped", "torn"])
def test_a_crash_amid_a_load_and_a_checkpoint_amid_one(mode: str) -> None:
    harness = scheduled().restart()
    harness.tick(3 * SECOND_MS)
    harness.cancel_timer("t", b"id-20")
    assert take_checkpoint(harness).error is None
    assert not harness.is_loaded
    harness.tick(2 * SECOND_MS)
    harness.cancel_timer("t", b"id-22")
    harness.flush()
    harness = harness.crash(mode, random.Random(1))  # type: ignore[arg-type]
    assert not harness.is_loaded
    assert harness.broker.pending_timers == COUNT - 7
    assert harness.digest(USER_IDS) == rebuilt(harness, harness.disk)
    harness.run_until_idle()
    assert harness.values() == [value(n) for n in range(COUNT) if n not in (20, 22)]


def test_a_state_of_an_older_latermq_gets_a_timer_log_at_the_next_checkpoint() -> None:
    harness = scheduled()
    with mock.patch.object(Runs, "_log_mode", return_value="none"):
        harness = harness.restart()
    assert harness.is_loaded
    assert not timer_log(harness)
    harness.tick(SECOND_MS)
    assert take_checkpoint(harness).error is None
    (entry,) = timer_log(harness)
    assert entry.rows == COUNT - 1
    harness = harness.restart()
    assert not harness.is_loaded
    assert harness.digest(USER_IDS) == rebuilt(harness, harness.disk)
    harness.run_until_idle()
    assert harness.values() == [value(number) for number in range(COUNT)]


# More timers than memory


@pytest.fixture
def few() -> Iterator[None]:
    """Room for ten timers."""
    with in_pieces(count_max=10):
        yield


@pytest.mark.usefixtures("few")
def test_timers_beyond_the_horizon_come_in_time_and_never_all_are_in_memory() -> None:
    harness = spread().restart()
    due = harness.broker._store.state.projections.due
    for number in range(COUNT):
        harness.tick(MINUTE_MS)
        harness.housekeep()
        assert harness.values() == [value(each) for each in range(number + 1)]
        assert due.tree_bytes <= 30 * TIMER_BYTES + EMPTY_BYTES
        assert due.horizon_ms < EVER_MS or number > COUNT // 2


def spread(count: int = COUNT) -> BrokerHarness:
    """A broker with a record due in each minute, sent in mixed order; the even ones have ids."""
    harness = with_topic()
    numbers = list(range(count))
    random.Random(count).shuffle(numbers)
    for number in numbers:
        user_id = b"id-%d" % number if number % 2 == 0 else None
        headers = delay((number + 1) * MINUTE_MS, user_id)
        assert harness.produce("t", 0, [Record(value(number), headers=headers)]).error == 0
    return harness


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("how", ["stays", "checkpoint", "killed", "dropped"])
def test_what_happens_to_timers_beyond_the_horizon_counts(how: str) -> None:
    harness = spread().restart()
    horizon_ms = harness.broker._store.state.projections.due.horizon_ms
    assert horizon_ms < harness.clock.wall_ms() + 20 * MINUTE_MS
    harness.cancel_timer("t", b"id-30")
    for delay_ms, name in ((33 * MINUTE_MS, b"id-20"), (1_000, b"id-32")):
        record = Record(b"moved " + name, headers=delay(delay_ms, name))
        assert harness.produce("t", 0, [record]).error == 0
    late = Record(b"late", headers=delay(35 * MINUTE_MS + 1))
    assert harness.produce("t", 0, [late]).error == 0
    assert harness.broker.pending_timers == COUNT
    if how == "checkpoint":
        assert take_checkpoint(harness).error is None
    elif how != "stays":
        harness.flush()
        harness = harness.crash(how, random.Random(1))  # type: ignore[arg-type]
    assert harness.broker.pending_timers == COUNT
    assert harness.timer_state("t", b"id-30")[0] == "cancelled"
    for _ in range(COUNT):
        harness.tick(MINUTE_MS)
        harness.housekeep()
    early = [value(number) for number in range(32) if number not in (20, 30)]
    between = [value(33), value(34)]
    rest = [value(number) for number in range(35, COUNT)]
    assert harness.values() == [b"moved id-32", *early, b"moved id-20", *between, b"late", *rest]


@pytest.mark.usefixtures("few")
def test_a_topic_that_is_deleted_takes_its_timers_beyond_the_horizon_with_it() -> None:
    harness = spread()
    harness.create_topic("other")
    for number in range(1, 30):
        record = Record(b"x", headers=delay(number * MINUTE_MS))
        assert harness.produce("other", 0, [record]).error == 0
    harness = harness.restart()
    harness.delete_topic("other")
    assert harness.broker.pending_timers == COUNT
    due = harness.broker._store.state.projections.due
    assert not due.wheels.is_whole
    for _ in range(3):
        harness.housekeep()
    assert not due.is_loaded
    assert due.wheels.is_whole  # all timers were counted again, without those of the topic
    assert due.wheels.minutes.total == COUNT
    assert harness.digest(USER_IDS) == rebuilt(harness, harness.disk)
    for _ in range(COUNT):
        harness.tick(MINUTE_MS)
    assert harness.values() == [value(number) for number in range(COUNT)]


def test_timers_leave_memory_when_there_are_too_many_and_come_in_time() -> None:
    with in_pieces(rows=500, count_max=3_000):
        harness = scheduled(MANY)
        due = harness.broker._store.state.projections.due
        for _ in range(20):
            harness.housekeep()
        assert due.tree_bytes <= 3_000 * TIMER_BYTES
        assert harness.broker.gauges(0).unloaded_timers > MANY // 2
        horizon_ms = due.horizon_ms
        for round_number in range(12):
            harness.tick(MANY * SECOND_MS // 12)
            for _ in range(5):
                harness.housekeep()
            assert len(harness.values()) == (round_number + 1) * MANY // 12
            if round_number % 4 == 1:
                harness = harness.reborn(("clean", "killed")[round_number % 8 == 1])
        assert harness.values() == [value(number) for number in range(MANY)]
        assert horizon_ms < harness.clock.wall_ms()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_whoever_drives_the_loads_next_misses_nothing(turns: int) -> None:
    harness = spread().restart()
    memory = harness.broker.timer_memory

    async def drive() -> int:
        loop = asyncio.get_running_loop()
        loading = TimerLoading(memory, harness.clock, loop, lambda step: step(), lambda: None)
        loading.step()
        for _ in range(turns):
            await asyncio.sleep(0.002)
        await loading.finish()
        loading.step()
        assert memory.load is not None
        return memory.load.loaded

    assert asyncio.run(drive()) >= 4
    for _ in range(COUNT):
        harness.tick(MINUTE_MS)
    assert harness.values() == [value(number) for number in range(COUNT)]


@pytest.mark.usefixtures("few")
def test_a_list_loads_what_it_needs_and_lets_it_go_after_a_minute() -> None:
    harness = spread().restart()
    memory, due = harness.broker.timer_memory, harness.broker._store.state.projections.due
    assert not due.is_loaded
    far = harness.broker.timers.listed(harness.topic("t"), b"id-38")
    assert far is not None
    assert far[0] > due.horizon_ms
    assert harness.broker.timers.is_placed(far)  # so its record is read without a load
    assert not harness.broker.timers.want_loaded(harness.clock.wall_ms() + 30 * MINUTE_MS)
    for _ in range(20):
        harness.load_piece()
    assert due.loaded_ms > harness.clock.wall_ms() + 30 * MINUTE_MS
    harness.load_timers()
    assert due.is_loaded
    assert memory.left == 0


@pytest.mark.usefixtures("few")
def test_what_happens_while_all_timers_are_counted_again_counts() -> None:
    harness = spread()
    harness.create_topic("other", 2)
    for index in range(2):
        record = Record(b"x", headers=delay(30 * MINUTE_MS))
        assert harness.produce("other", index, [record]).error == 0
    harness = harness.restart()
    harness.create_topic("third")
    assert harness.produce("third", 0, [Record(b"x", headers=delay(MINUTE_MS))]).error == 0
    memory, due = harness.broker.timer_memory, harness.broker._store.state.projections.due
    harness.delete_topic("other")
    job = memory.begin_count(harness.clock.wall_ms())
    assert job is not None
    harness.cancel_timer("t", b"id-30")
    late = Record(b"late", headers=delay(77 * MINUTE_MS, b"late"))
    assert harness.produce("t", 0, [late, late]).error == 0
    job.run()
    harness.cancel_timer("t", b"id-32")
    memory.end_count(job)
    assert not due.is_loaded
    assert due.wheels.is_whole
    assert due.wheels.minutes.total == harness.broker.pending_timers == COUNT
    again = memory.begin_count(harness.clock.wall_ms())
    assert again is None
    due.wheels.begin_count(harness.clock.wall_ms())
    harness.delete_topic("third")  # amid a count: it counts for nothing
    memory.end_count(job)
    assert not due.wheels.is_whole
    harness.load_piece()
    assert due.wheels.is_whole
    assert harness.digest(USER_IDS) == rebuilt(harness, harness.disk)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_load_that_begins_amid_a_checkpoint_has_every_timer(when: str) -> None:
    harness = spread().restart()
    harness.cancel_timer("t", b"id-30")
    late = Record(b"late", headers=delay(35 * MINUTE_MS + 1))
    assert harness.produce("t", 0, [late]).error == 0
    job = capture(harness)
    if when != "before":
        job.run()
    if when == "after":
        harness.broker.checkpoints.end(job)
    harness.broker.timers.want_loaded(EVER_MS)
    for _ in range(40):
        harness.load_piece()
    assert harness.is_loaded == (when != "while")
    if when == "before":
        job.run()
    if when != "after":
        harness.broker.checkpoints.end(job)
    assert harness.digest(USER_IDS) == rebuilt(harness, harness.disk)
    harness.run_until_idle()
    left = [value(number) for number in range(COUNT) if number != 30]
    assert harness.values() == [*left[:34], b"late", *left[34:]]


@pytest.mark.usefixtures("few")
def test_timers_beyond_the_horizon_come_in_time_without_a_timer_log() -> None:
    """As after frames of an older latermq, until the next checkpoint."""
    harness = spread().restart()
    harness.tick(MINUTE_MS)
    with mock.patch.object(Runs, "_log_mode", return_value="none"):
        assert take_checkpoint(harness).error is None
    assert not timer_log(harness)
    harness.cancel_timer("t", b"id-30")
    for number in range(1, COUNT):
        harness.tick(MINUTE_MS)
        harness.housekeep()
        if number == 20:
            assert take_checkpoint(harness).error is None
            assert timer_log(harness)
    assert harness.values() == [value(number) for number in range(COUNT) if number != 30]


# Damage


def test_a_damaged_block_costs_no_timer_and_the_next_checkpoint_has_a_new_timer_log() -> None:
    harness = scheduled(MANY).restart()
    (entry,) = timer_log(harness)
    assert entry.rows == MANY
    flip(harness.disk, entry)
    harness = harness.restart()
    harness.tick(SECOND_MS)
    assert harness.values() == [value(0)]
    assert 0 < harness.broker.gauges(0).unloaded_timers < MANY
    load = harness.broker.timer_memory.load
    assert load is not None
    harness.load_timers()
    assert isinstance(load.fault, CorruptionError)
    assert load.fault.path == entry.path(PATHS)
    assert harness.broker.pending_timers == MANY - 1
    assert take_checkpoint(harness).error is None
    assert [each.rows for each in timer_log(harness)] == [MANY - 1]
    assert take_checkpoint(harness).error is None
    again = harness.restart()
    assert not again.is_loaded
    again.load_timers()
    assert again.broker.timer_memory.load is not None
    assert again.broker.timer_memory.load.fault is None
    again.tick(MANY * SECOND_MS)
    assert again.values() == [value(number) for number in range(MANY)]


def test_damage_of_both_kinds_of_runs_ends_the_broker_and_the_next_start_replays_the_log() -> None:
    harness = scheduled(MANY).restart()
    for entry in harness.broker.checkpoints._runs.entries:
        if entry.rows == MANY:
            flip(harness.disk, entry)
    harness = harness.restart()
    with pytest.raises((CorruptionError, StorageError)):
        harness.load_timers()
    load = harness.broker.timer_memory.load
    assert load is not None
    load.set_aside()  # as the job does
    harness = harness.crash("killed", random.Random(0))
    assert harness.report.rejected
    assert harness.report.checkpoint == 0
    harness.tick(MANY * SECOND_MS)
    assert harness.values() == [value(number) for number in range(MANY)]


def test_counts_that_are_not_those_of_the_timers_end_the_broker_once() -> None:
    harness = scheduled()
    harness.create_topic("empty")
    with mock.patch("appliance.store.state.state.pending_rows", lambda of: wrong(pending_rows(of))):
        harness = harness.restart()
    assert harness.broker.pending_timers == COUNT + 1
    with pytest.raises(CorruptionError, match="expected 41 pending timers, found 40"):
        harness.load_timers()
    harness = harness.crash("killed", random.Random(0))
    assert harness.report.checkpoint == 0
    harness.run_until_idle()
    assert harness.values() == [value(number) for number in range(COUNT)]


def wrong(rows: bytes | None) -> bytes:
    """Counts with one timer more."""
    assert rows is not None
    return rows[:12] + (int.from_bytes(rows[12:20], "big") + 1).to_bytes(8, "big") + rows[20:]


# The TimerLog


def test_a_reader_begins_at_a_due_time() -> None:
    harness = scheduled(MANY).restart()
    (entry,) = timer_log(harness)
    reader = TimerLogReader(harness.disk, entry.path(PATHS), entry)
    blocks = list(reader.blocks())
    assert len(blocks) == reader.place_count == 3
    for number in range(reader.place_count):
        due_ms = reader.place(number).key
        # A row that is due at the same time may be the last one of the block before.
        assert list(reader.blocks_from(due_ms)) == blocks[max(number - 1, 0) :]
        assert list(reader.blocks_from(due_ms + 1)) == blocks[number:]
    assert list(reader.blocks_from(1 << 50)) == blocks[-1:]
    reader.close()
