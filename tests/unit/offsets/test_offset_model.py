"""A broker and dictionaries hold the same offsets after any requests and any kind of stop."""

import random
from typing import Final

import pytest

from tests.support.clients.offsets_client import Commit, OffsetsClient, Place
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.oracles.offsets_model import OffsetsModel, seen_by
from tests.support.values.kafka_records import Record

SEEDS: Final = range(8)
STEPS: Final = 300
GROUPS: Final = ("g", "h", "", "grüße")
PARTITION_COUNTS: Final = {"a": 3, "b": 1, "c": 40}
RETENTION_MS: Final = 3_600_000


class ModelRun:
    """Asks a broker and the model the same."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        harness = BrokerHarness(config=small_config(offset_retention_ms=RETENTION_MS))
        self.offsets = OffsetsClient(WireClient(harness))
        self.model = OffsetsModel()
        self.committed_ms: dict[tuple[str, Place], int] = {}
        self.topics: set[str] = set()
        self.expired = 0

    def step(self) -> None:
        match self.rng.randrange(16):
            case 0:
                self.create_topic()
            case 1:
                self.delete_topic()
            case 2:
                self.offsets = self.offsets.reborn("restart")
            case 3:
                self.offsets = self.offsets.reborn("crash")
            case 4:
                self.pass_time()
            case 5 | 6 | 7:
                self.delete()
            case 8 if self.topics:
                name = self.rng.choice(sorted(self.topics))
                self.offsets.harness.produce(name, 0, [Record(self.rng.randbytes(2_000))])
            case _:
                self.commit()

    def create_topic(self) -> None:
        name = self.rng.choice(list(PARTITION_COUNTS))
        if name not in self.topics:
            self.topics.add(name)
            self.offsets.harness.create_topic(name, PARTITION_COUNTS[name])

    def delete_topic(self) -> None:
        if self.topics and self.rng.random() < 0.3:
            name = self.rng.choice(sorted(self.topics))
            self.topics.discard(name)
            self.offsets.harness.delete_topic(name)
            self.model.delete_topic(name)

    def places(self) -> list[Place]:
        """Any, of which some do not exist."""
        every = [
            (name, index) for name, count in PARTITION_COUNTS.items() for index in range(count + 1)
        ]
        return self.rng.sample(every, self.rng.choice((1, 2, 5, 20)))

    def exists(self, place: Place) -> bool:
        return place[0] in self.topics and place[1] < PARTITION_COUNTS[place[0]]

    def commit(self) -> None:
        rng, group = self.rng, self.rng.choice(GROUPS)
        commits = {
            place: Commit(
                rng.randrange(1 << 62),
                rng.choice((None, "", "ü", "x" * rng.randrange(1_000))),
                rng.randrange(-1, 9),
            )
            for place in self.places()
        }
        version = rng.randrange(6, 10)
        errors = self.offsets.commit(group, commits, version=version)
        assert errors == {place: 0 if self.exists(place) else 3 for place in commits}
        done = {place: one for place, one in commits.items() if self.exists(place)}
        self.model.commit(group, done)
        now_ms = self.offsets.harness.clock.wall_ms()
        self.committed_ms |= {(group, place): now_ms for place in done}

    def delete(self) -> None:
        group, places = self.rng.choice(GROUPS), self.places()
        error, errors = self.offsets.delete(group, places)
        if error:
            is_known = bool(self.model.groups.get(group))
            assert (error, errors) == (69 if group else 24, {})
            assert not (group and is_known)
        else:
            self.model.delete(group, places)

    def pass_time(self) -> None:
        """Rarely so much that what was committed before expires; a stop may lose its age."""
        harness = self.offsets.harness
        harness.age(self.rng.randrange(1, self.rng.choice((RETENTION_MS // 2, 3 * RETENTION_MS))))
        harness.flush()
        now_ms = harness.clock.wall_ms()
        names = {topic.topic_id: topic.name for topic in harness.broker.topics.all()}
        for group, offsets in self.model.groups.items():
            kept = {(names[key], index) for key, index in harness.broker.groups.offsets(group)}
            for place in offsets.keys() - kept:
                assert now_ms - self.committed_ms[group, place] >= RETENTION_MS
                del offsets[place]
                self.expired += 1


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_are_those_of_the_model(seed: int) -> None:
    run = ModelRun(seed)
    for number in range(STEPS):
        run.step()
        assert seen_by(run.offsets) == run.model.seen(), f"seed {seed}, step {number}"
    assert run.offsets.harness.broker.wrote_pos > run.offsets.harness.config.segment_size_bytes
    assert run.expired > 0
