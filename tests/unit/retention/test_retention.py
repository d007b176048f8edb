"""Records expire by age and by size: never early, and not much later than they are due."""

import random
from collections.abc import Sequence

import pytest

from appliance.errors import DiskFullError
from appliance.retention import Cleanup
from appliance.store.state.log_ages import SIZE_PARTS
from appliance.store.state.state import PARTITIONS_PER_SLICE
from appliance.units import MIB, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import newest_of, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record, delay

CHECK_MS = MS_PER_MINUTE


def broker(**settings: int) -> BrokerHarness:
    return BrokerHarness(config=small_config(**settings))


def topic(harness: BrokerHarness, name: str = "t", **settings: int) -> None:
    named = {key.replace("_", "."): str(value) for key, value in settings.items()}
    harness.create_topic(name, 1, named)


def run(harness: BrokerHarness, duration_ms: int, step_ms: int = CHECK_MS) -> None:
    """Let time pass, with the housekeeping that a broker does meanwhile."""
    for _ in range(duration_ms // step_ms):
        harness.tick(step_ms)
        harness.housekeep()
    harness.flush()


def sweep(harness: BrokerHarness) -> None:
    """One search for expired records."""
    run(harness, 2 * CHECK_MS)


def send(harness: BrokerHarness, *values: bytes, name: str = "t") -> None:
    for value in values:
        assert harness.produce(name, 0, [Record(value)]).error == 0


def left(harness: BrokerHarness, name: str = "t") -> list[bytes]:
    found = harness.fetch(name, 0, harness.partition(topic=name).start_offset)
    return [record.value for record in found]


def test_a_record_is_readable_until_its_age_is_up() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    send(harness, b"old")
    run(harness, MS_PER_HOUR // 2)
    send(harness, b"new")
    run(harness, MS_PER_HOUR // 2 - CHECK_MS)
    assert left(harness) == [b"old", b"new"]
    run(harness, 3 * CHECK_MS)
    assert left(harness) == [b"new"]
    assert harness.partition().start_offset == 1
    assert harness.broker.collect_metrics().expired_records == 1
    run(harness, MS_PER_HOUR)
    assert left(harness) == []
    send(harness, b"next")
    assert [(each.offset, each.value) for each in harness.fetch("t", 0, 2)] == [(2, b"next")]


def test_the_limit_of_the_broker_holds_for_topics_without_their_own() -> None:
    harness = broker(retention_time_ms=2 * MS_PER_HOUR)
    for name, settings in {
        "a": {},
        "b": {"retention_ms": MS_PER_HOUR},
        "c": {"retention_ms": -1},
    }.items():
        topic(harness, name, **settings)
        send(harness, b"1", name=name)
    run(harness, MS_PER_HOUR + 3 * CHECK_MS)
    assert [left(harness, name) for name in "abc"] == [[b"1"], [], [b"1"]]
    run(harness, MS_PER_HOUR + CHECK_MS)
    assert [left(harness, name) for name in "abc"] == [[], [], [b"1"]]


def test_three_days_are_the_default() -> None:
    harness = broker()
    topic(harness)
    send(harness, b"1")
    run(harness, 3 * MS_PER_DAY - MS_PER_HOUR, MS_PER_HOUR)
    assert left(harness) == [b"1"]
    run(harness, 4 * MS_PER_HOUR, MS_PER_HOUR)
    assert left(harness) == []


def test_a_delayed_record_ages_from_its_delivery() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    later = [Record(b"later", headers=delay(90 * MS_PER_DAY))]
    assert harness.produce("t", 0, later).error == 0
    run(harness, 90 * MS_PER_DAY, MS_PER_HOUR)
    assert left(harness) == [b"later"]
    run(harness, MS_PER_HOUR - 2 * CHECK_MS)
    assert left(harness) == [b"later"]
    run(harness, 4 * CHECK_MS)
    assert left(harness) == []


def test_a_record_ages_from_its_flush_however_long_the_disk_takes() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    harness.send_produce("t", 0, [Record(b"1")])
    for _ in range(MS_PER_HOUR // CHECK_MS + 2):
        harness.clock.advance_ms(CHECK_MS)
        harness.housekeep()
    harness.flush()
    run(harness, MS_PER_HOUR - 2 * CHECK_MS)
    assert left(harness) == [b"1"]
    run(harness, 4 * CHECK_MS)
    assert left(harness) == []


def test_a_limit_that_is_changed_applies_to_records_that_exist() -> None:
    harness = broker()
    topic(harness, retention_ms=-1)
    send(harness, b"1")
    run(harness, MS_PER_DAY, MS_PER_HOUR)
    send(harness, b"2")
    harness.broker.topics.replace_settings(harness.topic(), {"retention.ms": str(MS_PER_HOUR)})
    sweep(harness)
    assert left(harness) == [b"2"]


@pytest.mark.parametrize("name", ["retention.ms", "retention.bytes"])
@pytest.mark.parametrize("value", ["-2", "", "a day", "9" * 5_000])
def test_a_limit_that_no_client_can_set_expires_nothing(name: str, value: str) -> None:
    harness = broker()
    topic(harness)
    send(harness, b"1")
    harness.broker.topics.replace_settings(harness.topic(), {name: value})
    run(harness, MS_PER_DAY, MS_PER_HOUR)
    assert left(harness) == [b"1"]


def test_a_partition_keeps_as_many_bytes_as_its_topic_says() -> None:
    harness = broker()
    topic(harness, retention_bytes=64 * 1024)
    for number in range(200):
        send(harness, b"%03d" % number + bytes(2_000))
        run(harness, CHECK_MS)
        kept = sum(map(len, left(harness)))
        assert kept >= min(60_000, (number + 1) * 2_003)
        assert kept <= 80_000
    assert left(harness)[-1].startswith(b"199")


def test_offsets_stay_right() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    send(harness, b"1", b"2")
    run(harness, MS_PER_HOUR + 2 * CHECK_MS)
    send(harness, b"3")
    partition = harness.partition()
    assert (partition.start_offset, partition.next_offset) == (2, 3)
    found = harness.broker.search.find(partition, 0)
    assert found is not None
    assert found[0] == 2


def test_a_clock_that_is_wrong_expires_nothing() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    send(harness, b"1")
    for years in (10, -20, 10):
        harness.clock.step_ms(years * 365 * MS_PER_DAY)
        sweep(harness)
        assert left(harness) == [b"1"]
    assert harness.broker.retention.clock_jump_ms == 0
    run(harness, MS_PER_HOUR)
    assert left(harness) == []


def test_a_machine_that_starts_in_the_past_and_is_set_right_later_expires_nothing() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_DAY)
    run(harness, MS_PER_HOUR + CHECK_MS)
    send(harness, b"1")
    sweep(harness)
    harness.broker.close()
    past_ms = harness.clock.wall_ms()
    harness.clock.step_ms(-past_ms)
    harness = BrokerHarness(harness.disk, harness.clock, harness.config)
    run(harness, 3 * MS_PER_HOUR)
    harness.clock.step_ms(past_ms)
    run(harness, 3 * MS_PER_HOUR)
    assert left(harness) == [b"1"]
    run(harness, 19 * MS_PER_HOUR)
    assert left(harness) == []


def test_records_expire_although_a_broker_restarts_daily_under_a_clock_that_is_behind() -> None:
    harness = broker()
    topic(harness, retention_ms=2 * MS_PER_DAY)
    run(harness, MS_PER_HOUR + CHECK_MS)
    harness = harness.restart()
    harness.clock.step_ms(-30 * MS_PER_DAY)
    send(harness, b"1")
    for day in range(3):
        assert left(harness) == ([b"1"] if day < 2 else []), day
        run(harness, MS_PER_DAY + MS_PER_HOUR, MS_PER_HOUR)
        harness = harness.restart()


def test_a_clock_that_stays_where_it_jumped_counts_after_an_hour() -> None:
    harness = broker()
    topic(harness, retention_ms=2 * MS_PER_HOUR)
    run(harness, MS_PER_HOUR)
    send(harness, b"before")
    sweep(harness)
    harness.clock.step_ms(MS_PER_DAY)
    sweep(harness)
    send(harness, b"after")
    assert harness.broker.gauges(0).clock_jump_seconds == MS_PER_DAY // 1_000
    run(harness, MS_PER_HOUR - 4 * CHECK_MS)
    assert left(harness) == [b"before", b"after"]
    run(harness, 6 * CHECK_MS)
    # The record that came after the jump is an hour old.
    assert left(harness) == [b"after"]
    run(harness, MS_PER_HOUR + 4 * CHECK_MS)
    assert left(harness) == []


def test_an_operator_confirms_the_clock_after_a_long_stop() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_DAY)
    run(harness, MS_PER_HOUR)
    send(harness, b"before")
    sweep(harness)
    harness.broker.close()
    harness.clock.step_ms(7 * MS_PER_DAY)
    harness = BrokerHarness(harness.disk, harness.clock, harness.config)
    send(harness, b"after")
    sweep(harness)
    assert left(harness) == [b"before", b"after"]
    jump_ms = harness.broker.retention.confirm_clock()
    assert 7 * MS_PER_DAY <= jump_ms <= 7 * MS_PER_DAY + 3 * CHECK_MS
    run(harness, CHECK_MS)
    assert left(harness) == [b"after"]


def test_cold_records_are_read_to_find_what_expired() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    for number in range(300):
        send(harness, b"%d" % number)
        if number % 10 == 0:
            run(harness, CHECK_MS)
    for _ in range(45):
        harness.make_cold()
        run(harness, CHECK_MS)
    kept = left(harness)
    assert 0 < len(kept) < 300
    assert kept == [b"%d" % number for number in range(300 - len(kept), 300)]


def test_records_expire_while_the_disk_is_full() -> None:
    harness = broker()
    topic(harness, retention_ms=MS_PER_HOUR)
    topic(harness, "other", retention_ms=-1)
    send(harness, b"1")
    run(harness, MS_PER_HOUR - 2 * CHECK_MS)
    harness.disk.free = 0
    while harness.produce("other", 0, [Record(bytes(4_000))]).error == 0:
        pass
    run(harness, 5 * CHECK_MS)
    assert left(harness) == []
    assert harness.restart().partition().start_offset == 1


def clean(harness: BrokerHarness, cleanup: Cleanup) -> dict[str, int]:
    """Run a sweep that an operator asked for."""
    ends: list[bool] = []
    cleanup.done = lambda: ends.append(True)
    harness.broker.retention.ask(cleanup)
    while not ends:
        harness.housekeep()
    harness.flush()
    return cleanup.expired


def test_an_operator_expires_what_is_older_than_an_instant() -> None:
    harness = broker()
    for name in "ab":
        topic(harness, name, retention_ms=-1)
        send(harness, b"1", b"2", name=name)
    run(harness, MS_PER_HOUR)
    for name in "ab":
        send(harness, b"3", name=name)
    before_ms = harness.clock.wall_ms() - MS_PER_HOUR // 2
    would = clean(harness, Cleanup(before_ms=before_ms, is_dry_run=True))
    assert would == {"a": 2, "b": 2}
    assert left(harness, "a") == [b"1", b"2", b"3"]
    assert clean(harness, Cleanup(topic=harness.topic("a"), before_ms=before_ms)) == {"a": 2}
    assert (left(harness, "a"), left(harness, "b")) == ([b"3"], [b"1", b"2", b"3"])
    assert clean(harness, Cleanup(before_ms=0)) == {}
    assert clean(harness, Cleanup()) == {}
    # What is newest may be younger than the last mark, which now is set.
    assert clean(harness, Cleanup(before_ms=harness.clock.wall_ms())) == {"a": 1, "b": 3}


def test_an_instant_means_the_same_while_the_clock_is_behind() -> None:
    harness = broker()
    topic(harness, retention_ms=-1)
    run(harness, 2 * MS_PER_HOUR)
    send(harness, b"1")
    instant_ms = harness.clock.wall_ms() - MS_PER_HOUR  # before the record
    run(harness, MS_PER_HOUR)
    harness.clock.step_ms(-10 * MS_PER_DAY)
    run(harness, MS_PER_HOUR)
    assert clean(harness, Cleanup(before_ms=instant_ms)) == {}
    assert clean(harness, Cleanup(before_ms=instant_ms + 2 * MS_PER_HOUR)) == {"t": 1}


def test_a_cleanup_says_that_the_disk_is_full() -> None:
    harness = broker()
    topic(harness, retention_ms=-1)
    send(harness, b"1")
    sweep(harness)
    harness.disk.free = 0
    cleanup = Cleanup(before_ms=harness.clock.wall_ms())
    error = DiskFullError("the disk is full")

    def refuse(*_: object) -> None:
        raise error

    harness.broker.topics.delete_records = refuse  # type: ignore[method-assign]
    assert clean(harness, cleanup) == {}
    assert cleanup.error is error


def test_a_cleanup_of_one_topic_keeps_the_marks_of_the_others() -> None:
    harness = broker()
    topic(harness, "a", retention_ms=-1)
    topic(harness, "b", retention_ms=MS_PER_HOUR, retention_bytes=1_000_000)
    send(harness, b"1", name="b")
    run(harness, MS_PER_HOUR // 2)
    clean(harness, Cleanup(topic=harness.topic("a"), before_ms=harness.clock.wall_ms()))
    assert len(harness.broker._store.state.sizes.capture()) == 1
    run(harness, MS_PER_HOUR // 2 - 2 * CHECK_MS)
    assert left(harness, "b") == [b"1"]
    run(harness, 4 * CHECK_MS)
    assert left(harness, "b") == []


@pytest.mark.parametrize("read_count", range(8))
def test_a_topic_that_is_deleted_while_it_is_searched_stays_deleted(read_count: int) -> None:
    harness = broker()
    harness.create_topic("t", 3, {"retention.ms": str(MS_PER_HOUR)})
    topic(harness, "other", retention_ms=-1)
    for partition in range(3):
        assert harness.produce("t", partition, [Record(b"1")]).error == 0
        send(harness, *[bytes(7_000)] * 40, name="other")  # so that each needs a read of its own
    run(harness, 3 * CHECK_MS)
    harness.clock.advance_ms(2 * MS_PER_HOUR)
    harness.make_cold()
    retention = harness.broker.retention
    for _ in range(read_count):
        if retention.cold is not None:
            harness.read_cold([retention.cold])
            retention.note_read()
            retention.step()
    harness.delete_topic("t")
    run(harness, 3 * CHECK_MS)
    assert harness.broker.topics.find("t") is None
    assert harness.restart().broker.topics.find("t") is None


def test_each_topic_expires_by_its_own_limit_whatever_the_others_have() -> None:
    harness = broker()
    hours = {"a": 12, "b": 1, "c": 6, "d": 3}
    for name, limit in hours.items():
        topic(harness, name, retention_ms=limit * MS_PER_HOUR)
        send(harness, b"1", name=name)
    run(harness, MS_PER_HOUR - 3 * CHECK_MS)
    for hour in range(1, 13):
        assert [bool(left(harness, name)) for name in hours] == [
            limit >= hour for limit in hours.values()
        ]
        run(harness, 20 * CHECK_MS)
        assert [bool(left(harness, name)) for name in hours] == [
            limit > hour for limit in hours.values()
        ]
        run(harness, MS_PER_HOUR - 20 * CHECK_MS)


def test_a_size_limit_holds_over_restarts_and_leaves_nothing_when_it_goes() -> None:
    harness = broker()
    topic(harness, retention_bytes=64 * 1024)
    for number in range(120):
        send(harness, bytes(2_000))
        run(harness, CHECK_MS)
        if number % 10 == 9:
            harness = harness.restart()
    assert 60_000 <= sum(map(len, left(harness))) <= 80_000
    state = harness.broker._store.state
    assert len(state.sizes.capture()) > 0
    harness.broker.topics.replace_settings(harness.topic(), {})
    sweep(harness)
    assert state.sizes.capture() == []


def wide_topic(**settings: int) -> BrokerHarness:
    """A broker with a topic of 1,000 partitions, whose topic frame has 24 kB."""
    harness = broker(partition_count_max_per_topic=1_000, segment_size_bytes=8 * MIB)
    named = {key.replace("_", "."): str(value) for key, value in settings.items()}
    harness.create_topic("t", 1_000, named)
    return harness


def run_wide(harness: BrokerHarness, step_ms: int) -> None:
    """Let time pass, with enough housekeeping for all slices of a sweep."""
    run(harness, step_ms, step_ms)
    for _ in range(5):
        harness.housekeep()
    harness.flush()


def test_a_thousand_busy_partitions_write_half_a_megabyte_of_starts_a_day() -> None:
    harness = wide_topic(retention_ms=72 * MS_PER_HOUR)
    for _ in range(74):
        send(harness, b"1")
        run_wide(harness, MS_PER_HOUR)
    moves, last, records = 0, harness.partition().start_offset, 0
    began = harness.broker.wrote_pos
    for _ in range(MS_PER_DAY // (5 * CHECK_MS)):
        before = harness.broker.wrote_pos
        send(harness, b"1")
        records += harness.broker.wrote_pos - before
        run_wide(harness, 5 * CHECK_MS)
        moves += harness.partition().start_offset > last
        last = harness.partition().start_offset
    starts = harness.broker.wrote_pos - began - records
    assert 18 <= moves <= 23
    assert moves * 24_000 <= starts <= 550_000


def test_starts_rise_by_size_only_for_growth_that_is_worth_a_topic_frame() -> None:
    harness = wide_topic(retention_bytes=64 * 1024)
    began, records, kept_max = harness.broker.wrote_pos, 0, 0
    for _ in range(300):
        before = harness.broker.wrote_pos
        send(harness, bytes(7_000))
        records += harness.broker.wrote_pos - before
        run_wide(harness, CHECK_MS)
        kept = (harness.partition().next_offset - harness.partition().start_offset) * 7_000
        kept_max = max(kept_max, kept)
    assert harness.partition().start_offset > 0
    assert harness.broker.wrote_pos - began - records <= records / 14
    assert kept_max <= 64 * 1024 + 430_000


def test_a_clean_stop_saves_the_age_although_nothing_was_written() -> None:
    harness = broker()
    topic(harness, retention_ms=2 * MS_PER_DAY)
    send(harness, b"1")
    run(harness, 2 * MS_PER_HOUR)
    take_checkpoint(harness)
    run(harness, MS_PER_DAY, MS_PER_HOUR)
    age = harness.broker._store.state.age
    assert age is not None
    harness.clock.advance_ms(CHECK_MS // 2)
    harness = harness.restart()
    saved = harness.broker._store.state.saved_age
    assert saved is not None
    assert saved.age_ms == age.age_ms + CHECK_MS // 2
    assert harness.broker.retention.clock_jump_ms == 0
    # Once more, with nothing to save.
    number = newest_of(harness.disk).states[0].number
    assert newest_of(harness.restart().disk).states[0].number <= number + 1


def test_size_marks_are_saved_in_small_steps() -> None:
    harness = broker()
    rows = [
        (1 + number // 1_000, number % 1_000, mark, mark)
        for number in range(20_000)
        for mark in range(SIZE_PARTS)
    ]
    sizes = harness.broker._store.state.sizes
    sizes.restore(rows)
    expected = sizes.capture()
    checkpoints = harness.broker.checkpoints
    harness.flush()
    checkpoints.ask()
    steps, largest, total = 0, 0, 0
    while (job := checkpoints.step()) is None:
        assert checkpoints._capture is not None
        size = sum(map(len, checkpoints._capture.values))
        steps, largest, total = steps + 1, max(largest, size - total), size
        sizes.keep(set())  # a change in between is not in this checkpoint
    assert steps >= 20_000 // PARTITIONS_PER_SLICE
    assert largest <= PARTITIONS_PER_SLICE * SIZE_PARTS * 24 + 1_000
    job.run()
    checkpoints.end(job)
    started = harness.crash("dropped", random.Random(1))
    assert started.broker._store.state.sizes.capture() == expected


ENDS: Sequence[Stop] = ("clean", "killed", "torn", "dropped")


@pytest.mark.parametrize("seed", range(12))
def test_nothing_expires_early_whatever_happens_to_clocks_and_broker(seed: int) -> None:
    rng = random.Random(seed)
    kept_ms = rng.choice([MS_PER_HOUR, 6 * MS_PER_HOUR])
    harness = broker(checkpoint_interval_bytes=rng.choice([1 << 16, 1 << 20]))
    topic(harness, retention_ms=kept_ms)
    run(harness, rng.choice([0, MS_PER_HOUR]))
    visible_at_ms: dict[int, int] = {}  # by offset, of the monotonic clock
    expired = 0

    def mono_ms() -> int:
        return harness.clock.monotonic_ns() // 1_000_000

    for _ in range(200):
        what = rng.randrange(11)
        if what < 4:
            answer = harness.produce("t", 0, [Record(bytes(rng.randrange(6_000)))])
            visible_at_ms[answer.base_offset] = mono_ms()
        elif what < 8:
            run(harness, rng.randrange(1, 40) * CHECK_MS)
        elif what == 8:
            # An hour at a wrong time in the future would be believed, so it is taken back before.
            step_ms = rng.randrange(-30 * MS_PER_DAY, 30 * MS_PER_DAY)
            harness.clock.step_ms(step_ms)
            run(harness, rng.randrange(1, 50) * CHECK_MS)
            if harness.broker._store.state.age is not None and step_ms < 0:
                run(harness, rng.randrange(200) * CHECK_MS)
            elif rng.randrange(2):
                harness = harness.reborn(rng.choice(ENDS), seed)
                run(harness, rng.randrange(1, 50) * CHECK_MS)
            harness.clock.step_ms(-step_ms)
        elif rng.randrange(3):
            assert take_checkpoint(harness).error is None
        else:
            harness = harness.reborn(rng.choice(ENDS), seed)
        start = harness.partition().start_offset
        expired = max(expired, start)
        gone = [at for offset, at in visible_at_ms.items() if offset < start]
        assert all(mono_ms() - at >= kept_ms for at in gone), seed
    run(harness, kept_ms + 2 * MS_PER_HOUR + 4 * CHECK_MS)
    assert harness.partition().start_offset == harness.partition().next_offset, seed
