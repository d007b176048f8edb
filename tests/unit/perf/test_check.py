"""make bench-check: finds what became worse, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from perf.check import (
    BASELINE,
    Reference,
    compare,
    comparison_table,
    exit_status,
    new_baseline,
    ratios,
    read_baseline,
    write_baseline,
)
from perf.figures import Measured, Quantity
from perf.goals import GOALS, Goal
from perf.workloads import WORKLOADS
from tests.support.docs.source_files import ROOT
from tests.support.values.bench_results import rate, result

MORE = Goal("more", rate("w", "a"), (rate("w", "b"),))
LESS = Goal("less", Quantity("w", "a", "p99_ms"), (Quantity("w", "b", "p99_ms"),))
ABSOLUTE = Goal("absolute", rate("w", "a"), at_least=1.0)
GOALS_HERE = [MORE, LESS, ABSOLUTE]
BASE = {"more": Reference(2.0, 1.25), "less": Reference(2.0, 1.25)}


def measured(*, more: list[float] | None = None, less: list[float] | None = None) -> Measured:
    """Ratios of these values in three rounds; by default as in BASE."""
    ones = [1.0] * 3
    return Measured(
        [
            result("w", "a", messages_per_s=more or [2.0] * 3, p99_ms=less or [2.0] * 3),
            result("w", "b", messages_per_s=ones, p99_ms=ones),
        ]
    )


def verdicts(found: Measured) -> dict[str, str]:
    return {each.goal.name: each.verdict for each in compare(BASE, GOALS_HERE, found)}


@pytest.mark.parametrize(
    ("wanted", "values", "verdict"),
    [
        ("more", [2.0] * 3, "same"),
        ("more", [1.61] * 3, "same"),
        ("more", [1.59] * 3, "WORSE"),
        ("more", [2.49] * 3, "same"),
        ("more", [2.51] * 3, "better"),
        ("more", [1.0, 1.5, 1.7], "inconclusive"),
        ("less", [2.49] * 3, "same"),
        ("less", [2.51] * 3, "WORSE"),
        ("less", [1.59] * 3, "better"),
        ("less", [2.0, 3.0, 4.0], "inconclusive"),
    ],
)
def test_a_ratio_is_judged_by_its_tolerance(wanted: str, values: list[float], verdict: str) -> None:
    assert verdicts(measured(**{wanted: values}))[wanted] == verdict


def test_absolute_figures_are_never_compared() -> None:
    base = {**BASE, "absolute": Reference(1e9, 1.1)}
    names = [each.goal.name for each in compare(base, GOALS_HERE, measured())]
    assert names == ["more", "less"]
    assert "absolute" not in new_baseline(base, GOALS_HERE, measured())


def status_of(base: Mapping[str, Reference], found: Measured) -> int:
    return exit_status(each.verdict for each in compare(base, GOALS_HERE, found))


def test_the_exit_status_says_whether_anything_is_worse() -> None:
    assert status_of(BASE, measured()) == 0
    assert status_of(BASE, measured(more=[1.0] * 3)) == 1
    assert status_of(BASE, Measured([])) == 2
    assert status_of({}, measured()) == 2


def test_the_table_begins_with_what_is_worse() -> None:
    lines = comparison_table(compare(BASE, GOALS_HERE, measured(less=[3.0] * 3))).splitlines()
    assert [text.strip() for text in lines[2].strip("|").split("|")] == [
        "less",
        "2.00",
        "<= 2.50",
        "3.00 [3.00 .. 3.00]",
        "WORSE",
    ]


def test_a_new_baseline_keeps_tolerances_and_what_was_not_measured(tmp_path: Path) -> None:
    old = {"more": Reference(1.0, 3.0), "less": Reference(7.0, 1.5), "gone": Reference(1.0, 1.0)}
    results = [result("w", "a", messages_per_s=[4.0]), result("w", "b", messages_per_s=[2.0])]
    found = new_baseline(old, GOALS_HERE, Measured(results))
    assert found == {"more": Reference(2.0, 3.0), "less": Reference(7.0, 1.5)}
    write_baseline(tmp_path / "baseline.json", found, "a machine")
    assert read_baseline(tmp_path / "baseline.json") == found
    assert read_baseline(tmp_path / "none.json") == {}


def test_the_command_compares_a_document_with_a_baseline(tmp_path: Path) -> None:
    goal = ratios(GOALS)[0]
    of, to = goal.of, goal.to[0]
    results = [
        result(of.workload, of.broker, **{of.metric: [1.0]}),
        result(to.workload, to.broker, **{to.metric: [1.0]}),
    ]
    document = {"machine": "a machine", "results": [each.as_json() for each in results]}
    (tmp_path / "bench.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "perf.check", "--from", str(tmp_path / "bench.json")]
    command += ["--baseline", str(tmp_path / "baseline.json")]
    for median, status in ((1.0, 0), (2.0, 1)):
        references = {goal.name: Reference(median, 1.25)}
        write_baseline(tmp_path / "baseline.json", references, "another machine")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert ("WORSE" in done.stdout) is (status == 1)


def test_every_goal_is_about_something_that_is_measured() -> None:
    measured_here = {(w.name, broker): w for w in WORKLOADS for broker in w.brokers}
    names = [goal.name for goal in GOALS]
    assert len(set(names)) == len(names)
    for goal in GOALS:
        for quantity in (goal.of, *goal.to):
            workload = measured_here.get((quantity.workload, quantity.broker))
            assert workload is not None, f"{goal.name}: {quantity}"
            assert quantity.metric in workload.table.metrics, f"{goal.name}: {quantity}"


def test_the_baseline_of_the_project_holds_only_known_ratios() -> None:
    unknown = read_baseline(BASELINE).keys() - {goal.name for goal in ratios(GOALS)}
    assert not unknown, (
        f"make bench-check with --update, or remove from perf/baseline.json: {unknown}"
    )
