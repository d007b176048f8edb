"""The broker that tests of requests share in kind: each has its own."""

import pytest

from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with topic `t` of two partitions."""
    return WireClient(with_topic(2))
