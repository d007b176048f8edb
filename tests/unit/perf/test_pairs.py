"""This build beside another: each run is compared with the one beside it, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from perf.brokers import ASYNC, MOCK, OTHER_ASYNC, OTHER_SYNC, SYNC, find_broker_command
from perf.figures import Measured, Quantity, Result
from perf.goals import GOALS, Goal
from perf.machine import MissingToolError
from perf.pairs import (
    OTHER_OF,
    Pair,
    PairFigure,
    beside_other,
    find_pair,
    find_pairs,
    is_beside_other,
    pairs_of,
    pairs_table,
)
from perf.rounds import order_of_round
from perf.workloads import LATENCY, WORKLOADS, Step, Workload
from tests.support.docs.source_files import ROOT
from tests.support.values.bench_results import rate, result

SENT = Pair("sent", rate("w", ASYNC), (), 1.25)
LATE = Pair("late", Quantity("w", ASYNC, "p50_ms"), (), 1.25)


def compared(pair: Pair, ours: list[float], other: list[float]) -> PairFigure:
    metric = pair.of.metric
    results = [
        result("w", ASYNC, **{metric: ours}),
        result("w", OTHER_ASYNC, **{metric: other}),
    ]
    found = find_pair(pair, Measured(results))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pair", "ours", "verdict"),
    [
        (SENT, [1.0] * 5, "same"),
        (SENT, [0.81] * 5, "same"),
        (SENT, [0.79] * 5, "WORSE"),
        (SENT, [1.24] * 5, "same"),
        (SENT, [1.26] * 5, "better"),
        (SENT, [0.7, 0.79, 0.75, 0.75, 0.81], "inconclusive"),
        (LATE, [1.24] * 5, "same"),
        (LATE, [1.26] * 5, "WORSE"),
        (LATE, [0.79] * 5, "better"),
        (LATE, [1.0, 1.0, 1.0, 1.0, 1.3], "inconclusive"),
        (LATE, [9.0, 9.0], "inconclusive"),
        (LATE, [0.1, 0.1], "inconclusive"),
        # One run in eight says little, whichever side of the bound it is on.
        (LATE, [1.0] * 7 + [9.0], "same"),
        (LATE, [2.0] * 7 + [1.0], "WORSE"),
    ],
)
def test_a_pair_is_judged_by_where_its_median_lies(
    pair: Pair, ours: list[float], verdict: str
) -> None:
    assert compared(pair, ours, [1.0] * len(ours)).verdict == verdict


def test_a_slow_minute_of_the_machine_changes_no_ratio() -> None:
    found = compared(SENT, [100.0, 50.0, 10.0, 90.0, 20.0], [100.0, 50.0, 10.0, 90.0, 20.0])
    assert found.ratio.values == (1.0,) * 5
    assert found.verdict == "same"


def test_a_ratio_of_two_own_parts_is_compared_with_that_of_the_other_build() -> None:
    pair = Pair("w / v", rate("w", ASYNC), (rate("v", ASYNC), rate("v", SYNC)), 1.25)
    measured = Measured(
        [
            result("w", ASYNC, messages_per_s=[6.0]),
            result("v", ASYNC, messages_per_s=[3.0]),
            result("v", SYNC, messages_per_s=[4.0]),
            result("w", OTHER_ASYNC, messages_per_s=[6.0]),
            result("v", OTHER_ASYNC, messages_per_s=[8.0]),
            result("v", OTHER_SYNC, messages_per_s=[6.0]),
        ]
    )
    found = find_pair(pair, measured)
    assert found is not None
    assert (found.ours.median, found.other.median, found.ratio.median) == (2.0, 1.0, 2.0)


def test_a_round_counts_only_if_both_builds_were_measured_in_it() -> None:
    ours = Result("w", ASYNC, {1: {"messages_per_s": 1.0}, 3: {"messages_per_s": 3.0}})
    other = Result("w", OTHER_ASYNC, {2: {"messages_per_s": 9.0}, 3: {"messages_per_s": 6.0}})
    found = find_pair(SENT, Measured([ours, other]))
    assert found is not None
    assert found.ratio.values == (0.5,)
    assert find_pairs([SENT], [ours]) == []


def test_of_a_disturbed_run_nothing_counts_but_its_cpu_time() -> None:
    shares = {"other_cpu_share": [0.0, 0.2, 0.1]}
    cost = Pair("cost", Quantity("w", ASYNC, "broker_cpu_s_per_gb"), (), 1.25)
    results = [
        result("w", ASYNC, messages_per_s=[1.0, 2.0, 3.0], broker_cpu_s_per_gb=[1.0] * 3, **shares),
        result("w", OTHER_ASYNC, messages_per_s=[1.0] * 3, broker_cpu_s_per_gb=[1.0] * 3),
    ]
    sent, spent = find_pairs([SENT, cost], results)
    assert sent.ratio.values == (1.0, 3.0)
    assert spent.ratio.values == (1.0, 1.0, 1.0)
    assert find_pairs([SENT], results, others_max=0.2)[0].ratio.values == (1.0, 2.0, 3.0)


def test_each_build_comes_first_in_every_other_round_and_next_to_the_other() -> None:
    workloads = beside_other(WORKLOADS)
    every = frozenset({*OTHER_OF, *OTHER_OF.values()})
    for number, seed in ((1, 2), (2, 2), (1, 3)):
        order = [(w.name, broker) for w, broker in order_of_round(workloads, every, number, seed)]
        assert len(order) == len(set(order))
        for (name, first), (same, second) in zip(order[::2], order[1::2], strict=True):
            ours, other = (first, second) if first in OTHER_OF else (second, first)
            assert (name, other) == (same, OTHER_OF[ours])
            assert (first == ours) is ((number + seed) % 2 == 0)


def test_everything_that_latermq_does_is_compared_and_nothing_else() -> None:
    pairs = pairs_of(WORKLOADS, GOALS)
    assert len({pair.name for pair in pairs}) == len(pairs)
    of_latermq = {(w.name, b) for w in WORKLOADS for b in w.brokers if b in OTHER_OF}
    assert {(pair.of.workload, pair.of.broker) for pair in pairs} == of_latermq
    assert {part.broker for pair in pairs for part in pair.to} <= OTHER_OF.keys()
    assert is_beside_other([result("w", OTHER_SYNC, p50_ms=[1.0])])
    assert not is_beside_other([result("w", SYNC, p50_ms=[1.0])])


def test_goals_say_what_is_tolerated_and_which_ratios_are_compared() -> None:
    asking = Workload("asking", Step("one-at-a-time", 1), (MOCK, ASYNC), LATENCY)
    p50, p99 = (Quantity("asking", ASYNC, f"p{rank}_ms") for rank in (50, 99))
    goals = [
        Goal("to the mock", p50, (Quantity("asking", MOCK, "p50_ms"),), tolerance=1.1),
        Goal("p99 / p50", p99, (p50,), tolerance=3.0),
        Goal("absolute", p99, at_most=3.0, tolerance=9.0),
    ]
    found = [(pair.of, pair.to, pair.tolerance) for pair in pairs_of([asking], goals)]
    assert found == [(p50, (), 1.1), (p99, (), 3.0), (p99, (p50,), 3.0)]


def test_the_table_begins_with_what_is_worse() -> None:
    figures = [compared(SENT, [1.0] * 5, [1.0] * 5), compared(LATE, [1.5, 1.6, 1.7], [1.0] * 3)]
    lines = pairs_table(figures).splitlines()
    assert [text.strip() for text in lines[2].strip("|").split("|")] == [
        *("late", "1.60", "1.00", "1.60 [1.50 .. 1.70]", "3", "<= 1.25", "WORSE"),
    ]


def write_run(path: Path, ours: Mapping[str, list[float]]) -> None:
    """A document in which the other build has ones."""
    ones = {metric: [1.0] * len(values) for metric, values in ours.items()}
    workload = WORKLOADS[0].name
    results = [result(workload, ASYNC, **ours), result(workload, OTHER_ASYNC, **ones)]
    document = {"machine": path.stem, "results": [each.as_json() for each in results]}
    path.write_text(json.dumps(document))


def test_the_command_joins_the_rounds_of_several_runs(tmp_path: Path) -> None:
    monday, tuesday = tmp_path / "monday.json", tmp_path / "tuesday.json"
    write_run(monday, {"messages_per_s": [0.5, 0.5, 1.0]})
    write_run(tuesday, {"messages_per_s": [0.5] * 5})
    for documents, status, said in (([monday], 0, "inconclusive"), ([monday, tuesday], 1, "WORSE")):
        command = [sys.executable, "-m", "perf.check", "--from", *map(str, documents)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert said in done.stdout
        assert all(path.stem in done.stdout for path in documents)


def test_a_checkout_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match=f"{tmp_path}.*make build"):
        find_broker_command(tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "latermq").touch()
    assert find_broker_command(tmp_path) == programs / "latermq"
