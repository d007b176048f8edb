"""One run of a simulated pair from one seed: clients, faults, repair, and everything checked.

`python -m tests.support.pair.run 17` plays again what a failed test names, and shows what happened.
"""

import argparse
import asyncio
import gc
import random
import sys
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.harness.loading import in_pieces
from tests.support.harness.small_files import repeatable_ids, small_watermark
from tests.support.oracles.kafka_oracle import CreateTopicsRequest, CreateTopicsResponse
from tests.support.pair import checks
from tests.support.pair.client import Gone, PairClient
from tests.support.pair.node import PairNode
from tests.support.pair.operator import CLIENTS, Operator
from tests.support.pair.processes import simulated_machines
from tests.support.pair.producers import ACKS_ALL, ORIGIN, PARTITIONS, TOPIC, PairProducer
from tests.support.pair.readers import PairReader
from tests.support.pair.record import PairRecord
from tests.support.simulator.node_clock import NodeClock
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.sim_loop import SimLoop
from tests.support.simulator.sim_network import Network
from tests.support.simulator.world import World

CREATE_VERSION: Final = 5

FAULTS: Final = 3
TIMEOUT_MS: Final = 400
"""After so long a silent peer is lost."""

LEASE_MS: Final = 500
"""A master of a sync pair acknowledges with acks=1 what is on its own disk, for so long."""

RUN_MS: Final = 120_000
"""No run takes longer, whatever happens in it."""

COLLECT_EVERY: Final = 16
"""Of so many runs one is followed by a search for garbage, which takes longer than some of them."""

SMALL_EVERY: Final = 3
TIMERS_MAX: Final = 4
"""One of so many runs has room for about so many timers in memory."""

DRAIN_MS: Final = 15_000
"""When all is repaired, everything is delivered and read within that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What kind of a pair a seed makes.

    Attributes:
        replication: sync or async.
        flush: sync or async.
        faults: how many there are.
    """

    seed: int
    replication: str
    flush: str
    faults: int

    @classmethod
    def of(cls, seed: int, faults: int = FAULTS) -> "Plan":
        """Return the plan of a seed."""
        rng = random.Random(seed)
        replication = "sync" if rng.random() < 0.75 else "async"
        flush = "sync" if rng.random() < 0.7 else "async"
        return cls(seed, replication, flush, faults)


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        faults: broken promises, in words; none if all is well.
        counts: what happened.
        trace: lines, if they were wanted.
    """

    faults: list[str]
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)


class PairRun:
    """A pair with its clients."""

    def __init__(self, plan: Plan, *, is_tracing: bool = False) -> None:
        self.plan = plan
        self.world = world = World(plan.seed, is_tracing=is_tracing)
        rng = world.rng
        self.network = Network(world)
        self.network.latency_ms = rng.choice((0.1, 1.0, 8.0))
        self.nodes = [self._make_node(number) for number in (1, 2)]
        self.record = PairRecord(self.nodes)
        self.operator = Operator(
            world,
            self.network,
            self.record,
            timeout_ms=TIMEOUT_MS,
            is_sync=plan.replication == "sync",
            is_sync_flush=plan.flush == "sync",
        )
        self.may_lose = plan.replication == "async"
        self._is_in_use = False
        self.loop = self._make_loop(CLIENTS)
        self._operator_loop = self._make_loop("127.0.0.8")
        self.producers = [self._make_producer(number) for number in range(3)]
        self.readers = [self._make_reader(f"r{number}", wait_ms=60) for number in range(2)]

    def _make_node(self, number: int) -> PairNode:
        rng = self.world.rng
        clock = NodeClock(
            self.world, offset_ms=rng.choice((0, 7, 150)), ppm=rng.choice((-200, 0, 200))
        )
        node = PairNode(
            self.world,
            self.network,
            number,
            clock,
            replication=self.plan.replication,
            flush=self.plan.flush,
            replication_timeout_ms=TIMEOUT_MS,
            replication_lease_ms=LEASE_MS,
            checkpoint_interval_bytes=1 << 16,
        )
        node.thread_ms = rng.choice((0.2, 2.0, 15.0, 60.0))
        return node

    def _make_loop(self, name: str) -> SimLoop:
        clock = NodeClock(self.world)
        host = self.network.add_host(name)
        return SimLoop(  # type: ignore[abstract]
            self.world, host, clock, SimFileSystem(), self.world.fork()
        )

    def _make_producer(self, number: int) -> PairProducer:
        rng = self.world.fork()
        name = f"p{number}"
        if not number:
            self.record.local_producers.add(name)
        return PairProducer(
            PairClient(self.loop, rng.choice((1, 2))),
            self.record,
            rng,
            name,
            acks=ACKS_ALL if number else 1,
            is_idempotent=number == 2,
            may_lose=self.may_lose,
            pause_ms=rng.choice((15, 40, 100)),
        )

    def _make_reader(self, name: str, *, wait_ms: int) -> PairReader:
        rng = self.world.fork()
        client = PairClient(self.loop, rng.choice((1, 2)))
        return PairReader(client, self.record, rng, name, wait_ms=wait_ms, may_lose=self.may_lose)

    def play(self) -> Outcome:
        """Let everything happen, and check it."""
        world, loop = self.world, self.loop
        self.operator.start()
        main = self._start(loop, self._use())
        world.run_ms(DRAIN_MS, until=lambda: self._is_in_use)
        faults = self._start(self._operator_loop, self.operator.run(self.plan.faults))
        broken = None
        if not world.run_ms(RUN_MS, until=faults.done):
            broken = f"the faults did not end within {RUN_MS} ms"
        else:
            broken = self._come_to_rest(main)
        if world.errors:
            error = world.errors[0]
            found = [f"{type(error).__name__}: {error}"]
        elif broken is not None:
            found = [broken, *self.record.faults]
        else:
            found = [*self.record.faults, *checks.check(self)]
        counts = self.operator.counts
        counts["events"] += len(self.record.events)
        self._end()
        return Outcome(found, counts, list(world.trace))

    def _come_to_rest(self, main: asyncio.Task[None]) -> str | None:
        """Let everything be delivered and read; return why that does not happen."""
        world = self.world
        for producer in self.producers:
            producer.is_stopping = True
        if not world.run_ms(DRAIN_MS, until=self._is_drained):
            return f"not all is delivered within {DRAIN_MS} ms: {self._state()}"
        last = self._make_reader("final", wait_ms=0)
        self._start(self.loop, last.run())
        if not world.run_ms(DRAIN_MS, until=lambda: self._has_read(last)):
            positions = [(each.name, each.offsets) for each in (*self.readers, last)]
            return f"a reader does not come to the end: {positions}, it is {self._ends()}"
        for reader in (*self.readers, last):
            reader.is_stopping = True
        world.run_ms(DRAIN_MS, until=main.done)
        if not world.run_ms(DRAIN_MS, until=self._is_equal):
            return f"the slave does not come to the end: {self.operator.state()}"
        return None

    def _is_equal(self) -> bool:
        """The slave has all of the log durably, and nobody writes any more."""
        master = self.operator.node(self.operator.master).broker
        slave = self.operator.node(self.operator.slave).broker
        return (
            master is not None
            and slave is not None
            and slave.follower is not None
            and master.wrote_pos == slave.follower.durable_pos
        )

    def _start(self, loop: SimLoop, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task, whose error ends the run."""
        task = loop.create_task(coroutine)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.world.errors.append(error)

    async def _use(self) -> None:
        await self._create_topics()
        self._is_in_use = True
        works = [*(each.run() for each in self.producers), *(each.run() for each in self.readers)]
        tasks = [self._start(self.loop, each) for each in works]
        for task in tasks:
            await task

    async def _create_topics(self) -> None:
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=-1,
                assignments=[],
                configs=[],
            )
            for name in (TOPIC, ORIGIN)
        ]
        client = PairClient(self.loop, 1)
        while True:
            request = CreateTopicsRequest(topics=topics, timeout_ms=1_000, validate_only=False)
            try:
                answer = await client.ask(request, CREATE_VERSION, CreateTopicsResponse)
            except Gone:
                await client.pause()
                continue
            if all(each.error_code in (0, 36) for each in answer.value.topics):
                return
            client.leave()
            await client.pause()

    def _is_drained(self) -> bool:
        """Everything is delivered, read and on both nodes."""
        master = self.operator.node(self.operator.master).broker
        if master is None or not self._is_equal():
            return False
        if not all(each.is_done for each in self.producers):
            return False
        pointers = master.log.pointers
        is_serving = hasattr(master, "topics")
        return is_serving and master.pending_timers == 0 and pointers.wrote == pointers.visible

    def _state(self) -> str:
        """What is not done, for people."""
        waiting = [each.name for each in self.producers if not each.is_done]
        broker = self.operator.node(self.operator.master).broker
        has_topics = broker is not None and hasattr(broker, "topics")
        pending = broker.pending_timers if broker is not None and has_topics else "?"
        facts = f"{waiting} have not ended, {pending} timers are pending"
        return f"{facts}; {self.operator.state()}"

    def _ends(self) -> dict[int, int]:
        """The end of each partition, on the master."""
        broker = self.operator.node(self.operator.master).broker
        topic = None if broker is None else broker.topics.find(TOPIC)
        assert topic is not None
        return {each.index: each.visible_offset for each in topic.partitions}

    def _has_read(self, last: PairReader) -> bool:
        """All readers are at the end."""
        ends = self._ends()
        readers = [each for each in self.readers if not each.is_stopping]
        return all(each.offsets == ends for each in (*readers, last))

    def _end(self) -> None:
        for node in self.nodes:
            if node.loop is not None:
                node.kill()
        for loop in (self.loop, self._operator_loop):
            loop.kill()


