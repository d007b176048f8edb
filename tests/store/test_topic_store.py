"""Changes of topics in the log: after any stop each is there as a whole or not at all."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR, small_config
from tests.support.crash_points import CrashPoints
from tests.support.kafka_records import Record, delay
from tests.support.sim_fs import CrashMode

State = dict[str, Any]

CHECKED_AGAIN_EVERY = 5
"""Of so many crash states one is started a second time."""


def state_of(rig: BrokerRig) -> State:
    """What changes of topics change."""
    return {
        topic.name: (
            dict(topic.settings),
            [(each.start_offset, each.visible_offset) for each in topic.partitions],
        )
        for topic in rig.broker.topics()
    }


class Run:
    """Random changes and records; at each call to the disk, what a crash would leave is checked."""

    def __init__(self, seed: int, flush: str) -> None:
        self.rng = random.Random(seed)
        self.disk = CrashPoints()
        self.config = small_config(flush=flush)
        self.rig = BrokerRig(self.disk, config=self.config)
        self.states = [state_of(self.rig)]
        self.durable = 0
        self.crashes = 0

    def play(self, steps: int) -> None:
        self.rig.create_topic("t", 2)
        self.rig.flush()
        self._note()
        self._flushed()
        self.disk.observer = self._look
        for _ in range(steps):
            self._step()
            self._note()
            if self.rng.random() < 0.4:
                self.rig.flush()
                self._note()
                self._flushed()
        self.disk.observer = lambda: None

    def _step(self) -> None:
        rng, broker = self.rng, self.rig.broker
        (topic,) = broker.topics()
        match rng.randrange(5):
            case 0:
                settings = {"delay.timestamp": rng.choice(("due", "created"))}
                broker.replace_topic_settings(topic, settings | self._limit())
            case 1 if len(topic.partitions) < 6:
                broker.add_partitions(topic, len(topic.partitions) + rng.randrange(1, 3))
            case 2:
                broker.delete_records(
                    topic,
                    {
                        each.index: rng.randrange(each.start_offset, each.visible_offset + 1)
                        for each in topic.partitions
                    },
                )
            case _:
                index = rng.randrange(len(topic.partitions))
                records = [Record(rng.randbytes(rng.choice((20, 3_500))))]
                self.rig.send_produce("t", index, records * rng.randrange(1, 3))
        broker.commit()

    def _limit(self) -> dict[str, str]:
        return {"max.message.bytes": "8000"} if self.rng.random() < 0.5 else {}

    def _note(self) -> None:
        self.states.append(state_of(self.rig))

    def _flushed(self) -> None:
        self.durable = len(self.states) - 1

    def _look(self) -> None:
        mode: CrashMode = self.rng.choice(("kept", "dropped", "torn", "torn"))
        seed = self.rng.randrange(1 << 30)
        found = BrokerRig(self.disk.crashed(mode, random.Random(seed)), self.rig.clock, self.config)
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


def check_restart(rig: BrokerRig) -> None:
    """What a start has found the next one finds too, without any derived file."""
    found = state_of(rig)
    disk = rig.disk.crashed("dropped", random.Random(0))
    disk.remove_tree(Path(DATA_DIR / "consumequeue"))
    assert state_of(BrokerRig(disk, rig.clock, rig.config)) == found


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_after_a_crash_each_change_is_there_or_is_not(flush: str, seed: int) -> None:
    run = Run(seed, flush)
    run.play(70)
    assert run.crashes > 70
    assert run.rig.broker.wrote_pos > run.config.segment_size_bytes
    partitions = run.rig.broker.topics()[0].partitions
    assert len(partitions) > 2
    assert any(each.start_offset for each in partitions)


# Damage


def story(starts: dict[int, int]) -> tuple[BrokerRig, list[tuple[int, int]]]:
    """Ten batches of one record, a change of start offsets; where in the log each of them is."""
    rig = BrokerRig()
    rig.create_topic("t")
    frames = []
    for number in range(10):
        start = rig.broker.wrote_pos
        rig.produce("t", 0, [Record(b"%d" % number)])
        frames.append((start, rig.broker.wrote_pos))
    start = rig.broker.wrote_pos
    rig.broker.delete_records(rig.broker.topics()[0], starts)
    rig.flush()
    frames.append((start, rig.broker.wrote_pos))
    rig.produce("t", 0, [Record(b"10", headers=delay(500))])
    return rig, frames


def damaged(rig: BrokerRig, frames: Sequence[tuple[int, int]]) -> BrokerRig:
    """A start after each of these frames has rotted."""
    disk = rig.disk.crashed("kept", random.Random(0))
    for start, _ in frames:
        disk.flip(DATA_DIR / "commitlog" / f"{0:020d}", start + 10, 1)
    found = BrokerRig(disk, rig.clock, rig.config)
    assert sum(each.size for each in found.report.damage) >= sum(b - a for a, b in frames)
    return found


def test_a_start_offset_beyond_what_damage_left_holds() -> None:
    rig, frames = story({0: 8})
    found = damaged(rig, frames[5:10])
    (partition,) = found.broker.topics()[0].partitions
    assert (partition.start_offset, partition.visible_offset) == (8, 10)
    assert found.fetch("t", 0, 8) == []
    # The next record has the offset that it would have had: the frame of the change tells it.
    found.tick(500)
    assert [(each.offset, each.value) for each in found.fetch("t", 0, 8)] == [(10, b"10")]
    again = found.restart()
    assert [(each.offset, each.value) for each in again.fetch("t", 0, 8)] == [(10, b"10")]


def test_a_start_offset_whose_frame_rotted_is_told_again_by_the_next_segment() -> None:
    rig, frames = story({0: 8})
    found = damaged(rig, frames[10:])
    ((start, end),) = state_of(found)["t"][1]
    assert start == 0
    assert end > 10  # nobody knows what the lost frame was
    for _ in range(40):
        rig.produce("t", 0, [Record(b"x" * 3_000)])
    found = damaged(rig, frames[10:])
    assert state_of(found)["t"][1] == [(8, 50)]
    assert found.fetch("t", 0, 8)[0].value == b"8"


def test_added_partitions_whose_frame_rotted_begin_where_the_next_segment_says() -> None:
    rig = BrokerRig()
    rig.create_topic("t")
    start = rig.broker.wrote_pos
    rig.broker.add_partitions(rig.broker.topics()[0], 2)
    frame = start, rig.broker.wrote_pos
    rig.produce("t", 1, [Record(b"intact")])
    for _ in range(40):
        rig.produce("t", 0, [Record(b"x" * 3_000)])
    rig.produce("t", 1, [Record(b"kept")])
    found = damaged(rig, [frame])
    assert state_of(found)["t"][1] == [(0, 40), (0, 2)]
    assert [each.value for each in found.fetch("t", 1)] == [b"intact", b"kept"]
