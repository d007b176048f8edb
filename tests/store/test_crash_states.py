"""A crash between any two system calls leaves a broker of some moment, and nothing in between.

`pytest tests/store --states 100000` looks at so many crash states; each is told by its seed.
"""

import itertools
import random
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from appliance.config import Config
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.crash_run import CrashPoints, CrashRun, Known, check_disk
from tests.support.sim_fs import CrashMode
from tests.support.virtual_clock import VirtualClock

PARTS: Final = 3
TORN_COUNT: Final = 2
"""Torn states at each call, beside the one kept and the one dropped."""
NESTED_EVERY: Final = 50
"""Of so many crash states one is crashed again at each call of its recovery."""

pytestmark = pytest.mark.usefixtures("small_unit_files")


class Enumeration:
    """Checks the crash states of one run, at each of its calls, and counts them."""

    def __init__(self, seed: int, config: Config) -> None:
        self.seed = seed
        self.count = 0
        self._until_nested = NESTED_EVERY
        self.run = CrashRun(random.Random(seed), config=config)
        self._rng = random.Random(seed + 1)

    def play(self) -> None:
        self.run.disk.observer = self._look
        self.run.play()
        self._look()

    def _modes(self, torn_count: int) -> Iterator[tuple[CrashMode, int]]:
        yield "kept", 0
        yield "dropped", 0
        for _ in range(torn_count):
            yield "torn", self._rng.randrange(1 << 30)

    def _look(self) -> None:
        for mode, torn_seed in self._modes(TORN_COUNT):
            self.count += 1
            self._until_nested -= 1
            disk, known = self.run.disk, self.run.known(mode)
            try:
                if self._until_nested == 0:
                    self._until_nested = NESTED_EVERY
                    self._crash_recovery(disk.crashed(mode, random.Random(torn_seed)), known)
                self._check(disk, mode, torn_seed, known)
            except Exception:
                sys.stdout.write(
                    f"seed {self.seed}: {mode} {torn_seed}, a crash before call {disk.calls + 1}\n"
                    f"{disk.trace()}\n"
                )
                raise

    def _check(self, disk: CrashPoints, mode: CrashMode, torn_seed: int, known: Known) -> None:
        left = disk.crashed(mode, random.Random(torn_seed))
        check_disk(left, known, self.run.config, mode)

    def _crash_recovery(self, disk: CrashPoints, known: Known) -> None:
        """Crash the start on `disk` at each of its calls."""

        def look() -> None:
            for mode, torn_seed in self._modes(1):
                self.count += 1
                self._check(disk, mode, torn_seed, known)

        disk.observer = look
        BrokerRig(disk, VirtualClock(wall_ms=known.now_ms), self.run.config)


def enumerate_states(first_seed: int, step: int, count: int, config: Config) -> int:
    """Play runs until `count` states were looked at; log bytes of the longest run."""
    seen = longest = 0
    for seed in itertools.count(first_seed, step):
        enumeration = Enumeration(seed, config)
        enumeration.play()
        seen += enumeration.count
        longest = max(longest, enumeration.run.rig.broker.wrote_pos)
        if seen >= count:
            break
    return longest


@pytest.mark.parametrize("part", range(PARTS))
def test_a_crash_at_any_call_leaves_whole_requests(part: int, states: int) -> None:
    config = small_config(delivery_chunk_records=16)
    longest = enumerate_states(part, PARTS, states // (PARTS + 1), config)
    assert longest > 2 * config.segment_size_bytes, "the run no longer fills several segments"


def test_with_async_flush_a_killed_process_loses_nothing(states: int) -> None:
    """And a power cut nothing that was flushed."""
    config = small_config(delivery_chunk_records=16, flush="async")
    enumerate_states(1_000_000, 1, states // (PARTS + 1), config)
