"""Who has how much of the memory, and who is held back, decided without sockets."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.kafka.network.limits import SMALL_BYTES
from compat.kafka.network.memory_budget import (
    AHEAD_MAX,
    HIGH_WATER,
    LARGE_BYTES,
    LOW_WATER,
    SHARE,
    SMALL_SHARE,
    Claim,
    MemoryBudget,
)
from compat.kafka.network.memory_lines import MemoryLines

LIMIT = 1_000_000


@settings(max_examples=200)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 7),
            st.sampled_from([0, 1, SMALL_BYTES, 300_000, 700_000, 2_000_000]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_somebody_may_always_go_on(steps: list[tuple[int, int, bool, bool]]) -> None:
    """Nobody waits while there is room, nor without one who goes ahead, nor if it is small."""
    budget: MemoryBudget[int] = MemoryBudget(LIMIT)
    held: dict[int, int] = {}
    large: set[int] = set()
    waiting: set[int] = set()
    for member, size, is_large, is_closed in steps:
        if is_closed:
            released = budget.forget(member)
            held.pop(member, None)
            large.discard(member)
            waiting.discard(member)
        else:
            released = budget.update(member, size, str(member % 3), is_large=is_large)
            held[member] = size
            (large.add if is_large else large.discard)(member)
        before, waiting = waiting, {each for each in held if budget.is_held_back(each)}
        assert set(released) == (before - waiting) - {member} | (set(released) & {member})
        assert budget.total_bytes == sum(held.values())
        assert budget.is_scarce == (budget.total_bytes > LIMIT)
        assert waiting <= large
        if budget.total_bytes <= LOW_WATER * LIMIT:
            assert not waiting
        if waiting:
            assert large - waiting, "all that could make room wait for one another"


@pytest.mark.parametrize("seed", range(10))
def test_all_large_requests_get_done(seed: int) -> None:
    """Of 30 clients with 3 requests each, of which the memory holds 3; none waits for ever."""
    rng = random.Random(seed)
    budget: MemoryBudget[int] = MemoryBudget(LIMIT)
    size, read = 300_000, 10_000
    come = dict.fromkeys(range(30), 0)
    left = dict.fromkeys(range(30), 3)
    peak = 0
    while left:
        ready = [each for each in left if not budget.is_held_back(each)]
        assert ready, f"seed {seed}: everybody waits"
        client = rng.choice(ready)
        come[client] += read
        if come[client] >= size:
            come[client] = 0
            left[client] -= 1
        budget.update(client, come[client], "a", is_large=come[client] > SMALL_BYTES)
        peak = max(peak, budget.total_bytes)
        if left[client] == 0:
            del left[client]
            budget.forget(client)
    # The one that goes ahead, and of each what it may take in any case and one read more.
    assert peak <= LIMIT + size + 30 * (SMALL_BYTES + read), f"seed {seed}"


# Grants

POOL = 100 * LARGE_BYTES
"""One address may have half of it, and all large requests together four fifths."""

LEFT = int(SMALL_SHARE * POOL)
"""What they leave to others."""


class Pool:
    """A budget, and who asks it for what; all requests arrive as fast as they are granted."""

    def __init__(self) -> None:
        self.budget: MemoryBudget[str] = MemoryBudget(POOL)
        self.released: list[str] = []
        self._numbers: Counter[str] = Counter()

    def begin(self, member: str, size_mib: int, address: str = "a") -> bool:
        """A request begins to arrive; returns whether it may be read on."""
        self._numbers[member] += 1
        claim = Claim(self._numbers[member], size_mib * LARGE_BYTES, address)
        self.released += self.budget.update(member, 1_000, address, is_large=False, claim=claim)
        return not self.budget.is_held_back(member)

    def send(self, member: str, size: int, address: str = "a") -> None:
        """So much of a smaller request has arrived."""
        is_large = size > SMALL_BYTES
        self.released += self.budget.update(member, size, address, is_large=is_large)

    def wait(self, member: str, size: int, address: str) -> None:
        """A request of so many bytes is whole, and waits for the broker."""
        self.released += self.budget.update(member, size, address, is_large=True, is_whole=True)

    def end(self, member: str) -> None:
        """The request was handled, or its connection waits for the next one."""
        self.released += self.budget.update(member, 0, "a", is_large=False)

    @property
    def total_mib(self) -> int:
        return self.budget.total_bytes // LARGE_BYTES


def test_large_request_is_charged_whole_before_it_is_read() -> None:
    pool = Pool()
    assert pool.begin("a1", 30)
    assert pool.total_mib == 30
    assert pool.budget.reserved_bytes == 30 * LARGE_BYTES - 1_000
    assert pool.begin("b1", 40, "b")
    assert pool.total_mib == 70
    assert not pool.begin("c1", 31, "c")
    assert pool.total_mib == 70
    assert pool.budget.is_awaited("b1")
    pool.end("a1")
    assert pool.released[-1:] == ["c1"]
    assert (pool.total_mib, pool.budget.is_awaited("b1")) == (71, False)


def test_grants_are_given_in_the_order_of_the_requests() -> None:
    """A small one does not pass a large one, which would else wait for ever."""
    pool = Pool()
    assert pool.begin("a1", 40)
    assert pool.begin("b1", 40, "b")
    assert not pool.begin("c1", 39, "c")
    assert not pool.begin("d1", 2, "d")
    pool.end("b1")
    assert pool.released == ["a1", "b1", "c1"]
    pool.end("a1")
    assert pool.released == ["a1", "b1", "c1", "d1"]


def test_an_address_has_its_share_and_others_pass_it() -> None:
    pool = Pool()
    assert [pool.begin(f"a{index}", 20) for index in range(9)] == [True, True, *[False] * 7]
    assert pool.begin("b1", 40, "b")
    pool.end("a0")
    assert pool.released == ["a0", "a1", "b1", "a2"]


def test_one_request_is_granted_whatever_its_size() -> None:
    """Also beyond the share of its address, and if small requests have taken everything."""
    pool = Pool()
    pool.budget.update("small", 2 * POOL, "a", is_large=False)
    assert pool.begin("a1", 100)
    assert not pool.begin("b1", 2, "b")
    pool.end("a1")
    assert pool.released == ["a1", "b1"]


def test_the_next_request_of_a_connection_waits_again() -> None:
    """Even if it is as large as the last one and began before that was handled."""
    pool = Pool()
    assert pool.begin("a1", 60)
    assert not pool.begin("b1", 60, "b")
    assert not pool.begin("a1", 60)
    assert pool.released == ["a1", "b1"]
    pool.released += pool.budget.forget("b1")
    assert pool.released == ["a1", "b1", "a1"]


@pytest.mark.parametrize("seed", range(20))
def test_granted_requests_fit_and_everybody_gets_its_turn(seed: int) -> None:
    """Requests of any size, connections that are closed, in any order."""
    rng = random.Random(seed)
    pool = Pool()
    active: dict[str, int] = {}
    for _ in range(400):
        member = f"{rng.choice('abc')}{rng.randrange(6)}"
        if member not in active:
            active[member] = rng.choice([2, 10, 45, 99])
            pool.begin(member, active[member], member[0])
        elif rng.random() < 0.2:
            del active[member]
            pool.budget.forget(member)
        elif not pool.budget.is_held_back(member):
            del active[member]
            pool.end(member)
        going = {each for each in active if not pool.budget.is_held_back(each)}
        assert not active or going, f"seed {seed}: everybody waits"
        assert len(going) <= 1 or sum(active[each] for each in going) <= 80, f"seed {seed}"
        for address in "abc":
            own = [active[each] for each in going if each[0] == address]
            assert len(own) <= 1 or sum(own) <= 50, f"seed {seed}"
        waiting = [each for each in active if each not in going]
        first = {each[0]: active[each] for each in reversed(waiting)}
        used = {each[0]: 0 for each in active}
        for each in going:
            used[each[0]] += active[each]
        is_short = any(not used[it] or used[it] + size <= 50 for it, size in first.items())
        for each in active:
            expected = each in going and (is_short or each[0] in first)
            assert pool.budget.is_awaited(each) == expected, f"seed {seed}"
    for _ in range(100):
        for member in [each for each in active if not pool.budget.is_held_back(each)]:
            del active[member]
            pool.end(member)
    assert not active
    assert (pool.budget.total_bytes, pool.budget.reserved_bytes) == (0, 0)


def test_claims_leave_room_for_smaller_requests() -> None:
    """They cost their clients nothing, so that a few could hold back everybody else."""
    pool = Pool()
    for address in "ab":
        assert pool.begin(f"{address}1", 40, address)
        assert not pool.begin(f"{address}2", 20, address)  # a thousand bytes of it arrive
    pool.send("reader", LEFT - 302_000, "c")
    pool.send("p1", 150_000)
    pool.send("p2", 150_000)
    assert not pool.budget.is_scarce
    assert not pool.budget.is_held_back("p1")
    assert not pool.budget.is_held_back("p2")
    pool.send("p1", 150_001)
    assert pool.budget.is_scarce
    pool.send("p2", 150_001)
    assert [pool.budget.is_held_back(each) for each in ("p1", "p2")] == [False, True]
    pool.send("reader", int(LOW_WATER * LEFT) - 302_002, "c")
    assert not pool.budget.is_held_back("p2")


def test_one_claim_of_all_memory_leaves_room_for_smaller_requests() -> None:
    pool = Pool()
    assert pool.begin("a1", 100)
    pool.send("p1", LEFT // 2 - 1)
    assert pool.budget.is_ample
    pool.send("p1", LEFT - 150_000)
    assert not pool.budget.is_ample
    pool.send("p2", 150_000)
    assert not pool.budget.is_scarce
    pool.send("p2", 150_001)
    assert pool.budget.is_scarce


def test_large_requests_hurry_while_smaller_ones_are_held_back() -> None:
    """Else those that hardly arrive would keep their memory for minutes."""
    pool = Pool()
    assert pool.begin("a1", 80)
    pool.send("p1", LEFT)
    assert not pool.budget.is_awaited("a1")
    pool.send("p2", 150_000)
    pool.send("p3", 150_000)
    assert pool.budget.is_held_back("p3")
    assert pool.budget.is_awaited("a1")
    assert not pool.budget.is_awaited("p2")


def test_who_waits_for_the_share_of_its_address_hurries_no_other_address() -> None:
    """Two claims of one client would else close the connections of all slow producers."""
    pool = Pool()
    assert pool.begin("slow", 10, "good")
    assert pool.begin("a1", 45)
    assert not pool.begin("a2", 45)
    assert not pool.budget.is_awaited("slow")
    assert pool.budget.is_awaited("a1")
    assert not pool.budget.is_awaited("a2")
    assert not pool.begin("b1", 45, "b")
    assert pool.budget.is_awaited("slow")
    pool.budget.forget("b1")
    assert not pool.budget.is_awaited("slow")


@pytest.mark.parametrize("seed", range(10))
def test_the_limit_is_exceeded_by_no_more_than_is_said(seed: int) -> None:
    """Whatever arrives of requests of all sizes, and with all that has still to arrive."""
    rng = random.Random(seed)
    budget: MemoryBudget[int] = MemoryBudget(POOL)
    sizes, read = [LARGE_BYTES, 10 * LARGE_BYTES, 30 * LARGE_BYTES], 50_000
    begun: dict[int, tuple[int, int]] = {}
    peak = 0
    for _ in range(10_000):
        member = rng.randrange(200)
        if budget.is_held_back(member):
            continue
        size, come = begun.get(member, (rng.choices(sizes, [18, 1, 1])[0], 0))
        begun[member] = (size, min(size, come + read))
        claim = Claim(member, size, f"{member % 4}") if size > LARGE_BYTES else None
        if come == size and rng.random() < 0.1:
            del begun[member]
            come, claim = 0, None
        address = f"{member % 4}"
        budget.update(member, come, address, is_large=come > SMALL_BYTES, claim=claim)
        peak = max(peak, budget.total_bytes)
    # One large request, one smaller one of each address, and of each connection what it may take
    # in any case and one read.
    most = POOL + sizes[-1] + 4 * LARGE_BYTES + 200 * (SMALL_BYTES + read)
    assert POOL < peak <= most, f"seed {seed}"


@pytest.mark.parametrize("address_count", [1, 7])
def test_what_is_read_next_is_charged_before_it_is_read(address_count: int) -> None:
    """Hundreds of connections are in the middle of a request when memory becomes scarce."""
    budget: MemoryBudget[int] = MemoryBudget(POOL)
    held = dict.fromkeys(range(400), SMALL_BYTES)
    peak = done = 0
    for step in range(100_000):
        ready = [each for each in held if not budget.is_held_back(each)]
        assert ready
        member = ready[step * 7 % len(ready)]
        size = 2 * held[member]  # it is read
        if size > LARGE_BYTES:
            done, size = done + 1, SMALL_BYTES
        held[member] = size
        budget.update(member, size, f"{member % address_count}", is_large=True, growth_bytes=size)
        peak = max(peak, sum(held.values()))
        if done == 400:
            break
    assert done == 400
    assert 0.7 * POOL < peak <= POOL + address_count * LARGE_BYTES


def test_addresses_take_turns_when_there_is_room() -> None:
    lines: MemoryLines[str] = MemoryLines(0)
    for member in ("a1", "a2", "a3", "b1", "b2"):
        lines.hold_or_wait(member, member[0], 1, is_low=True, is_scarce=True)
    assert lines.release(has_room=False) is None
    order = []
    while (member := lines.release(has_room=True)) is not None:
        order.append(member)
    assert order == ["a1", "b1", "a2", "b2", "a3"]


def read_next(pool: Pool, member: str, growth_bytes: int) -> None:
    update = pool.budget.update
    pool.released += update(member, 1_000, "a", is_large=True, growth_bytes=growth_bytes)


def test_a_read_that_has_no_room_waits() -> None:
    """The first of its address goes ahead, and what it takes is charged then."""
    pool = Pool()
    pool.budget.update("answers", POOL - 3 * LARGE_BYTES, "z", is_large=False)
    read_next(pool, "a1", 2 * LARGE_BYTES)
    assert pool.released == []
    read_next(pool, "a2", 2 * LARGE_BYTES)
    assert pool.released == ["a2"]
    assert pool.budget.total_bytes == POOL + LARGE_BYTES + 2_000
    read_next(pool, "a3", 2 * LARGE_BYTES)
    assert is_held(pool, "a3")
    assert pool.budget.total_bytes == POOL + LARGE_BYTES + 3_000
    for member in ("a1", "a2", "a3"):
        pool.budget.forget(member)
    assert pool.budget._growths == {}


def test_a_read_that_takes_the_last_tenth_waits_if_its_address_has_its_share() -> None:
    pool = Pool()
    pool.budget.update("answers", 28 * LARGE_BYTES, "z", is_large=False)
    pool.send("a1", 60 * LARGE_BYTES)
    read_next(pool, "a2", LARGE_BYTES)
    assert pool.released == []
    read_next(pool, "a3", 3 * LARGE_BYTES)
    assert pool.released == ["a3"]


def test_those_that_wait_go_on_as_far_as_there_is_room() -> None:
    """All at once they would read more than that; addresses take turns."""
    pool = full_pool(2)
    waiting = {
        address: [f"{address}-{n}" for n in range(200) if is_held(pool, f"{address}-{n}")]
        for address in range(2)
    }
    for each in waiting[0] + waiting[1]:
        address = each[0]
        pool.budget.update(each, SMALL_BYTES, address, is_large=True, growth_bytes=LARGE_BYTES // 2)
        assert is_held(pool, each)
    pool.released.clear()
    for number in range(200):
        for address in range(2):
            if not is_held(pool, f"{address}-{number}"):
                pool.end(f"{address}-{number}")
    assert 50 < len(pool.released) < 200
    of_first = sum(each.startswith("0-") for each in pool.released)
    assert abs(2 * of_first - len(pool.released)) <= 2
    assert pool.budget.total_bytes <= LOW_WATER * POOL + LARGE_BYTES


def test_what_connections_hold_together_counts_once() -> None:
    """Frames of the log that only answers hold are memory, but of no single connection."""
    budget: MemoryBudget[str] = MemoryBudget(POOL)
    assert budget.note_shared(POOL // 2) == []
    assert budget.update("first", POOL // 2, "a", is_large=True) == []
    assert not budget.is_scarce
    assert budget.note_shared(POOL // 2 + 1) == []
    assert budget.is_scarce
    for name in ("first", "second"):
        budget.update(name, POOL // 2, "a", is_large=True)
    assert budget.is_held_back("second")
    budget.update("first", 0, "a", is_large=False)
    assert budget.note_shared(0) == ["second"] or not budget.is_held_back("second")
    assert budget.total_bytes == POOL // 2


# Smaller requests of several addresses


def is_held(pool: Pool, member: str) -> bool:
    return pool.budget.is_held_back(member)


def full_pool(addresses: int) -> Pool:
    """A pool in which memory is scarce: each address has 200 connections with half a request."""
    pool = Pool()
    for number in range(200):
        for address in range(addresses):
            if not pool.budget.is_held_back(f"{address}-{number}"):
                pool.send(f"{address}-{number}", LARGE_BYTES // 2, str(address))
    return pool


def test_an_address_leaves_the_last_of_the_memory_to_others() -> None:
    """The broker works on all that it sends, so nothing is freed for long."""
    pool = Pool()
    for size in range(SMALL_BYTES, LARGE_BYTES, SMALL_BYTES):
        for number in range(120):
            if not pool.budget.is_held_back(f"a{number}"):
                pool.send(f"a{number}", size)
    assert not pool.budget.is_scarce
    assert pool.budget.total_bytes > HIGH_WATER * POOL
    assert sum(pool.budget.is_held_back(f"a{number}") for number in range(120)) == 119
    for number in range(8):
        pool.send(f"b{number}", SMALL_BYTES + 1, "b")
        assert not pool.budget.is_held_back(f"b{number}")


def test_an_address_below_its_share_goes_on_when_memory_runs_low() -> None:
    pool = Pool()
    pool.send("reader", POOL - int(SHARE * POOL), "c")
    pool.end("reader")
    pool.budget.update("answers", int(HIGH_WATER * POOL), "c", is_large=False)
    pool.send("a1", LARGE_BYTES)
    pool.send("a2", LARGE_BYTES)
    assert not pool.budget.is_held_back("a1")
    assert not pool.budget.is_held_back("a2")


def test_one_connection_of_each_address_goes_ahead_while_memory_is_scarce() -> None:
    """Until its request is done; then the next one of its address does."""
    pool = full_pool(3)
    assert pool.budget.is_scarce
    pool.send("b1", LARGE_BYTES // 2, "b")
    pool.send("b2", LARGE_BYTES // 2, "b")
    assert [pool.budget.is_held_back(each) for each in ("b1", "b2")] == [False, True]
    pool.send("b1", LARGE_BYTES, "b")
    assert pool.budget.is_held_back("b2")
    pool.end("b1")
    assert pool.released[-1] == "b2"
    assert not pool.budget.is_held_back("b2")


def test_a_whole_request_counts_and_does_not_wait() -> None:
    """Its connection is read, so that it is noticed when the client is gone."""
    pool = full_pool(1)
    waiting = [each for each in (f"0-{number}" for number in range(200)) if is_held(pool, each)]
    first, second, *_ = waiting
    pool.released.clear()
    pool.wait(first, LARGE_BYTES, "0")
    assert not is_held(pool, first)
    assert pool.released == [first]
    assert is_held(pool, second)
    ahead = pool.budget._lines._lines["0"].ahead
    assert ahead is not None
    pool.wait(ahead, LARGE_BYTES, "0")
    assert is_held(pool, second), "the one that goes ahead does until it is answered"
    pool.end(ahead)
    assert not is_held(pool, second)


def test_whole_requests_leave_the_rest_to_others() -> None:
    """Those of one address wait for the broker, and take as much as it may have."""
    pool = Pool()
    for number in range(95):
        pool.wait(f"a{number}", LARGE_BYTES, "a")
    pool.send("a95", SMALL_BYTES + 1)
    pool.send("a96", SMALL_BYTES + 1)
    assert [is_held(pool, each) for each in ("a95", "a96")] == [False, True]
    pool.send("b1", SMALL_BYTES + 1, "b")
    pool.send("b2", SMALL_BYTES + 1, "b")
    assert [is_held(pool, each) for each in ("b1", "b2")] == [False, False]


def test_addresses_go_ahead_in_order_if_there_are_many() -> None:
    """Else their requests would exceed the memory without bound."""
    pool = full_pool(1)
    pool.budget.update("answers", POOL, "z", is_large=False)
    for number in range(AHEAD_MAX + 10):
        pool.send(f"b{number}", LARGE_BYTES, f"b{number}")
    held_back = [
        number for number in range(AHEAD_MAX + 10) if pool.budget.is_held_back(f"b{number}")
    ]
    assert len(held_back) in (10, 11)
    pool.released.clear()
    pool.end("b3")
    assert pool.released == [f"b{held_back[0]}"]
    pool.released += pool.budget.forget("b4")
    assert pool.released == [f"b{held_back[0]}", f"b{held_back[1]}"]
