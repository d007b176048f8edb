"""One real broker for all clients, and a topic for each test."""

import re
from collections.abc import Iterator

import pytest

from tests.clients.delayed import LEVEL_1_MS
from tests.support.appliance_process import CONFIG, ApplianceProcess, running_appliance
from tests.support.client_setup import ClientMissingError
from tests.support.kafka_python_suite import KafkaPythonSuite


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """A broker with a short first level; that it stops cleanly after all this is checked too."""
    root = tmp_path_factory.mktemp("clients")
    config = root / "latermq.toml"
    config.write_text(f'[delay]\nlevels = "{LEVEL_1_MS}ms 5s 10s"\n')
    with running_appliance(root, ["--config", str(config)]) as appliance:
        yield appliance


@pytest.fixture(scope="session")
def own_suite(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KafkaPythonSuite | ClientMissingError]:
    """kafka-python's own tests; they run in the background while other clients are tried."""
    root = tmp_path_factory.mktemp("own_suite")
    config = root / "latermq.toml"
    config.write_text(f"{CONFIG}[groups]\nsession_timeout_min_ms = 3000\n")
    with running_appliance(root, ["--config", str(config)]) as appliance:
        try:
            suite = KafkaPythonSuite(appliance.kafka, root)
        except ClientMissingError as missing:
            yield missing
            return
        yield suite
        suite.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nothing is created."""
    module = request.module.__name__.rpartition("_")[2]
    return re.sub(r"[^a-zA-Z0-9]+", "-", f"{module}-{request.node.name}").strip("-")
