"""A slave in process on a simulated disk: the test sends it the master's bytes, and promotes it."""

import random
from collections.abc import Iterator
from typing import Any

from appliance.broker import Broker
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.follower import Follower, Job
from appliance.store.recovery.report import Progress
from appliance.store.runs.timer_load import LoadJob
from appliance.store.state.checkpointer import CheckpointJob
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock

STEPS_MAX = 1_000
"""Slices of a checkpoint, many more than one takes."""


class SlaveHarness:
    """A slave that follows, until it is promoted.

    Attributes:
        disk, clock, broker, follower: what it is made of.
        lookup_count: how often it had to read ids before it applied frames.
    """

    def __init__(
        self,
        disk: SimFileSystem | None = None,
        clock: VirtualClock | None = None,
        **settings: Any,
    ) -> None:
        self.disk = disk or SimFileSystem()
        self.clock = clock or VirtualClock()
        self.config = small_config(role="slave", master="127.0.0.1:1", **settings)
        self.broker = Broker(self.clock, self.disk, self.config, KAFKA_FACADE)
        self._start: Iterator[Progress] = iter(self.broker.recover())
        while self.broker.follower is None:
            assert self.broker.repair is None, "its log is damaged"
            next(self._start)
        self.follower: Follower = self.broker.follower
        self.lookup_count = 0

    def receive(
        self, master: BrokerHarness, rng: random.Random | None = None, *, end: int | None = None
    ) -> None:
        """Append what the master has beyond this log, in pieces of any size.

        Args:
            master: nothing of it is pending.
            rng: chooses the sizes of the pieces; None: as large as possible.
            end: log position at which the connection ends; None: the end of the master's log.
        """
        log = master.broker.log
        end = log.pointers.committed if end is None else end
        if not self.follower.has_log:
            self.follower.restart(log.start_pos)
        while self.follower.received_pos < end:
            pos = self.follower.received_pos
            size = end - pos if rng is None else min(end - pos, rng.choice([1, 7, 60, 300, 5000]))
            lookup = self.follower.append(pos, log.read(pos, size))
            while lookup is not None:
                self.lookup_count += 1
                lookup.run()
                lookup = self.follower.end_lookup(lookup)

    def flush(self) -> None:
        """Make durable what was received."""
        self.follower.flush()

    def checkpoint(self) -> None:
        """Flush, and take a checkpoint."""
        self.flush()
        self.follower.checkpoints.ask()
        job = self.next_job()
        assert isinstance(job, CheckpointJob)
        job.run()
        self.follower.end_job(job)
        assert job.error is None

    def next_job(self) -> Job:
        """The next job of this slave, which has one."""
        for _ in range(STEPS_MAX):
            job = self.follower.step_job()
            if job is not None:
                return job
        raise AssertionError("there is no job")

    def work(self) -> None:
        """Take the checkpoints that are due and free what can be freed, without a flush."""
        idle = 0
        while idle < 2:  # a step may ask for a checkpoint that the next one begins
            job = self.follower.step_job()
            if job is not None:
                job.run()
                self.follower.end_job(job)
            is_waiting = self.follower.durable_pos < self.follower.end_pos
            is_going_on = self.follower.checkpoints.is_capturing and not is_waiting
            idle = 0 if job is not None or is_going_on else idle + 1

    def load_timers(self) -> None:
        """Drop and load timers until nothing is to be loaded, as `TimerLoading` does."""
        memory = self.follower.timer_memory
        while True:
            now_ms, now_ns = self.clock.wall_ms(), self.clock.monotonic_ns()
            memory.evict(now_ms, now_ns)
            load = memory.next(now_ms, now_ns)
            if load is None:
                return
            job = LoadJob(load)
            job.run()
            assert job.error is None
            for piece in job.pieces:
                load.take(piece)

    def log_bases(self) -> list[int]:
        """The base positions of the segments on the disk, ascending."""
        return sorted(int(name) for name in self.disk.list_dir(DATA_DIR / "commitlog"))

    def restart(self) -> "SlaveHarness":
        """Stop cleanly, and start again on the same disk."""
        self.broker.close()
        return SlaveHarness(self.disk, self.clock)

    def crash(self, mode: CrashMode, rng: random.Random) -> "SlaveHarness":
        """Start a slave on what a crash at this moment leaves."""
        return SlaveHarness(self.disk.crashed(mode, rng), self.clock)

    def promote(self) -> BrokerHarness:
        """End the following, and return the broker on the same disk as a master."""
        self.follower.promote()
        for _ in self._start:
            pass
        self.broker.close()
        return BrokerHarness(self.disk, self.clock, self.config)
