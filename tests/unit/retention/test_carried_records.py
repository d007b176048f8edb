"""Visible records are carried: consumers get the same bytes, and the old place can go."""

import random
from collections.abc import Callable
from typing import Any, Final, get_args

import pytest

from _core.bytes.layout import KIND_CARRIED_RECORDS
from appliance.errors import ColdFrameError
from appliance.find import FindRequest
from appliance.kafka_facade import KAFKA_FACADE
from appliance.offline.data_dir import DataDir
from appliance.offline.dump import Dump, Filters
from appliance.offline.findings import Findings
from appliance.offline.frame_items import Frame, contents
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.carrying import (
    SEGMENT,
    carrier_of,
    carry,
    carry_and_free,
    frame_of,
    free_below,
    last_base,
    raw_records,
    sweep,
)
from tests.support.harness.checkpoints import (
    PATHS,
    crashed,
    read_every_unit,
    rebuild,
    start,
    take_checkpoint,
)
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.sim_fs import CrashMode
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Producer, Record, delay
from tests.unit.keys.index_harness import ask, index_of

KEPT: Final = {"retention.ms": "-1"}
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)


def broker() -> BrokerHarness:
    """A broker with a topic that keeps its records for an hour, and one that keeps them all."""
    config = small_config(retention_time_ms=MS_PER_HOUR, completed_id_memory_ms=1)
    harness = BrokerHarness(config=config)
    harness.create_topic("t")
    harness.create_topic("kept", 2, KEPT)
    return harness


def fill(harness: BrokerHarness, segments: float) -> None:
    """Write that many segments of records that soon expire."""
    target = harness.broker.wrote_pos + int(segments * SEGMENT)
    while harness.broker.wrote_pos < target:
        assert harness.produce("t", 0, [Record(b"x" * 4_000)]).error == 0


def keep(harness: BrokerHarness, count: int = 3, partition: int = 0) -> None:
    """Send batches of every form to the topic that keeps them."""
    for number in range(count):
        at_ms = START_MS + 1_000 * number
        plain = [Record(b"plain %d" % i, timestamp_ms=at_ms + i) for i in range(number + 1)]
        assert harness.produce("kept", partition, plain, Producer(9, 0, 0)).error in (0, 45)
        packed = [Record(bytes(500), timestamp_ms=at_ms + 10 + i) for i in range(4)]
        assert harness.produce("kept", partition, packed, codec=1).error == 0
        mixed = [
            Record(b"now", timestamp_ms=at_ms + 20),
            Record(b"later", headers=delay(100), timestamp_ms=at_ms + 21),
            Record(b"tagged", headers=(("tags", b"a"),), timestamp_ms=at_ms + 22),
        ]
        assert harness.produce("kept", partition, mixed).error == 0
        assert harness.tick(100) == 1
        harness.clock.advance_ms(1_000)


def with_kept(segments: float = 3) -> BrokerHarness:
    """A broker whose first segment has records to keep, and many that expire after them."""
    harness = broker()
    keep(harness)
    keep(harness, 1, partition=1)
    fill(harness, segments)
    harness.flush()
    return harness


def served(harness: BrokerHarness) -> tuple[bytes, ...]:
    """What consumers read of the topic that keeps its records."""
    return tuple(raw_records(harness, "kept", index) for index in range(2))


def check_starts(harness: BrokerHarness) -> None:
    """A start with the saved state and one from the log alone serve the same; checks find no fault.

    The units of both name the same frames.
    """
    expected, digest = served(harness), sorted(harness.topics_digest())
    disk = crashed(harness)
    for started in (start(harness, disk), rebuild(harness, disk)):
        assert started.report.damage == ()
        assert served(started) == expected
        assert sorted(started.topics_digest()) == digest
        started.make_cold()
        assert served(started) == expected
        assert started.broker.damage == []
        assert offline_scenario.check(crashed(started)).faults == []
    assert offline_scenario.check(crashed(harness), slice_bytes=3_000).faults == []


