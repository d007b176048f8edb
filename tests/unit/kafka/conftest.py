"""The broker that tests of requests share in kind: each has its own."""

import pytest

from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with topic `t` of two partitions."""
    harness = BrokerHarness()
    harness.create_topic("t", 2)
    return WireClient(harness)
