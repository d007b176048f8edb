"""A due queue that does not hold all timers: what is evicted, and what is loaded again."""

import random
from typing import Final

import pytest

from _core.timers.due_queue import DueQueue
from tests.support.compiled import timer_calls as calls
from tests.support.simulator.virtual_clock import START_MS

COUNT: Final = 30_000
SPAN_MS: Final = 40 * 86_400_000
ALL_MS: Final = (1 << 63) - 1

Timer = tuple[int, int, int, int]


def filled(rng: random.Random) -> tuple[DueQueue, list[Timer]]:
    queue = DueQueue()
    timers = [(START_MS + rng.randrange(SPAN_MS), at * 8, at % 3, at % 5) for at in range(COUNT)]
    for timer in timers:
        calls.push(queue, *timer)
    return queue, timers


def evict(queue: DueQueue, floor_ms: int = START_MS) -> None:
    before = queue.tree_bytes
    while queue.tree_bytes > before // 3:
        assert queue.evict(floor_ms)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_evicted_counts_and_what_is_loaded_comes_in_order(seed: int) -> None:
    rng = random.Random(seed)
    queue, timers = filled(rng)
    cancelled = set(rng.sample(timers, 2_000))
    for timer in cancelled:
        calls.cancel(queue, timer[1], timer[2], timer[3], due_ms=timer[0])
    evict(queue)
    horizon_ms = queue.horizon_ms
    assert START_MS < horizon_ms == queue.loaded_ms < START_MS + SPAN_MS
    assert queue.pending == COUNT - 2_000
    # Of those that left memory, no cancelled one is remembered.
    assert queue.cancelled_count == sum(timer[0] < horizon_ms for timer in cancelled)
    far = [timer for timer in timers if timer[0] >= horizon_ms and timer not in cancelled]
    gone = set(rng.sample(far, 100))
    for timer in gone:
        assert calls.cancel(queue, timer[1], timer[2], timer[3], due_ms=timer[0])
    fresh = (horizon_ms + 5, 8 * COUNT, 0, 1)
    calls.push(queue, *fresh)
    assert queue.pending == COUNT - 2_000 - 100 + 1
    near = sorted(timer for timer in timers if timer[0] < horizon_ms and timer not in cancelled)
    assert calls.pop(queue, ALL_MS, COUNT) == near
    assert queue.next_due == -1
    queue.begin_load(ALL_MS)
    soon = (horizon_ms + 1, 8 * COUNT + 8, 0, 1)
    calls.push(queue, *soon)
    assert calls.pop(queue, ALL_MS, COUNT) == []
    late = set(rng.sample(sorted(set(far) - gone), 50))
    for timer in late:  # while they are loaded
        assert calls.cancel(queue, timer[1], timer[2], timer[3], due_ms=timer[0])
    for timer in sorted({*far, fresh} - gone):
        calls.load(queue, *timer)
    queue.note_loaded(ALL_MS)
    expected = sorted({*far, fresh, soon} - gone - late)
    assert calls.pop(queue, ALL_MS, COUNT) == expected
    assert (queue.pending, queue.cancelled_count) == (0, 0)


def test_nothing_is_evicted_that_is_due_soon_or_was_popped() -> None:
    queue, timers = filled(random.Random(1))
    middle_ms = START_MS + SPAN_MS // 2
    while queue.evict(middle_ms):
        pass
    assert queue.horizon_ms >= middle_ms
    popped = calls.pop(queue, middle_ms + SPAN_MS // 8, COUNT)
    calls.unpop(queue, popped)
    while queue.evict(0):
        pass
    assert queue.horizon_ms > popped[-1][0]
    assert queue.pending == COUNT
    assert calls.pop(queue, middle_ms, COUNT) == sorted(
        timer for timer in timers if timer[0] <= middle_ms
    )


def test_nothing_is_evicted_while_timers_are_loaded() -> None:
    queue, _ = filled(random.Random(2))
    evict(queue)
    queue.begin_load(ALL_MS)
    assert not queue.evict(0)


def test_timers_that_were_put_back_late_leave_memory_too() -> None:
    """They are in the heap, which has no order of leaves."""
    queue, timers = filled(random.Random(3))
    for at in range(200):
        calls.push(queue, START_MS + SPAN_MS - 1, 16 * COUNT - 8 * at, 0, 0)
    while queue.evict(START_MS):
        pass
    left = calls.pop(queue, ALL_MS, 2 * COUNT)
    assert left == sorted(timer for timer in timers if timer[0] < queue.horizon_ms)
    assert queue.pending == COUNT + 200 - len(left)


def test_timers_of_a_forgotten_partition_are_not_waited_for() -> None:
    queue, _ = filled(random.Random(4))
    evict(queue)
    for partition in range(4):
        calls.forget(queue, partition)
    assert queue.pending == COUNT // 5
    for at in range(20_000):  # sweeps a little with each
        calls.push(queue, START_MS + at, 8 * (COUNT + at), 0, 4)
    calls.pop(queue, START_MS + 20_000, 1)
    assert queue.cancelled_count <= COUNT // 5  # those of the partition forgotten amid the sweep
