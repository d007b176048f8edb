"""Who is refused or closed, decided without sockets and in virtual time."""

import random
from collections import Counter
from typing import Any

import pytest

from compat.kafka.network.limits import (
    RATE_MIN_BYTES_PER_S,
    SCARCE_TIMEOUT_MS,
    Admission,
    ConnectionStats,
    IdleDetector,
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
