"""`make bench`: latermq beside Kafka, a mock broker and the raw machine, in one run.

perf/README.md says what is measured and how to read it. Prints tables and writes
build/perf/bench.json, bench.md and bench.svg. Exit status 1 if something is missing or a run
failed; missed goals do not change it.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from perf.brokers import KAFKA, KAFKA_SYNC, Brokers, build_client
from perf.goals import GOALS
from perf.kafka import VERSION
from perf.machine import (
    BUILD_DIR,
    BenchError,
    MissingToolError,
    build_directory,
    machine_line,
    version_of,
)
from perf.pairs import beside_other
from perf.plot import plot
from perf.report import Run, document, report
from perf.rounds import Plan, run_rounds
from perf.workloads import WORKLOADS, Workload

RUN_COUNT: Final = 5
_QUICK_SHARE: Final = 0.05
_KAFKAS: Final = frozenset({KAFKA, KAFKA_SYNC})


def choose(workloads: Sequence[Workload], only: str) -> list[Workload]:
    """Return the workloads whose names contain one of the `;`-separated texts in `only`."""
    words = [word.strip() for word in only.split(";") if word.strip()]
    return [w for w in workloads if not words or any(word in w.name for word in words)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how much is measured."""
    parser.add_argument("--runs", type=int, help=f"measured rounds ({RUN_COUNT}; 1 with --quick)")
    parser.add_argument("--only", default="", help="workloads whose names have one of 'TEXT; TEXT'")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs (1)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a twentieth of the records, no repeats: shows that it works, not how fast it is",
    )
    parser.add_argument(
        "--no-repeats", action="store_true", help="run once, even if other processes disturb it"
    )
    parser.add_argument("--config", type=Path, help="latermq's configuration file")
    parser.add_argument("--without-kafka", action="store_true", help="leave Apache Kafka out")


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for."""
    is_quick = options.quick
    return Plan(
        run_count=max(1, options.runs or (1 if is_quick else RUN_COUNT)),
        share=_QUICK_SHARE if is_quick else 1.0,
        is_patient=not (is_quick or options.no_repeats),
        has_warm_up=not is_quick,
        seed=options.seed,
    )


def measure(options: argparse.Namespace, command: str) -> Run:
    """Run the benchmark and write its files.

    Raises:
        MissingToolError: something has to be installed first.
        BenchError: a broker that all runs share did not start.
    """
    run = _run(options, command, choose(WORKLOADS, options.only))
    (BUILD_DIR / "bench.json").write_text(json.dumps(document(run), indent=1) + "\n")
    (BUILD_DIR / "bench.md").write_text(report(run))
    (BUILD_DIR / "bench.svg").write_text(plot(run.results, run.metric_of, run.machine))
    return run


def measure_beside(options: argparse.Namespace, command: str, other: Path) -> Run:
    """Run latermq alone, in turn with another build of it, and write build/perf/pairs.json.

    `other` is a checkout with its .venv. Each run has a broker of its own, so none warms another.

    Raises:
        MissingToolError: something has to be installed first.
    """
    workloads = beside_other(choose(WORKLOADS, options.only))
    run = _run(options, command, workloads, other)
    (BUILD_DIR / "pairs.json").write_text(json.dumps(document(run), indent=1) + "\n")
    return run


def _run(
    options: argparse.Namespace,
    command: str,
    workloads: Sequence[Workload],
    other: Path | None = None,
) -> Run:
    wanted = frozenset(name for workload in workloads for name in workload.brokers)
    left_out = wanted & _KAFKAS if options.without_kafka else frozenset()
    plan = plan_of(options)
    if other is not None:
        plan = replace(plan, has_warm_up=False)
    with build_directory() as directory:
        client = build_client()
        with Brokers(client, wanted - left_out, directory, options.config, other) as brokers:
            brokers.skipped.update(dict.fromkeys(left_out, "--without-kafka"))
            for broker, why in brokers.skipped.items():
                print(f"SKIPPED {broker}: {why}", file=sys.stderr)
            outcome = run_rounds(brokers, client, workloads, plan)
    has_kafka = bool(wanted & _KAFKAS - brokers.skipped.keys())
    more = [f"Apache Kafka {VERSION}"] if has_kafka else []
    more += [f"other {version_of(other)}"] if other is not None else []
    return Run(
        machine=machine_line(more),
        command=command,
        results=outcome.results,
        workloads=workloads,
        goals=GOALS,
        skipped=brokers.skipped,
        failures=outcome.failures,
    )


def command_line(target: str) -> str:
    """The command that the user typed, as make takes it."""
    arguments = shlex.join(sys.argv[1:]).replace('"', '\\"')
    return f'make {target} ARGS="{arguments}"' if arguments else f"make {target}"


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="perf.bench", description=__doc__)
    add_options(parser)
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    options = parser.parse_args()
    if options.list:
        for workload in choose(WORKLOADS, options.only):
            print(f"{workload.name:28}{', '.join(workload.brokers)}")
        return 0
    try:
        run = measure(options, command_line("bench"))
    except MissingToolError as error:
        print(f"bench skipped: {error}", file=sys.stderr)
        return 1
    except BenchError as error:
        print(f"bench failed: {error}", file=sys.stderr)
        return 1
    print(f"\n{report(run)}\nbuild/perf/ has bench.json, bench.md and bench.svg")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
