"""After damage to any frame: what is intact is served, and nothing is given a second time."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_ACCEPT, KIND_BLANK
from _core.log.frames import read_header
from appliance.store.state.control_frames import PRODUCER_ID_BLOCK
from appliance.store.state.group_frames import OFFSET_COMMITTED, GroupMember, OffsetEntry
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import DERIVED, PATHS, take_checkpoint
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.group_changes import changed_group
from tests.support.values.kafka_records import Producer, Record, delay

SEGMENT_SIZE_BYTES: Final = 64 * KIB
TOPICS: Final = {"a": 2, "b": 1}
GROUPS: Final = ("g", "h")


@dataclass
class Given:
    """What a broker has given: nothing of it may come back.

    Attributes:
        records: value and log position of each acknowledged record, by topic, partition, offset.
        producer_ids, topic_ids, generations: the highest ones.
        members: of each group, after each change.
    """

    records: dict[tuple[str, int], dict[int, tuple[bytes, int]]] = field(default_factory=dict)
    producer_id: int = -1
    topic_id: int = 0
    generations: dict[str, int] = field(default_factory=dict)
    members: dict[str, list[tuple[GroupMember, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Frame:
    pos: int
    size: int
    kind: int
    partition: int
    topic_id: int
    flushed: int

    @property
    def place(self) -> tuple[Path, int]:
        offset = self.pos % SEGMENT_SIZE_BYTES
        return PATHS.commit_log / f"{self.pos - offset:020d}", offset


class Story:
    """Topics, groups, producers and timers in a log of three segments; stopped cleanly."""

    def __init__(self) -> None:
        self.harness = harness = BrokerHarness()
        self.given = Given()
        for name, count in TOPICS.items():
            harness.create_topic(name, count)
        for number in range(4):
            self._play(number)
            if number == 1:
                take_checkpoint(harness)
            while harness.broker.wrote_pos < (number + 1) * 40_000:
                self._produce("a", 0, b"filler" * 400)
        # Each allocator is used again, after the last frame that could show what it gave.
        self._play(9)
        # The producer of the last ids has sent nothing yet: one frame names them.
        for _ in range(PRODUCER_ID_BLOCK):
            self.given.producer_id = harness.broker.allocate_producer_id()
        harness.create_topic("idle")  # likewise
        for number in range(2):
            self._produce("b", 0, b"mark %d" % number)
        self._note()
        harness.broker.close()
        self.frames = list(walk(harness))

    def _produce(self, topic: str, partition: int, value: bytes) -> None:
        self.harness.produce(topic, partition, [Record(value)])

    def _play(self, number: int) -> None:
        harness = self.harness
        producer_id = harness.broker.allocate_producer_id()
        self.given.producer_id = producer_id
        for sequence in range(2):
            batch = [Record(b"%d of %d" % (sequence, number))]
            harness.produce("a", 1, batch, Producer(producer_id, 0, sequence))
        self._produce("b", 0, b"b %d" % number)
        harness.produce("b", 0, [Record(b"soon %d" % number, headers=delay(10, b"id-%d" % number))])
        harness.produce("a", 0, [Record(b"later %d" % number, headers=delay(600_000))])
        harness.tick(20)
        for group in GROUPS:
            generation = self.given.generations.get(group, 0) + 1
            for seed in range(6):
                frame = harness.broker.groups.groups.get(group)
                frame = changed_group(random.Random(number * 10 + seed), frame, group)
                harness.broker.groups.save_group(replace(frame, generation=generation))
                self.given.members.setdefault(group, [()]).append(frame.members)
            self.given.generations[group] = generation
            topic = harness.topic("b")
            harness.broker.groups.commit_offsets(
                [
                    OffsetEntry(
                        op=OFFSET_COMMITTED,
                        group=group,
                        topic_id=topic.topic_id,
                        partition=0,
                        offset=number,
                    )
                ]
            )
        harness.flush()

    def _note(self) -> None:
        for topic in self.harness.broker.topics.all():
            self.given.topic_id = max(self.given.topic_id, topic.topic_id)
            for partition in topic.partitions:
                self.given.records[topic.name, partition.index] = {
                    record.offset: (
                        record.value,
                        self.harness.position_of(partition, record.offset),
                    )
                    for record in self.harness.fetch(topic.name, partition.index)
                }

    def disk(self, *, has_derived: bool) -> SimFileSystem:
        disk = self.harness.disk.crashed("kept", random.Random(0))
        if not has_derived:
            for path in DERIVED:
                disk.remove_tree(path)
            disk.unlink(PATHS.checkpoint)
        return disk


def walk(harness: BrokerHarness) -> list[Frame]:
    files = harness.disk.files()
    log = b"".join(files[path] for path in harness.segment_paths())
    pos, found = 0, []
    while pos < harness.broker.wrote_pos:
        header = read_header(log[pos : pos + FRAME_HEADER_SIZE])
        fields = ("size", "kind", "partition", "topic_id", "flushed")
        found.append(Frame(pos, *(header[name] for name in fields)))
        pos += header["size"]
    return found


@pytest.fixture(scope="module")
def story() -> Story:
    return Story()


def damage(disk: SimFileSystem, frame: Frame, how: str) -> None:
    path, offset = frame.place
    if how == "flip":
        disk.flip(path, offset + 30, 1)
    else:
        size = FRAME_HEADER_SIZE if frame.kind == KIND_BLANK else frame.size
        disk.open(path).pwritev([bytes(size)], offset)


def check_served(story: Story, harness: BrokerHarness, lost: set[int]) -> None:
    """Every intact record is served at its offset, and nothing else but timers delivered again."""
    names = {topic.topic_id: topic.name for topic in story.harness.broker.topics.all()}
    places = {
        (names[topic.topic_id], partition.index): (topic.name, partition)
        for topic in harness.broker.topics.all()
        for partition in topic.partitions
        if topic.topic_id in names
    }
    for place, records in story.given.records.items():
        intact = {n: value for n, (value, pos) in records.items() if pos not in lost}
        if not intact:
            continue
        name, partition = places[place]
        found = {record.offset: record.value for record in harness.fetch(name, partition.index)}
        old_end = max(records) + 1
        assert {n: value for n, value in found.items() if n < old_end} == intact, place


def check_given(story: Story, harness: BrokerHarness, *, has_cut: bool) -> None:
    """Write on: nothing that was given before is given again.

    Offsets of what was cut off as a torn tail may be, in the new epoch.
    """
    given = story.given
    assert harness.broker.epoch > story.harness.broker.epoch
    assert harness.broker.allocate_producer_id() > given.producer_id
    for group, generation in given.generations.items():
        frame = harness.broker.groups.groups.get(group)
        known = harness.broker.groups.generation_floor if frame is None else frame.generation
        assert known >= generation, group
        assert frame is None or frame.members in given.members[group]
    harness.create_topic("new")
    fresh = harness.topic("new")
    assert fresh.topic_id > given.topic_id
    names = {topic.topic_id: topic.name for topic in story.harness.broker.topics.all()}
    for topic in harness.broker.topics.all():
        if topic is fresh:
            continue
        for partition in topic.partitions:
            end = max(given.records[names[topic.topic_id], partition.index], default=-1) + 1
            offset = harness.produce(topic.name, partition.index, [Record(b"after")]).base_offset
            assert has_cut or offset >= end, (topic.name, partition.index)
            assert harness.fetch(topic.name, partition.index, offset)[-1].value == b"after"


def check_all(story: Story, frame: Frame, how: str, *, has_derived: bool) -> None:
    disk = story.disk(has_derived=has_derived)
    damage(disk, frame, how)
    harness = BrokerHarness(disk, story.harness.clock, story.harness.config)
    if has_derived and not harness.report.damage:
        return  # nobody has looked there; it is served or reported when somebody does
    is_cut = not harness.report.damage
    lost = {each.pos for each in story.frames if is_cut and each.pos >= frame.pos} | {frame.pos}
    check_served(story, harness, lost)
    check_given(story, harness, has_cut=is_cut)
    again = harness.restart()
    check_served(story, again, lost)
    if is_cut:
        # No frame after it shows that it was durable.
        assert max(each.flushed for each in story.frames) <= frame.pos
        return
    # What was judged lost does not come back, also when it heals and everything is rebuilt.
    expected = {
        (topic.name, partition.index): again.fetch(topic.name, partition.index)
        for topic in again.broker.topics.all()
        for partition in topic.partitions
    }
    again.broker.close()
    path, offset = frame.place
    before = story.harness.disk.files()[path][offset : offset + frame.size]
    again.disk.open(path).pwritev([before], offset)
    for derived in DERIVED:
        again.disk.remove_tree(derived)
    again.disk.unlink(PATHS.checkpoint)
    healed = BrokerHarness(again.disk, story.harness.clock, story.harness.config)
    assert healed.report.lost_bytes == 0
    for topic in healed.broker.topics.all():
        for partition in topic.partitions:
            found = healed.fetch(topic.name, partition.index)
            assert found == expected[topic.name, partition.index]
    assert healed.broker.pending_timers == again.broker.pending_timers


@pytest.mark.parametrize("has_derived", [False, True], ids=["log alone", "with checkpoint"])
@pytest.mark.parametrize("how", ["flip", "zero"])
def test_after_damage_to_any_frame(story: Story, how: str, *, has_derived: bool) -> None:
    kinds = set()
    fillers = 0
    for frame in story.frames[:-1]:
        if frame.kind == KIND_ACCEPT and frame.size > 2_000:
            fillers += 1
            if fillers % 10:
                continue
        check_all(story, frame, how, has_derived=has_derived)
        kinds.add(frame.kind)
    assert len(kinds) >= 9
