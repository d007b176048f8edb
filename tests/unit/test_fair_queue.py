"""Entries of one address do not keep those of others waiting."""

import random
from collections import defaultdict, deque

import pytest

from appliance.fair_queue import FairQueue


def drain(queue: FairQueue[str]) -> str:
    return "".join(queue.pop() for _ in range(len(queue)))


def test_addresses_take_turns_and_each_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in "abcdef":
        queue.append("192.0.2.1", item)
    queue.append("192.0.2.2", "x")
    queue.append("192.0.2.3", "y")
    queue.append("192.0.2.2", "z")
    assert drain(queue) == "axybzcdef"


def test_an_address_that_comes_again_is_behind_those_that_wait() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.append("192.0.2.1", "a")
    queue.append("192.0.2.2", "x")
    assert queue.pop() == "a"
    queue.append("192.0.2.1", "b")
    assert drain(queue) == "xb"


@pytest.mark.parametrize("seed", range(5))
def test_nobody_waits_for_more_than_one_entry_of_each_other_address(seed: int) -> None:
    rng = random.Random(seed)
    queue: FairQueue[tuple[str, int]] = FairQueue()
    expected: dict[str, deque[int]] = defaultdict(deque)
    passed: dict[str, set[str]] = defaultdict(set)
    for number in range(2_000):
        if rng.random() < 0.55 or not queue:
            address = rng.choice("aaaaaabc")
            queue.append(address, (address, number))
            expected[address].append(number)
            continue
        first = queue.first
        address, popped = queue.pop()
        assert first == (address, popped)
        assert popped == expected[address].popleft(), f"seed {seed}"
        passed[address].clear()
        for other, waiting in expected.items():
            if waiting and other != address:
                assert address not in passed[other], f"seed {seed}"
                passed[other].add(address)
        assert len(queue) == sum(map(len, expected.values()))
