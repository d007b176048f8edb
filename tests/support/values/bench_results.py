"""Fake results for the tests of the benchmark's arithmetic."""

from collections.abc import Mapping

from perf.figures import Quantity, Result


def result(workload: str, broker: str, **metrics: list[float]) -> Result:
    """A result whose rounds, from 1 on, have these values."""
    count = len(next(iter(metrics.values())))
    samples: Mapping[int, dict[str, float]] = {
        i + 1: {name: values[i] for name, values in metrics.items()} for i in range(count)
    }
    return Result(workload, broker, samples)


def rate(workload: str, broker: str) -> Quantity:
    return Quantity(workload, broker, "messages_per_s")