def test_carried_records_are_fetched_byte_for_byte() -> None:
    harness = with_kept()
    before, digest = served(harness), harness.topics_digest()
    header = frame_of(harness, "kept", 0)[0]
    carry_and_free(harness)
    assert harness.broker.log.start_pos >= 3 * SEGMENT
    assert served(harness) == before
    carried, original_pos, carried_ms = frame_of(harness, "kept", 0)
    assert original_pos == header["position"] < harness.broker.log.start_pos
    assert carried_ms == harness.clock.wall_ms()
    fields = {"store_time_ms", "base_offset", "last_delta", "record_count", "tags"}
    fields |= {"min_timestamp", "max_timestamp", "running_max", "topic_id", "partition"}
    assert {name: carried[name] for name in fields} == {name: header[name] for name in fields}
    assert carried["producer_id"] == -1
    for topic, old in zip(harness.topics_digest(), digest, strict=True):
        for partition, was in zip(topic[4], old[4], strict=True):
            # All but the start offset and the positions.
            assert (partition[1:4], partition[5]) == (was[1:4], was[5])
    harness.make_cold()
    assert served(harness) == before


def test_starts_serve_carried_records() -> None:
    harness = with_kept()
    carry_and_free(harness)
    check_starts(harness)
    take_checkpoint(harness)
    check_starts(harness)


def test_records_are_appended_after_carried_ones() -> None:
    harness = with_kept()
    carry_and_free(harness)
    for _ in range(2):
        before = served(harness)
        keep(harness, 1)
        assert all(map(bytes.startswith, served(harness), before))
        assert served(harness)[0] > before[0]
        check_starts(harness)
        harness = harness.restart()


@pytest.mark.parametrize("end", ["clean", *MODES])
def test_records_are_carried_again_from_their_carried_place(end: Stop) -> None:
    harness = with_kept()
    expected = served(harness)
    header = frame_of(harness, "kept", 0)[0]
    places = []
    for number in range(4):
        carry_and_free(harness)
        carried, original_pos, _ = frame_of(harness, "kept", 0)
        assert original_pos == header["position"]
        assert carried["store_time_ms"] == header["store_time_ms"]
        places.append(carried["position"])
        check_starts(harness)
        harness = harness.reborn(end, number)
        assert served(harness) == expected
        fill(harness, 2)
    assert places == sorted(set(places))


def test_searches_by_time_position_and_epoch_find_what_they_found_before() -> None:
    harness = with_kept()
    harness = harness.restart()
    keep(harness, 2)
    fill(harness, 2)
    partition = harness.partition(topic="kept")
    origins = [harness.position_of(partition, offset) for offset in range(partition.next_offset)]
    times = range(START_MS - 1, START_MS + 4_000, 7)
    epochs = [epoch for epoch, _ in harness.epoch_starts()]

    def found() -> list[object]:
        search = harness.broker.search
        at_times = [warm(search.find, time) for time in times]
        places = [pos + by for pos in origins for by in (-1, 0, 1)]
        at_places = [warm(search.find_position, pos) for pos in places]
        ends = [warm(search.find_end_of_epoch, epoch) for epoch in epochs]
        return [at_times, at_places, ends, warm(search.find_highest)]

    def warm(search: Callable[..., object], *args: int) -> object:
        while True:
            try:
                return search(partition, *args)
            except ColdFrameError as error:
                harness.read_cold([error.place])

    before = found()
    first_part = harness.broker.log.files.bases[2]
    carry_and_free(harness, first_part)
    assert found() == before
    carry_and_free(harness)
    assert found() == before
    assert min(harness.position_of(partition, n) for n in range(10)) > first_part


def test_carried_records_expire_by_the_age_of_their_first_frame() -> None:
    harness = broker()
    harness.create_topic("day", 1, {"retention.ms": str(24 * MS_PER_HOUR)})
    harness.produce("day", 0, [Record(b"first")])
    fill(harness, 3)
    for _ in range(23):
        harness.age(MS_PER_HOUR)
    carry_and_free(harness)
    harness.produce("day", 0, [Record(b"second")])
    partition = harness.partition(topic="day")
    assert harness.values("day") == [b"first", b"second"]
    # The steps of an age limit of a day are 22 minutes long.
    for _ in range(8):
        harness.age(10 * MS_PER_MINUTE)
    assert partition.start_offset == 1
    assert [each.value for each in harness.fetch("day", 0, 1)] == [b"second"]
    check_starts(harness)


