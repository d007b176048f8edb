"""The queue of pending timers: order, memory at full size, cancellation, limits."""

import gc
import random
import subprocess
import sys
import weakref
from array import array

import pytest

from _core.timers.due_queue import DueQueue
from tests.support.compiled import timer_calls as calls
from tests.support.values.packed_timers import START_MS, TIMER, pack, pack_arrivals, pop_all

MILLION = 1_000_000
# Beside the timers: nodes that are kept for reuse, counters.
FIXED_BYTES = 64 * 1024


def test_a_carried_timer_comes_before_later_ones_of_its_ms_though_it_came_last() -> None:
    """Also when thousands of that ms lie there in order already, and some have left."""
    queue = DueQueue()
    timers = [(START_MS, i * 100, 0, 0) for i in range(100, 20_000)]
    calls.push_packed(queue, pack(timers))
    assert calls.pop(queue, START_MS, 50) == timers[:50]
    carried = [(START_MS, 100, 1, 0), (START_MS, 1_000_000, 1, 0)]
    for timer in carried:
        calls.push(queue, *timer)
    assert pop_all(queue, START_MS, limit=999) == sorted(timers[50:] + carried)


def test_nothing_leaves_before_it_is_due() -> None:
    """Exact to the millisecond, at every distance."""
    queue = DueQueue()
    dues = [START_MS + (1 << bit) + extra for bit in range(39) for extra in (-1, 0, 1)]
    for position, due_ms in enumerate(dues):
        calls.push(queue, due_ms, position, 0, 0)
    for due_ms in sorted(set(dues)):
        assert queue.next_due == due_ms
        assert calls.pop(queue, due_ms - 1, 10) == []
        popped = calls.pop(queue, due_ms, 10)
        assert [timer[0] for timer in popped] == [due_ms] * dues.count(due_ms)
    assert queue.next_due == -1


