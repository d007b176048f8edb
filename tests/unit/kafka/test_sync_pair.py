"""A sync pair: nothing is acknowledged or readable before the slave has it."""

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import PAIR
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.oracles.kafka_oracle import ProduceResponse
from tests.support.values.kafka_records import Record, delay
from tests.support.values.record_requests import produce_request

BOUND_MS = 5_000
MISSING = "no slave has caught up"


@pytest.fixture
def client() -> WireClient:
    client = WireClient(with_topic(2))
    client.harness.broker.need_replica(None)
    return client


def durable_pos(harness: BrokerHarness) -> int:
    """As `Pump.durable_pos`."""
    return min(harness.durable_pos, harness.broker.replicated_pos)


def send(client: WireClient, acks: int = -1) -> None:
    client.send(produce_request([("t", [(0, PAIR)])], acks=acks, timeout_ms=60_000), 8)


def codes(client: WireClient) -> list[int]:
    """The error code of each answer that may leave now."""
    pieces = client.session.output(durable_pos(client.harness))
    data = b"".join(bytes(piece) for piece in pieces)
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        answer = ProduceResponse.decode(data[4 : 4 + size], 8, header=True)
        found.append(answer.responses[0].partition_responses[0].error_code)
        data = data[4 + size :]
    return found


@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledgement_waits_for_the_slave(client: WireClient, acks: int) -> None:
    send(client, acks)
    client.harness.flush()
    assert codes(client) == []
    assert client.harness.values() == []
    client.harness.broker.replicated(client.harness.broker.wrote_pos - 8)
    assert codes(client) == []
    client.harness.broker.replicated(client.harness.broker.wrote_pos)
    assert codes(client) == [0]
    assert len(client.harness.values()) == 2


def test_batch_is_refused_while_there_is_no_slave_and_accepted_after(client: WireClient) -> None:
    before = client.harness.broker.wrote_pos
    client.harness.broker.need_replica(MISSING)
    send(client)
    assert codes(client) == [ErrorCode.not_enough_replicas]
    assert client.harness.broker.wrote_pos == before
    client.harness.broker.need_replica(None)
    send(client)
    client.harness.flush()
    client.harness.broker.replicated(client.harness.broker.wrote_pos)
    assert codes(client) == [0]


def test_batch_whose_slave_is_lost_is_answered_after_the_append_and_stays(
    client: WireClient,
) -> None:
    send(client)
    client.harness.flush()
    for duration_ms in (0, BOUND_MS):
        client.harness.clock.advance_ms(duration_ms)
        now_ms = client.harness.clock.monotonic_ns() // 1_000_000
        client.session.time_out(now_ms, BOUND_MS, durable_pos(client.harness))
    assert codes(client) == [ErrorCode.not_enough_replicas_after_append]
    assert client.harness.values() == []
    client.harness.broker.release_replica()
    assert len(client.harness.values()) == 2


def test_due_record_is_not_readable_before_the_slave_has_its_delivery(client: WireClient) -> None:
    harness = client.harness
    harness.broker.release_replica()
    harness.produce("t", 1, [Record(b"later", headers=delay(1_000))])
    harness.broker.need_replica(None)
    assert harness.tick(1_000) == 1
    harness.flush()
    assert harness.values(partition=1) == []
    harness.broker.replicated(harness.broker.wrote_pos)
    assert harness.values(partition=1) == [b"later"]