def test_what_expired_was_deleted_or_is_not_kept_stays_behind() -> None:
    harness = with_kept()
    harness.create_topic("gone")
    harness.produce("gone", 0, [Record(b"gone")])
    harness.produce("kept", 1, [Record(b"last")])
    fill(harness, 1)
    harness.delete_topic("gone")
    partition = harness.partition(1, "kept")
    end = partition.next_offset
    harness.broker.topics.delete_records(harness.topic("kept"), {1: end - 1})
    kept = served(harness)
    for _ in range(4):
        harness.age(30 * MS_PER_MINUTE)
    assert harness.partition().start_offset == harness.partition().next_offset
    before = harness.broker.wrote_pos
    carry_and_free(harness)
    carried = carrier_of(harness).carried_bytes
    assert len(kept[0]) + len(kept[1]) < carried < len(kept[0]) + len(kept[1]) + 200 * 40
    assert harness.broker.wrote_pos - before < 2 * carried + 4_000
    assert served(harness) == kept
    check_starts(harness)


def test_a_pass_is_raced_by_deletions_and_reads() -> None:
    harness = with_kept(5)
    harness.create_topic("gone", 1, KEPT)
    for _ in range(40):
        harness.produce("gone", 0, [Record(bytes(3_000))])
    fill(harness, 1)
    partition = harness.partition(1, "kept")
    expected = served(harness)[0]
    calls = 0

    def between() -> None:
        nonlocal calls
        calls += 1
        assert raw_records(harness, "kept") == expected
        if calls == 3:
            harness.broker.topics.delete_records(
                harness.topic("kept"), {1: partition.next_offset - 1}
            )
        if calls == 5:
            harness.delete_topic("gone")
        harness.produce("kept", 1, [Record(b"more %d" % calls)])

    harness.flush()
    take_checkpoint(harness)
    cut = last_base(harness)
    carry(harness, cut, between)
    assert calls > 5
    harness.flush()
    free_below(harness, cut)
    values = [each.value for each in harness.fetch("kept", 1, partition.start_offset)]
    assert values == [b"more %d" % number for number in range(2, calls + 1)]
    assert raw_records(harness, "kept") == expected
    check_starts(harness)


def test_a_pass_that_is_broken_off_is_repeated() -> None:
    harness = with_kept()
    expected = served(harness)
    cut = last_base(harness)
    carrier = carrier_of(harness)
    for steps in range(6):
        carrier.begin(cut)
        for _ in range(steps):
            job = carrier.step()
            harness.broker.commit()
            if job is not None:
                job.run()
                if steps == 5:
                    carrier.stop()
                carrier.end(job)
        carrier.stop()
        assert carrier.is_done
        assert served(harness) == expected
    harness.flush()
    check_starts(harness)
    # What is carried already lies above the cut, and is not carried again.
    carry(harness, cut)
    before = carrier.carried_bytes
    carry(harness, cut)
    assert carrier.carried_bytes == before
    carry_and_free(harness, cut)
    assert served(harness) == expected


def test_the_later_place_wins_while_both_are_in_the_log() -> None:
    harness = with_kept()
    expected = served(harness)
    carry(harness, last_base(harness))
    harness.flush()
    assert harness.broker.log.start_pos == 0
    check_starts(harness)
    alone = rebuild(harness, crashed(harness))
    header = frame_of(alone, "kept", 0)[0]
    assert header["kind"] == KIND_CARRIED_RECORDS
    # Damage of the old place costs nothing then.
    disk = crashed(harness)
    path, at = harness.broker.log.path_of(frame_of(harness, "kept", 0)[1])
    disk.flip(path, at + 170, 1)
    damaged = rebuild(harness, disk)
    assert len(damaged.report.damage) == 1
    assert served(damaged) == expected


def test_a_long_replay_saves_units_while_places_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.store.recovery.start.SCAN_SLICE_BYTES", 4_096)
    monkeypatch.setattr("appliance.store.recovery.start.UNITS_IN_MEMORY_MAX", 0)
    harness = with_kept()
    expected = served(harness)
    carry(harness, last_base(harness))
    harness.flush()
    check_starts(harness)
    # One that is lost, and found again in the part that is replayed last.
    disk = crashed(harness)
    path, at = harness.broker.log.path_of(frame_of(harness, "kept", 5)[1])
    disk.flip(path, at + 170, 1)
    assert served(rebuild(harness, disk)) == expected
    carry_and_free(harness)
    fill(harness, 2)
    carry_and_free(harness)
    check_starts(harness)
    harness = rebuild(harness, crashed(harness))
    take_checkpoint(harness)
    check_starts(harness)


