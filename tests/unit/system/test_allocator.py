"""Freed memory goes back to the system: large blocks at once, the rest when the broker is calm."""

import itertools
import subprocess
import sys

from appliance.system.allocator import (
    CALM_MS,
    GROWTH_BYTES,
    JITTER_BYTES,
    PAUSE_MS,
    FreeMemoryPolicy,
)
from appliance.units import MIB

BASE_BYTES = 50 * MIB

LARGE_BLOCKS = """
from appliance.system.allocator import give_back_large_blocks
from appliance.system.process import anonymous_bytes
assert give_back_large_blocks()
before = anonymous_bytes()
for _ in range(3):
    held = bytearray(b"x") * 30_000_000
    most = anonymous_bytes()
    del held
print(most - before, anonymous_bytes() - before)
"""

SMALL_BLOCKS = """
from appliance.system.allocator import give_back_free_memory
from appliance.system.process import anonymous_bytes
held = [bytearray(b"x") * 20_000 for _ in range(3_000)]
before = anonymous_bytes()
del held[:-1]
give_back_free_memory()
print(before - anonymous_bytes())
"""


def say(script: str) -> list[int]:
    """The numbers that a process of its own prints."""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [int(word) for word in ran.stdout.split()]


def test_a_large_block_is_given_back_when_it_is_freed() -> None:
    held, left = say(LARGE_BLOCKS)
    assert held > 29_000_000
    assert left < 2_000_000


def test_free_memory_below_a_block_in_use_is_given_back() -> None:
    (given,) = say(SMALL_BLOCKS)
    assert given > 50_000_000


def decisions(sizes: dict[int, int], until_ms: int) -> list[int]:
    """When memory is given back, if the process grows to these sizes at these times, ms."""
    policy = FreeMemoryPolicy(0, BASE_BYTES)
    size, found = BASE_BYTES, []
    for now_ms in range(0, until_ms, 500):
        size = sizes.get(now_ms, size)
        if policy.step(now_ms, size):
            found.append(now_ms)
    return found


def test_free_memory_is_given_back_once_the_broker_is_calm() -> None:
    grown = BASE_BYTES + GROWTH_BYTES
    assert decisions({1_000: grown}, 60_000) == [1_000 + CALM_MS]
    assert decisions({1_000: grown, 2_000: grown + 2 * JITTER_BYTES}, 60_000) == [2_000 + CALM_MS]


def test_memory_that_is_used_is_not_asked_for_again() -> None:
    grown = BASE_BYTES + 2 * GROWTH_BYTES
    assert decisions({1_000: grown, 30_000: grown + GROWTH_BYTES // 2}, 60_000) == [4_000]
    assert decisions({1_000: grown, 30_000: grown + GROWTH_BYTES}, 60_000) == [4_000, 33_000]


def test_little_growth_is_left_alone() -> None:
    assert decisions({1_000: BASE_BYTES + GROWTH_BYTES - 1}, 60_000) == []


def test_a_broker_that_grows_again_and_again_waits_between_two_times() -> None:
    sizes = {}
    for at_ms in range(1_000, 60_000, 4_000):
        sizes[at_ms] = BASE_BYTES + GROWTH_BYTES
        sizes[at_ms + 3_500] = BASE_BYTES
    found = decisions(sizes, 60_000)
    assert len(found) > 1
    assert all(b - a >= PAUSE_MS for a, b in itertools.pairwise(found))
