"""Many runs of a broker, crashed before each of their calls in many ways, on all processors.

A state is a disk as a crash may leave it. It counts if no other state of its run has equal bytes.
"""

import itertools
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeVar

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.crash_check import CrashChecker
from tests.support.harness.crash_points import CrashPoints
from tests.support.harness.crash_run import CrashRun, Known
from tests.support.harness.loading import in_pieces
from tests.support.harness.small_files import repeatable_ids, small_watermark
from tests.support.simulator.sim_fs import CrashMode
from tests.support.simulator.virtual_clock import VirtualClock

CHUNK_RECORDS: Final = 16
"""Records delivered at a time, so that a delivery needs several frames."""

TRIES: Final[dict[CrashMode, int]] = {
    "killed": 1, "kept": 1, "dropped": 1, "torn": 6, "pages": 3, "last": 3, "names": 2,
}  # fmt: skip
"""How often each kind of crash is tried at each call."""

NESTED_EVERY: Final = 150
"""One in this many states is started on and crashed again at each call, once in each way."""

LIVES: Final[tuple[tuple[CrashMode, ...], ...]] = ((), ("killed",), ("dropped", "kept"), ("torn",))
"""How the lives before the last end, in turn."""


PIECES_EVERY: Final = 3
"""In one of this many runs a start leaves timers to be loaded while it serves."""

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Job:
    """Runs with the seeds `first_seed`, `first_seed + step` .. until `states` states were seen."""

    first_seed: int
    step: int
    states: int
    flush: str = "sync"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was checked.

    Attributes:
        checked: crashes.
        distinct: distinct disks that they left.
        starts: brokers started on them.
        runs: how many runs.
        longest: size of the longest log, bytes.
    """

    checked: int = 0
    distinct: int = 0
    starts: int = 0
    runs: int = 0
    longest: int = 0

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.checked + other.checked,
            self.distinct + other.distinct,
            self.starts + other.starts,
            self.runs + other.runs,
            max(self.longest, other.longest),
        )


class Enumeration:
    """Checks the crash states of one run, at each of its calls."""

    def __init__(
        self,
        seed: int,
        flush: str,
        disk: CrashPoints | None = None,
        most: int = 1 << 62,
    ) -> None:
        """Prepare a run, which its seed determines.

        Args:
            seed: for everything random.
            flush: the setting.
            disk: an empty one.
            most: stop after this many states, once the current call is checked.
        """
        config = small_config(delivery_chunk_records=CHUNK_RECORDS, flush=flush)
        self.seed = seed
        self.run = CrashRun(random.Random(seed), disk or CrashPoints(), config=config)
        self.checker = CrashChecker(config)
        self._rng = random.Random(seed + 1)
        self._next_nested = NESTED_EVERY
        self._most = most

    def play(self) -> Outcome:
        """Play the run.

        Raises:
            AssertionError: a state is not allowed; the message names it and the crash.
        """
        lives = LIVES[self.seed % len(LIVES)]
        pieces: AbstractContextManager[None] = nullcontext()
        if self.seed % PIECES_EVERY == 0:
            pieces = in_pieces(count_max=(None, 3)[self.seed % 2])
        with small_watermark(), repeatable_ids(self.seed), pieces:
            self.run.disk.observer = self._check_crashes
            self.run.play(lives)
            self._check_crashes()
        checker = self.checker
        longest = self.run.harness.broker.wrote_pos
        return Outcome(checker.checked, checker.distinct, checker.starts, 1, longest)

    def _crashes(self, most: int) -> Iterator[tuple[CrashMode, int]]:
        for mode, count in TRIES.items():
            for _ in range(min(count, most)):
                yield mode, self._rng.randrange(1 << 30)

    def _check_crashes(self) -> None:
        disk = self.run.disk
        if self.checker.distinct >= self._most:
            return
        for mode, seed in self._crashes(max(TRIES.values())):
            self._check(disk, mode, seed, self.run.known(mode))
            if self.checker.distinct >= self._next_nested:
                self._next_nested = self.checker.distinct + NESTED_EVERY
                self._crash_start(disk.crashed(mode, random.Random(seed)), mode)

    def _check(self, disk: CrashPoints, mode: CrashMode, seed: int, known: Known) -> None:
        try:
            self.checker.check(disk.crashed(mode, random.Random(seed)), known)
        except Exception as error:
            raise AssertionError(
                f"run {self.seed}: {mode} {seed}, a crash before call {disk.calls + 1}\n"
                f"{disk.trace()}\n{error}"
            ) from error

    def _crash_start(self, disk: CrashPoints, mode: CrashMode) -> None:
        """Crash a start at each of its calls; `mode` is how the broker before it ended."""

        def check_start() -> None:
            for second, seed in self._crashes(1):
                known = self.run.known(second if mode == "killed" else mode)
                self._check(disk, second, seed, known)

        disk.observer = check_start
        BrokerHarness(disk, VirtualClock(wall_ms=self.run.clock.wall_ms()), self.run.config)


def do(job: Job) -> Outcome:
    """Play the runs of one job."""
    outcome = Outcome()
    for seed in itertools.count(job.first_seed, job.step):
        outcome += Enumeration(seed, job.flush, most=job.states - outcome.distinct).play()
        if outcome.distinct >= job.states:
            return outcome
    raise AssertionError("the seeds never end")


def do_all(jobs: Sequence[Job]) -> Outcome:
    """Play the runs of all jobs side by side; raises what the first failed job raises."""
    return sum(on_all_processors(do, jobs), Outcome())


def on_all_processors(function: Callable[[J], R], jobs: Sequence[J]) -> list[R]:
    """The results of a module-level function for each job; raises what a failed job raises.

    Beside other workers of pytest-xdist it uses only its share of the processors.
    """
    worker_count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    process_count = min(len(jobs), (os.cpu_count() or 1) // worker_count)
    if process_count <= 1:
        return [function(job) for job in jobs]
    # Spawned, since a fork would copy locks that threads of other tests hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(process_count, context) as pool:
        return list(pool.map(function, jobs))
