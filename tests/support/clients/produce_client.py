"""What the tests of Produce share: versions, Kafka's error codes, queries of the broker."""

from tests.support.clients.wire_client import WireClient
from tests.support.values.raw_batch import Raw, make_batch

VERSIONS = range(3, 12)
LAST = VERSIONS[-1]
WITH_START_OFFSET = 5
WITH_ERRORS = 8

CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_REQUIRED_ACKS = 21
INVALID_TIMESTAMP = 32
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
KAFKA_STORAGE_ERROR = 56
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_REQUEST = 42
INVALID_RECORD = 87

TWO = (Raw(b"a"), Raw(b"b"))
PAIR = make_batch(TWO)


def values(client: WireClient, topic: str = "t", partition: int = 0) -> list[bytes]:
    return [record.value for record in client.harness.fetch(topic, partition)]


def next_offset(client: WireClient, topic: str = "t", partition: int = 0) -> int:
    found = client.harness.broker.topics.find(topic)
    assert found is not None
    offset: int = found.partitions[partition].next_offset
    return offset