@pytest.mark.parametrize("distance_ms", [0, 1, 1_000, 86_400_000])
def test_first_that_is_due_is_no_cancelled_one(distance_ms: int) -> None:
    """In one leaf, in many, and among those that came late or were put back."""
    queue = DueQueue()
    count = 10_000
    for position in range(count):
        calls.push(queue, START_MS + position // 2 * distance_ms, position, 0, position % 2)
    for position in range(0, count - 4, 2):
        calls.cancel(queue, position, 0, 0)
    first = START_MS
    assert queue.first_due(count) == first
    calls.forget(queue, 1)
    first = START_MS + (count // 2 - 2) * distance_ms
    assert (queue.pending, queue.first_due(count)) == (2, first)
    assert START_MS <= queue.first_due(count // 2) <= first  # a bound, after a part of the work
    assert calls.pop(queue, first - 1, 10) == []
    popped = calls.pop(queue, first, 1)
    calls.unpop(queue, popped)
    assert queue.first_due(count) == first
    calls.cancel(queue, count - 4, 0, 0)
    assert queue.first_due(count) == START_MS + (count // 2 - 1) * distance_ms
    calls.cancel(queue, count - 2, 0, 0)
    assert (queue.pending, queue.first_due(count)) == (0, -1)


@pytest.mark.parametrize("budget", [1, 1_000, 1_500])
def test_what_is_due_in_one_ms_is_counted_once_by_a_walk_in_steps(budget: int) -> None:
    """The steps end amid the timers of that ms; some come and go before and after that place."""
    queue = DueQueue()
    calls.push_packed(queue, pack([(START_MS, at, 0, 0) for at in range(100, 20_100)]))
    calls.forget(queue, 1)
    calls.push(queue, START_MS, 1, 0, 2)
    calls.forget(queue, 2)  # now the wheels have lost count
    counts = array("q", [0])
    assert queue.tally(counts, START_MS, 1_000) == -1
    now_ms = START_MS - 60_000
    assert queue.advance_wheels(now_ms, budget)
    for position in range(100, 20_000, 7):
        calls.cancel(queue, position, 0, 0, due_ms=START_MS)
    calls.push(queue, START_MS, 30_000, 0, 0)
    calls.push(queue, START_MS, 50, 0, 0)
    while queue.advance_wheels(now_ms, budget):
        pass
    begin_ms = START_MS - START_MS % 1_000
    assert queue.tally(counts, begin_ms, 1_000) == 0
    assert counts[0] == queue.pending == 20_002 - len(range(100, 20_000, 7))


def test_a_million_timers_pass_in_order() -> None:
    """Order, count and memory at full size, spread over a day; then the memory is given back."""
    day_ms = 86_400_000
    # Due time and arrival in one integer, so that the oracle is one fast sort.
    arrivals = [
        due_ms << 20 | i
        for i, due_ms in enumerate(random.Random(7).choices(range(day_ms), k=MILLION))
    ]
    queue = DueQueue()
    calls.push_packed(queue, pack_arrivals(arrivals))
    assert queue.pending == MILLION
    assert queue.pending_of(5) == MILLION // 16
    assert queue.memory_bytes <= 24 * 1.15 * MILLION + FIXED_BYTES
    popped = b"".join(iter(lambda: calls.pop_packed(queue, START_MS + day_ms, 100_000), b""))
    assert popped == pack_arrivals(sorted(arrivals))
    assert queue.pending == 0
    assert queue.memory_bytes <= FIXED_BYTES


def test_a_million_timers_of_one_ms_pass_in_chunks_and_free_memory_on_the_way() -> None:
    """Each takes 24 bytes and little more; what is popped takes none."""
    packed = pack_arrivals(list(range(MILLION)))
    queue = DueQueue()
    calls.push_packed(queue, packed)
    assert queue.memory_bytes <= 24 * 1.01 * MILLION + FIXED_BYTES
    for begin in range(0, len(packed), 2048 * TIMER.size):
        assert calls.pop_packed(queue, START_MS, 2048) == packed[begin : begin + 2048 * TIMER.size]
        remaining = queue.pending * TIMER.size
        assert queue.memory_bytes <= remaining * 1.01 + 1024 * TIMER.size + FIXED_BYTES


def test_memory_of_cancelled_timers_is_given_back() -> None:
    """Cancelled entries never outnumber the pending ones for long."""
    count = 200_000
    rng = random.Random(9)
    timers = [(START_MS + rng.randrange(3_600_000), i * 100, 0, 0) for i in range(count)]
    queue = DueQueue()
    calls.push_packed(queue, pack(timers))
    kept = timers[::20]
    calls.cancel_packed(queue, pack([timer for i, timer in enumerate(timers) if i % 20]))
    assert queue.pending == len(kept)
    assert queue.cancelled_count <= 2 * queue.pending + 1024
    while calls.sweep(queue, 10_000):
        pass
    # 24 bytes an entry, pending or not, and up to 48 for the id of one that is not.
    assert (
        queue.memory_bytes <= 1.2 * (24 * len(kept) + 72 * queue.cancelled_count) + 5 * FIXED_BYTES
    )
    assert pop_all(queue, START_MS + 3_600_000) == sorted(kept)


def test_memory_of_forgotten_partitions_is_given_back() -> None:
    """Deleting a topic costs little at once, and its timers go as the queue is used."""
    count = 100_000
    queue = DueQueue()
    calls.push_packed(queue, pack([(START_MS + i, i * 100, 0, i % 10) for i in range(count)]))
    for partition in range(1, 10):
        calls.forget(queue, partition)
    assert queue.pending == count // 10
    for i in range(count // 4):
        calls.push(queue, START_MS, count * 100 + i, 0, 0)
    assert queue.cancelled_count <= 1024
    assert queue.memory_bytes <= 24 * 1.2 * (queue.pending + 1024) + FIXED_BYTES


def test_a_sweep_finds_cancelled_timers_wherever_they_are() -> None:
    """In leaves of one ms and of hours, and among those that were put back."""
    queue = DueQueue()
    put_back = [(START_MS, i * 10, 0, i % 5 // 4) for i in range(6_000)]
    calls.push_packed(queue, pack(put_back))
    assert calls.pop(queue, START_MS, 6_000) == put_back
    calls.unpop(queue, put_back)
    dense = [(START_MS + i % 8, i * 10 + 1, 0, i % 5 // 4) for i in range(80_000)]
    spread = [(START_MS + i * 7_919 % 10**9, i * 10 + 2, 0, i % 5 // 4) for i in range(20_000)]
    calls.push_packed(queue, pack(dense + spread))
    calls.forget(queue, 0)
    assert queue.cancelled_count > queue.pending
    while calls.sweep(queue, 1):
        pass
    assert queue.cancelled_count == 0
    kept = [timer for timer in put_back + dense + spread if timer[3] == 1]
    assert pop_all(queue, START_MS + 10**9) == sorted(kept)


def test_cancelled_timers_in_front_do_not_hold_up_the_clock() -> None:
    """Popping at next_due drops them, so that next_due advances."""
    queue = DueQueue()
    for i in range(900):
        calls.push(queue, START_MS + i * 50, i, 0, 0)
    calls.push(queue, START_MS + 10**6, 5_000, 0, 0)
    for i in range(900):
        assert calls.cancel(queue, i, 0, 0)
    wake_ups = 0
    while (due_ms := queue.next_due) != START_MS + 10**6:
        assert calls.pop(queue, due_ms, 100) == []
        assert queue.next_due > due_ms
        wake_ups += 1
    assert wake_ups <= 900
    assert [timer[1] for timer in pop_all(queue, START_MS + 10**6)] == [5_000]


def test_cancelling_twice_cancels_once() -> None:
    """A second cancel is distinguished and changes no count."""
    queue = DueQueue()
    calls.push(queue, START_MS, 100, 0, 0)
    calls.push(queue, START_MS, 200, 0, 0)
    assert calls.cancel(queue, 100, 0, 0)
    assert not calls.cancel(queue, 100, 0, 0)
    assert queue.pending == 1
    assert pop_all(queue, START_MS) == [(START_MS, 200, 0, 0)]


def test_a_timer_pushed_twice_leaves_twice() -> None:
    """A mistake of the caller, which must not stop the clock for all other timers."""
    queue = DueQueue()
    for _ in range(3):
        calls.push(queue, START_MS, 100, 0, 0)
        calls.push(queue, START_MS, 200, 0, 0)
    popped = pop_all(queue, START_MS)
    assert [timer[1] for timer in popped] == [100, 100, 100, 200, 200, 200]


def test_a_sweep_of_timers_that_were_put_back_is_done_in_bounded_steps() -> None:
    """As many as were due while the disk was full."""
    count = 100_000
    queue = DueQueue()
    timers = [(START_MS, i * 100, 0, 0) for i in range(count)]
    calls.push_packed(queue, pack(timers))
    calls.unpop(queue, calls.pop(queue, START_MS, count))
    calls.cancel_packed(queue, pack([timer for i, timer in enumerate(timers) if i % 10]))
    before = queue.cancelled_count
    while calls.sweep(queue, 1):
        assert before - queue.cancelled_count <= 4_096
        before = queue.cancelled_count
    assert queue.cancelled_count <= queue.pending
    assert pop_all(queue, START_MS) == timers[::10]


def test_due_times_outside_the_calendar_are_refused() -> None:
    """Before 1970, or so far that the tree has no bits for it; the queue stays as it was."""
    queue = DueQueue()
    for due_ms in (-1, 1 << 48, (1 << 63) - 1):
        with pytest.raises(ValueError, match="due_ms"):
            calls.push(queue, due_ms, 0, 0, 0)
    calls.push(queue, (1 << 48) - 1, 100, 0, 0)
    calls.push(queue, 0, 200, 0, 0)
    assert queue.pending == 2
    assert [timer[1] for timer in pop_all(queue, (1 << 63) - 1)] == [200, 100]


def test_a_queue_in_a_reference_cycle_is_collected_with_its_timers() -> None:
    """The parts of the queue are still there when it frees what lies in them."""

    class Holder:
        pass

    holder = Holder()
    holder.myself = holder  # type: ignore[attr-defined]
    holder.queue = queue = DueQueue()  # type: ignore[attr-defined]
    for i in range(5_000):
        calls.push(queue, START_MS + i, i, 0, 0)
    calls.unpop(queue, calls.pop(queue, START_MS + 100, 100))
    gone = weakref.ref(holder)
    del holder, queue
    gc.collect()
    assert gone() is None


OUT_OF_MEMORY = """
import random, resource, struct
from _core.timers.due_queue import DueQueue
from tests.support.compiled import timer_calls as calls

rng = random.Random(5)
queue = DueQueue()
batch = b"".join(
    struct.pack("=qqii", rng.randrange(3) * 2000 + rng.randrange(40) ** 3, i, 0, 0)
    for i in range(300_000)
)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20), unlimited[1]))
popped, failures, errors = [], 0, []
try:
    for begin in range(0, len(batch), 24):
        calls.push_packed(queue, batch[begin : begin + 24])
except MemoryError:
    errors.append("push")
pushed = queue.pending
try:
    calls.cancel_packed(queue, batch[: 24 * (pushed // 2)])
except MemoryError:
    errors.append("cancel")
pending = queue.pending
try:
    while chunk := calls.pop_packed(queue, 2000, 5000):
        popped += struct.iter_unpack("=qqii", chunk)
except MemoryError:
    errors.append("pop")
resource.setrlimit(resource.RLIMIT_AS, unlimited)
while chunk := calls.pop_packed(queue, 1 << 40, 5000):
    popped += struct.iter_unpack("=qqii", chunk)
expected = list(struct.iter_unpack("=qqii", batch))[pushed - pending : pushed]
assert errors[:2] == ["push", "cancel"], errors
assert 0 < pushed < 300_000
assert popped == sorted(expected)
"""


def test_running_out_of_memory_loses_nothing() -> None:
    """A push or cancel without memory raises and changes nothing; the rest goes on."""
    code = OUT_OF_MEMORY
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
