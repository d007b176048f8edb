"""The broker that tests of requests share in kind: each has its own."""

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.wire_client import WireClient


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with topic `t` of two partitions."""
    rig = BrokerRig()
    rig.create_topic("t", 2)
    return WireClient(rig)
