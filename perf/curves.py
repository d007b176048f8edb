"""`make bench-curves`: what a workload costs at three sizes, and whether that grows as it should.

Each curve varies one thing (records, partitions, connections, pending timers) tenfold and more, and
measures the cost of one message, or of one of the things. The cost should stay flat. Most costs are
CPU time of the broker, which is more reliable on a shared machine than elapsed time.
Prints a table and writes build/perf/curves.md and curves.json.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.bench import command_line
from perf.brokers import ASYNC, Brokers, build_client
from perf.figures import Figure, Result
from perf.machine import BUILD_DIR, BenchError, MissingToolError, build_directory, machine_line
from perf.report import cell, markdown_table, number
from perf.rounds import Plan, run_rounds
from perf.workloads import (
    BURST,
    LATENESS,
    REQUESTS,
    Workload,
    burst,
    consume,
    lateness,
    pipeline,
    produce,
    produce_delayed,
)

# Cost that grows with the logarithm of the size, or that repeats to within the noise of a shared
# machine, stays below this exponent over two decades (a factor of 2); linear growth has 1.
FLAT_EXPONENT_MAX: Final = 0.15
LINEAR_EXPONENT_MAX: Final = 1.1


@dataclass(frozen=True, slots=True)
class Curve:
    """A workload at several sizes."""

    name: str
    of: str
    """What varies."""
    sizes: tuple[int, ...]
    workload: Callable[[str, int], Workload]
    """Makes a workload from a name and a size."""
    metric: str
    unit: str
    per_size: float = 0.0
    """If not 0, the metric is a total, and the cost of one is `metric * per_size / size`."""

    def workloads(self) -> list[Workload]:
        """One workload for each size; curves that differ only in the metric share them."""
        return [self.workload(f"{self.name}, {size} {self.of}", size) for size in self.sizes]


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return k where cost grows as size to the power of k, from the first to the last size."""
    return math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])


def growth(power: float) -> str:
    """Name the growth of a cost per message: flat, below linear, linear or above linear."""
    if power <= FLAT_EXPONENT_MAX:
        return "flat"
    if power <= 1 - FLAT_EXPONENT_MAX:
        return "below linear"
    return "linear" if power <= LINEAR_EXPONENT_MAX else "ABOVE LINEAR"


def _records(name: str, size: int) -> Workload:
    return Workload(name, produce(size, 1024), (ASYNC,))


def _fetched(name: str, size: int) -> Workload:
    return Workload(name, consume(size, 1024), (ASYNC,), prepare=(produce(size, 1024),))


def _delayed(name: str, size: int) -> Workload:
    return Workload(name, produce_delayed(size), (ASYNC,), REQUESTS)


