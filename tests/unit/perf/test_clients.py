"""The load generators of the benchmark do what they say: small runs against the real broker."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perf.brokers import ASYNC, KAFKA, KAFKA_SYNC, MACHINE, MOCK, Brokers, Endpoint, build_client
from perf.machine import BenchError, MissingToolError
from perf.measure import run_clients, run_workload
from perf.rounds import Plan, run_rounds
from perf.workloads import (
    LIMITS,
    Step,
    Workload,
    consume,
    end_to_end,
    limit,
    one_at_a_time,
    pipeline,
    produce,
    produce_delayed,
)

CONFIG = """\
[store]
segment_size_bytes = 67_108_864
prewrite_segments = false

[limits]
decompressed_size_max_bytes = 2_097_152
record_size_max_bytes = 1_048_576

[process]
priority = 0
"""
# Where the clients are run by themselves, only the number of partitions is taken from it.
ANY = Workload("any", produce(1, 100), (ASYNC,))


@pytest.fixture(scope="module")
def client() -> Path:
    try:
        return build_client()
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def brokers(client: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("brokers")
    config = directory / "latermq.toml"
    config.write_text(CONFIG)
    wanted = frozenset({ASYNC, MOCK})
    with Brokers(client, wanted, directory, config, holds_memory=False) as brokers:
        yield brokers
    left = [path for path in directory.iterdir() if path != config]
    assert not left, "data directories stay behind"


@pytest.fixture(scope="module")
def latermq(brokers: Brokers) -> Iterator[Endpoint]:
    with brokers.serve(ASYNC) as endpoint:
        yield endpoint


def timers(mode: str, count: int, *options: str) -> Step:
    return Step(mode, count, 200, ("--lead-ms", "{lead_ms}", *options))


def run_in_time(client: Path, brokers: Brokers, step: Step) -> dict[str, float]:
    """Run a step on a new broker; give it more time if the machine was too busy for one second."""
    for lead_ms in ("1000", "20000"):
        options = tuple(lead_ms if option == "{lead_ms}" else option for option in step.options)
        try:
            with brokers.serve(ASYNC) as endpoint:  # a topic without records
                (found,) = run_clients(endpoint, client, ANY, replace(step, options=options))
                return found
        except BenchError as error:
            if "is slower than" not in str(error):
                raise
    raise AssertionError("a few records were not acknowledged within 20 s")


@pytest.mark.parametrize(
    ("step", "metrics"),
    [
        (produce(2_000, 100, client_count=2), set()),
        (consume(2_000, 100), set()),
        (produce_delayed(2_000), set()),
        (pipeline(2_000), set()),
        (pipeline(2_000, connection_count=5), set()),
        (one_at_a_time(20), {"p50_ms", "p99_ms", "p999_ms"}),
    ],
    ids=lambda value: value.mode if isinstance(value, Step) else "",
)
def test_a_client_does_what_it_is_asked_for(
    client: Path, latermq: Endpoint, step: Step, metrics: set[str]
) -> None:
    found = run_clients(latermq, client, ANY, step)
    assert len(found) == step.client_count
    for each in found:
        assert each["messages"] == step.count
        assert each["bytes"] >= step.count * step.size_bytes
        assert each["end_s"] > each["begin_s"]
        assert metrics <= each.keys()


@pytest.mark.parametrize(
    ("step", "metrics"),
    [
        (timers("burst", 2_000), {"last_ms", "broker_cpu_s"}),
        (timers("lateness", 1_000, "--rate", "5000"), {"p50_ms", "p99_ms"}),
        (
            timers("lateness", 1_000, "--rate", "5000", "--load-size", "1024"),
            {"p99_ms", "load_mb_per_s"},
        ),
        (end_to_end(1_000, 200), {"p50_ms", "p99_ms"}),
    ],
    ids=["burst", "lateness", "lateness under load", "end to end"],
)
def test_what_waits_for_messages_gets_them_all(
    client: Path, brokers: Brokers, step: Step, metrics: set[str]
) -> None:
    found = run_in_time(client, brokers, step)
    assert found["messages"] == step.count
    assert all(found[name] > 0 for name in metrics)


def test_what_is_accepted_too_late_fails(client: Path, latermq: Endpoint) -> None:
    step = Step("burst", 10, 200, ("--lead-ms", "50"))
    with pytest.raises(BenchError, match="is slower than --lead-ms 50 expects"):
        run_clients(latermq, client, ANY, step)


def test_a_sample_has_what_the_tables_show(client: Path, brokers: Brokers) -> None:
    for broker in (MOCK, ASYNC):
        sample = run_workload(
            brokers, client, Workload("w", produce(2_000, 100), (broker,)), broker
        )
        assert sample["messages_per_s"] > 0
        assert sample["broker_cpu_s_per_gb"] > 0
        assert sample["broker_anonymous_mb"] > 0


@pytest.mark.parametrize(
    "step",
    [
        limit("limit-receive", 3),
        limit("limit-receive", 3, "--file", "{file}", "--recycled"),
        limit("limit-write", 4, "--file", "{file}", "--per-sync", "2"),
        limit("limit-sync", 5, "--file", "{file}", size_bytes=4096),
    ],
    ids=lambda step: step.mode,
)
def test_the_machine_is_measured_without_a_broker(
    client: Path, brokers: Brokers, step: Step
) -> None:
    with brokers.serve(MACHINE) as endpoint:
        (found,) = run_clients(endpoint, client, ANY, step)
        assert list(endpoint.directory.iterdir()) == []
    assert found["messages"] == step.count


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["produce"], "missing: --brokers"),
        (["consume", "--brokers", "x:1", "--topic", "t"], "missing: --count"),
        (["produce", "--count", "0"], "--count 0: want 1 to"),
        (["produce", "--size", "12x"], "--size 12x: want 8 to"),
        (["produce", "consume"], "want one mode"),
        (["nothing"], "unknown mode nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_make_no_sense_are_refused(
    client: Path, arguments: list[str], said: str
) -> None:
    done = subprocess.run([str(client), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_client_without_a_broker_fails_and_says_why(client: Path, tmp_path: Path) -> None:
    # Nothing listens on port 1.
    nobody = Endpoint("127.0.0.1:1", 1, "t", "t", "1", tmp_path)
    with pytest.raises(BenchError, match="Connection refused"):
        run_clients(nobody, client, ANY, pipeline(10))


def test_kafka_is_skipped_with_a_reason_where_there_is_no_java(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = frozenset({KAFKA, KAFKA_SYNC})
    with Brokers(client, wanted, tmp_path, holds_memory=False) as brokers:
        assert brokers.skipped.keys() == {KAFKA, KAFKA_SYNC}
        assert "apt-get install" in brokers.skipped[KAFKA]
        outcome = run_rounds(brokers, client, [replace(ANY, brokers=(KAFKA,))], Plan(1))
    assert (outcome.results, outcome.failures) == ([], [])


def test_a_run_that_fails_is_named_and_the_others_go_on(client: Path, brokers: Brokers) -> None:
    fails = Workload("fails", Step("burst", 10, 200, ("--lead-ms", "50")), (ASYNC,))
    works = Workload("works", limit("limit-receive", 3), (MACHINE,), LIMITS)
    plan = Plan(2, is_patient=False, has_warm_up=False)
    outcome = run_rounds(brokers, client, [fails, works], plan)
    assert [(result.workload, len(result.samples)) for result in outcome.results] == [("works", 2)]
    assert len(outcome.failures) == 2
    assert all(failure.startswith("fails, latermq async: ") for failure in outcome.failures)


def test_the_client_prints_one_json_object(client: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(client), "limit-receive", "--count", "1"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["mode"] == "limit-receive"
