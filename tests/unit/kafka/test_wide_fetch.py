"""A Fetch of thousands of partitions takes several turns, and misses no record meanwhile."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from _core.paths.parked_fetch import ParkedFetch
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient, framed
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import FetchResponse
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request

COUNT: Final = 9_000
TURNS: Final = 3
"""4096 partitions each."""

VERSION: Final = 11
BATCH: Final = make_batch([Raw(b"a")])


@pytest.fixture(scope="module")
def shared() -> BrokerHarness:
    config = small_config(
        partition_count_max_per_topic=COUNT,
        partition_total_max=COUNT + 10,
        segment_size_bytes=16 << 20,
        request_size_max_bytes=4 << 20,
    )
    harness = with_topic(COUNT, config=config)
    harness.create_topic("u", 1)
    producer = WireClient(harness)
    for index in (0, 5_000, COUNT - 1):
        assert producer.produce("t", index, BATCH).error_code == 0
    return harness


@pytest.fixture
def client(shared: BrokerHarness) -> WireClient:
    return WireClient(shared)


def ask(client: WireClient, parts: Sequence[dict[str, int]], **fields: Any) -> ParkedFetch | None:
    """Send a fetch; return it if it goes on after its first turn."""
    request = fetch_request([("t", parts)], **fields)
    client.feed(framed(request, VERSION, 1), lambda: None)
    client.harness.broker.commit()
    client.session.compact()
    found = client.session.new_parked
    return found[0] if found else None


def finish(client: WireClient, parked: ParkedFetch) -> int:
    """Do the turns that are left; return how many there were."""
    count = 0
    while parked.is_unfinished:
        client.session.retry(parked)
        count += 1
    return count


def parts_of(client: WireClient) -> list[Any]:
    (answer,) = client.answers(FetchResponse, VERSION)
    return list(answer.responses[0].partitions)


def every(offset: int = 0) -> list[dict[str, int]]:
    return [fetch_part(index, offset) for index in range(COUNT)]


def at_the_ends(client: WireClient) -> list[dict[str, int]]:
    topic = client.harness.partition().topic
    return [fetch_part(each.index, each.next_offset) for each in topic.partitions]


def test_a_wide_fetch_takes_turns_and_others_are_served_between(client: WireClient) -> None:
    parked = ask(client, every())
    assert parked is not None
    assert parked.is_unfinished
    other = WireClient(client.harness)
    assert len(other.fetch_records("t", 5_000)) == len(BATCH)
    assert client.take() == b""
    assert finish(client, parked) == TURNS - 1
    assert parked.answered
    found = parts_of(client)
    assert [part.partition_index for part in found] == list(range(COUNT))
    assert {part.error_code for part in found} == {0}
    sizes = {part.partition_index: len(part.records or b"") for part in found}
    assert {index for index, size in sizes.items() if size} == {0, 5_000, COUNT - 1}


def test_a_record_that_comes_between_two_turns_is_not_missed(client: WireClient) -> None:
    """Whether its partition was looked at already or not; the fetch is tried once more."""
    producer = WireClient(client.harness)
    for index in (1, COUNT - 2):
        parked = ask(client, at_the_ends(client), wait_ms=60_000)
        assert parked is not None
        producer.produce("t", index, BATCH)
        woken = client.harness.partition(index).waiting()
        assert woken == ([parked] if index == 1 else [])
        parked.was_woken = bool(woken)
        assert finish(client, parked) == TURNS - 1 + (TURNS if woken else 0)
        assert parked.answered
        found = [part for part in parts_of(client) if part.records]
        assert [part.partition_index for part in found] == [index]
        assert client.harness.partition().topic.waiters == {}


def test_a_wide_fetch_waits_for_its_partitions_alone(client: WireClient) -> None:
    """It holds a bit for each, and is not tried again for those of others."""
    parts = at_the_ends(client)[:-1]
    before = client.session.held_bytes
    parked = ask(client, parts, wait_ms=60_000)
    assert parked is not None
    finish(client, parked)
    assert not parked.answered
    client.session.trim()
    assert client.session.held_bytes - before < 30 * COUNT  # its request
    assert client.harness.partition(COUNT - 1).waiting() == []
    assert client.harness.partition(COUNT - 2).waiting() == [parked]
    WireClient(client.harness).produce("t", 7, BATCH)
    assert not client.session.retry(parked)
    finish(client, parked)
    assert [part.partition_index for part in parts_of(client) if part.records] == [7]


def test_the_end_of_the_wait_answers_with_what_there_is(client: WireClient) -> None:
    parked = ask(client, every(), wait_ms=60_000, min_bytes=1 << 30)
    assert parked is not None
    assert parked.wait_ms == 60_000
    finish(client, parked)
    assert not parked.answered
    parked.is_expired = True
    assert not client.session.retry(parked)
    finish(client, parked)
    assert parked.answered
    assert len(parts_of(client)) == COUNT


def test_a_partition_that_is_named_again_turns_later_is_refused(client: WireClient) -> None:
    parked = ask(client, [*every(), fetch_part(3, 0)])
    assert parked is not None
    finish(client, parked)
    found = parts_of(client)
    assert [part.partition_index for part in found if part.error_code] == [3]
    assert found[-1].error_code == ErrorCode.invalid_request


def test_a_closed_connection_leaves_nothing(client: WireClient) -> None:
    parked = ask(client, at_the_ends(client), wait_ms=60_000)
    assert parked is not None
    assert client.harness.partition().topic.waiters
    parked.drop()
    client.session.close()
    assert client.harness.partition().topic.waiters == {}
    assert not parked.is_unfinished
    assert client.session.retry(parked)


def test_more_than_the_broker_has_is_refused_at_once(client: WireClient) -> None:
    limit = client.harness.config.partition_total_max + client.harness.config.topic_count_max
    parts = [fetch_part(index, 0) for index in range(limit)]
    assert ask(client, parts) is None
    (answer,) = client.answers(FetchResponse, VERSION)
    assert answer.error_code == ErrorCode.invalid_request
    assert answer.responses == []


def test_a_malformed_wide_fetch_closes_the_connection(client: WireClient) -> None:
    data = bytearray(framed(fetch_request([("t", every())]), VERSION, 1))
    data = data[:-40]
    data[:4] = (len(data) - 4).to_bytes(4, "big")
    client.feed(bytes(data), lambda: None)
    assert client.session.close_reason == "malformed Fetch request"
