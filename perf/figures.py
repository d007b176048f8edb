"""What is measured: metrics, samples, results over several runs, and how far they can be trusted.

Pure: knows nothing of processes and clocks, so its rules are tested in tests/unit/perf.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

# Shared machines repeat to within 1.3x. Beyond this the median says more about the moment than
# about the code.
SPREAD_MAX: Final = 1.5

# A run is disturbed if other processes used more than a tenth of a core.
OTHER_CPU_SHARE_MAX: Final = 0.1

# A host that takes more than this of a core from a machine stops it for tens of ms at a time.
STOLEN_SHARE_MAX: Final = 0.05

# How sure an interval is of holding the median, as soon as there are five runs.
INTERVAL_CONFIDENCE: Final = 0.9

Sample = Mapping[str, float]
"""Metric name -> value, of one run of one workload against one broker."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity that runs report."""

    name: str
    """In samples and in JSON; ends with the unit."""
    title: str
    """Heading of its column."""
    is_more_better: bool = False


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("messages_per_s", "msg/s", is_more_better=True),
        Metric("mb_per_s", "MB/s", is_more_better=True),
        Metric("broker_cpu_s_per_gb", "broker s/GB"),
        Metric("client_cpu_s_per_gb", "client s/GB"),
        Metric("broker_cpu_us_per_message", "broker us/msg"),
        Metric("broker_anonymous_mb", "broker MB"),
        Metric("p50_ms", "p50 ms"),
        Metric("p99_ms", "p99 ms"),
        Metric("p999_ms", "p99.9 ms"),
        Metric("last_ms", "last ms"),
        Metric("load_mb_per_s", "load MB/s", is_more_better=True),
        Metric("bytes_each", "bytes of memory each"),
        Metric("left_percent", "%", is_more_better=True),
        Metric("other_cpu_share", "others"),
        Metric("stolen_share", "stolen"),
    )
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over the runs of a case; never empty."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def min(self) -> float:
        return min(self.values)

    @property
    def max(self) -> float:
        return max(self.values)

    @property
    def spread(self) -> float:
        """Largest over smallest."""
        return self.max / self.min if self.min > 0 else float("inf")

    @property
    def interval(self) -> tuple[float, float]:
        """Where the median of very many runs would lie, with INTERVAL_CONFIDENCE.

        It assumes nothing of how runs are distributed: each lies below that median as likely as
        above it. With fewer than five runs it is the whole range, which is less sure.
        """
        count, ordered = len(self.values), sorted(self.values)
        left_out, outside = 0, 1 / 2**count
        while True:
            outside += math.comb(count, left_out + 1) / 2**count
            if 2 * outside > 1 - INTERVAL_CONFIDENCE:
                return ordered[left_out], ordered[-1 - left_out]
            left_out += 1

    @property
    def is_conclusive(self) -> bool:
        return self.spread <= SPREAD_MAX

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.min, "max": self.max}


