"""`make bench-check`: is anything worse than in perf/baseline.json?

It compares only ratios within one run, never absolute figures: the baseline holds on any machine
similar to the one it was made on. It measures first, unless --from names the document of a run.
Exit status: 0 nothing is worse, 1 something is, 2 nothing could be compared.

    make bench-check
    make bench-check ARGS="--from build/perf/bench.json"
    make bench-check ARGS="--from build/perf/bench.json --update"    # this run is the baseline now
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.bench import add_options, command_line, measure
from perf.figures import Figure, Measured
from perf.goals import GOALS, Goal, decide
from perf.machine import REPOSITORY, BenchError, MissingToolError
from perf.report import cell, markdown_table, number, read_results

BASELINE: Final = REPOSITORY / "perf" / "baseline.json"


@dataclass(frozen=True, slots=True)
class Reference:
    """A ratio of the baseline."""

    median: float
    tolerance: float
    """How many times worse a median may be before it counts as worse."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One ratio, then and now."""

    goal: Goal
    reference: Reference
    figure: Figure | None
    """None: not measured this time."""

    @property
    def bound(self) -> float:
        """The worst value that still counts as the same."""
        if self.goal.is_more_better:
            return self.reference.median / self.reference.tolerance
        return self.reference.median * self.reference.tolerance

    @property
    def verdict(self) -> str:
        """`same`, `WORSE`, `better`, `inconclusive` or `not measured`."""
        if self.figure is None:
            return "not measured"
        if self.goal.is_more_better:
            outcome = decide(self.figure, at_least=self.bound)
            is_better = self.figure.median > self.reference.median * self.reference.tolerance
        else:
            outcome = decide(self.figure, at_most=self.bound)
            is_better = self.figure.median < self.reference.median / self.reference.tolerance
        if outcome == "met":
            return "better" if is_better else "same"
        return "WORSE" if outcome == "MISSED" else outcome


def ratios(goals: Sequence[Goal]) -> list[Goal]:
    """Return the goals that are ratios: the others would compare machines."""
    return [goal for goal in goals if goal.to]


def compare(
    baseline: Mapping[str, Reference], goals: Sequence[Goal], measured: Measured
) -> list[Comparison]:
    """Return the ratios of the baseline beside the measured ones."""
    return [
        Comparison(goal, baseline[goal.name], goal.figure(measured))
        for goal in ratios(goals)
        if goal.name in baseline
    ]


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """The comparisons in Markdown, the worse ones first."""
    ranks = ("WORSE", "inconclusive", "better", "same", "not measured")
    rows = [["ratio", "baseline", "bound", "now", "verdict"]]
    rows += [
        [
            each.goal.name,
            number(each.reference.median),
            f"{'>=' if each.goal.is_more_better else '<='} {number(each.bound)}",
            cell(each.figure),
            each.verdict,
        ]
        for each in sorted(comparisons, key=lambda each: ranks.index(each.verdict))
    ]
    return markdown_table(rows)


def exit_status(comparisons: Sequence[Comparison]) -> int:
    """Return 1 if anything is worse, 2 if nothing was compared, else 0."""
    verdicts = {each.verdict for each in comparisons}
    if "WORSE" in verdicts:
        return 1
    return 0 if verdicts - {"not measured"} else 2


def new_baseline(
    old: Mapping[str, Reference], goals: Sequence[Goal], measured: Measured
) -> dict[str, Reference]:
    """Return the baseline updated with the measured ratios; the others are kept.

    A tolerance of the old baseline is kept: it may have been set by hand.
    """
    names = {goal.name for goal in ratios(goals)}
    found = {name: reference for name, reference in old.items() if name in names}
    for goal in ratios(goals):
        figure = goal.figure(measured)
        if figure is not None:
            before = old.get(goal.name)
            tolerance = before.tolerance if before is not None else goal.tolerance
            found[goal.name] = Reference(round(figure.median, 4), tolerance)
    return found


def read_baseline(path: Path) -> dict[str, Reference]:
    """Return the references by name; empty if there is no such file."""
    if not path.exists():
        return {}
    ratios_found = json.loads(path.read_text())["ratios"]
    return {
        name: Reference(each["median"], each["tolerance"]) for name, each in ratios_found.items()
    }


def write_baseline(path: Path, references: Mapping[str, Reference], machine: str) -> None:
    """Write a file that `read_baseline` reads; `machine` says where it was measured."""
    found = {
        name: {"median": each.median, "tolerance": each.tolerance}
        for name, each in references.items()
    }
    path.write_text(json.dumps({"machine": machine, "ratios": found}, indent=1) + "\n")


def main() -> int:
    """Measure or read, then compare or update."""
    parser = argparse.ArgumentParser(prog="perf.check", description=__doc__)
    add_options(parser)
    parser.add_argument("--from", dest="document", type=Path, help="a bench.json; else it measures")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="perf/baseline.json")
    parser.add_argument("--update", action="store_true", help="make this run the baseline")
    options = parser.parse_args()
    try:
        if options.document is not None:
            document = json.loads(options.document.read_text())
            results, machine = read_results(document), str(document["machine"])
        else:
            run = measure(options, command_line("bench-check"))
            results, machine = list(run.results), run.machine
    except (MissingToolError, BenchError, OSError, ValueError, KeyError, TypeError) as error:
        print(f"bench-check: nothing to compare: {error}", file=sys.stderr)
        return 2
    measured = Measured(results)
    baseline = read_baseline(options.baseline)
    if options.update:
        write_baseline(options.baseline, new_baseline(baseline, GOALS, measured), machine)
        return 0
    comparisons = compare(baseline, GOALS, measured)
    print(f"{machine}\n\n{comparison_table(comparisons)}")
    status = exit_status(comparisons)
    if status == 2:
        print(f"bench-check: nothing that was measured is in {options.baseline}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
