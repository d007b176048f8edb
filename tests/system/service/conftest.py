"""What the tests of the commands share: a broker, and a shell that knows it."""

import gc
import re
from collections.abc import Iterator

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """One broker for all of them; each test has topics of its own."""
    appliance = ApplianceProcess(tmp_path_factory.mktemp("commands") / "data")
    try:
        appliance.start()
        yield appliance
        assert "Traceback" not in appliance.stderr_path.read_text()
        appliance.stop()
    finally:
        appliance.close()


@pytest.fixture
def latermq(broker: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """A shell whose environment names the broker."""
    yield CommandLine(monkeypatch, broker.kafka, broker.admin)
    # Kafka clients that are closed leave the two ends of their wake-up pipes to the collector.
    gc.collect()


@pytest.fixture
def topic(request: pytest.FixtureRequest, latermq: CommandLine) -> str:
    """A topic with two partitions, named after the test."""
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))[:80].strip("-")
    latermq.ok(f"topics create {name} --partitions 2")
    return name
