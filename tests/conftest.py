"""What all tests share: command line options, and random tests that repeat."""

import hypothesis
import pytest

# The same examples in every run: a failure on one machine is a failure on every machine.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, print_blob=True
)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds", type=int, default=10, help="how often the kill -9 test kills the broker"
    )
    parser.addoption(
        "--power-cuts", type=int, default=3, help="how often the broker loses its disk under load"
    )
    parser.addoption(
        "--states", type=int, default=50_000, help="how many crash states the store is put into"
    )
    parser.addoption(
        "--fuzz-seconds", type=float, default=0, help="how long to fuzz; 0: a fixed number of cases"
    )


@pytest.fixture
def states(request: pytest.FixtureRequest) -> int:
    """How many crash states to look at."""
    value: int = request.config.getoption("--states")
    return value


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often to kill the broker."""
    value: int = request.config.getoption("--rounds")
    return value


@pytest.fixture
def power_cuts(request: pytest.FixtureRequest) -> int:
    """How often the power fails."""
    value: int = request.config.getoption("--power-cuts")
    return value
