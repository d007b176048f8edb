"""Marks of age and size: what lies below one is at least as old, or as large, as it says."""

import random

import pytest

from appliance.store.state.log_ages import MARKS_MAX, SIZE_PARTS, LogAges, SizeMarks
from appliance.store.state.snapshot import VALUE_HEAD, decode_size_marks, encode_size_marks

KEY = (1, 0)


def test_a_position_is_found_by_age() -> None:
    ages = LogAges([(100, 10), (200, 20), (300, 30)])
    assert [ages.position_of(age) for age in (-5, 9, 10, 19, 20, 29, 30, 99)] == [
        *(0, 0, 100, 100, 200, 200, 300, 300)
    ]


def test_a_mark_that_says_nothing_new_is_not_kept() -> None:
    ages = LogAges()
    for mark in [(100, 10), (100, 20), (50, 30), (200, 5), (200, 40)]:
        ages.note(*mark)
    assert ages.certain() == [(100, 10), (200, 40)]


def test_many_marks_are_thinned_and_nothing_gets_older() -> None:
    ages = LogAges()
    count = 10 * MARKS_MAX
    for number in range(1, count + 1):
        ages.note(number * 100, number)
    marks = ages.certain()
    assert len(marks) <= MARKS_MAX
    assert marks == sorted(marks)
    assert all(pos == age * 100 for pos, age in marks)
    # The newest half is whole.
    newest = [age for _, age in marks][-MARKS_MAX // 4 :]
    assert newest == list(range(count - MARKS_MAX // 4 + 1, count + 1))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_doubtful_marks_are_raised_if_the_jump_counts(is_restarted: bool) -> None:
    ages = LogAges([(100, 10)])
    for mark in [(200, 20), (300, 30)]:
        ages.note(*mark, is_certain=False)
    assert (ages.certain(), ages.doubtful()) == ([(100, 10)], [(200, 20), (300, 30)])
    assert ages.position_of(25) == 200
    if is_restarted:
        ages = LogAges(ages.certain(), ages.doubtful())
    ages.raise_doubtful(1_000)
    assert ages.certain() == [(100, 10), (200, 1_020), (300, 1_030)]


def test_doubtful_marks_are_certain_once_the_jump_was_taken_back() -> None:
    ages = LogAges([(100, 10)])
    ages.note(200, 20, is_certain=False)
    ages.note(200, 30)
    assert ages.certain() == [(100, 10), (200, 20)]
    ages.raise_doubtful(1_000)
    assert ages.certain() == [(100, 10), (200, 20)]


@pytest.mark.parametrize("limit", [0, 1, 1_000, 50_000])
def test_a_partition_keeps_its_limit_and_not_much_more(limit: int) -> None:
    rng = random.Random(limit)
    sizes, marks, end, total, start, largest = [0], SizeMarks(), 0, 0, 0, 0
    for _ in range(3_000):
        for _ in range(rng.randrange(4)):
            largest = max(largest, step := rng.randrange(1, 200))
            total += step
            end += 1
            sizes.append(total)
        found = marks.excess(KEY, end, total, limit)
        assert 0 <= found <= end
        start = max(start, found)
        assert total - sizes[start] >= min(limit, total)
        assert total - sizes[start] <= limit + limit // SIZE_PARTS + 8 * largest
    assert start > 0
    captured = marks.capture()
    assert len(captured[0][1]) <= SIZE_PARTS + 2
    again = SizeMarks()
    again.restore(decode_size_marks(encode_size_marks(captured)[VALUE_HEAD.size :]))
    assert again.capture() == captured


def test_marks_of_partitions_without_a_limit_are_dropped() -> None:
    marks = SizeMarks()
    marks.restore([(1, 0, 5, 500), (2, 0, 7, 700)])
    marks.keep({(2, 0)})
    assert marks.capture() == [((2, 0), ((7, 700),))]


def test_captured_marks_do_not_change() -> None:
    marks = SizeMarks()
    marks.excess(KEY, 1, 100, 1_000)
    captured = marks.capture()
    for end in range(2, 40):
        marks.excess(KEY, end, end * 100, 1_000)
    marks.keep(set())
    assert captured == [(KEY, ((1, 100),))]