@dataclass(frozen=True, slots=True)
class Result:
    """All measured runs of one workload against one broker."""

    workload: str
    broker: str
    samples: Mapping[int, Sample]
    """By the number of the round; a round that failed is absent."""

    def find(self, metric: str) -> Figure | None:
        """Return the metric over the runs, None if no run reports it."""
        values = tuple(sample[metric] for sample in self.samples.values() if metric in sample)
        return Figure(values) if values else None

    def quiet(self, others_max: float = OTHER_CPU_SHARE_MAX) -> "Result":
        """The runs beside which other processes used at most so much of a core."""
        quiet = {
            number: sample
            for number, sample in self.samples.items()
            if sample.get("other_cpu_share", 0.0) <= others_max
        }
        return replace(self, samples=quiet)

    def as_json(self) -> dict[str, object]:
        figures = {name: figure for name in METRICS if (figure := self.find(name)) is not None}
        return {
            "workload": self.workload,
            "broker": self.broker,
            "figures": {name: figure.as_json() for name, figure in figures.items()},
            "rounds": {str(number): dict(sample) for number, sample in self.samples.items()},
        }

    @staticmethod
    def from_json(document: Mapping[str, object]) -> "Result":
        """Parse what `as_json` made.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        rounds = document["rounds"]
        if not isinstance(rounds, Mapping):
            raise TypeError(f"rounds: {type(rounds).__name__}")
        samples = {int(number): dict(sample) for number, sample in rounds.items()}
        return Result(str(document["workload"]), str(document["broker"]), samples)


@dataclass(frozen=True, slots=True)
class Quantity:
    """One metric of one workload against one broker."""

    workload: str
    broker: str
    metric: str


class Measured:
    """The results of a run, queried for quantities and ratios."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = {(result.workload, result.broker): result for result in results}

    def find(self, quantity: Quantity) -> Figure | None:
        """Return a measured quantity, None if it was not measured."""
        result = self._results.get((quantity.workload, quantity.broker))
        return result.find(quantity.metric) if result is not None else None

    def find_ratio(self, of: Quantity, to: Sequence[Quantity]) -> Figure | None:
        """Return `of` over the lowest of `to`, pair by pair; None if that was not measured.

        A round runs each workload against each broker, close in time: both sides of a pair saw the
        machine in the same state, so ratios repeat better than absolute figures.
        """
        values = tuple(self.ratios(of, to).values())
        return Figure(values) if values else None

    def ratios(self, of: Quantity, to: Sequence[Quantity]) -> dict[int, float]:
        """Return `of` over the lowest of `to` by round; `of` itself if there are none."""
        above = self._by_round(of)
        below = [self._by_round(quantity) for quantity in to]
        numbers = [n for n in above if all(n in values for values in below)]
        return {n: above[n] / min((values[n] for values in below), default=1.0) for n in numbers}

    def _by_round(self, quantity: Quantity) -> dict[int, float]:
        """The positive values by round. A tiny run may measure zero, which cannot divide."""
        result = self._results.get((quantity.workload, quantity.broker))
        if result is None:
            return {}
        found = {n: sample.get(quantity.metric, 0.0) for n, sample in result.samples.items()}
        return {number: value for number, value in found.items() if value > 0}


def join(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """Return the results of several benchmarks as those of one with all of their rounds."""
    samples: dict[tuple[str, str], dict[int, Sample]] = {}
    round_count = 0
    for results in runs:
        for result in results:
            rounds = samples.setdefault((result.workload, result.broker), {})
            rounds.update({round_count + n: sample for n, sample in result.samples.items()})
        round_count += max((n for result in results for n in result.samples), default=0)
    return [Result(*key, rounds) for key, rounds in samples.items()]


def find_warnings(results: Sequence[Result], metric_of: Mapping[str, str]) -> list[str]:
    """Return sentences about what makes a run less than conclusive.

    `metric_of` names the main metric of a workload, whose spread is checked.
    """
    found = []
    for result in results:
        where = f"{result.workload}, {result.broker}"
        metric = metric_of[result.workload]
        figure = result.find(metric)
        if figure is not None and not figure.is_conclusive:
            found.append(
                f"{where}: the runs spread {figure.spread:.2f}x (more than {SPREAD_MAX}x), too "
                f"wide to conclude anything from {METRICS[metric].title}"
            )
    count, worst, share = _most_over(results, "other_cpu_share", OTHER_CPU_SHARE_MAX)
    if count:
        found.append(
            f"other processes used more than {OTHER_CPU_SHARE_MAX} of a core beside {count} of "
            f"{len(results)} cases, most beside {worst}: {share:.2f}"
        )
    count, worst, share = _most_over(results, "stolen_share", STOLEN_SHARE_MAX)
    if count:
        found.append(
            f"the host of this machine took more than {STOLEN_SHARE_MAX} of a core from {count} of "
            f"{len(results)} cases, most from {worst}: {share:.2f}; it may stop all processors for "
            "tens of ms, which a p99 shows"
        )
    return found


def _most_over(results: Sequence[Result], metric: str, limit: float) -> tuple[int, str, float]:
    """Return in how many cases a metric was above a limit, where most, and how much there."""
    over = {}
    for result in results:
        figure = result.find(metric)
        if figure is not None and figure.max > limit:
            over[f"{result.workload}, {result.broker}"] = figure.max
    worst = max(over, key=lambda where: over[where], default="")
    return len(over), worst, over.get(worst, 0.0)
