"""Tests that the authors of clients wrote for them, against this broker."""

import subprocess

import pytest

from tests.support.clients import franz_go_suite, kafka_python_suite
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.clients.client_suites import Suites
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.gap_scenario import FRANZ_GO_GAPS


@pytest.mark.parametrize("name", kafka_python_suite.FILES)
def test_what_kafka_python_tests_works_here(suites: Suites, name: str) -> None:
    """From its source distribution: all but the expected failures, and each of these fails."""
    if suites.kafka_python is None:
        pytest.skip("; ".join(suites.missing))
    failures = suites.kafka_python.failures(name)
    path = find("kafka_python_tests") / "test" / "integration" / f"test_{name}_integration.py"
    text = path.read_text()
    expected = {test for test in kafka_python_suite.EXPECTED_FAILURES if f"def {test}(" in text}
    assert set(failures) == expected, failures


def run_franz_go(program: str, *arguments: str) -> None:
    try:
        path = find("franz_go") / program
    except ClientMissingError as missing:
        pytest.skip(str(missing))
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


def test_franz_go_reads_on_after_offsets_that_hold_nothing(broker: ApplianceProcess) -> None:
    """From before a gap and from inside of it: without a reset, each record once."""
    run_franz_go("gaps", broker.kafka, FRANZ_GO_GAPS)


def test_franz_go_sets_and_describes_settings_of_topics(
    broker: ApplianceProcess, topic: str
) -> None:
    """With kadm: at creation, one by one, all at once; with sources, defaults and refusals."""
    run_franz_go("admin", broker.kafka, topic)


def test_franz_go_sends_a_large_batch_to_each_of_fifty_partitions(
    broker: ApplianceProcess, topic: str
) -> None:
    """In one request, as its default limits allow."""
    run_franz_go("bulk", broker.kafka, topic)


def test_what_franz_go_tests_works_here(suites: Suites) -> None:
    """Its tests of producers, consumers and groups: all but the expected failures."""
    if suites.franz_go is None:
        pytest.skip("; ".join(suites.missing))
    failures = suites.franz_go.failures()
    unexpected = failures - set(franz_go_suite.EXPECTED_FAILURES)
    assert not unexpected, [suites.franz_go.said(name) for name in unexpected]
    assert failures == set(franz_go_suite.EXPECTED_FAILURES)
