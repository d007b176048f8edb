"""The queue of pending timers does what the plainest model of it does, whatever is asked of it."""

import random
from array import array
from bisect import bisect_left, insort
from collections import Counter
from operator import itemgetter

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from _core.timers.due_list import DueList
from _core.timers.due_queue import DueQueue
from _core.timers.time_wheel import TimeWheel
from tests.support.compiled import timer_calls as calls
from tests.support.values.packed_timers import START_MS, Timer, pack

LEVEL_DELAYS_MS = (5, 40, 1_000, 60_000, 7_200_000)
PARTITION_COUNT = 4
PAGES_MAX = 200
SECOND_MS, MINUTE_MS = 1_000, 60_000


class QueueModel:
    """A sorted list of pending timers. Timers sort as they are delivered: due, then arrival."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.forgotten: set[int] = set()

    def push(self, timer: Timer) -> None:
        if timer[3] not in self.forgotten:
            insort(self.timers, timer)

    def push_many(self, timers: list[Timer]) -> None:
        self.timers += [timer for timer in timers if timer[3] not in self.forgotten]
        self.timers.sort()

    def pop(self, now_ms: int, limit: int) -> list[Timer]:
        end = min(limit, bisect_left(self.timers, (now_ms + 1,)))
        popped, self.timers = self.timers[:end], self.timers[end:]
        return popped

    def cancel(self, timer: Timer) -> None:
        del self.timers[bisect_left(self.timers, timer)]

    def forget(self, partition: int) -> None:
        self.forgotten.add(partition)
        self.timers = [timer for timer in self.timers if timer[3] != partition]


class Pair:
    """The queue and its model, driven alike and compared."""

    def __init__(self) -> None:
        self.queue = DueQueue()
        self.model = QueueModel()
        self.now_ms = START_MS
        self.next_position = 1 << 40
        self.in_flight: list[Timer] = []
        self.partition_base = 0
        self.is_next_due_exact = True

    def new_timer(self, due_ms: int, *, arrived: int, partition: int) -> Timer:
        """A timer that is new, or, `arrived` > 0, one from that many positions before."""
        self.next_position += 1_000_000
        return (
            due_ms,
            self.next_position - arrived * 1_000_001,
            arrived % 3,
            self.partition_base + partition,
        )

    def push(self, timer: Timer) -> None:
        calls.push(self.queue, *timer)
        self.model.push(timer)

    def push_many(self, timers: list[Timer]) -> None:
        calls.push_packed(self.queue, pack(timers))
        self.model.push_many(timers)

    def pop(self, limit: int) -> None:
        popped = calls.pop(self.queue, self.now_ms, limit)
        assert popped == self.model.pop(self.now_ms, limit)
        if len(popped) < limit:
            # Otherwise the delivery task would wake up again at once.
            assert not 0 <= self.queue.next_due <= self.now_ms
        self.in_flight += popped

    def unpop(self, count: int) -> None:
        """What was delivered is completed; the last `count` could not be delivered."""
        back = self.in_flight[len(self.in_flight) - count :]
        self.in_flight.clear()
        calls.unpop(self.queue, back)
        self.model.push_many(back)

    def cancel(self, index: int, *, is_due_known: bool = True) -> None:
        timer = self.model.timers[index]
        due_ms = timer[0] if is_due_known else -1
        assert calls.cancel(self.queue, *timer[1:], due_ms=due_ms)
        self.model.cancel(timer)
        self.is_next_due_exact = False

    def forget(self, partition: int) -> None:
        handle = self.partition_base + partition
        calls.forget(self.queue, handle)
        self.model.forget(handle)
        self.is_next_due_exact = False

    def use_new_partitions(self) -> None:
        """Handles are never used again; without new ones everything would end up forgotten."""
        self.partition_base += PARTITION_COUNT

    def check(self) -> None:
        queue, timers = self.queue, self.model.timers
        assert queue.pending == len(timers)
        expected = Counter(map(itemgetter(3), timers))
        for partition in range(self.partition_base, self.partition_base + PARTITION_COUNT):
            assert queue.pending_of(partition) == expected[partition]
        first_due_ms = timers[0][0] if timers else -1
        assert queue.next_due <= first_due_ms
        assert queue.first_due(1 << 40) == first_due_ms
        assert queue.first_due(3) <= first_due_ms
        # A leaf that is swept keeps its due time as a bound until it is empty.
        self.is_next_due_exact |= not timers and queue.cancelled_count == 0
        if self.is_next_due_exact or not timers:
            assert queue.next_due == first_due_ms

    def look(
        self, *, delay_ms: int, length_ms: int, partition: int | None, limit: int, budget: int
    ) -> None:
        """Lists and counts of some due times and partitions are those of the model."""
        from_ms = self.now_ms + delay_ms
        until_ms = from_ms + length_ms
        handles = range(self.partition_base, self.partition_base + PARTITION_COUNT)
        wanted = None
        if partition is not None:
            handles = range(handles[partition], handles[partition] + 1)
            wanted = bytes(handles[0]) + b"\1"
        expected = [
            timer
            for timer in self.model.timers
            if from_ms <= timer[0] < until_ms and (wanted is None or timer[3] in handles)
        ]
        due_list = DueList(self.queue, from_ms, until_ms, wanted=wanted)
        found, after, is_complete = due_list.page(None, limit, budget)
        page_count = 1
        while not is_complete and page_count < PAGES_MAX:
            page, after, is_complete = due_list.page(after, limit, budget)
            assert len(page) <= limit
            found += page
            page_count += 1
        assert found == (expected if is_complete else expected[: len(found)])
        counts = array("q", [0, 0, 0])
        step_ms = max(1, length_ms // 4)
        reached = -1
        while (reached := due_list.count(counts, step_ms, reached, budget)) >= 0:
            pass
        steps = Counter(min((timer[0] - from_ms) // step_ms, 2) for timer in expected)
        assert list(counts) == [steps[0], steps[1], steps[2]]
        there = {timer[:3] for timer in self.model.timers}
        near_misses = {(due_ms + 1, position, index) for due_ms, position, index, _ in expected}
        near_misses |= {(due_ms, position, index + 1) for due_ms, position, index, _ in expected}
        sought = sorted({timer[:3] for timer in expected} | near_misses)
        assert list(due_list.holds(sought)) == [place in there for place in sought]

    def tally(self, *, delay_ms: int, step_ms: int, count: int, is_counted: bool) -> None:
        """What the wheels say, if they say something, is what the model has."""
        begin_ms = self.now_ms + delay_ms
        begin_ms -= begin_ms % (MINUTE_MS if step_ms % MINUTE_MS == 0 else SECOND_MS)
        counts = array("q", [0] * count)
        before = self.queue.tally(counts, begin_ms, step_ms)
        if before < 0:
            assert not is_counted
            assert not any(counts)
            return
        slots = Counter((timer[0] - begin_ms) // step_ms for timer in self.model.timers)
        assert before == sum(slots[slot] for slot in slots if slot < 0)
        assert list(counts) == [slots[slot] for slot in range(count)]

    def count_all(self, budget: int) -> None:
        """Let the wheels count all; then they know every forecast of what comes."""
        while self.queue.advance_wheels(self.now_ms, budget):
            pass
        # Of timers that were popped and are put back somebody else may have been later.
        soonest_ms = max(self.now_ms, *(each.from_ms for each in self.wheels)) - self.now_ms
        self.tally(delay_ms=soonest_ms, step_ms=SECOND_MS, count=100, is_counted=True)
        self.tally(delay_ms=soonest_ms, step_ms=90 * SECOND_MS, count=100, is_counted=True)
        self.tally(delay_ms=soonest_ms, step_ms=1440 * MINUTE_MS, count=100, is_counted=True)

    @property
    def wheels(self) -> tuple[TimeWheel, TimeWheel]:
        return self.queue.wheels.minutes, self.queue.wheels.seconds

    def check_to_the_end(self) -> None:
        self.now_ms = 1 << 47
        while self.model.timers:
            self.pop(10_000)
        assert calls.pop(self.queue, self.now_ms, 1) == []
        self.check()
        assert self.queue.cancelled_count == 0


delays_ms = st.one_of(
    st.integers(0, 3), st.integers(0, 200), st.integers(0, 100_000), st.integers(0, 10**11)
)
partitions = st.integers(0, PARTITION_COUNT - 1)


class DueQueueMachine(RuleBasedStateMachine):
    """Whatever is done to it, the queue answers as the model does."""

    @initialize()
    def begin(self) -> None:
        self.pair = Pair()

    @rule(delay_ms=delays_ms, arrived=st.integers(0, 5), partition=partitions)
    def push(self, delay_ms: int, arrived: int, partition: int) -> None:
        due_ms = self.pair.now_ms + delay_ms
        self.pair.push(self.pair.new_timer(due_ms, arrived=arrived, partition=partition))

    @rule(
        delay_ms=delays_ms,
        count=st.sampled_from([70, 700, 5_000]),
        spread_ms=st.sampled_from([1, 64, 5_000, 10**8]),
        is_shuffled=st.booleans(),
        partition=partitions,
    )
    def push_many(
        self, delay_ms: int, count: int, spread_ms: int, is_shuffled: bool, partition: int
    ) -> None:
        # As many as burst a leaf; scattered by a multiplication, which is fast and shrinks well.
        first_due_ms = self.pair.now_ms + delay_ms
        handle = self.pair.partition_base + partition
        begin = self.pair.next_position
        self.pair.next_position += (count + 1) * 1_000_000
        order = [(i * 2_654_435_761) % count for i in range(count)] if is_shuffled else range(count)
        self.pair.push_many(
            [
                (
                    first_due_ms + (i * 2_654_435_761) % spread_ms,
                    begin + (order[i] + 1) * 1_000_000,
                    0,
                    handle,
                )
                for i in range(count)
            ]
        )

    @rule(passed_ms=delays_ms, limit=st.sampled_from([0, 1, 5, 100, 2_048, 100_000]))
    def wait_and_pop(self, passed_ms: int, limit: int) -> None:
        self.pair.now_ms += passed_ms
        self.pair.pop(limit)

    @rule(step_ms=delays_ms)
    def step_clock_back(self, step_ms: int) -> None:
        self.pair.now_ms = max(0, self.pair.now_ms - step_ms)

    @precondition(lambda self: self.pair.in_flight)
    @rule(share=st.floats(0, 1))
    def unpop(self, share: float) -> None:
        self.pair.unpop(int(len(self.pair.in_flight) * share))

    @precondition(lambda self: self.pair.model.timers)
    @rule(
        place=st.floats(0, 1, exclude_max=True),
        count=st.integers(1, 20),
        is_due_known=st.sampled_from([True, True, True, False]),
    )
    def cancel(self, place: float, count: int, is_due_known: bool) -> None:
        for _ in range(min(count, len(self.pair.model.timers))):
            at = int(len(self.pair.model.timers) * place)
            self.pair.cancel(at, is_due_known=is_due_known)

    @rule(partition=partitions, renew=st.booleans())
    def forget_partition(self, partition: int, renew: bool) -> None:
        self.pair.forget(partition)
        if renew:
            self.pair.use_new_partitions()

    @rule(
        delays=st.tuples(delays_ms, delays_ms, delays_ms),
        partition=st.none() | partitions,
        limit=st.sampled_from([1, 3, 100, 10_000]),
        budget=st.sampled_from([1, 1_000, 100_000]),
    )
    def look(
        self, delays: tuple[int, int, int], partition: int | None, limit: int, budget: int
    ) -> None:
        delay_ms, back_ms, length_ms = delays
        self.pair.look(
            delay_ms=delay_ms - back_ms,
            length_ms=length_ms,
            partition=partition,
            limit=limit,
            budget=budget,
        )

    @rule(budget=st.integers(1, 5_000))
    def sweep(self, budget: int) -> None:
        calls.sweep(self.pair.queue, budget)

    @rule(budget=st.sampled_from([1, 100, 3_000, 100_000]), to_the_end=st.booleans())
    def count(self, budget: int, to_the_end: bool) -> None:
        if to_the_end:
            self.pair.count_all(budget)
        else:
            self.pair.queue.advance_wheels(self.pair.now_ms, budget)

    @rule(
        delays=st.tuples(delays_ms, delays_ms),
        step_ms=st.sampled_from([1_000, 7_000, 60_000, 86_400_000]),
        count=st.sampled_from([1, 10, 1_000]),
    )
    def tally(self, delays: tuple[int, int], step_ms: int, count: int) -> None:
        delay_ms = max(delays[0] - delays[1], -self.pair.now_ms)
        self.pair.tally(delay_ms=delay_ms, step_ms=step_ms, count=count, is_counted=False)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check_to_the_end()


TestDueQueueMachine = DueQueueMachine.TestCase
# Without explaining, which traces every line of this file for minutes.
TestDueQueueMachine.settings = settings(
    max_examples=100, stateful_step_count=30, phases=(Phase.explicit, Phase.generate, Phase.shrink)
)


@pytest.mark.parametrize("seed", range(6))
def test_long_histories_with_many_cancels_agree_with_the_model(seed: int) -> None:
    """Sweeps and bursts happen amid pushes and pops, and nothing is lost or reordered."""
    rng = random.Random(seed)
    pair = Pair()
    spread = rng.choice([0, 50, 3_000, 10**7])
    sweeps_seen = 0
    for _ in range(60):
        for _ in range(rng.randrange(150)):
            due_ms = pair.now_ms + rng.choice(LEVEL_DELAYS_MS)
            pair.push(pair.new_timer(due_ms, arrived=0, partition=rng.randrange(3)))
        bulk = [
            pair.new_timer(pair.now_ms + rng.randint(0, spread), arrived=0, partition=i % 3)
            for i in range(rng.randrange(1_500))
        ]
        if bulk:
            pair.push_many(bulk)
        for _ in range(rng.choice([0, 200, 1_200]) * len(pair.model.timers) // 1_500):
            pair.cancel(rng.randrange(len(pair.model.timers)))
            sweeps_seen += calls.sweep(pair.queue, 0)
        pair.check()
        pair.look(delay_ms=-spread, length_ms=2 * spread, partition=None, limit=300, budget=1_000)
        pair.now_ms += rng.choice([0, 1, 40, 900, spread // 3]) - rng.choice([0, 0, 30])
        for _ in range(rng.randrange(4)):
            pair.pop(rng.randrange(1, 700))
        if rng.random() < 0.3:
            pair.unpop(rng.randint(0, len(pair.in_flight)))
        if rng.random() < 0.05:
            pair.forget(rng.randrange(3))
            pair.use_new_partitions()
        pair.queue.advance_wheels(pair.now_ms, rng.choice([1, 500, 20_000]))
        if rng.random() < 0.2:
            pair.count_all(budget=1_000)
    assert sweeps_seen > 0
    pair.check_to_the_end()
