"""What a benchmark says: medians, spread, verdicts, the machine line, the table."""

import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from perf.processes import REPOSITORY, Sample

# Shared machines repeat to within 1.3x. Beyond this the median says more about the moment than
# about the code.
SPREAD_MAX: Final = 1.5

# A run beside which something else used more than a tenth of a core is not a quiet run.
OTHER_CPU_SHARE_MAX: Final = 0.1


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over the runs of a case."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Largest over smallest."""
        return max(self.values) / min(self.values) if min(self.values) > 0 else float("inf")

    def as_json(self) -> dict[str, object]:
        return {"median": self.median, "min": min(self.values), "max": max(self.values)}


@dataclass(frozen=True, slots=True)
class Result:
    """All measured runs of one workload against one broker."""

    workload: str
    broker: str
    samples: tuple[Sample, ...]

    def figure(self, of: Callable[[Sample], float]) -> Figure:
        return Figure(tuple(of(sample) for sample in self.samples))

    @property
    def messages_per_s(self) -> Figure:
        return self.figure(lambda sample: sample.messages_per_s)

    @property
    def mb_per_s(self) -> Figure:
        return self.figure(lambda sample: sample.mb_per_s)

    @property
    def broker_cpu_s_per_gb(self) -> Figure:
        return self.figure(lambda sample: sample.broker_cpu_s_per_gb)

    @property
    def client_cpu_s_per_gb(self) -> Figure:
        return self.figure(lambda sample: sample.client_cpu_s_per_gb)

    @property
    def other_cpu_share(self) -> Figure:
        return self.figure(lambda sample: sample.other_cpu_share)

    def as_json(self) -> dict[str, object]:
        return {
            "workload": self.workload,
            "broker": self.broker,
            "messages_per_s": self.messages_per_s.as_json(),
            "mb_per_s": self.mb_per_s.as_json(),
            "broker_cpu_s_per_gb": self.broker_cpu_s_per_gb.as_json(),
            "client_cpu_s_per_gb": self.client_cpu_s_per_gb.as_json(),
            "other_cpu_share": self.other_cpu_share.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure, and what this run says about it."""

    name: str
    bound: float
    is_lower_bound: bool
    figure: Figure
    """The quantity itself; a ratio is taken pair by pair, each run with its neighbour."""

    @property
    def verdict(self) -> str:
        runs_met = [self._is_met_by(value) for value in self.figure.values]
        is_decided = all(runs_met) or not any(runs_met)
        if not is_decided and self.figure.spread > SPREAD_MAX:
            return f"inconclusive (spread {self.figure.spread:.2f}x)"
        return "met" if self._is_met_by(self.figure.median) else "MISSED"

    def _is_met_by(self, value: float) -> bool:
        return value >= self.bound if self.is_lower_bound else value <= self.bound

    def as_json(self) -> dict[str, object]:
        bound = "at least" if self.is_lower_bound else "at most"
        figure = self.figure.as_json()
        return {"name": self.name, bound: self.bound, **figure, "verdict": self.verdict}


def ratio(of: Result, to: Result) -> Figure:
    """Messages per second of `of` over those of `to`, pair by pair in the order of the runs."""
    pairs = zip(of.messages_per_s.values, to.messages_per_s.values, strict=True)
    return Figure(tuple(ours / theirs for ours, theirs in pairs))


def machine_line() -> str:
    """Processor, cores, memory, kernel, versions and date on one line."""
    facts = {
        "librdkafka": _output(["pkg-config", "--modversion", "rdkafka"]),
        "uvloop": version("uvloop"),
        "latermq": _output(["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]),
    }
    cores = sum(line.startswith("processor") for line in _lines("/proc/cpuinfo"))
    memory_gb = int(_fact("/proc/meminfo", "MemTotal").split()[0]) / 1e6
    versions = ", ".join(f"{name} {value}" for name, value in facts.items())
    return (
        f"{_fact('/proc/cpuinfo', 'model name')}, {cores} cores, {memory_gb:.0f} GB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {versions}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _fact(path: str, name: str) -> str:
    for line in _lines(path):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "?"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "?"


_HEADER: Final = ("workload", "broker", "msg/s", "MB/s", "spread", "broker s/GB", "client s/GB")


def results_table(results: Sequence[Result]) -> str:
    """A Markdown table, medians; spread is that of msg/s."""
    rows = [_HEADER, tuple("---" for _ in _HEADER)]
    rows += [
        (
            result.workload,
            result.broker,
            f"{result.messages_per_s.median:,.0f}",
            f"{result.mb_per_s.median:,.0f}",
            f"{result.messages_per_s.spread:.2f}x",
            f"{result.broker_cpu_s_per_gb.median:.2f}",
            f"{result.client_cpu_s_per_gb.median:.2f}",
        )
        for result in results
    ]
    return _table(rows)


def targets_table(targets: Sequence[Target]) -> str:
    """A Markdown table: what was wanted, what was measured, the verdict."""
    rows: list[tuple[str, ...]] = [("target", "want", "got", "min", "max", "verdict")]
    rows.append(("---",) * len(rows[0]))
    for target in targets:
        values = target.figure.values
        bound = f"{'>=' if target.is_lower_bound else '<='} {target.bound:g}"
        got = tuple(f"{value:.2f}" for value in (target.figure.median, min(values), max(values)))
        rows.append((target.name, bound, *got, target.verdict))
    return _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def warnings(results: Sequence[Result]) -> list[str]:
    """Sentences about what makes this run less than conclusive."""
    found = []
    for result in results:
        where = f"{result.workload}, {result.broker}"
        if result.messages_per_s.spread > SPREAD_MAX:
            found.append(
                f"{where}: the runs spread {result.messages_per_s.spread:.2f}x "
                f"(more than {SPREAD_MAX}x), too wide to conclude anything from msg/s"
            )
        busiest = max(result.other_cpu_share.values)
        if busiest > OTHER_CPU_SHARE_MAX:
            found.append(
                f"{where}: other processes used up to {busiest:.2f} of a core during a run"
            )
    return found
