"""Every client, in its default settings and with every feature it has: a row of docs/KAFKA.md each.

All programs run at the same time against one broker; a test waits for one line of one of them.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version

import pytest

from tests.support.clients.client_features import CLIENTS, FEATURES, Client
from tests.support.clients.client_matrix import PATH, matrix, replace_matrix
from tests.support.clients.client_runs import ClientRun, running_clients
from tests.support.clients.client_setup import JAVA_VERSIONS, ROOT, ClientMissingError
from tests.support.clients.client_suites import Suites
from tests.support.harness.appliance_process import ApplianceProcess

CASES = [
    pytest.param(client, feature.name, id=f"{client.name}-{feature.name}")
    for client in CLIENTS
    for feature in FEATURES
    if feature.name not in client.lacks
]


@pytest.fixture(scope="module")
def runs(
    broker: ApplianceProcess, suites: Suites
) -> Iterator[Mapping[str, ClientRun | ClientMissingError]]:
    """All programs; with them begin the suites, since all of them wait most of the time."""
    with running_clients(broker.kafka) as runs:
        yield runs


def run_of(runs: Mapping[str, ClientRun | ClientMissingError], client: Client) -> ClientRun:
    run = runs[client.name]
    if isinstance(run, ClientMissingError):
        pytest.skip(str(run))
    return run


@pytest.mark.parametrize(("client", "feature"), CASES)
def test_client_has_the_feature(
    runs: Mapping[str, ClientRun | ClientMissingError], client: Client, feature: str
) -> None:
    """What the feature's text in client_features says."""
    outcome = run_of(runs, client).outcome(feature)
    assert not outcome.detail, outcome.detail


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_program_tries_what_its_client_is_declared_to_have(
    runs: Mapping[str, ClientRun | ClientMissingError], client: Client
) -> None:
    """No more and no less, so that a `-` in the table is never a feature that nobody wrote."""
    tried = set(run_of(runs, client).outcomes())
    assert tried == {feature.name for feature in FEATURES} - set(client.lacks)


def test_table_of_clients_says_what_is_tested() -> None:
    """The rows that are tested above, all of which have to say yes."""
    text = PATH.read_text()
    table = replace_matrix(text, matrix())
    assert table == text, "run make regenerate"


def test_titles_have_the_versions_that_are_tested() -> None:
    packages = {
        "aiokafka": "aiokafka",
        "confluent": "confluent-kafka",
        "kafka_python": "kafka-python",
    }
    lock = json.loads((ROOT / "tests/system/clients/node/package-lock.json").read_text())[
        "packages"
    ]
    found = {name: version(package) for name, package in packages.items()}
    found |= {"kafkajs": lock["node_modules/kafkajs"]["version"], **JAVA_VERSIONS}
    for client in CLIENTS:
        named = client.title.split()[-1]
        assert f"{found.get(client.name, named)}.".startswith(f"{named}."), client.title


def test_lock_of_node_packages_pins_contents_and_names_no_source() -> None:
    """Each package has a checksum; npm decides where to get it."""
    lock = json.loads((ROOT / "tests/system/clients/node/package-lock.json").read_text())[
        "packages"
    ]
    for name, package in lock.items():
        assert name == "" or package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


def test_only_features_that_exist_are_declared_as_lacking() -> None:
    names = {feature.name for feature in FEATURES}
    for client in CLIENTS:
        assert set(client.lacks) <= names
