"""The order of a benchmark's runs, its workloads and its cost curves."""

from itertools import pairwise
from pathlib import Path

import pytest

from perf.bench import choose
from perf.brokers import KAFKA, MACHINE, MOCK
from perf.curves import CURVES, Curve, curves_table, exponent, growth
from perf.measure import metric_in, sample_of, scale, touch_log
from perf.rounds import order_of_round
from perf.workloads import MIB, WORKLOADS, Workload, pipeline, produce, produce_delayed
from tests.support.values.bench_results import result

ALL = frozenset(broker for workload in WORKLOADS for broker in workload.brokers)


def test_a_round_measures_each_workload_against_each_of_its_brokers() -> None:
    wanted = sorted((w.name, broker) for w in WORKLOADS for broker in w.brokers)
    for number in range(3):
        order = [(w.name, broker) for w, broker in order_of_round(WORKLOADS, ALL, number, seed=1)]
        assert sorted(order) == wanted


def test_the_brokers_of_a_workload_stay_together() -> None:
    names = [w.name for w, _ in order_of_round(WORKLOADS, ALL, 1, seed=1)]
    changes = sum(a != b for a, b in pairwise(names))
    assert changes == len(WORKLOADS) - 1


def test_rounds_differ_in_their_order_and_repeat_with_their_seed() -> None:
    def order(number: int, seed: int) -> list[tuple[str, str]]:
        return [(w.name, broker) for w, broker in order_of_round(WORKLOADS, ALL, number, seed)]

    assert order(1, seed=1) == order(1, seed=1)
    assert order(1, seed=1) != order(2, seed=1)
    assert order(1, seed=1) != order(1, seed=2)


def test_every_broker_comes_first_in_some_round() -> None:
    workload = WORKLOADS[0]
    firsts = {next(order_of_round([workload], ALL, n, seed=1))[1] for n in range(5)}
    assert firsts == set(workload.brokers)


def test_what_is_skipped_takes_no_part() -> None:
    order = list(order_of_round(WORKLOADS, frozenset({MOCK, MACHINE}), 1, seed=1))
    assert {broker for _, broker in order} == {MOCK, MACHINE}


def test_kafka_gets_fewer_records_where_it_is_slow() -> None:
    workload = Workload("w", pipeline(1000), (MOCK, KAFKA), kafka_share=0.2)
    assert scale(workload, MOCK, 0.5).step.count == 500
    assert scale(workload, KAFKA, 0.5).step.count == 100
    assert scale(workload, KAFKA, 0.00001).step.count == 1


def test_workloads_are_chosen_by_parts_of_their_names() -> None:
    chosen = choose(WORKLOADS, "lateness; fetch")
    assert {w.name for w in chosen} == {
        w.name for w in WORKLOADS if "lateness" in w.name or "fetch" in w.name
    }
    assert choose(WORKLOADS, "") == list(WORKLOADS)
    assert choose(WORKLOADS, "no such thing") == []


def test_names_of_workloads_are_not_used_twice() -> None:
    names = [w.name for w in WORKLOADS]
    assert len(set(names)) == len(names)


def said(begin_s: float, end_s: float, **more: float) -> dict[str, float]:
    counts = {"messages": 1000.0, "bytes": 1e9, "cpu_s": 1.0}
    return {"begin_s": begin_s, "end_s": end_s, **counts, **more}


def test_rates_go_from_the_first_beginning_to_the_last_end() -> None:
    sample = sample_of([said(1.0, 3.0), said(2.0, 5.0)], broker_cpu_s=1.0)
    assert sample["messages_per_s"] == 500
    assert sample["mb_per_s"] == 500
    assert sample["broker_cpu_s_per_gb"] == 0.5
    assert sample["broker_cpu_us_per_message"] == 500
    assert sample["client_cpu_s_per_gb"] == 1.0


def test_the_client_knows_better_which_part_of_the_cpu_time_counts() -> None:
    sample = sample_of([said(0.0, 1.0, broker_cpu_s=0.25, last_ms=7.0)], broker_cpu_s=9.0)
    assert sample["broker_cpu_s_per_gb"] == 0.25
    assert sample["last_ms"] == 7.0


def test_all_segments_are_read_before_a_fetch(tmp_path: Path) -> None:
    assert touch_log(tmp_path) == 0  # of Kafka, whose log is elsewhere
    log = tmp_path / "data" / "commitlog"
    log.mkdir(parents=True)
    (log / "0").write_bytes(bytes(2 * MIB + 1))
    (log / "1").write_bytes(bytes(7))
    assert touch_log(tmp_path) == 2 * MIB + 8


def test_an_older_broker_may_not_know_a_metric() -> None:
    page = '# TYPE lag gauge\nlag 4.5e6\nlag_of{topic="a"} 1.0\n'
    assert metric_in(page, "lag") == 4_500_000
    assert metric_in(page, "lag_of") is None


@pytest.mark.parametrize(
    ("costs", "name"),
    [
        ([1.0, 1.0, 1.0], "flat"),
        ([1.0, 9.0, 1.5], "flat"),
        ([1.0, 1.0, 3.0], "below linear"),
        ([1.0, 10.0, 100.0], "linear"),
        ([1.0, 100.0, 10_000.0], "ABOVE LINEAR"),
    ],
)
def test_growth_is_named(costs: list[float], name: str) -> None:
    assert growth(exponent([10, 100, 1000], costs)) == name


CURVE = Curve(
    "sending",
    "records",
    (10, 100, 1000),
    lambda name, size: Workload(name, produce(size, 100), (MOCK,)),
    "last_ms",
    "us/msg",
    per_size=1e3,
)


def row(table: str) -> list[str]:
    return [text.strip() for text in table.splitlines()[-1].strip("|").split("|")]


def test_a_curve_shows_the_cost_of_one_at_each_size() -> None:
    results = [result(w.name, MOCK, last_ms=[w.step.count * 2.0]) for w in CURVE.workloads()]
    found = row(curves_table([CURVE], results))
    assert found[4:] == ["2.00k / 2.00k / 2.00k", "100", "1.00", "flat"]


def test_a_curve_of_which_a_size_failed_is_not_measured() -> None:
    results = [result(w.name, MOCK, last_ms=[1.0]) for w in CURVE.workloads()[:2]]
    assert row(curves_table([CURVE], results))[4] == "not measured"


def test_curves_that_share_a_workload_mean_the_same_by_it() -> None:
    by_name: dict[str, Workload] = {}
    for curve in CURVES:
        for workload in curve.workloads():
            assert by_name.setdefault(workload.name, workload) == workload


def test_delayed_records_are_due_after_any_run() -> None:
    options = produce_delayed(10).options
    assert int(options[options.index("--delay-ms") + 1]) >= 3_600_000
