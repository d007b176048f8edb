"""What the tests of Produce share: versions, batches, queries of the broker."""

from tests.support.clients.wire_client import WireClient
from tests.support.values.raw_batch import Raw, make_batch

VERSIONS = range(3, 12)
LAST = VERSIONS[-1]
WITH_START_OFFSET = 5
WITH_ERRORS = 8

TWO = (Raw(b"a"), Raw(b"b"))
PAIR = make_batch(TWO)


def next_offset(client: WireClient, topic: str = "t", partition: int = 0) -> int:
    return client.harness.partition(partition, topic).next_offset