def test_kept_from_follows_the_place_of_carried_records() -> None:
    harness = with_kept()
    harness.broker.head_freer.may_carry = lambda: False
    retention = harness.broker.retention
    sweep(harness)
    first = harness.position_of(harness.partition(topic="kept"), 0)
    assert retention.kept_from == min(first, harness.position_of(harness.partition(), 0))
    for _ in range(4):
        harness.age(30 * MS_PER_MINUTE)
    sweep(harness)
    assert retention.kept_from == first
    for _ in range(3):
        cut = last_base(harness)
        assert retention.keeps_below(cut)
        carry_and_free(harness, cut)
        keep(harness, 1, 1)
        sweep(harness)
        partitions = [harness.partition(index, "kept") for index in range(2)]
        places = [
            harness.position_of(each, offset)
            for each in partitions
            for offset in range(each.start_offset, each.next_offset)
        ]
        assert retention.kept_from == min(places) >= cut
        assert not retention.keeps_below(cut)
        harness = harness.restart()
        harness.broker.head_freer.may_carry = lambda: False
        retention = harness.broker.retention
        sweep(harness)
        assert retention.kept_from == min(places)
        for _ in range(2):
            fill(harness, 1)
            for _ in range(4):
                harness.age(30 * MS_PER_MINUTE)


def test_units_of_carried_records_are_rebuilt_when_their_files_are_lost_or_wrong() -> None:
    harness = with_kept()
    carry_and_free(harness)
    keep(harness, 1)
    expected = served(harness)
    take_checkpoint(harness)
    harness = harness.restart()
    disk = crashed(harness)
    queue = PATHS.queue("kept", 0)
    for spoil in ("lost", "zeros", "wrong"):
        left = disk.crashed("kept", random.Random(0))
        path = queue / left.list_dir(queue)[0]
        if spoil == "lost":
            left.unlink(path)
        elif spoil == "zeros":
            file = left.open(path)
            size = file.size()
            file.truncate(0)
            file.truncate(size)
        else:
            for unit in range(0, 20, 3):
                left.flip(path, 20 * unit + 6, 2)
        started = start(harness, left)
        started.broker._store.log.view.clear()
        read_every_unit(started)
        assert served(started) == expected, spoil
        assert sorted(started.topics_digest()) == sorted(harness.topics_digest())


def test_the_bytes_of_kept_records_are_estimated() -> None:
    harness = broker()
    estimate = carrier_of(harness).kept_bytes
    assert estimate() == 0
    for _ in range(50):
        harness.produce("kept", 0, [Record(bytes(2_000))])
    size = 50 * (160 + 61 + 2_000)
    assert size <= estimate() <= size + 50 * 20
    fill(harness, 2)
    harness.broker.topics.delete_records(harness.topic("t"), {0: harness.partition().next_offset})
    assert size <= estimate() <= size + 50 * 20
    harness.broker.topics.delete_records(harness.topic("kept"), {0: 20})
    assert 0.6 * size <= estimate() <= 0.6 * size + 30 * 20
    before = estimate()
    carry_and_free(harness)
    assert estimate() == before
    loaded, alone = harness.restart(), rebuild(harness, crashed(harness))
    for other in (loaded, alone):
        assert abs(carrier_of(other).kept_bytes() - before) < 50 * 40
    harness = loaded
    harness.delete_topic("kept")
    assert carrier_of(harness).kept_bytes() == 0


def test_a_log_without_room_ends_a_slice_and_the_pass_goes_on_with_room() -> None:
    harness = with_kept()
    expected = served(harness)
    cut = last_base(harness)
    for _ in range(20):
        harness.produce("kept", 0, [Record(bytes(3_000))])
    expected = served(harness)
    harness.disk.free = 0
    while harness.produce("t", 0, [Record(bytes(500))]).error == 0:
        pass
    carrier = carrier_of(harness)
    carrier.begin(cut)
    for _ in range(10):
        job = carrier.step()
        harness.broker.commit()
        if job is not None:
            job.run()
            carrier.end(job)
    if not carrier.is_done:
        assert carrier.is_full
    assert served(harness) == expected
    harness.disk.free = 1 << 30
    harness.clock.advance_ms(MS_PER_MINUTE)
    carry_and_free(harness, cut)
    assert served(harness) == expected
    check_starts(harness)


