"""`make bench-check`: is anything worse than in perf/baseline.json?

It compares only ratios within one run, never absolute figures: the baseline holds on any machine
similar to the one it was made on. It measures first, unless --from names the documents of runs.
With --other it measures this build and another in turn instead, and compares these: see perf.pairs.
Exit status: 0 nothing is worse, 1 something is, 2 nothing could be compared.

    make bench-check
    make bench-check ARGS="--other ../before"     # a checkout after `make build`
    make bench-check ARGS="--from monday.json tuesday.json"          # the rounds of both
    make bench-check ARGS="--from build/perf/bench.json"
    make bench-check ARGS="--from build/perf/bench.json --update"    # this run is the baseline now
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.bench import add_options, command_line, measure, measure_beside
from perf.figures import OTHER_CPU_SHARE_MAX, Figure, Measured, Result, join
from perf.goals import GOALS, Goal, decide
from perf.machine import REPOSITORY, BenchError, MissingToolError
from perf.pairs import find_pairs, is_beside_other, pairs_of, pairs_table
from perf.report import cell, markdown_table, number, read_results
from perf.workloads import WORKLOADS

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


def exit_status(verdicts: Iterable[str]) -> int:
    """Return 1 if anything is worse, 2 if nothing was compared, else 0."""
    found = set(verdicts)
    if "WORSE" in found:
        return 1
    return 0 if found - {"not measured"} else 2


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


def results_of(options: argparse.Namespace) -> tuple[list[Result], str]:
    """Read or measure what the options ask for; the text says where it was measured.

    Raises:
        MissingToolError, BenchError: it could not be measured.
        OSError, ValueError, KeyError, TypeError: a document could not be read.
    """
    if options.documents:
        documents = [json.loads(path.read_text()) for path in options.documents]
        machines = dict.fromkeys(str(each["machine"]) for each in documents)
        return join([read_results(each) for each in documents]), "\n".join(machines)
    command = command_line("bench-check")
    if options.other is not None:
        run = measure_beside(options, command, options.other)
    else:
        run = measure(options, command)
    return list(run.results), run.machine


def check_pairs(results: Sequence[Result], machine: str, others_max: float) -> int:
    """Print how this build compares with the other; return the exit status."""
    figures = find_pairs(pairs_of(WORKLOADS, GOALS), results, others_max)
    print(f"{machine}\n\n{pairs_table(figures)}")
    return exit_status(each.verdict for each in figures)


def main() -> int:
    """Measure or read, then compare or update."""
    parser = argparse.ArgumentParser(
        prog="perf.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--other", type=Path, help="a checkout with another build in its .venv")
    parser.add_argument(
        "--others-max",
        type=float,
        default=OTHER_CPU_SHARE_MAX,
        help="with --other: share of a core that other processes may use beside a run that counts",
    )
    parser.add_argument(
        "--from",
        dest="documents",
        type=Path,
        nargs="+",
        help="a bench.json, or several; else it measures",
    )
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="perf/baseline.json")
    parser.add_argument("--update", action="store_true", help="make this run the baseline")
    options = parser.parse_args()
    try:
        results, machine = results_of(options)
    except (MissingToolError, BenchError, OSError, ValueError, KeyError, TypeError) as error:
        print(f"bench-check: nothing to compare: {error}", file=sys.stderr)
        return 2
    if is_beside_other(results):
        return check_pairs(results, machine, options.others_max)
    measured = Measured(results)
    baseline = read_baseline(options.baseline)
    if options.update:
        write_baseline(options.baseline, new_baseline(baseline, GOALS, measured), machine)
        return 0
    comparisons = compare(baseline, GOALS, measured)
    print(f"{machine}\n\n{comparison_table(comparisons)}")
    status = exit_status(each.verdict for each in comparisons)
    if status == 2:
        print(f"bench-check: nothing that was measured is in {options.baseline}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
