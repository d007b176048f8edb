"""The broker that tests of offsets share in kind: each has its own."""

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.offsets_client import OffsetsClient
from tests.support.wire_client import WireClient


@pytest.fixture
def offsets() -> OffsetsClient:
    """A client of a broker with topics `t` of three partitions and `u` of one."""
    rig = BrokerRig()
    rig.create_topic("t", 3)
    rig.create_topic("u")
    return OffsetsClient(WireClient(rig))
