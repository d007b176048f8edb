"""Long answers on sockets: memory of many at once, a connection that ends in the middle."""

from pathlib import Path
from typing import Any

import pytest

from appliance.units import KIB, MIB
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.limits import SMALL_BYTES
from compat.kafka.protocol.slices import SLICE_WORK
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.oracles.kafka_oracle import (
    DeleteTopicsRequest,
    MetadataRequest,
    MetadataResponse,
    decode_response,
    encode_request,
)
from tests.support.values.kafka_records import Record

METADATA = framed(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9, 7)
SMALL = {
    "request_size_max_bytes": 64 * KIB,
    "inflight_max_bytes": 512 * KIB,
    "group_size_max_bytes": 16 * KIB,
}
TOPIC_COUNT = 400


def make_topics(broker: LiveBroker) -> None:
    for number in range(TOPIC_COUNT):
        broker.broker.topics.create(f"topic-{number}", 60, {})
    broker.broker.flush()


class Peak:
    """The largest memory of all connections."""

    def __init__(self, broker: LiveBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held_bytes = 0
        self._server = broker.server
        self._note_memory = broker.server.note_memory
        monkeypatch.setattr(broker.server, "note_memory", self._note)

    def _note(self, connection: KafkaConnection, *what: Any, **how: Any) -> None:
        self._note_memory(connection, *what, **how)
        self.held_bytes = max(self.held_bytes, self._server.held_bytes)


async def test_ten_connections_with_large_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LiveBroker(tmp_path, **SMALL) as broker:
        make_topics(broker)
        peak = Peak(broker, monkeypatch)
        clients = [await broker.connect() for _ in range(10)]
        for client in clients:
            client.send_bytes(METADATA)
        other = await broker.connect()
        assert (await other.produce("t", 0, [Record(b"between")])).error == 0
        (payload,) = {await client.read_answer() for client in clients}
        answer = decode_response(MetadataResponse, 9, payload)
        assert sum(len(topic.partitions) for topic in answer.topics) == 60 * TOPIC_COUNT + 2
        assert len(payload) > MIB / 2
        small = 10 * SMALL_BYTES + 2 * SLICE_WORK
        assert peak.held_bytes <= SMALL["inflight_max_bytes"] + len(payload) + small
        await until(lambda: broker.server.held_bytes < MIB)


async def test_a_connection_that_ends_in_the_middle_frees_its_answer(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, **SMALL) as broker:
        make_topics(broker)
        client = await broker.connect()
        client.send_bytes(METADATA)
        await until(lambda: broker.server.answers.slice_count > 0)
        await client.close()
        await until(lambda: broker.server.connection_count == 0)
        assert broker.server.held_bytes == 0
        count = broker.server.answers.slice_count
        other = await broker.connect()
        assert (await other.produce("t", 0, [Record(b"a")])).error == 0
        assert broker.server.answers.slice_count == count


async def test_a_long_request_that_is_malformed_closes_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    names = [f"topic-{number}" for number in range(3_000)]
    frame = encode_request(DeleteTopicsRequest(topic_names=names, timeout_ms=1), 4)[:-9]
    async with LiveBroker(tmp_path, **SMALL) as broker:
        client = await broker.connect()
        client.send_bytes(len(frame).to_bytes(4, "big") + frame)
        assert await client.is_closed_by_broker()
        assert not broker.server.pump.has_failed
        other = await broker.connect()
        assert (await other.produce("t", 0, [Record(b"a")])).error == 0
    assert "expected" in caplog.text
    assert "internal error" not in caplog.text
