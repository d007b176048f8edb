"""Event loops for tests that are coroutines; for those of the commands a broker and a shell."""

import asyncio
import gc
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import uvloop

from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine

LIMIT_S: Final = 120.0
"""For a test that is a coroutine."""


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A test that uses it runs on each of the event loops that the broker supports."""
    runner: Callable[..., Any] = request.param
    return runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    run = pyfuncitem.funcargs.get("loop", asyncio.run)
    run(asyncio.wait_for(test, LIMIT_S))
    return True


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