def _burst(name: str, size: int) -> Workload:
    return Workload(name, burst(size, lead_ms=2_000 + size // 150), (ASYNC,), BURST)


def _partitions(name: str, size: int) -> Workload:
    return Workload(name, produce(800_000, 1024), (ASYNC,), partition_count=size)


def _partitions_fetched(name: str, size: int) -> Workload:
    step, before = consume(800_000, 1024), produce(800_000, 1024)
    return Workload(name, step, (ASYNC,), prepare=(before,), partition_count=size)


def _connections(name: str, size: int) -> Workload:
    return Workload(name, pipeline(300_000, connection_count=size), (ASYNC,), REQUESTS)


def _pending(name: str, size: int) -> Workload:
    before = (produce_delayed(size),)
    return Workload(name, produce_delayed(200_000), (ASYNC,), REQUESTS, prepare=before)


def _pending_lateness(name: str, size: int) -> Workload:
    before = (produce_delayed(size),)
    return Workload(name, lateness(15_000), (ASYNC,), LATENESS, prepare=before)


_CPU: Final = "broker_cpu_us_per_message"
_CPU_UNIT: Final = "CPU us/msg"
_MEMORY: Final = "broker_anonymous_mb"
_MANY: Final = (100_000, 300_000, 1_000_000)
_PENDING: Final = (10_000, 100_000, 1_000_000)

CURVES: Final = (
    Curve("produce 1 KiB", "records", _MANY, _records, _CPU, _CPU_UNIT),
    Curve("fetch 1 KiB", "records", _MANY, _fetched, _CPU, _CPU_UNIT),
    Curve("accept delayed", "records", _MANY, _delayed, _CPU, _CPU_UNIT),
    Curve("due in one ms", "records", _PENDING, _burst, _CPU, _CPU_UNIT),
    Curve("due in one ms", "records", _PENDING, _burst, "last_ms", "us/msg until the last", 1e3),
    Curve("produce 1 KiB", "partitions", (4, 40, 400), _partitions, _CPU, _CPU_UNIT),
    Curve("fetch 1 KiB", "partitions", (4, 40, 400), _partitions_fetched, _CPU, _CPU_UNIT),
    Curve("pipelined requests", "connections", (1, 10, 100), _connections, _CPU, _CPU_UNIT),
    Curve("accept delayed", "pending timers", _PENDING, _pending, _CPU, _CPU_UNIT),
    Curve("accept delayed", "pending timers", _PENDING, _pending, _MEMORY, "MB of memory in all"),
    Curve("lateness", "pending timers", _PENDING, _pending_lateness, "p99_ms", "p99 in ms"),
)


def curves_table(curves: Sequence[Curve], results: Sequence[Result]) -> str:
    """One row for each curve: the cost at each size, and how it grows."""
    found = {result.workload: result for result in results}
    rows = [["workload", "over", "sizes", "cost", "at each size", "size x", "cost x", "growth"]]
    for curve in curves:
        figures = []
        for workload, size in zip(curve.workloads(), curve.sizes, strict=True):
            result = found.get(workload.name)
            figure = result.find(curve.metric) if result is not None else None
            if figure is not None:
                figures.append(_cost(curve, figure, size))
        sizes = " / ".join(number(size) for size in curve.sizes)
        if len(figures) < len(curve.sizes) or min(f.median for f in figures) <= 0:
            rows.append([curve.name, curve.of, sizes, curve.unit, "not measured", "", "", ""])
            continue
        costs = [figure.median for figure in figures]
        factor = curve.sizes[-1] / curve.sizes[0]
        rows.append(
            [
                curve.name,
                curve.of,
                sizes,
                curve.unit,
                " / ".join(cell(figure) for figure in figures),
                number(factor),
                number(costs[-1] / costs[0]),
                growth(exponent(curve.sizes, costs)),
            ]
        )
    return markdown_table(rows)


def _cost(curve: Curve, figure: Figure, size: int) -> Figure:
    if not curve.per_size:
        return figure
    return Figure(tuple(value * curve.per_size / size for value in figure.values))


def _distinct(curves: Sequence[Curve]) -> list[Workload]:
    """The workloads of all curves, each once: two curves may use the same runs."""
    return list({w.name: w for curve in curves for w in curve.workloads()}.values())


def main() -> int:
    """Measure and report; exit status 1 if something is missing or a run failed."""
    parser = argparse.ArgumentParser(prog="perf.curves", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="measured rounds (3)")
    parser.add_argument("--only", default="", help="curves with TEXT in their names")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the records")
    options = parser.parse_args()
    curves = [c for c in CURVES if options.only in c.name or options.only in c.of]
    plan = Plan(
        run_count=max(1, options.runs),
        share=0.05 if options.quick else 1.0,
        is_patient=not options.quick,
        has_warm_up=False,
    )
    try:
        with build_directory() as directory:
            client = build_client()
            with Brokers(client, frozenset({ASYNC}), directory) as brokers:
                outcome = run_rounds(brokers, client, _distinct(curves), plan)
    except (MissingToolError, BenchError) as error:
        print(f"bench-curves: {error}", file=sys.stderr)
        return 1
    table = curves_table(curves, outcome.results)
    text = f"{machine_line()}\n\n{table}\n\nTo repeat: `{command_line('bench-curves')}`\n"
    _write(BUILD_DIR, text, outcome.results)
    print(f"\n{text}\nbuild/perf/ has curves.json and curves.md")
    return 1 if outcome.failures else 0


def _write(directory: Path, text: str, results: Sequence[Result]) -> None:
    (directory / "curves.md").write_text(text)
    found = {"results": [result.as_json() for result in results]}
    (directory / "curves.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
