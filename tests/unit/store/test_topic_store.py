"""Changes of topics in the log: after any stop each is there as a whole or not at all."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.crash_points import CrashPoints
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Record, delay

State = dict[str, Any]

CHECKED_AGAIN_EVERY = 5
"""Of so many crash states one is started a second time."""


def state_of(harness: BrokerHarness) -> State:
    """What changes of topics change."""
    return {
        topic.name: (
            dict(topic.settings),
            [(each.start_offset, each.visible_offset) for each in topic.partitions],
        )
        for topic in harness.broker.topics.all()
    }


class Run:
    """Random changes and records; at each call to the disk, what a crash would leave is checked."""

    def __init__(self, seed: int, flush: str) -> None:
        self.rng = random.Random(seed)
        self.disk = CrashPoints()
        self.config = small_config(flush=flush)
        self.harness = BrokerHarness(self.disk, config=self.config)
        self.states = [state_of(self.harness)]
        self.durable = 0
        self.crashes = 0

    def play(self, steps: int) -> None:
        self.harness.create_topic("t", 2)
        self.harness.flush()
        self._note()
        self._flushed()
        self.disk.observer = self._look
        for _ in range(steps):
            self._step()
            self._note()
            if self.rng.random() < 0.4:
                self.harness.flush()
                self._note()
                self._flushed()
        self.disk.observer = lambda: None

    def _step(self) -> None:
        rng, broker = self.rng, self.harness.broker
        (topic,) = broker.topics.all()
        match rng.randrange(5):
            case 0:
                settings = {"delay.timestamp": rng.choice(("due", "created"))}
                broker.topics.replace_settings(topic, settings | self._limit())
            case 1 if len(topic.partitions) < 6:
                broker.topics.add_partitions(topic, len(topic.partitions) + rng.randrange(1, 3))
            case 2:
                broker.topics.delete_records(
                    topic,
                    {
                        each.index: rng.randrange(each.start_offset, each.visible_offset + 1)
                        for each in topic.partitions
                    },
                )
            case _:
                index = rng.randrange(len(topic.partitions))
                records = [Record(rng.randbytes(rng.choice((20, 3_500))))]
                self.harness.send_produce("t", index, records * rng.randrange(1, 3))
        broker.commit()

    def _limit(self) -> dict[str, str]:
        return {"max.message.bytes": "8000"} if self.rng.random() < 0.5 else {}

    def _note(self) -> None:
        self.states.append(state_of(self.harness))

    def _flushed(self) -> None:
        self.durable = len(self.states) - 1

    def _look(self) -> None:
        mode: CrashMode = self.rng.choice(("kept", "dropped", "torn", "torn"))
        seed = self.rng.randrange(1 << 30)
        found = BrokerHarness(
            self.disk.crashed(mode, random.Random(seed)), self.harness.clock, self.config
        )
        self.crashes += 1
        assert not found.report.damage
        possible = [comparable(state) for state in self.states[self.durable :]]
        assert comparable(state_of(found)) in possible, (mode, seed)
        if self.crashes % CHECKED_AGAIN_EVERY == 0:
            check_restart(found)


def comparable(state: State) -> Any:
    """Without the ends of partitions: what is written and not flushed is not visible yet."""
    return {
        name: (settings, [start for start, _ in partitions])
        for name, (settings, partitions) in state.items()
    }


def check_restart(harness: BrokerHarness) -> None:
    """What a start has found the next one finds too, without any derived file."""
    found = state_of(harness)
    disk = harness.disk.crashed("dropped", random.Random(0))
    disk.remove_tree(Path(DATA_DIR / "consumequeue"))
    assert state_of(BrokerHarness(disk, harness.clock, harness.config)) == found


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_after_a_crash_each_change_is_there_or_is_not(flush: str, seed: int) -> None:
    run = Run(seed, flush)
    run.play(70)
    assert run.crashes > 70
    assert run.harness.broker.wrote_pos > run.config.segment_size_bytes
    partitions = run.harness.broker.topics.all()[0].partitions
    assert len(partitions) > 2
    assert any(each.start_offset for each in partitions)


# Damage


def story(starts: dict[int, int]) -> tuple[BrokerHarness, list[tuple[int, int]]]:
    """Ten batches of one record, a change of start offsets; where in the log each of them is."""
    harness = with_topic()
    frames = []
    for number in range(10):
        start = harness.broker.wrote_pos
        harness.produce("t", 0, [Record(b"%d" % number)])
        frames.append((start, harness.broker.wrote_pos))
    start = harness.broker.wrote_pos
    harness.broker.topics.delete_records(harness.broker.topics.all()[0], starts)
    harness.flush()
    frames.append((start, harness.broker.wrote_pos))
    harness.produce("t", 0, [Record(b"10", headers=delay(500))])
    return harness, frames


def damaged(harness: BrokerHarness, frames: Sequence[tuple[int, int]]) -> BrokerHarness:
    """A start after each of these frames has rotted."""
    disk = harness.disk.crashed("kept", random.Random(0))
    for start, _ in frames:
        disk.flip(DATA_DIR / "commitlog" / f"{0:020d}", start + 10, 1)
    found = BrokerHarness(disk, harness.clock, harness.config)
    assert sum(each.size for each in found.report.damage) >= sum(b - a for a, b in frames)
    return found


def test_a_start_offset_beyond_what_damage_left_holds() -> None:
    harness, frames = story({0: 8})
    found = damaged(harness, frames[5:10])
    (partition,) = found.broker.topics.all()[0].partitions
    assert (partition.start_offset, partition.visible_offset) == (8, 10)
    assert found.fetch("t", 0, 8) == []
    # The frame of the change holds the offset that the next record would have had.
    found.tick(500)
    assert [(each.offset, each.value) for each in found.fetch("t", 0, 8)] == [(10, b"10")]
    again = found.restart()
    assert [(each.offset, each.value) for each in again.fetch("t", 0, 8)] == [(10, b"10")]


def test_a_start_offset_whose_frame_rotted_is_repeated_by_the_next_segment() -> None:
    harness, frames = story({0: 8})
    found = damaged(harness, frames[10:])
    ((start, end),) = state_of(found)["t"][1]
    assert start == 0
    assert end > 10  # nobody knows what the lost frame was
    for _ in range(40):
        harness.produce("t", 0, [Record(b"x" * 3_000)])
    found = damaged(harness, frames[10:])
    assert state_of(found)["t"][1] == [(8, 50)]
    assert found.fetch("t", 0, 8)[0].value == b"8"


def test_added_partitions_whose_frame_rotted_begin_where_the_next_segment_says() -> None:
    harness = with_topic()
    start = harness.broker.wrote_pos
    harness.broker.topics.add_partitions(harness.broker.topics.all()[0], 2)
    frame = start, harness.broker.wrote_pos
    harness.produce("t", 1, [Record(b"intact")])
    for _ in range(40):
        harness.produce("t", 0, [Record(b"x" * 3_000)])
    harness.produce("t", 1, [Record(b"kept")])
    found = damaged(harness, [frame])
    assert state_of(found)["t"][1] == [(0, 40), (0, 2)]
    assert found.values(partition=1) == [b"intact", b"kept"]
