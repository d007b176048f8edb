"""The tables and the picture of a benchmark."""

import json
from xml.etree import ElementTree

import pytest

from perf.figures import Figure, Measured
from perf.goals import GOALS, Goal, decide
from perf.plot import plot
from perf.report import (
    Run,
    cell,
    document,
    goals_table,
    markdown_table,
    number,
    read_results,
    report,
)
from perf.workloads import LATENCY, Step, Workload
from tests.support.values.bench_results import rate, result

WORKLOADS = [
    Workload("sending", Step("produce", 10), ("mock", "latermq async")),
    Workload("asking <x>", Step("one-at-a-time", 10), ("latermq async",), LATENCY),
]
RESULTS = [
    result("sending", "mock", messages_per_s=[1_000_000.0, 2_000_000.0], mb_per_s=[1.0, 2.0]),
    result("sending", "latermq async", messages_per_s=[1_500_000.0, 1_600_000.0]),
    result("asking <x>", "latermq async", p50_ms=[0.1, 0.1], p99_ms=[0.2, 0.3]),
]
GOAL = Goal("sent / mock", rate("sending", "latermq async"), (rate("sending", "mock"),), 0.7)


def run(**changes: object) -> Run:
    fields: dict[str, object] = {
        "machine": "a machine, 2 cores",
        "command": "make bench",
        "results": RESULTS,
        "workloads": WORKLOADS,
        "goals": [GOAL],
        "skipped": {},
        "failures": [],
    }
    return Run(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (0.0123, "0.012"),
        (0.0999, "0.10"),
        (0.123, "0.12"),
        (9.994, "9.99"),
        (9.999, "10.0"),
        (99.96, "100"),
        (999.4, "999"),
        (999.9, "1.00k"),
        (416_000, "416k"),
        (1_690_000, "1.69M"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_a_cell_shows_the_range_and_marks_a_wide_one() -> None:
    assert cell(Figure((1.0, 1.2, 1.1))) == "1.10 [1.00 .. 1.20]"
    assert cell(Figure((1.0, 2.0, 1.1))) == "1.10 [1.00 .. 2.00] ~"
    assert cell(Figure((1.0,))) == "1.00"
    assert cell(None) == "-"


def test_a_table_is_markdown_with_aligned_columns() -> None:
    lines = markdown_table([["a", "long head"], ["wide cell", "b"]]).splitlines()
    assert lines == [
        "| a         | long head |",
        "|-----------|-----------|",
        "| wide cell | b         |",
    ]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((2.0, 2.1, 2.2), "met"),
        ((1.0, 1.1, 1.2), "MISSED"),
        ((1.9, 2.0, 2.1), "met"),
        ((1.8, 1.9, 2.1), "MISSED"),
        ((1.0, 2.0, 2.1), "inconclusive"),
        ((1.0, 5.0, 9.0), "inconclusive"),
        ((3.0, 5.0, 9.0), "met"),
    ],
)
def test_a_goal_is_decided_by_the_median_unless_the_runs_disagree_widely(
    values: tuple[float, ...], verdict: str
) -> None:
    assert decide(Figure(values), at_least=2.0) == verdict


def test_an_upper_bound_is_judged_the_other_way_round() -> None:
    assert decide(Figure((1.0, 1.1)), at_most=2.0) == "met"
    assert decide(Figure((2.5, 2.6)), at_most=2.0) == "MISSED"


def test_goals_show_what_was_wanted_and_got() -> None:
    table = goals_table([GOAL], Measured(RESULTS))
    row = table.splitlines()[-1]
    assert [text.strip() for text in row.strip("|").split("|")] == [
        "sent / mock",
        ">= 0.70",
        "1.15 [0.80 .. 1.50] ~",
        "met",
    ]


def test_goals_that_were_not_measured_are_left_out() -> None:
    assert len(goals_table(GOALS, Measured(RESULTS)).splitlines()) == 4


def test_a_report_says_everything() -> None:
    text = report(run(skipped={"Kafka": "there is no java"}, failures=["sending, mock: it died"]))
    assert "a machine, 2 cores" in text
    assert "### Throughput" in text
    assert "### Latency" in text
    assert "- not measured: Kafka: there is no java" in text
    assert "- failed: sending, mock: it died" in text
    assert "- warning: sending, mock: the runs spread 2.00x" in text
    assert "To repeat: `make bench`" in text


def test_a_document_can_be_read_back() -> None:
    found = json.loads(json.dumps(document(run())))
    assert read_results(found) == RESULTS
    assert found["goals"][0]["verdict"] == "met"
    assert found["goals"][0]["median"] == pytest.approx(1.15)


def test_a_document_of_something_else_is_refused() -> None:
    with pytest.raises(KeyError):
        read_results({})
    with pytest.raises(TypeError):
        read_results({"results": 1})


def test_the_picture_is_well_formed_and_holds_every_bar() -> None:
    svg = plot(RESULTS, run().metric_of, "AMD & Intel <2 cores>")
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    texts = ["".join(text.itertext()) for text in root.iter(f"{space}text")]
    assert "AMD & Intel <2 cores>" in texts
    assert "asking <x> p50 ms, less is better" in texts
    bars = [rect for rect in root.iter(f"{space}rect") if rect.get("x")]
    assert len(bars) == len(RESULTS)


def test_bars_are_as_long_as_their_medians_and_stay_within_the_picture() -> None:
    root = ElementTree.fromstring(plot(RESULTS[:2], run().metric_of, ""))
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in root.iter(f"{space}rect") if rect.get("x")]
    mock, latermq = (float(bar.get("width") or 0) for bar in bars)
    assert mock / latermq == pytest.approx(1_500_000 / 1_550_000, rel=0.01)
    whiskers = [float(line.get("x2") or 0) for line in root.iter(f"{space}line")]
    assert max(whiskers) <= float(root.get("width") or 0)