@contextmanager
def simulation() -> Iterator[None]:
    """What all runs of a process need, and none changes; enter it once for many of them."""
    with simulated_machines(), small_watermark():
        # What a run leaves is in cycles; `play` collects it now and then, and nothing else.
        gc.disable()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
            gc.enable()


def _memory_of(seed: int) -> AbstractContextManager[None]:
    """In some runs there is room for few timers, on the master and on the slave."""
    return in_pieces(count_max=TIMERS_MAX) if seed % SMALL_EVERY == 0 else nullcontext()


def play(seed: int, *, faults: int = FAULTS) -> Outcome:
    """Play the run of a seed, within `simulation`."""
    with repeatable_ids(seed), _memory_of(seed):
        outcome = PairRun(Plan.of(seed, faults)).play()
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    return outcome


def explain(seed: int, outcome: Outcome, *, faults: int = FAULTS) -> str:
    """Return what a failed test says."""
    command = f"python -m tests.support.pair.run {seed} --faults {faults}"
    return "\n".join((f"seed {seed}, {Plan.of(seed)}:", *outcome.faults[:10], f"again: {command}"))


def main() -> int:
    """Play one run, and show what happened in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--quiet", action="store_true", help="no trace")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.seed, arguments.faults)
    with small_watermark(), repeatable_ids(plan.seed), _memory_of(plan.seed):
        run = PairRun(plan, is_tracing=True)
        with simulated_machines(run.world.note):
            outcome = run.play()
    for error in run.world.errors:
        traceback.print_exception(error)
    lines = [] if arguments.quiet else outcome.trace
    sys.stdout.write("\n".join((*lines, str(plan), str(dict(outcome.counts)), *outcome.faults, "")))
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
