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


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often to kill the broker."""
    value: int = request.config.getoption("--rounds")
    return value
