"""Bytes of the log that rot, vanish, come back or move are reported, and never served."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from _core.bytes.layout import FRAME_HEADER_SIZE
from appliance.errors import CorruptionError, LogRefusedError
from appliance.store.state.control_frames import PRODUCER_ID_BLOCK
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_run import CrashRun
from tests.support.harness.damage_scenario import DamageScenario, intact_frames, walk
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import Fetched, Record, delay

SEGMENT_SIZE_BYTES: Final = 64 * KIB
LOG: Final = DATA_DIR / "commitlog"
FUZZ_COUNT: Final = 300
PAIR_COUNT: Final = 60


def place(pos: int) -> tuple[Path, int]:
    """File and offset of a log position."""
    base = pos - pos % SEGMENT_SIZE_BYTES
    return LOG / f"{base:020d}", pos - base


def killed(harness: BrokerHarness) -> SimFileSystem:
    """What a killed process leaves; the disk is there to be damaged."""
    return harness.disk.crashed("kept", random.Random(0))


def started(disk: SimFileSystem, harness: BrokerHarness) -> BrokerHarness:
    return BrokerHarness(disk, harness.clock, harness.config)


@dataclass
class Story:
    """A broker with one topic, and where in its log each batch is."""

    harness: BrokerHarness = field(default_factory=BrokerHarness)
    frames: list[tuple[int, int]] = field(default_factory=list)
    """First position and the one after it of each batch, all flushed."""

    def __post_init__(self) -> None:
        self.harness.create_topic("t")

    def write(self, value: bytes, *more: Record) -> None:
        """Append one batch."""
        start = self.harness.broker.wrote_pos
        self.harness.produce("t", 0, [Record(value), *more])
        self.frames.append((start, self.harness.broker.wrote_pos))

    def values(self) -> list[bytes]:
        return self.harness.values()


@pytest.fixture
def story() -> Story:
    """Ten batches of one record."""
    story = Story()
    for number in range(10):
        story.write(b"%d" % number * 100)
    return story


def test_a_fault_after_all_marks_is_a_torn_tail(story: Story) -> None:
    start, end = story.frames[-1]
    expected = story.values()[:-1]
    for at in range(0, end - start, 15):
        disk = killed(story.harness)
        disk.flip(*place(start + at), 0x10)
        harness = started(disk, story.harness)
        assert not harness.report.damage
        assert harness.report.cut_bytes > 0
        assert harness.values() == expected
        assert harness.produce("t", 0, [Record(b"new")]).base_offset == 9
        assert harness.restart().report.damage == ()


@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "stopped"])
def test_what_lay_after_a_cut_does_not_come_back(is_clean: bool) -> None:
    """Three batches in one flush; the first rots, and what takes its place ends where one began."""
    story = Story()
    story.write(b"first")
    at = story.harness.broker.wrote_pos
    for value in (b"a", b"b", b"c"):
        story.harness.send_produce("t", 0, [Record(value * 100)])
    story.harness.flush()
    if is_clean:
        story.harness.broker.close()
    disk = killed(story.harness)
    disk.unlink(DATA_DIR / "checkpoint")  # it would say that this was durable
    disk.flip(*place(at + 30), 1)
    for size in range(0, 400, 8):
        harness = started(disk.crashed("kept", random.Random(0)), story.harness)
        harness.produce("t", 0, [Record(b"x" * size)])
        seen = harness.fetch("t", 0)
        assert [record.value for record in seen] == [b"first", b"x" * size]
        assert harness.crash("kept", random.Random(0)).fetch("t", 0) == seen
        assert harness.restart().fetch("t", 0) == seen


@pytest.mark.parametrize("name", ["0" * 19 + "8", "9" * 20])
def test_a_segment_of_an_impossible_position_ends_a_start_with_its_name(name: str) -> None:
    harness = BrokerHarness()
    harness.broker.close()
    harness.disk.open(harness.segment_paths()[0].with_name(name), create=True).pwritev(
        [bytes(4096)], 0
    )
    with pytest.raises(CorruptionError, match=name):
        BrokerHarness(harness.disk, harness.clock, harness.config)


@pytest.mark.parametrize("back", [1, 8, 9, 100])
def test_a_segment_that_lost_its_end_is_reported(back: int) -> None:
    story = Story()
    while story.harness.broker.wrote_pos < 3 * SEGMENT_SIZE_BYTES // 2:
        story.write(b"%04d" % len(story.frames) * 1000)
    start, _ = next(f for f in story.frames if f[1] + 4_000 > SEGMENT_SIZE_BYTES)
    lost = story.frames.index((start, _))
    values = story.values()
    disk = killed(story.harness)
    file = disk.open(place(0)[0])
    file.truncate(start + 1_000 - back)
    harness = started(disk, story.harness)
    assert harness.report.damage[0].offset == start
    assert harness.values() == values[:lost] + values[lost + 1 :]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_end_of_the_log_is_reported(is_clean: bool, story: Story) -> None:
    while story.harness.broker.wrote_pos < 2 * SEGMENT_SIZE_BYTES + 5_000:
        story.write(b"x" * 3_000)
    story.harness.broker.close()
    disk, end = story.harness.disk, story.harness.broker.flushed_pos
    for path in story.harness.segment_paths()[2:]:
        disk.unlink(path)
    if not is_clean:
        disk.open(DATA_DIR / "abort", create=True).close()
    begin = 2 * SEGMENT_SIZE_BYTES
    with pytest.raises(LogRefusedError):
        started(disk, story.harness)
    again = BrokerHarness(disk, story.harness.clock, story.harness.config, accepts_loss=True)
    (damage,) = again.report.damage
    assert (damage.path, damage.offset) == (LOG / f"{SEGMENT_SIZE_BYTES:020d}", SEGMENT_SIZE_BYTES)
    assert damage.size == end - begin
    assert again.report.epoch > story.harness.report.epoch
    again.produce("t", 0, [Record(b"after")])
    assert again.values()[-1] == b"after"
    (kept,) = again.restart().report.damage
    assert kept.size == damage.size


@pytest.mark.parametrize("size", [100, 1_001, 4_097])
def test_the_last_segment_is_whole_again_after_it_lost_its_end(size: int, story: Story) -> None:
    disk = killed(story.harness)
    disk.open(place(0)[0]).truncate(story.frames[-1][1] + size)
    harness = started(disk, story.harness)
    values = story.values()
    for number in range(25):
        values.append(b"%02d" % number * 2_000)
        harness.produce("t", 0, [Record(values[-1])])
    harness = harness.crash("kept", random.Random(0))
    assert harness.report.damage == ()
    assert harness.values() == values


def test_a_frame_at_another_place_is_no_frame(story: Story) -> None:
    """Neither after the last one nor over another of its size."""
    source, source_end = story.frames[2]
    values = story.values()
    for target, expected, damage_count in (
        (story.frames[-1][1], values, 0),
        (story.frames[6][0], values[:6] + values[7:], 1),
    ):
        disk = killed(story.harness)
        file = disk.open(place(0)[0])
        file.pwritev([file.pread(source_end - source, source)], target)
        harness = started(disk, story.harness)
        assert len(harness.report.damage) == damage_count
        assert harness.values() == expected


def test_a_frame_of_an_earlier_epoch_is_not_taken_up_again(story: Story) -> None:
    """It fits its place to the byte, and was lost in a power cut; then the disk gives it back."""
    values = story.values()
    story.harness.broker.close()
    before = started(killed(story.harness), story.harness)
    clock = VirtualClock(wall_ms=story.harness.clock.wall_ms() + 10_000)
    after = BrokerHarness(killed(before), clock, story.harness.config)
    for _ in range(4 * PRODUCER_ID_BLOCK + 1):
        after.broker.allocate_producer_id()
    after.flush()
    tail = after.broker.wrote_pos
    lost = ends_at(tail, before)
    lost.produce("t", 0, [Record(b"stale")])
    stale = lost.disk.open(place(0)[0]).pread(lost.broker.wrote_pos - tail, tail)
    disk = killed(after)
    disk.open(place(0)[0]).pwritev([stale], tail)
    harness = started(disk, story.harness)
    assert harness.values() == values
    assert harness.report.damage == ()
    assert (
        harness.report.frames == after.report.frames + 6
    )  # its epoch, and five times producer ids


def ends_at(tail: int, harness: BrokerHarness) -> BrokerHarness:
    """Go on as `harness` would, with one record of such a size that the log ends at `tail`."""
    for size in range(1_000):
        disk = harness.disk.crashed("kept", random.Random(0))
        longer = started(disk, harness)
        longer.produce("t", 0, [Record(b"x" * size)])
        if longer.broker.wrote_pos == tail:
            return longer
    raise AssertionError("no size fits")


# Damage while the broker runs: what is not in memory is checked when it comes from the disk


def test_timers_of_a_damaged_accept_are_lost_alone_and_reported() -> None:
    story = Story()
    for number in range(4):
        story.write(b"%d" % number, Record(b"later %d" % number, headers=delay(500)))
    disk = killed(story.harness)
    disk.flip(*place(story.frames[1][0] + FRAME_HEADER_SIZE), 1)
    harness = started(disk, story.harness)
    assert len(harness.report.damage) == 1
    harness.tick(500)
    values = harness.values()
    assert values == [b"0", b"2", b"3", b"later 0", b"later 2", b"later 3"]
    assert harness.restart().broker.pending_timers == 0


def test_timers_whose_delivery_is_damaged_are_pending_again() -> None:
    """Twice is better than never, and it is reported."""
    story = Story()
    story.write(b"now", Record(b"later", headers=delay(500)))
    at = story.harness.broker.wrote_pos
    story.harness.tick(500)
    story.write(b"end")
    story.write(b"mark")
    disk = killed(story.harness)
    disk.flip(*place(at + 40), 1)
    harness = started(disk, story.harness)
    assert len(harness.report.damage) == 1
    assert harness.deliver_all() == 1
    assert [(r.offset, r.value) for r in harness.fetch("t", 0)] == [
        (0, b"now"), (2, b"end"), (3, b"mark"), (4, b"later"),
    ]  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_no_damage_makes_a_wrong_record(part: int) -> None:
    """Flips, zeros and moved blocks in a log of several segments."""
    run = CrashRun(random.Random(part))
    run.start()
    run.play_rounds(6)
    run.flush()
    places = [(t.name, p.index) for t in run.harness.broker.topics.all() for p in t.partitions]
    good = {place: run.harness.fetch(*place) for place in places}
    names = {topic.topic_id: topic.name for topic in run.harness.broker.topics.all()}
    end = run.harness.broker.wrote_pos
    whole = run.harness.disk.crashed("kept", random.Random(0))
    frames = walk(whole, end)
    lost_count = 0
    for seed in range(part, FUZZ_COUNT, 3):
        rng = random.Random(seed)
        disk = whole.crashed("kept", rng)
        for _ in range(rng.randrange(1, 4)):
            damage_somewhere(disk, end, rng)
        left = intact_frames(whole, disk, frames, SEGMENT_SIZE_BYTES)
        lost_count += len(left) < len(frames)
        intact = {place: set[int]() for place in places}
        for frame in left:
            if frame.offsets and frame.topic_id in names:
                intact[names[frame.topic_id], frame.partition].update(frame.offsets)
        harness = BrokerHarness(disk, run.clock, run.config, accepts_loss=True)
        check_served(harness, good, intact, seed)
        check_served(harness.restart(), good, intact, seed)
    assert lost_count > FUZZ_COUNT // 6


def test_damage_in_two_places_costs_no_record_of_another_frame() -> None:
    """The same start a second time serves the same; a frame of any kind may be hit."""
    scenario = DamageScenario()
    rng = random.Random(1)
    for _ in range(PAIR_COUNT):
        hit = rng.sample(scenario.frames, 2)
        places = [scenario.place(frame.pos + rng.randrange(frame.size)) for frame in hit]
        disk = scenario.copy()
        for path, offset in places:
            disk.flip(path, offset, 0x10)
        must = scenario.must_serve(disk)
        harness = scenario.start(disk)
        for is_again in (False, True):
            if is_again:
                harness = harness.restart()
            served = scenario.served_by(harness)
            for where, records in must.items():
                found = served.get(where, {})
                assert records.items() <= found.items(), (hit, where)
                assert found.items() <= scenario.served[where].items(), (hit, where)


def damage_somewhere(disk: SimFileSystem, end: int, rng: random.Random) -> None:
    pos = rng.randrange(end)
    path, offset = place(pos)
    if offset >= disk.open(path).size():
        return  # lost already
    match rng.randrange(4):
        case 0:
            disk.flip(path, offset, 1 << rng.randrange(8))
        case 1:
            file = disk.open(path)
            file.pwritev([bytes(512)], offset - offset % 512)
        case 2:
            file = disk.open(path)
            source = rng.randrange(SEGMENT_SIZE_BYTES // 4096) * 4096
            file.pwritev([file.pread(4096, source)], offset - offset % 4096)
        case _:
            disk.open(path).truncate(offset)


def check_served(
    harness: BrokerHarness,
    good: dict[tuple[str, int], list[Fetched]],
    intact: dict[tuple[str, int], set[int]],
    seed: int,
) -> None:
    """What is served is what was at its offset, and all that is intact is served."""
    for (topic, partition), records in good.items():
        found = harness.broker.topics.find(topic)
        wanted = intact[topic, partition] & {record.offset for record in records}
        if found is None:
            assert not wanted, f"seed {seed}"
            continue  # its topic frames are gone
        known = {record.offset: record for record in records}
        served = set()
        for record in harness.fetch(topic, partition, found.partitions[partition].start_offset):
            assert record == known[record.offset], f"seed {seed}"
            served.add(record.offset)
        assert wanted <= served, f"seed {seed}: {topic}/{partition}: {sorted(wanted - served)}"
