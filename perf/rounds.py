"""Many runs of many workloads, interleaved so that a slow moment of the machine affects all."""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perf.brokers import Brokers
from perf.figures import METRICS, OTHER_CPU_SHARE_MAX, Result, Sample
from perf.machine import BenchError
from perf.measure import run_workload, scale
from perf.report import number
from perf.workloads import Workload

# A disturbed run is tried at most this often; the choice depends on the CPU time of other
# processes, never on the result.
TRIES_MAX: Final = 3

# Share of the records in the first round, which only warms the machine and the JVM.
WARM_UP_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    run_count: int
    share: float = 1.0
    """Share of the records that the workloads name."""
    is_patient: bool = True
    """Repeats disturbed runs."""
    has_warm_up: bool = True
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    """The results of all rounds."""

    results: list[Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Sentences about runs that failed; they are absent from the results."""


def order_of_round(
    workloads: Sequence[Workload], brokers: frozenset[str], number: int, seed: int
) -> Iterator[tuple[Workload, str]]:
    """Yield the runs of one round: workloads in random order, each against all of its brokers.

    The brokers of one workload stay together, because they are compared; the first one changes from
    round to round, and with the seed.
    """
    shuffled = list(workloads)
    random.Random(seed * 1000 + number).shuffle(shuffled)
    for workload in shuffled:
        names = [name for name in workload.brokers if name in brokers]
        turn = (number + seed) % len(names) if names else 0
        for name in (*names[turn:], *names[:turn]):
            yield workload, name


def run_rounds(
    brokers: Brokers, client: Path, workloads: Sequence[Workload], plan: Plan
) -> Outcome:
    """Measure all workloads `plan.run_count` times.

    A run that fails is reported and left out; the others continue.
    """
    wanted = frozenset(name for w in workloads for name in w.brokers) - brokers.skipped.keys()
    samples: dict[tuple[str, str], dict[int, Sample]] = {
        (w.name, name): {} for w in workloads for name in w.brokers if name in wanted
    }
    outcome = Outcome()
    for round_number in range(0 if plan.has_warm_up else 1, plan.run_count + 1):
        is_warm_up = round_number == 0
        share = plan.share * (WARM_UP_SHARE if is_warm_up else 1.0)
        for workload, broker in order_of_round(workloads, wanted, round_number, plan.seed):
            scaled = scale(workload, broker, share)
            tries = TRIES_MAX if plan.is_patient and not is_warm_up else 1
            begin_s = time.monotonic()
            try:
                sample = _run_quietly(brokers, client, scaled, broker, tries)
            except BenchError as error:
                outcome.failures.append(f"{workload.name}, {broker}: {error}")
                print(f"FAILED {workload.name}, {broker}: {error}", file=sys.stderr)
                continue
            _report(round_number, workload, broker, sample, time.monotonic() - begin_s)
            if not is_warm_up:
                samples[workload.name, broker][round_number] = sample
    outcome.results = [Result(*key, found) for key, found in samples.items() if found]
    return outcome


def _run_quietly(
    brokers: Brokers, client: Path, workload: Workload, broker: str, tries: int
) -> Sample:
    """Run once, and again while other processes disturb it; the quietest run counts."""
    best: Sample | None = None
    for _ in range(tries):
        sample = run_workload(brokers, client, workload, broker)
        if best is None or sample["other_cpu_share"] < best["other_cpu_share"]:
            best = sample
        if sample["other_cpu_share"] <= OTHER_CPU_SHARE_MAX:
            break
    assert best is not None
    return best


def _report(
    round_number: int, workload: Workload, broker: str, sample: Sample, spent_s: float
) -> None:
    label = "warm-up" if round_number == 0 else f"run {round_number}"
    figures = ", ".join(
        f"{number(sample[name])} {METRICS[name].title}"
        for name in workload.table.metrics
        if name in sample
    )
    print(
        f"{label:8}{workload.name:28}{broker:14}{figures} "
        f"(others {sample['other_cpu_share']:.2f}; took {spent_s:.1f} s)",
        file=sys.stderr,
        flush=True,
    )
