"""What all tests share: options, random tests that repeat, and the lanes they run in."""

import os
import signal

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.harness import lanes

# The same examples in every run: a failure on one machine is a failure on every machine.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, print_blob=True
)
hypothesis.settings.load_profile("repeatable")

# A shell starts what runs in its background without SIGINT, and programs of the tests would inherit
# that: Ctrl-C would not end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds", type=int, default=6, help="how often the kill -9 test kills the broker"
    )
    parser.addoption(
        "--power-cuts", type=int, default=3, help="how often the broker loses its disk under load"
    )
    parser.addoption(
        "--fills", type=int, default=3, help="how often clients fill a small disk, and free it"
    )
    parser.addoption(
        "--states", type=int, default=15_000, help="how many crash states the store is put into"
    )
    parser.addoption("--lives", type=int, default=600, help="how many lives of a pair to simulate")
    parser.addoption("--days", type=int, default=30, help="how long a broker of the year lives")
    parser.addoption("--timers", type=int, default=1_500, help="how many timers it has pending")
    parser.addoption(
        "--schedules", type=int, default=3_000, help="how many random schedules to compare"
    )
    parser.addoption(
        "--fuzz-seconds", type=float, default=0, help="how long to fuzz; 0: a fixed number of cases"
    )


class Scheduling(LoadScopeScheduling):
    """Gives each worker of pytest-xdist whole groups of `lanes`."""

    def _split_scope(self, nodeid: str) -> str:
        return lanes.group_of(*place_of(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """With `-n` alone; another `--dist` is followed."""
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False  # by size; `lanes` has an order by time
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, before `-m` looks; beside other workers, begin with what takes longest."""
    for item in items:
        if lanes.is_slow(*place_of(item.nodeid)):
            item.add_marker("slow")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: -lanes.seconds_of(*place_of(item.nodeid)))


def place_of(nodeid: str) -> tuple[str, str]:
    """The path and the name by which `lanes` knows a test."""
    path, _, case = nodeid.removeprefix("tests/").partition("::")
    return path, case


@pytest.fixture
def states(request: pytest.FixtureRequest) -> int:
    """How many crash states to look at."""
    value: int = request.config.getoption("--states")
    return value


@pytest.fixture
def lives(request: pytest.FixtureRequest) -> int:
    """How many lives of a pair to simulate."""
    value: int = request.config.getoption("--lives")
    return value


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often to kill the broker."""
    value: int = request.config.getoption("--rounds")
    return value


@pytest.fixture
def days(request: pytest.FixtureRequest) -> int:
    """How many days to simulate."""
    value: int = request.config.getoption("--days")
    return value


@pytest.fixture
def timers(request: pytest.FixtureRequest) -> int:
    """How many timers are pending at the start of these days."""
    value: int = request.config.getoption("--timers")
    return value


@pytest.fixture
def schedules(request: pytest.FixtureRequest) -> int:
    """How many random schedules to compare with their model."""
    value: int = request.config.getoption("--schedules")
    return value


@pytest.fixture
def power_cuts(request: pytest.FixtureRequest) -> int:
    """How often the power fails."""
    value: int = request.config.getoption("--power-cuts")
    return value


@pytest.fixture
def fills(request: pytest.FixtureRequest) -> int:
    """How often a disk is filled and freed."""
    value: int = request.config.getoption("--fills")
    return value
