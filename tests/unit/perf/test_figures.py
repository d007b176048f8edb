"""What the benchmark concludes from its numbers, and when it says that nothing follows."""

import json

import pytest

from perf.figures import Figure, Measured, Quantity, Result, find_warnings, join
from tests.support.values.bench_results import rate, result


def test_a_figure_is_the_median_with_its_range() -> None:
    figure = Figure((5.0, 1.0, 3.0, 2.0, 100.0))
    assert (figure.median, figure.min, figure.max) == (3.0, 1.0, 100.0)
    assert figure.spread == 100.0
    assert Figure((0.0, 1.0)).spread == float("inf")


@pytest.mark.parametrize(
    ("count", "left_out"), [(1, 0), (3, 0), (5, 0), (7, 0), (8, 1), (10, 1), (11, 2), (50, 18)]
)
def test_the_interval_of_the_median_leaves_out_runs_at_both_ends(count: int, left_out: int) -> None:
    """As tables of the sign test at 90 % have it."""
    values = tuple(float(value) for value in range(count))
    assert Figure(values[::-1]).interval == (left_out, count - 1 - left_out)


def test_runs_that_are_joined_keep_all_of_their_rounds() -> None:
    first = [result("w", "a", p50_ms=[1.0, 2.0]), result("w", "b", p50_ms=[3.0])]
    joined = {r.broker: r for r in join([first, [result("w", "a", p50_ms=[4.0])]])}
    assert joined["a"] == result("w", "a", p50_ms=[1.0, 2.0, 4.0])
    assert joined["b"] == result("w", "b", p50_ms=[3.0])


@pytest.mark.parametrize(("largest", "is_conclusive"), [(1.5, True), (1.51, False)])
def test_a_wide_spread_is_not_conclusive(largest: float, is_conclusive: bool) -> None:
    assert Figure((1.0, 1.2, largest)).is_conclusive is is_conclusive


def test_a_ratio_is_taken_pair_by_pair() -> None:
    # In the second round the machine was slow for both: the ratio of the medians would be 1.0.
    measured = Measured(
        [
            result("w", "a", messages_per_s=[200.0, 20.0, 210.0]),
            result("w", "b", messages_per_s=[100.0, 10.0, 300.0]),
        ]
    )
    figure = measured.find_ratio(rate("w", "a"), [rate("w", "b")])
    assert figure is not None
    assert figure.values == (2.0, 2.0, 0.7)


def test_a_ratio_is_to_the_lowest_of_several() -> None:
    measured = Measured(
        [
            result("w", "a", messages_per_s=[6.0, 6.0]),
            result("w", "b", messages_per_s=[3.0, 12.0]),
            result("w", "c", messages_per_s=[4.0, 6.0]),
        ]
    )
    figure = measured.find_ratio(rate("w", "a"), [rate("w", "b"), rate("w", "c")])
    assert figure == Figure((2.0, 1.0))


def test_a_failed_round_leaves_its_pair_out() -> None:
    mine = Result("w", "a", {1: {"messages_per_s": 2.0}, 3: {"messages_per_s": 6.0}})
    other = result("w", "b", messages_per_s=[1.0, 100.0, 2.0])
    figure = Measured([mine, other]).find_ratio(rate("w", "a"), [rate("w", "b")])
    assert figure == Figure((2.0, 3.0))


@pytest.mark.parametrize(
    "other",
    [
        [],
        [result("w", "b", p99_ms=[1.0])],
        [result("w", "b", messages_per_s=[0.0])],
        [Result("w", "b", {2: {"messages_per_s": 1.0}})],
    ],
    ids=["absent", "another metric", "zero", "another round"],
)
def test_a_ratio_without_pairs_is_none(other: list[Result]) -> None:
    measured = Measured([result("w", "a", messages_per_s=[1.0]), *other])
    assert measured.find_ratio(rate("w", "a"), [rate("w", "b")]) is None


def test_a_quantity_that_was_not_measured_is_none() -> None:
    measured = Measured([result("w", "a", messages_per_s=[1.0])])
    assert measured.find(Quantity("w", "a", "p99_ms")) is None
    assert measured.find(rate("x", "a")) is None
    assert measured.find(rate("w", "a")) == Figure((1.0,))


def test_json_keeps_every_run() -> None:
    before = Result("w", "a", {1: {"p99_ms": 1.5, "p50_ms": 1.0}, 4: {"p99_ms": 2.5}})
    assert Result.from_json(json.loads(json.dumps(before.as_json()))) == before


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError):
        Result.from_json({"workload": "w", "broker": "a", "rounds": [1]})


def test_warnings_name_what_spreads_and_what_was_disturbed() -> None:
    wide = result("w", "a", messages_per_s=[1.0, 2.0], other_cpu_share=[0.0, 0.3])
    fine = result("w", "b", messages_per_s=[1.0, 1.1], other_cpu_share=[0.0, 0.05])
    found = find_warnings([wide, fine], {"w": "messages_per_s"})
    assert len(found) == 2
    assert found[0].startswith("w, a: the runs spread 2.00x")
    assert "1 of 2 cases" in found[1]
    assert "w, a: 0.30" in found[1]
    assert find_warnings([fine], {"w": "messages_per_s"}) == []


def test_a_warning_says_what_the_host_took() -> None:
    calm = result("w", "a", messages_per_s=[1.0, 1.0], stolen_share=[0.0, 0.04])
    stopped = result("w", "b", messages_per_s=[1.0, 1.0], stolen_share=[0.0, 0.3])
    (found,) = find_warnings([calm, stopped], {"w": "messages_per_s"})
    assert found.startswith("the host of this machine took more than 0.05 of a core from 1 of 2")
    assert "w, b: 0.30" in found
    assert find_warnings([calm], {"w": "messages_per_s"}) == []


def test_only_the_metric_that_a_workload_is_about_is_judged() -> None:
    found = result("w", "a", messages_per_s=[1.0, 1.0], p99_ms=[1.0, 9.0])
    assert find_warnings([found], {"w": "messages_per_s"}) == []
    assert len(find_warnings([found], {"w": "p99_ms"})) == 1
