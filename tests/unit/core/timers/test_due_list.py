"""Lists of pending timers: those at the edges of a page. `test_due_queue_model` has the rest."""

from array import array
from itertools import chain

import pytest

from _core.timers.due_list import DueList
from _core.timers.due_queue import DueQueue
from tests.support.compiled import timer_calls as calls
from tests.support.values.packed_timers import START_MS, Timer, pack

CENTURY_MS = 1 << 42
"""More than the root of the tree has in one slot."""


def pages(due_list: DueList, limit: int, budget: int) -> list[list[Timer]]:
    found, after, is_complete = due_list.page(None, limit, budget)
    all_found = [found]
    while not is_complete:
        found, after, is_complete = due_list.page(after, limit, budget)
        all_found.append(found)
    return all_found


def test_what_was_put_back_comes_after_what_a_spent_budget_left_out() -> None:
    queue = DueQueue()
    timers = [(START_MS + i * CENTURY_MS, i, 0, 0) for i in (0, 1, 2, 3)]
    for timer in timers[:3:2]:
        calls.push(queue, *timer)
    calls.unpop(queue, calls.pop(queue, timers[2][0], 2))
    for timer in timers[1::2]:
        calls.push(queue, *timer)
    found = pages(DueList(queue), 10, 1)
    assert list(chain.from_iterable(found)) == timers
    assert len(found) > 1


def test_pages_within_one_millisecond_go_on_by_arrival() -> None:
    queue = DueQueue()
    timers = [(START_MS, position, index, 0) for position in range(3_000) for index in (0, 7)]
    calls.push_packed(queue, pack(timers))
    found = pages(DueList(queue), 500, 1)
    assert list(chain.from_iterable(found)) == timers
    assert max(map(len, found)) == 500


def test_only_what_was_accepted_before_a_position_is_listed() -> None:
    queue = DueQueue()
    for position in (10, 20, 30):
        calls.push(queue, START_MS, position, 0, 0)
    found, _, is_complete = DueList(queue, end_pos=30).page(None, 5, 100)
    assert [position for _, position, _, _ in found] == [10, 20]
    assert is_complete


def test_the_last_interval_has_all_later_timers() -> None:
    queue = DueQueue()
    for position, after_ms in enumerate((0, 9, 10, 29, 30, CENTURY_MS)):
        calls.push(queue, START_MS + after_ms, position, 0, 0)
    counts = array("q", [0, 0, 0])
    reached = DueList(queue, START_MS).count(counts, 10, -1, 1_000)
    assert (list(counts), reached) == ([2, 1, 3], -1)


def test_timers_are_looked_for_wherever_the_queue_has_them() -> None:
    queue = DueQueue()
    timers = [(START_MS + (i // 100) * CENTURY_MS, i, i % 3, 0) for i in range(2_000)]
    calls.push_packed(queue, pack(timers))
    for _, position, index, _ in timers[5::10]:
        calls.cancel(queue, position, index, 0)
    popped = calls.pop(queue, START_MS, 70)
    calls.unpop(queue, popped[60:])
    places = [timer[:3] for timer in timers]
    found = DueList(queue).holds(places)
    gone = {timer[:3] for timer in popped[:60]} | set(places[5::10])
    assert list(found) == [place not in gone for place in places]
    for chosen in (places[700:750], places[7::300], [places[0]], []):
        expected = [place not in gone for place in chosen]
        assert list(DueList(queue).holds(chosen)) == expected


@pytest.mark.parametrize(("limit", "step_ms", "intervals"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_lists_of_nothing_are_refused(limit: int, step_ms: int, intervals: int) -> None:
    due_list = DueList(DueQueue())
    with pytest.raises(ValueError):  # noqa: PT011, PT012 (each of two)
        due_list.page(None, limit, 1)
        due_list.count(array("q", [0] * intervals), step_ms, -1, 1)
