"""Output of a benchmark: tables for the terminal and for Markdown, and the JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perf.figures import METRICS, SPREAD_MAX, Figure, Measured, Result, find_warnings
from perf.goals import Goal, decide
from perf.workloads import Table, Workload

RULE: Final = (
    "Medians [smallest .. largest run]; MB and GB are 1e6 and 1e9 bytes of payload. Ratios are "
    "taken\nwithin each round and their median counts. A spread (largest over smallest) above "
    f"{SPREAD_MAX}x is\nmarked with a tilde: nothing follows from that figure."
)


def number(value: float) -> str:
    """Three significant figures, or three decimals: 1.69M, 416k, 23.4, 0.38, 0.012."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        # A value that rounds to 1000 of a unit is shown as 1 of the next.
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)}{unit}"
    return _three(value)


def _three(value: float) -> str:
    if 0 < abs(value) < 0.0995:
        return f"{value:.3f}"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def cell(figure: Figure | None) -> str:
    """A figure with its range."""
    if figure is None:
        return "-"
    if len(figure.values) == 1:
        return number(figure.median)
    mark = "" if figure.is_conclusive else " ~"
    return f"{number(figure.median)} [{number(figure.min)} .. {number(figure.max)}]{mark}"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table that is Markdown and reads well in a terminal; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def results_tables(results: Sequence[Result], workloads: Sequence[Workload]) -> str:
    """The results, grouped by the tables of their workloads."""
    by_name = {workload.name: workload for workload in workloads}
    tables: dict[str, tuple[Table, list[Result]]] = {}
    for result in results:
        table = by_name[result.workload].table
        tables.setdefault(table.title, (table, []))[1].append(result)
    texts = []
    for table, members in tables.values():
        head = ["workload", "broker", *(METRICS[name].title for name in table.metrics)]
        rows = [
            [result.workload, result.broker, *(cell(result.find(name)) for name in table.metrics)]
            for result in members
        ]
        texts.append(f"### {table.title}\n\n{markdown_table([head, *rows])}")
    return "\n\n".join(texts)


def verdict(goal: Goal, figure: Figure) -> str:
    """The verdict of a run on a goal; empty if the goal has no bound."""
    if goal.at_least is None and goal.at_most is None:
        return ""
    return decide(figure, at_least=goal.at_least, at_most=goal.at_most)


def goals_table(goals: Sequence[Goal], measured: Measured) -> str:
    """Goal, measured value and verdict; without goals that this run did not measure."""
    rows = [["goal", "want", "got", "verdict"]]
    for goal in goals:
        figure = goal.figure(measured)
        if figure is None:
            continue
        want = ""
        if goal.at_least is not None:
            want = f">= {number(goal.at_least)}"
        elif goal.at_most is not None:
            want = f"<= {number(goal.at_most)}"
        rows.append([goal.name, want, cell(figure), verdict(goal, figure)])
    return f"### Goals\n\n{markdown_table(rows)}"


@dataclass(frozen=True, slots=True)
class Run:
    """All results of one benchmark."""

    machine: str
    command: str
    """The command that repeats it."""
    results: Sequence[Result]
    workloads: Sequence[Workload]
    goals: Sequence[Goal]
    skipped: Mapping[str, str]
    """Broker -> why it was not measured."""
    failures: Sequence[str]

    @property
    def metric_of(self) -> dict[str, str]:
        return {workload.name: workload.metric for workload in self.workloads}

    @property
    def warnings(self) -> list[str]:
        return find_warnings(self.results, self.metric_of)


def document(run: Run) -> dict[str, object]:
    """A run as a JSON object, for build/perf/bench.json."""
    measured = Measured(run.results)
    found = [(goal, goal.figure(measured)) for goal in run.goals]
    return {
        "machine": run.machine,
        "command": run.command,
        "results": [result.as_json() for result in run.results],
        "goals": [
            {
                "name": goal.name,
                "at_least": goal.at_least,
                "at_most": goal.at_most,
                **figure.as_json(),
                "verdict": verdict(goal, figure),
            }
            for goal, figure in found
            if figure is not None
        ],
        "skipped": dict(run.skipped),
        "failures": list(run.failures),
        "warnings": run.warnings,
    }


def read_results(text: Mapping[str, object]) -> list[Result]:
    """Return the results of a document.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    results = text["results"]
    if not isinstance(results, list):
        raise TypeError(f"results: {type(results).__name__}")
    return [Result.from_json(each) for each in results]


def report(run: Run) -> str:
    """The whole report in Markdown."""
    parts = [run.machine, RULE, results_tables(run.results, run.workloads)]
    parts.append(goals_table(run.goals, Measured(run.results)))
    notes = [f"not measured: {broker}: {why}" for broker, why in run.skipped.items()]
    notes += [f"failed: {failure}" for failure in run.failures]
    notes += [f"warning: {sentence}" for sentence in run.warnings]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(f"To repeat: `{run.command}`")
    return "\n\n".join(parts) + "\n"