def dumped_offsets(harness: BrokerHarness, **filters: Any) -> list[int]:
    """The offsets that `latermq dump records` prints of the first partition that is kept."""
    findings = Findings(lambda _: None)
    data = DataDir(crashed(harness), DATA_DIR, findings)
    try:
        data.open(may_be_live=False)
        chosen = Filters(topic="kept", partition=0, **filters)
        dump = Dump(data, findings, chosen, KAFKA_FACADE.decompress)
        return sorted(item["offset"] for item in dump.records())
    finally:
        data.close()


def test_a_dump_of_records_has_each_once_wherever_its_places_are() -> None:
    harness = with_kept()
    everything = list(range(harness.partition(topic="kept").next_offset))
    cut = last_base(harness)
    carry(harness, cut)
    harness.flush()
    assert dumped_offsets(harness) == everything
    carry_and_free(harness, cut)
    assert dumped_offsets(harness) == everything
    fill(harness, 2)
    carry(harness, last_base(harness))
    harness.flush()
    assert dumped_offsets(harness) == everything


def test_a_carried_record_is_found_by_its_offset() -> None:
    harness = with_kept()
    carry_and_free(harness)
    partition = harness.partition(topic="kept")
    for offset in range(partition.next_offset):
        position, origin = harness.broker.search.positions_from(partition, offset)
        answer = ask(
            harness,
            index_of(harness),
            FindRequest(topic="kept", partition=0, offset=offset, position=position),
        )
        assert [item["offset"] for item in answer.found] == [offset]
        assert origin < harness.broker.log.start_pos < position


def test_tools_show_frames_of_carried_records() -> None:
    harness = with_kept()
    carry_and_free(harness)
    header, original_pos, carried_ms = frame_of(harness, "kept", 0)
    frame = Frame(header["position"], memoryview(harness.broker.log.read_frame(header["position"])))
    item = frame.item({})
    assert item["kind"] == "carried records"
    assert (item["original_position"], item["carried_at"]) == (original_pos, carried_ms)
    assert contents(frame, lambda *_: b"", 1 << 20)["records"][0]["offset"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_in_random_histories(seed: int) -> None:
    """Sends, deletions, expiry, passes to random cuts, passes broken off, restarts, crashes."""
    rng = random.Random(seed)
    harness = broker()
    harness.create_topic("day", 2, {"retention.ms": str(6 * MS_PER_HOUR)})
    topics = [("kept", 0), ("kept", 1), ("day", 0), ("day", 1), ("t", 0)]
    sent: dict[tuple[str, int], list[bytes]] = {each: [] for each in topics}
    for turn in range(60):
        for _ in range(rng.randrange(12)):
            key = rng.choice(topics)
            values = [
                b"%d-%d-" % (turn, i) + rng.randbytes(rng.randrange(2_000))
                for i in range(rng.randrange(1, 4))
            ]
            records = [Record(value) for value in values]
            codec = rng.choice((0, 1))
            assert harness.produce(*key, records, codec=codec).error == 0
            sent[key] += values
        what = rng.random()
        bases = harness.broker.log.files.bases
        if what < 0.3 and len(bases) > 1:
            carry_and_free(harness, rng.choice(bases[1:]))
        elif what < 0.4 and len(bases) > 1:
            carrier = carrier_of(harness)
            carrier.begin(rng.choice(bases[1:]))
            for _ in range(rng.randrange(8)):
                job = carrier.step()
                harness.broker.commit()
                if job is not None:
                    job.run()
                    carrier.end(job)
            carrier.stop()
        elif what < 0.5:
            partition = harness.partition(1, "kept")
            start_offset = rng.randint(partition.start_offset, partition.visible_offset)
            harness.broker.topics.delete_records(harness.topic("kept"), {1: start_offset})
        elif what < 0.6:
            harness.flush()
            harness = harness.reborn(rng.choice(("clean", *MODES)), turn)
        elif what < 0.65:
            harness.flush()
            harness = rebuild(harness, crashed(harness))
        elif what < 0.8:
            harness.age(rng.randrange(2) * MS_PER_HOUR + MS_PER_MINUTE)
        for _ in range(2):
            harness.housekeep()
        if rng.random() < 0.3:
            sweep(harness)
    harness.flush()
    for topic, index in topics:
        partition = harness.partition(index, topic)
        first = partition.start_offset
        found = [each.value for each in harness.fetch(topic, index, first)]
        assert found == sent[topic, index][first:]
        assert partition.next_offset == len(sent[topic, index])
    assert harness.partition(0, "kept").start_offset == 0
    take_checkpoint(harness)
    check_starts(harness)
