"""One real broker for all clients, and a topic for each test."""

import re
from collections.abc import Iterator

import pytest

from tests.support.clients.client_features import CLIENTS
from tests.support.clients.client_suites import Suites, running_suites
from tests.support.harness.appliance_process import CONFIG, ApplianceProcess, running_appliance
from tests.support.harness.gap_scenario import FRANZ_GO_GAPS, write_topics
from tests.system.clients.delayed import LEVEL_1_MS


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """A broker with a short first level; that it stops cleanly after all this is checked too.

    Sessions of consumers may be as short as the suites of the clients want them.
    """
    root = tmp_path_factory.mktemp("clients")
    topics = [f"{client.name}-gaps".replace("_", "-") for client in CLIENTS]
    write_topics(root / "data", [*topics, FRANZ_GO_GAPS])
    config = root / "latermq.toml"
    config.write_text(
        f"{CONFIG}[groups]\nsession_timeout_min_ms = 3000\n"
        f'[delay]\nlevels = "{LEVEL_1_MS}ms 5s 10s"\n'
    )
    with running_appliance(root, ["--config", str(config)]) as appliance:
        yield appliance


@pytest.fixture(scope="session")
def suites(broker: ApplianceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suites]:
    """Tests that come with clients; they run in the background while other clients are tried."""
    with running_suites(broker.kafka, tmp_path_factory.mktemp("suites")) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nothing is created."""
    module = request.module.__name__.rpartition("_")[2]
    return re.sub(r"[^a-zA-Z0-9]+", "-", f"{module}-{request.node.name}").strip("-")
