"""The broker that tests of saved states share in kind: each has its own."""

import pytest

from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import change


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with something of everything that a checkpoint saves."""
    harness = with_topic(2)
    for number in range(6):
        change(harness, number)
    return harness
