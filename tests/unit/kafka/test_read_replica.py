"""A master sends consumers to its slave: those in its rack, and those far behind (KIP-392)."""

from typing import Any

import pytest

from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.oracles.kafka_oracle import FetchResponse
from tests.support.values.kafka_records import Record, read_batches
from tests.support.values.record_requests import fetch_part, fetch_request

SLAVE = 2
RACK = "b"
VERSIONS = [11, 12, 13, 17]
SERVED_AFTER = 16
"""Fetches of a partition that are served after the client was sent away."""


@pytest.fixture
def client() -> WireClient:
    """A client of a master with ten records of a kilobyte in each of two partitions."""
    harness = with_topic(2)
    for number in range(10):
        for partition in range(2):
            harness.produce("t", partition, [Record(b"%d" % number * 1_000)])
    return WireClient(harness)


def send_away(client: WireClient, *, rack: str = RACK, late_bytes: int = 0) -> None:
    client.harness.broker.read_at_slave(SLAVE, rack, late_bytes)


def fetch(
    client: WireClient,
    *offsets: int,
    rack: str = RACK,
    version: int = 11,
    wait_ms: int = 0,
    forgotten: bool = False,
) -> list[Any]:
    """The partitions of the answer to one Fetch."""
    parts = [fetch_part(index, offset) for index, offset in enumerate(offsets)]
    request = fetch_request([("t", parts)], wait_ms=wait_ms)
    request.rack_id = rack
    if forgotten:
        kind = type(request).ForgottenTopic
        uuid = client.topic_id("t")
        request.forgotten_topics_data = [kind(topic="t", topic_id=uuid, partitions=[0, 1])]
    answer = client.ask(request, version, FetchResponse)
    return list(answer.responses[0].partitions)


def is_sent_away(part: Any) -> bool:
    """Whether a partition names the slave; it then has no records, and else some."""
    assert part.error_code == 0
    assert part.preferred_read_replica in (-1, SLAVE)
    has_records = bool(part.records)
    assert has_records == (part.preferred_read_replica == -1)
    return not has_records


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("forgotten", [False, True])
def test_consumer_in_the_rack_of_the_slave_is_sent_there(
    client: WireClient, version: int, forgotten: bool
) -> None:
    send_away(client)
    parts = fetch(client, 0, 3, version=version, forgotten=forgotten)
    assert [is_sent_away(each) for each in parts] == [True, True]
    assert client.harness.broker.collect_metrics().sent_to_slave == {"near": 2, "late": 0}


@pytest.mark.parametrize("rack", ["", "a", "bb"])
def test_consumer_in_another_rack_is_served(client: WireClient, rack: str) -> None:
    send_away(client)
    assert not any(is_sent_away(each) for each in fetch(client, 0, 0, rack=rack))


def test_nobody_is_sent_to_a_slave_without_a_rack_because_of_its_rack(client: WireClient) -> None:
    send_away(client, rack="")
    assert not any(is_sent_away(each) for each in fetch(client, 0, 0, rack=""))


def test_old_client_is_served(client: WireClient) -> None:
    send_away(client, late_bytes=1)
    answer = client.ask(fetch_request([("t", [fetch_part(0, 0)])]), 10, FetchResponse)
    assert answer.responses[0].partitions[0].records


def test_consumer_at_the_end_is_sent_away_at_once_though_it_would_wait(client: WireClient) -> None:
    send_away(client)
    (part,) = fetch(client, 10, wait_ms=60_000)
    assert part.preferred_read_replica == SLAVE
    assert client.parked == []


def test_client_that_comes_back_is_served_for_a_while(client: WireClient) -> None:
    """Else a client that ignores the answer, or that the slave refuses, would never read."""
    send_away(client)
    assert is_sent_away(fetch(client, 0)[0])
    for _ in range(SERVED_AFTER):
        assert not is_sent_away(fetch(client, 0)[0])
    assert is_sent_away(fetch(client, 0)[0])


def test_partitions_are_sent_away_one_by_one(client: WireClient) -> None:
    send_away(client)
    assert is_sent_away(fetch(client, 0)[0])
    assert [is_sent_away(each) for each in fetch(client, 0, 0)] == [False, True]


def test_other_connection_is_sent_away_by_itself(client: WireClient) -> None:
    send_away(client)
    assert is_sent_away(fetch(client, 0)[0])
    assert is_sent_away(fetch(WireClient(client.harness), 0)[0])


def test_consumer_that_is_far_behind_is_sent_away_and_one_near_the_end_is_not(
    client: WireClient,
) -> None:
    send_away(client, rack="", late_bytes=8_000)
    behind, near = fetch(client, 0, 8, rack="")
    assert is_sent_away(behind)
    assert not is_sent_away(near)
    assert client.harness.broker.collect_metrics().sent_to_slave == {"near": 0, "late": 1}


def test_consumer_whose_records_are_on_the_disk_alone_is_sent_away_too(client: WireClient) -> None:
    harness = client.harness.restart()
    harness.make_cold()
    cold = WireClient(harness)
    send_away(cold, rack="", late_bytes=8_000)
    parts = [fetch(cold, 0, rack="", wait_ms=60_000)[0] for _ in range(2)]
    assert [is_sent_away(each) for each in parts] in ([True, False], [False, True])


def test_nobody_is_sent_away_once_the_slave_is_gone(client: WireClient) -> None:
    send_away(client, late_bytes=1)
    client.harness.broker.read_at_slave(None, "", 0)
    (part,) = fetch(client, 0)
    assert not is_sent_away(part)
    assert len(read_batches(bytes(part.records))) == 10


def test_wide_fetch_is_sent_away_as_well() -> None:
    """It names so many partitions that it is answered in several turns, and not all are noted."""
    harness = BrokerHarness()
    names = [f"t{number}" for number in range(40)]
    for name in names:
        harness.create_topic(name, 60)
    client = WireClient(harness)
    send_away(client)
    topics = [(name, [fetch_part(index, 0) for index in range(60)]) for name in names]
    request = fetch_request(topics)
    request.rack_id = RACK
    client.send(request, 11)
    (answer,) = client.answers(FetchResponse, 11)
    parts = [each for topic in answer.responses for each in topic.partitions]
    assert len(parts) == 2_400
    assert [each.preferred_read_replica for each in parts] == [SLAVE] * 1_024 + [-1] * 1_376
