"""This build beside another, run after run: what `make bench-check` with --other concludes.

A machine of which other machines have a part is twice as fast in one minute as in the next. Two
runs that follow each other meet nearly the same machine, so each ratio is taken between these, in
each round, and the one that comes first changes from round to round.

Pure, as perf.figures is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perf.brokers import ASYNC, OTHER_ASYNC, OTHER_SYNC, SYNC
from perf.figures import METRICS, OTHER_CPU_SHARE_MAX, Figure, Measured, Quantity, Result
from perf.goals import Goal
from perf.report import markdown_table, number
from perf.workloads import Workload

OTHER_OF: Final = {ASYNC: OTHER_ASYNC, SYNC: OTHER_SYNC}

TOLERANCES: Final = {
    "messages_per_s": 1.25,
    "broker_cpu_s_per_gb": 1.25,
    "broker_cpu_us_per_message": 1.25,
    "p50_ms": 1.5,
    "last_ms": 1.5,
    "p99_ms": 2.0,
}
"""What is compared of each workload, and how many times worse it may be. A goal knows better."""

ROUNDS_MIN: Final = 3
"""Fewer say nothing, whatever they say."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A quantity of this build, or its ratio to the lowest of others, beside that of the other."""

    name: str
    of: Quantity
    to: tuple[Quantity, ...]
    tolerance: float

    @property
    def is_more_better(self) -> bool:
        return METRICS[self.of.metric].is_more_better

    @property
    def bound(self) -> float:
        """The worst ratio of this build to the other that still counts as the same."""
        return 1 / self.tolerance if self.is_more_better else self.tolerance


@dataclass(frozen=True, slots=True)
class PairFigure:
    """What was measured of a pair."""

    pair: Pair
    ours: Figure
    other: Figure
    ratio: Figure
    """Ours over the other's, round by round."""

    @property
    def verdict(self) -> str:
        """`WORSE`, `same` or `better`; `inconclusive` while the median may be on either side.

        Where the median lies is known by its interval, which narrows with each round.
        """
        if len(self.ratio.values) < ROUNDS_MIN:
            return "inconclusive"
        low, high = self.ratio.interval
        bound = self.pair.bound
        if self.pair.is_more_better:
            is_worse, is_fine, is_better = high < bound, low >= bound, low > 1 / bound
        else:
            is_worse, is_fine, is_better = low > bound, high <= bound, high < 1 / bound
        if is_better:
            return "better"
        if is_fine:
            return "same"
        return "WORSE" if is_worse else "inconclusive"


def beside_other(workloads: Sequence[Workload]) -> list[Workload]:
    """Return the workloads for each flush mode by itself, against both builds."""
    return [
        replace(workload, brokers=(ours, other))
        for workload in workloads
        for ours, other in OTHER_OF.items()
        if ours in workload.brokers
    ]


def is_beside_other(results: Sequence[Result]) -> bool:
    """Whether a run measured another build."""
    return any(result.broker in OTHER_OF.values() for result in results)


def pairs_of(workloads: Sequence[Workload], goals: Sequence[Goal]) -> list[Pair]:
    """Return what is compared: quantities of latermq, then ratios of which all parts are its own.

    A ratio of which one part is something else, a mock or the machine, moves as the part that is
    ours; so that part alone is compared.
    """
    known = {goal.of: goal.tolerance for goal in goals if goal.to}
    found = []
    for workload in workloads:
        for broker in OTHER_OF:
            if broker not in workload.brokers:
                continue
            for metric in workload.table.metrics:
                if metric in TOLERANCES:
                    quantity = Quantity(workload.name, broker, metric)
                    tolerance = known.get(quantity, TOLERANCES[metric])
                    name = f"{workload.name}, {METRICS[metric].title}: {broker}"
                    found.append(Pair(name, quantity, (), tolerance))
    for goal in goals:
        if goal.to and all(part.broker in OTHER_OF for part in (goal.of, *goal.to)):
            found.append(Pair(goal.name, goal.of, goal.to, goal.tolerance))
    return found


def find_pair(pair: Pair, measured: Measured) -> PairFigure | None:
    """Return a pair over the rounds in which all of it was measured, None if there are none."""
    others = [replace(part, broker=OTHER_OF[part.broker]) for part in (pair.of, *pair.to)]
    ours, other = measured.ratios(pair.of, pair.to), measured.ratios(others[0], others[1:])
    rounds = sorted(ours.keys() & other.keys())
    if not rounds:
        return None
    return PairFigure(
        pair,
        Figure(tuple(ours[n] for n in rounds)),
        Figure(tuple(other[n] for n in rounds)),
        Figure(tuple(ours[n] / other[n] for n in rounds)),
    )


def find_pairs(
    pairs: Sequence[Pair], results: Sequence[Result], others_max: float = OTHER_CPU_SHARE_MAX
) -> list[PairFigure]:
    """Return those that were measured.

    A run beside which others used more than `others_max` of a core says nothing but its CPU time.
    """
    every = Measured(results)
    quiet = Measured([result.quiet(others_max) for result in results])
    found = [
        find_pair(pair, every if pair.of.metric.startswith("broker_cpu") else quiet)
        for pair in pairs
    ]
    return [figure for figure in found if figure is not None]


def pairs_table(figures: Sequence[PairFigure]) -> str:
    """The pairs in Markdown, the worse ones first."""
    ranks = ("WORSE", "inconclusive", "same", "better")
    rows = [["what", "this build", "other", "this / other", "rounds", "bound", "verdict"]]
    for each in sorted(figures, key=lambda each: ranks.index(each.verdict)):
        low, high = each.ratio.interval
        rows.append(
            [
                each.pair.name,
                number(each.ours.median),
                number(each.other.median),
                f"{number(each.ratio.median)} [{number(low)} .. {number(high)}]",
                str(len(each.ratio.values)),
                f"{'>=' if each.pair.is_more_better else '<='} {number(each.pair.bound)}",
                each.verdict,
            ]
        )
    return markdown_table(rows)
