"""The broker that tests of offsets share in kind: each has its own."""

import pytest

from tests.support.clients.offsets_client import OffsetsClient
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic


@pytest.fixture
def offsets() -> OffsetsClient:
    """A client of a broker with topics `t` of three partitions and `u` of one."""
    harness = with_topic(3)
    harness.create_topic("u")
    return OffsetsClient(WireClient(harness))
