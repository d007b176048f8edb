"""Who is refused, held back or closed, decided without sockets and in virtual time."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.kafka.network.limits import (
    LARGE_BYTES,
    LOW_WATER,
    RATE_MIN_BYTES_PER_S,
    SCARCE_TIMEOUT_MS,
    SMALL_BYTES,
    SMALL_SHARE,
    Admission,
    Claim,
    ConnectionStats,
    IdleDetector,
    MemoryBudget,
)
from tests.support.harness.configs import small_config

IDLE_MS = 600_000
RECEIVE_MS = 60_000

# Admission


@pytest.mark.parametrize("seed", range(5))
def test_admission_counts_what_is_there(seed: int) -> None:
    """However connections come and go; what was refused is not counted."""
    rng = random.Random(seed)
    admission = Admission(small_config(connection_count_max=12, connection_count_max_per_address=5))
    open_ones: Counter[str] = Counter()
    for _ in range(2_000):
        address = rng.choice("abcd")
        if rng.random() < 0.5 and open_ones[address]:
            open_ones[address] -= 1
            admission.forget(address)
            continue
        expected = "address" if open_ones[address] == 5 else None
        expected = "count" if open_ones.total() == 12 else expected
        assert admission.admit(address) == expected, f"seed {seed}"
        open_ones[address] += expected is None


@pytest.mark.parametrize(
    ("file_limit", "expected"),
    [(None, 5_000), (100_000, 5_000), (7_048, 5_000), (7_000, 4_952), (1_024, 512), (4, 2)],
)
def test_open_files_are_left_for_the_store(file_limit: int | None, expected: int) -> None:
    config = small_config(connection_count_max=5_000, connection_count_max_per_address=5_000)
    admission = Admission(config, file_limit)
    assert admission.count_max == expected
    admitted = [admission.admit(f"{number}") for number in range(expected + 2)]
    assert admitted == [None] * expected + ["count"] * 2


def test_one_address_has_its_part_of_the_connections_that_open_files_leave() -> None:
    config = small_config(connection_count_max=10_000, connection_count_max_per_address=5_000)
    admission = Admission(config, 1_000)
    assert [admission.admit("a") for _ in range(252)] == [None] * 250 + ["address"] * 2
    assert [admission.admit("b") for _ in range(252)] == [None] * 250 + ["count"] * 2


# Connections that get nowhere


def sight(**changes: Any) -> ConnectionStats:
    seen: dict[str, Any] = {
        "requests": 1,
        "partial_bytes": 0,
        "taken_bytes": 0,
        "unsent_bytes": 0,
        "is_owed": False,
        "is_held_back": False,
        "is_large": False,
    }
    return ConnectionStats(**(seen | changes))


def make_watch() -> IdleDetector:
    config = small_config(idle_timeout_ms=IDLE_MS, receive_timeout_ms=RECEIVE_MS)
    return IdleDetector(config, now_ms=0)


def label(
    watch: IdleDetector,
    now_ms: int,
    *,
    is_scarce: bool = False,
    is_awaited: bool = False,
    **changes: Any,
) -> str | None:
    verdict = watch.judge(now_ms, sight(**changes), is_scarce=is_scarce, is_awaited=is_awaited)
    return None if verdict is None else verdict[0]


def test_silent_connection_is_idle_after_its_time() -> None:
    """Each request restarts the time."""
    watch = make_watch()
    assert label(watch, 1) is None
    assert label(watch, IDLE_MS) is None
    assert label(watch, IDLE_MS + 1, requests=2) is None
    assert label(watch, 2 * IDLE_MS + 1, requests=2) is None
    verdict = watch.judge(2 * IDLE_MS + 2, sight(requests=2), is_scarce=False)
    assert verdict == ("idle", f"the client sent nothing for network.idle_timeout_ms = {IDLE_MS}")


def test_connection_that_waits_for_the_broker_is_not_idle() -> None:
    """A parked fetch, a JoinGroup, a flush: for as long as it takes, and its time begins then."""
    watch = make_watch()
    for now_ms in range(0, 10 * IDLE_MS, IDLE_MS // 3):
        assert label(watch, now_ms, is_owed=True) is None
    assert label(watch, now_ms + IDLE_MS) is None
    assert label(watch, now_ms + IDLE_MS + 1) == "idle"


def test_request_that_never_ends_is_closed_for_its_time() -> None:
    """Whether nothing comes of it any more, or a byte now and then."""
    for step in (0, 1):
        watch = make_watch()
        size = 3
        for now_ms in range(1_000, RECEIVE_MS + 1_001, 1_000):
            assert label(watch, now_ms, partial_bytes=size) is None
            size += step
        verdict = watch.judge(RECEIVE_MS + 1_001, sight(partial_bytes=size), is_scarce=False)
        assert verdict is not None
        assert verdict[0] == "slow_request"
        assert f"network.receive_timeout_ms = {RECEIVE_MS}" in verdict[1]


def test_slow_disk_is_not_the_clients_fault() -> None:
    """A producer whose batches wait for it is not read: its next request may come late."""
    watch = make_watch()
    for now_ms in range(0, 5 * RECEIVE_MS, 1_000):
        assert label(watch, now_ms, partial_bytes=9, is_owed=True) is None
    assert label(watch, now_ms + RECEIVE_MS, partial_bytes=9) is None
    assert label(watch, now_ms + RECEIVE_MS + 1, partial_bytes=9) == "slow_request"


def test_many_requests_in_part_are_not_one_slow_request() -> None:
    """A busy producer is always seen with a part of its next request."""
    watch = make_watch()
    for count in range(100):
        assert label(watch, count * RECEIVE_MS, requests=count, partial_bytes=5) is None


def test_half_a_request_is_idle_where_that_is_shorter() -> None:
    config = small_config(idle_timeout_ms=1_000, receive_timeout_ms=RECEIVE_MS)
    watch = IdleDetector(config, now_ms=0)
    assert label(watch, 1, partial_bytes=3) is None
    assert label(watch, 1_002, partial_bytes=3) == "idle"


def test_client_that_takes_no_answers_is_closed() -> None:
    """Also if the broker owes it more; every byte that it takes restarts the time."""
    watch = make_watch()
    assert label(watch, 1, unsent_bytes=9, is_owed=True) is None
    assert label(watch, IDLE_MS, unsent_bytes=8, taken_bytes=1, is_owed=True) is None
    assert label(watch, 2 * IDLE_MS, unsent_bytes=8, taken_bytes=1, is_owed=True) is None
    found = watch.judge(
        2 * IDLE_MS + 1, sight(unsent_bytes=8, taken_bytes=1, is_owed=True), is_scarce=False
    )
    assert found is not None
    assert found[0] == "slow_reader"
    assert "read no response" in found[1]


def test_scarce_memory_shortens_the_time_of_those_who_have_most() -> None:
    """Not of small ones, nor of whom the broker itself holds back."""
    late = SCARCE_TIMEOUT_MS + 2
    kinds: list[tuple[dict[str, Any], str | None]] = [
        ({"unsent_bytes": 5, "is_large": True}, "memory"),
        ({"partial_bytes": 5, "is_large": True}, "memory"),
        ({"partial_bytes": 5, "is_large": True, "is_held_back": True}, None),
        ({"unsent_bytes": 5}, None),
        ({"is_owed": True, "is_large": True}, None),
    ]
    for changes, expected in kinds:
        watch = make_watch()
        assert label(watch, 1, is_scarce=True, **changes) is None
        assert label(watch, late, is_scarce=False, **changes) is None
        assert label(watch, late, is_scarce=True, **changes) == expected


def test_whom_the_broker_holds_back_is_neither_slow_nor_idle() -> None:
    """Its request could not come: nobody read it."""
    watch = make_watch()
    held = {"partial_bytes": 5, "is_large": True, "is_held_back": True}
    for now_ms in range(0, 3 * IDLE_MS, RECEIVE_MS // 2):
        assert label(watch, now_ms, **held) is None
    assert label(watch, 3 * IDLE_MS + 1, partial_bytes=5) is None
    assert label(watch, 3 * IDLE_MS + RECEIVE_MS + 2, partial_bytes=5) == "slow_request"


def test_large_request_has_time_for_its_size() -> None:
    """A second more for each megabyte, so that 100 MiB need not come in the time of a small one."""
    size = 30 * RATE_MIN_BYTES_PER_S
    watch = make_watch()
    for now_ms in range(0, RECEIVE_MS + 30_001, 1_000):
        assert label(watch, now_ms, partial_bytes=now_ms + 9, claimed_bytes=size) is None
    found = watch.judge(
        RECEIVE_MS + 30_001, sight(partial_bytes=5, claimed_bytes=size), is_scarce=False
    )
    assert found is not None
    assert found[0] == "slow_request"
    assert f"receive_timeout_ms = {RECEIVE_MS} and 30000 for its size" in found[1]


@pytest.mark.parametrize("is_awaited", [False, True])
def test_slow_large_request_is_closed_only_while_others_wait(is_awaited: bool) -> None:
    """At half of the rate, after the first seconds; at the whole rate never."""
    for part, expected in ((2, "memory"), (1, None)):
        watch = make_watch()
        labels = [
            label(
                watch,
                now_ms,
                is_awaited=is_awaited,
                partial_bytes=1 + now_ms * RATE_MIN_BYTES_PER_S // 1_000 // part,
                claimed_bytes=100 * RATE_MIN_BYTES_PER_S,
            )
            for now_ms in range(0, 50_000, 500)
        ]
        before = 2 * SCARCE_TIMEOUT_MS // 500
        assert labels[:before] == [None] * before
        assert labels[-1] == (expected if is_awaited else None)


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize(
    ("bytes_per_s", "expected"),
    [(RATE_MIN_BYTES_PER_S + 1_000, None), (RATE_MIN_BYTES_PER_S // 2, "memory")],
)
def test_slow_reader_is_closed_only_while_others_wait(
    bytes_per_s: int, expected: str | None, is_awaited: bool
) -> None:
    """A byte now and then is progress, but others wait for the memory."""
    watch = make_watch()
    labels = [
        verdict and verdict[0]
        for now_ms in range(0, 50_000, 500)
        for verdict in [
            watch.judge(
                now_ms,
                sight(taken_bytes=now_ms * bytes_per_s // 1_000, unsent_bytes=9, is_large=True),
                is_scarce=True,
                is_awaited=is_awaited,
            )
        ]
    ]
    before = SCARCE_TIMEOUT_MS // 500
    assert labels[:before] == [None] * before
    assert labels[-1] == (expected if is_awaited else None)


# Memory

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
            released = budget.update(member, size, is_large=is_large)
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
        budget.update(client, come[client], is_large=come[client] > SMALL_BYTES)
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
        self.released += self.budget.update(member, 1_000, is_large=False, claim=claim)
        return not self.budget.is_held_back(member)

    def send(self, member: str, size: int) -> None:
        """So much of a smaller request has arrived."""
        self.released += self.budget.update(member, size, is_large=size > SMALL_BYTES)

    def end(self, member: str) -> None:
        """The request was handled, or its connection waits for the next one."""
        self.released += self.budget.update(member, 0, is_large=False)

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
    pool.budget.update("small", 2 * POOL, is_large=False)
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
    pool.send("reader", LEFT - 302_000)
    pool.send("p1", 150_000)
    pool.send("p2", 150_000)
    assert not pool.budget.is_scarce
    assert not pool.budget.is_held_back("p1")
    assert not pool.budget.is_held_back("p2")
    pool.send("p1", 150_001)
    assert pool.budget.is_scarce
    pool.send("p2", 150_001)
    assert [pool.budget.is_held_back(each) for each in ("p1", "p2")] == [False, True]
    pool.send("reader", int(LOW_WATER * LEFT) - 302_002)
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
        budget.update(member, come, is_large=come > SMALL_BYTES, claim=claim)
        peak = max(peak, budget.total_bytes)
    # One large request, one smaller one, and of each what it may take in any case and one read.
    most = POOL + sizes[-1] + LARGE_BYTES + 200 * (SMALL_BYTES + read)
    assert POOL < peak <= most, f"seed {seed}"


def test_what_connections_hold_together_counts_once() -> None:
    """Frames of the log that only answers hold are memory, but of no single connection."""
    budget: MemoryBudget[str] = MemoryBudget(POOL)
    assert budget.note_shared(POOL // 2) == []
    assert budget.update("first", POOL // 2, is_large=True) == []
    assert not budget.is_scarce
    assert budget.note_shared(POOL // 2 + 1) == []
    assert budget.is_scarce
    for name in ("first", "second"):
        budget.update(name, POOL // 2, is_large=True)
    assert budget.is_held_back("second")
    budget.update("first", 0, is_large=False)
    assert budget.note_shared(0) == ["second"] or not budget.is_held_back("second")
    assert budget.total_bytes == POOL // 2
