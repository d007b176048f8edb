"""A sync pair: nothing is readable before the slave has it, nor acknowledged with acks=all, and
without a lease nothing is acknowledged at all."""

import pytest

from appliance.replication.lease import Lease
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import PAIR
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
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


def positions(harness: BrokerHarness) -> tuple[int, int]:
    """As `Release.positions`."""
    if not harness.broker.check_lease():
        return 0, 0
    return min(harness.durable_pos, harness.broker.replicated_pos), harness.durable_pos


def send(client: WireClient, acks: int = -1) -> None:
    client.send(produce_request([("t", [(0, PAIR)])], acks=acks, timeout_ms=60_000), 8)


def codes(client: WireClient) -> list[int]:
    """The error code of each answer that may leave now."""
    durable_pos, local_pos = positions(client.harness)
    pieces = client.session.output(durable_pos, local_pos=local_pos)
    data = b"".join(bytes(piece) for piece in pieces)
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        answer = ProduceResponse.decode(data[4 : 4 + size], 8, header=True)
        found.append(answer.responses[0].partition_responses[0].error_code)
        data = data[4 + size :]
    return found


def test_acknowledgement_of_all_waits_for_the_slave(client: WireClient) -> None:
    send(client)
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
        client.session.time_out(now_ms, BOUND_MS, *positions(client.harness))
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


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_acknowledgement_of_one_waits_for_this_disk_alone(flush: str) -> None:
    client = WireClient(with_topic(config=small_config(flush=flush)))
    harness = client.harness
    harness.flush()
    harness.broker.need_replica(None)
    harness.broker.replicated(harness.broker.wrote_pos)
    send(client, acks=1)
    assert codes(client) == ([] if flush == "sync" else [0])
    harness.flush()
    assert codes(client) == ([0] if flush == "sync" else [])
    assert harness.values() == [], "the slave does not have it"
    harness.broker.replicated(harness.broker.wrote_pos)
    assert len(harness.values()) == 2


def test_acknowledgement_of_one_does_not_wait_behind_the_slave_for_a_record_of_all(
    client: WireClient,
) -> None:
    other = WireClient(client.harness)
    send(client)
    send(other, acks=1)
    client.harness.flush()
    assert codes(client) == []
    assert codes(other) == [0]
    # On one connection answers keep the order of the requests.
    send(client, acks=1)
    client.harness.flush()
    assert codes(client) == []
    client.harness.broker.replicated(client.harness.broker.wrote_pos)
    assert codes(client) == [0, 0]


def test_batch_without_a_slave_is_refused_with_acks_all_alone(client: WireClient) -> None:
    client.harness.broker.need_replica(MISSING)
    for acks in (-1, 1):
        send(client, acks)
    client.harness.flush()
    assert codes(client) == [ErrorCode.not_enough_replicas, 0]


def test_batch_of_one_that_waits_too_long_for_this_disk_is_timed_out(client: WireClient) -> None:
    send(client, acks=1)
    pass_time(client, BOUND_MS)
    assert codes(client) == [ErrorCode.request_timed_out]


# The lease

LEASE_MS = 2_000


@pytest.fixture
def lease(client: WireClient) -> Lease:
    """A lease that begins now."""
    clock = client.harness.clock
    lease = client.harness.broker.lease = Lease(clock, LEASE_MS)
    renew(client)
    return lease


def renew(client: WireClient) -> None:
    assert client.harness.broker.lease is not None
    client.harness.broker.lease.renew(client.harness.clock.boottime_ns() // 1_000_000)


def pass_time(client: WireClient, duration_ms: int) -> None:
    """Let the time-out of answers see time pass, as the server's sweeps do."""
    broker = client.harness.broker
    for passed_ms in (0, duration_ms):
        client.harness.clock.advance_ms(passed_ms)
        now_ms = client.harness.clock.monotonic_ns() // 1_000_000
        wait_max_ms = BOUND_MS if broker.has_lease else 0
        client.session.time_out(now_ms, wait_max_ms, *positions(client.harness))


@pytest.mark.usefixtures("lease")
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("is_suspended", [False, True])
def test_answer_that_is_ready_does_not_leave_after_the_lease(
    client: WireClient, acks: int, *, is_suspended: bool
) -> None:
    send(client, acks)
    client.harness.flush()
    client.harness.broker.replicated(client.harness.broker.wrote_pos)
    clock = client.harness.clock
    (clock.suspend_ms if is_suspended else clock.advance_ms)(LEASE_MS)
    assert codes(client) == []
    pass_time(client, 0)
    assert codes(client) == [ErrorCode.not_enough_replicas_after_append]


@pytest.mark.usefixtures("lease")
def test_answers_leave_to_the_last_millisecond_of_the_lease(client: WireClient) -> None:
    send(client, acks=1)
    client.harness.flush()
    client.harness.clock.advance_ms(LEASE_MS - 1)
    assert codes(client) == [0]


@pytest.mark.usefixtures("lease")
@pytest.mark.parametrize("acks", [1, -1])
def test_batch_without_a_lease_is_refused_and_accepted_with_the_next_one(
    client: WireClient, acks: int
) -> None:
    before = client.harness.broker.wrote_pos
    client.harness.clock.advance_ms(LEASE_MS)
    client.harness.broker.check_lease()
    send(client, acks)
    assert codes(client) == [ErrorCode.not_enough_replicas]
    assert client.harness.broker.wrote_pos == before
    renew(client)
    client.harness.broker.check_lease()
    send(client, acks)
    client.harness.flush()
    client.harness.broker.replicated(client.harness.broker.wrote_pos)
    assert codes(client) == [0]


def test_a_master_that_is_alone_answers_without_a_lease(client: WireClient, lease: Lease) -> None:
    client.harness.clock.advance_ms(LEASE_MS)
    lease.is_required = False
    client.harness.broker.release_replica()
    client.harness.broker.check_lease()
    send(client)
    client.harness.flush()
    assert codes(client) == [0]
