"""A crash between any two system calls: an acknowledged commit is there, and never an older one.

As tests/unit/store/test_crash_states.py, with offsets: `--states` says how many states are checked,
and each has a seed.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from appliance.config.config import Config
from tests.support.clients.offsets_client import (
    Commit,
    OffsetsClient,
    Place,
    by_topic,
    commit_request,
    delete_request,
)
from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.crash_points import CrashPoints
from tests.support.oracles.offsets_model import OffsetsModel, seen_by
from tests.support.simulator.sim_fs import CrashMode
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import Record, build_batch
from tests.support.values.record_requests import produce_request

GROUPS: Final = ("g", "h", "a group with a longer name")
TOPICS: Final = {"a": 3, "b": 2}
TURNS_PER_RUN: Final = 12
WHOLE_SIZE_MAX: Final = 3_000
"""Of a request that is always stored whole; with small segments what shares a frame is 4 KiB."""
FIXED_SIZE: Final = 100
"""Of a committed offset, at most, beside its metadata."""


@dataclass(frozen=True, slots=True)
class Change:
    """One request: what is committed, or with None for an offset deleted."""

    group: str
    commits: dict[Place, Commit]
    is_deletion: bool = False

    def apply(self, model: OffsetsModel) -> None:
        if self.is_deletion:
            model.delete(self.group, self.commits)
        else:
            model.commit(self.group, self.commits)

    def parts(self) -> list["Change"]:
        """What is stored whole: all of it, unless it is larger than what shares a frame here."""
        size = sum(FIXED_SIZE + len(one.metadata or "") for one in self.commits.values())
        if size < WHOLE_SIZE_MAX:
            return [self]
        order = by_topic(self.commits)
        places = [(topic, index) for topic, indexes in order.items() for index in indexes]
        return [Change(self.group, {place: self.commits[place]}) for place in places]

    def encode(self, number: int) -> bytes:
        if self.is_deletion:
            return framed(delete_request(self.group, self.commits), 0, number)
        return framed(commit_request(self.group, self.commits), 7, number)


class OffsetsRun:
    """A broker whose clients commit, and what a restart at this moment may find.

    Attributes:
        models: the offsets after each request, from the first on.
        durable: index of the oldest one that a restart may find; the newest is the last one.
    """

    def __init__(self, seed: int, config: Config) -> None:
        self.rng = random.Random(seed)
        self.config = config
        self.disk = CrashPoints()
        self.clock = VirtualClock()
        self.models = [OffsetsModel()]
        self.durable = self._flushed = 0
        self._counter = 0

    def start(self) -> None:
        harness = BrokerHarness(self.disk, self.clock, self.config)
        for name, count in TOPICS.items():
            harness.create_topic(name, count)
        harness.flush()
        self.offsets = OffsetsClient(WireClient(harness))

    def play(self) -> None:
        for _ in range(TURNS_PER_RUN):
            self.turn()
            match self.rng.randrange(6):
                case 0:
                    self.offsets.harness.housekeep()
                case 1 | 2:
                    self.slow_flush()
                case 3:
                    self.flush()
                case 4:
                    self.peek()
        self.delete_topic("b")
        self.turn()
        self.flush()

    def turn(self) -> None:
        """Several requests in one read, records among them."""
        changes = [self._change() for _ in range(self.rng.randrange(1, 6))]
        data = b""
        for change in changes:
            for part in change.parts():
                self.models.append(self.models[-1].copy())
                part.apply(self.models[-1])
            data += change.encode(len(self.models) - 1)
            if self.rng.random() < 0.3:
                data += self._batch()
        self.offsets.client.send_bytes(data)
        self._take_answers()

    def _change(self) -> Change:
        rng = self.rng
        places = [(name, index) for name, count in TOPICS.items() for index in range(count)]
        places = [p for p in places if self.offsets.harness.broker.topics.find(p[0]) is not None]
        places = rng.sample(places, rng.randrange(1, len(places) + 1))
        group = rng.choice(GROUPS)
        if group in self.models[-1].groups and rng.random() < 0.2:
            return Change(group, {place: Commit(-1) for place in places}, is_deletion=True)
        return Change(group, {place: self._commit() for place in places})

    def _commit(self) -> Commit:
        self._counter += 1
        size = self.rng.choice((0, 0, 10, 300, 3000))
        return Commit(self._counter, f"{self._counter}".ljust(size, "x") if size else "")

    def _batch(self) -> bytes:
        batch = build_batch([Record(self.rng.randbytes(self.rng.randrange(10, 3_000)))])
        return framed(produce_request([("a", [(0, batch)])]), 8, 0)

    def flush(self) -> None:
        self.offsets.harness.flush()
        self._flushed = len(self.models) - 1
        self._take_answers()

    def slow_flush(self) -> None:
        """More is committed while a flush runs on its thread."""
        job = self.offsets.harness.broker.log.begin_flush()
        if job is None:
            return
        flushed = len(self.models) - 1
        self.turn()
        job.run()
        self.turn()
        self.offsets.harness.broker.end_flush(job)
        self._flushed = flushed
        self._take_answers()

    def peek(self) -> None:
        """A client fetches all offsets: what it has seen must survive."""
        self.flush()
        assert seen_by(self.offsets) == self.models[-1].seen()
        self.durable = len(self.models) - 1

    def delete_topic(self, name: str) -> None:
        self.models.append(self.models[-1].copy())
        self.models[-1].delete_topic(name)
        self.offsets.harness.delete_topic(name)
        self.offsets.harness.flush()
        self._flushed = self.durable = len(self.models) - 1

    def _take_answers(self) -> None:
        """Who has an answer, expects what it says of any restart."""
        for payload in split_answers(self.offsets.client.take()):
            number = int.from_bytes(payload[:4], "big")
            self.durable = max(self.durable, number)

    def possible(self, mode: CrashMode) -> list[OffsetsModel]:
        """What a restart may find; a power cut takes what an async broker has not flushed."""
        is_lossy = self.config.flush == "async" and mode != "kept"
        return self.models[self._flushed if is_lossy else self.durable :]


class Enumeration:
    """Looks at the states that a crash before each call of one run leaves."""

    def __init__(self, seed: int, config: Config) -> None:
        self.seed = seed
        self.count = 0
        self.run = OffsetsRun(seed, config)
        self._rng = random.Random(seed + 1)

    def play(self) -> None:
        self.run.start()
        self.run.disk.observer = self._look
        self.run.play()
        self._look()
        self._check_replay()

    def _modes(self) -> Iterator[tuple[CrashMode, int]]:
        yield "kept", 0
        yield "dropped", 0
        yield "torn", self._rng.randrange(1 << 30)

    def _look(self) -> None:
        for mode, torn_seed in self._modes():
            self.count += 1
            try:
                self._check(mode, torn_seed)
            except Exception:
                call = self.run.disk.calls + 1
                sys.stdout.write(f"seed {self.seed}: {mode} {torn_seed}, before call {call}\n")
                raise

    def _check(self, mode: CrashMode, torn_seed: int) -> None:
        left = self.run.disk.crashed(mode, random.Random(torn_seed))
        clock = VirtualClock(wall_ms=self.run.clock.wall_ms())
        offsets = OffsetsClient(WireClient(BrokerHarness(left, clock, self.run.config)))
        seen = seen_by(offsets)
        possible = self.run.possible(mode)
        assert any(model.seen() == seen for model in possible), (seen, possible)
        again = offsets.reborn("crash")
        assert seen_by(again) == seen
        # It goes on from there.
        again.commit("g", {("a", 0): Commit(1 << 40)})
        assert again.fetch("g")["a", 0].offset == 1 << 40

    def _check_replay(self) -> None:
        """A broker that never stopped and one that replays its log return the same."""
        live = seen_by(self.run.offsets)
        assert live == self.run.models[-1].seen()
        assert seen_by(self.run.offsets.reborn("restart")) == live


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_crash_at_any_call_leaves_whole_requests_and_all_that_was_acknowledged(
    flush: str, states: int
) -> None:
    config = small_config(flush=flush)
    seed = 0 if flush == "sync" else 1_000_000
    count = longest = 0
    while count < states // 100:
        enumeration = Enumeration(seed, config)
        enumeration.play()
        count += enumeration.count
        longest = max(longest, enumeration.run.offsets.harness.broker.wrote_pos)
        seed += 1
    assert longest > config.segment_size_bytes, "the run no longer fills a segment"
