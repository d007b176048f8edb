"""Batches as librdkafka compresses them, by way of its own broker, unpack to what was sent."""

import socket
import struct
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Producer

from appliance.units import MIB
from compat.kafka.protocol.codecs import decompress
from tests.unit.kafka.test_codecs import BATCH_HEADER_SIZE, CODECS, text_of

ATTEMPTS: Final = 5


def fetch_batch(address: tuple[str, int], topic: str) -> bytes:
    """Fetch (version 4) the first batch of partition 0, as the broker stored it."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    request = struct.pack(">hhihiiiibi", 1, 4, 7, -1, -1, 5_000, 1, MIB, 0, 1) + name
    request += struct.pack(">iiqi", 1, 0, 0, MIB)
    with socket.create_connection(address, timeout=60) as connection:
        stream = connection.makefile("rwb")
        stream.write(struct.pack(">i", len(request)) + request)
        stream.flush()
        response = stream.read(*struct.unpack(">i", stream.read(4)))
        stream.close()
    start = 12 + len(name) + 4  # correlation id, throttle time, topic count; name; partition count
    _, error, _, _, aborted_count = struct.unpack_from(">ihqqi", response, start)
    assert error == 0
    assert aborted_count <= 0
    (size,) = struct.unpack_from(">i", response, start + 26)
    batches = response[start + 30 : start + 30 + size]
    return batches[: 12 + struct.unpack_from(">i", batches, 8)[0]]


@pytest.fixture(scope="module")
def mock_broker() -> Iterator[tuple[str, int]]:
    """librdkafka's own broker, which keeps batches as they came."""
    host = Producer({"test.mock.num.brokers": 1, "allow.auto.create.topics": True})
    broker = next(iter(host.list_topics(timeout=60).brokers.values()))
    yield broker.host, broker.port
    host.flush(1)


def send_with_librdkafka(address: tuple[str, int], codec_name: str, topic: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": "{}:{}".format(*address),
            "compression.type": codec_name,
            "linger.ms": 60_000,  # one batch, which flush sends
        }
    )
    for i in range(500):
        value = b'{"number": %d, "text": "%s"}' % (i, text_of(100))
        producer.produce(topic, value, b"key %d" % i, 0, timestamp=1_767_225_600_000 + i)
    assert producer.flush(10) == 0


@pytest.mark.parametrize("name", CODECS)
def test_librdkafka_client(mock_broker: tuple[str, int], name: str) -> None:
    """The batches of librdkafka unpack to the records of its plain batch; its snappy is raw."""
    for attempt in range(ATTEMPTS):
        topic, plain_topic = f"{name}-{attempt}", f"{name}-{attempt}-plain"
        send_with_librdkafka(mock_broker, name, topic)
        send_with_librdkafka(mock_broker, "none", plain_topic)
        batch = fetch_batch(mock_broker, topic)
        plain = fetch_batch(mock_broker, plain_topic)[BATCH_HEADER_SIZE:]
        packed = batch[BATCH_HEADER_SIZE:]
        # On a busy machine librdkafka at times sends the first records alone, or as they are.
        if struct.unpack_from(">h", batch, 21)[0] & 7 == CODECS[name]:
            unpacked = decompress(CODECS[name], packed, MIB)
            if unpacked == plain:
                break
    else:
        pytest.fail(f"none of {ATTEMPTS} batches held what was sent")
    assert name != "snappy" or not packed.startswith(b"\x82SNAPPY")
