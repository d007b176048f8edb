"""Fetch of large batches: locked where they lie, copied where that cannot be, read ahead."""

import random

import pytest

from _core.log.view import LogView
from _core.paths.session import Session
from appliance.units import MIB
from tests.support.clients.wire_client import WireClient, framed
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import read_batches
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request

COUNT = 8
SIZE = 200_000
LIMIT = 250_000


def value_of(index: int) -> bytes:
    return random.Random(index).randbytes(SIZE)


@pytest.fixture
def client() -> WireClient:
    """A client of a broker that has read nothing; the kernel has all of the log in memory."""
    config = small_config(
        segment_size_bytes=8 * MIB,
        fetch_size_max_bytes=4 * MIB,
        request_size_max_bytes=4 * MIB,
        batch_size_max_bytes=MIB,
        decompressed_size_max_bytes=MIB,
        record_size_max_bytes=MIB,
    )
    harness = with_topic(config=config)
    first = WireClient(harness)
    for index in range(COUNT):
        first.produce("t", 0, make_batch([Raw(value_of(index))]))
    harness = harness.restart()
    harness.broker._store.log.view.clear()
    return WireClient(harness)


def view_of(client: WireClient) -> LogView:
    return client.harness.broker._store.log.view


def session_of(client: WireClient) -> Session:
    return client.harness.broker.open_session(client.harness._answer_control_plane)


def assert_all_served(client: WireClient) -> None:
    found = read_batches(client.fetch_records("t", 0, limit=4 * MIB, max_bytes=4 * MIB))
    assert [record.offset for record in found] == list(range(COUNT))
    assert [record.value for record in found] == [value_of(index) for index in range(COUNT)]


def test_large_batches_are_sent_from_where_they_are_locked(client: WireClient) -> None:
    assert_all_served(client)
    assert view_of(client).memory.locked_size > COUNT * SIZE


def test_large_batches_are_copied_where_no_more_may_be_locked(client: WireClient) -> None:
    client.harness.disk.may_lock = False
    assert_all_served(client)
    assert view_of(client).memory.locked_size == 0
    assert view_of(client).cached_bytes > COUNT * SIZE


def test_what_is_locked_gives_way_when_no_more_may_be_locked(client: WireClient) -> None:
    """The limit counts what is cached too: the oldest goes, and the next is locked."""
    assert_all_served(client)
    view = view_of(client)
    before = view.memory.locked_size
    client.harness.disk.may_lock = False
    client.harness.broker._store.cold._frames.read_hot(0, LIMIT)
    assert view.memory.locked_size < before


@pytest.mark.parametrize("may_lock", [True, False])
def test_rot_in_memory_is_not_served(client: WireClient, may_lock: bool) -> None:
    harness = client.harness
    harness.disk.may_lock = may_lock
    path = harness.segment_paths()[0]
    at = harness.disk.files()[path].index(value_of(3)[:100])
    harness.disk.flip(path, at + SIZE // 2, 1)
    found = [
        record.offset
        for offset in (0, 3)
        for record in read_batches(
            client.fetch_records("t", 0, offset, limit=4 * MIB, max_bytes=4 * MIB)
        )
    ]
    assert found == [0, 1, 2, 4, 5, 6, 7]
    assert len(client.damage) == 1


def test_rot_in_the_kernels_memory_is_read_past_though_its_neighbours_are_locked(
    client: WireClient,
) -> None:
    """What is locked stays in memory: nothing near may be, when the disk is asked again."""
    harness = client.harness
    path = harness.segment_paths()[0]
    at = harness.disk.files()[path].index(value_of(3)[:100])
    harness.disk.rot_in_memory(path, at + 10, 1)
    for offset in (0, 3):
        client.fetch_records("t", 0, offset, limit=4 * MIB, max_bytes=4 * MIB)
    assert len(harness.broker.damage) == 1
    assert view_of(client).memory.locked_size > 0
    harness.clock.advance_ms(60_000)
    harness.broker.housekeep()
    found = []
    for offset in range(COUNT):
        (record, *_) = read_batches(client.fetch_records("t", 0, offset))
        found.append(record.value)
    assert found == [value_of(index) for index in range(COUNT)]
    harness.broker.housekeep()
    assert harness.broker.damage == []


def ask(client: WireClient, offset: int) -> None:
    """Ask for one batch."""
    part = fetch_part(0, offset, limit=LIMIT)
    client.send(fetch_request([("t", [part])], wait_ms=0), 11)
    assert client.take() != b""


def test_a_batch_that_an_answer_has_no_room_for_is_not_read_before_it_is_sent(
    client: WireClient,
) -> None:
    ask(client, 0)
    read_bytes = view_of(client).read_bytes
    assert SIZE < read_bytes < 2 * LIMIT


def test_what_is_asked_for_next_is_read_ahead(client: WireClient) -> None:
    """So that the client need not wait for the check; and no more than that."""
    fetch = session_of(client).fetch
    fetch.ahead.clear()
    ask(client, 0)
    assert [offset for _, offset in fetch.ahead] == [1]
    fetch.read_ahead()
    assert fetch.ahead == []
    reads = view_of(client).reads
    ask(client, 1)
    assert view_of(client).reads == reads
    ask(client, COUNT - 1)
    assert [offset for _, offset in fetch.ahead] == [2]


def test_what_is_cold_or_gone_is_not_read_ahead(client: WireClient) -> None:
    fetch = session_of(client).fetch
    ask(client, 0)
    for path in client.harness.segment_paths():
        client.harness.disk.evict(path)
    before = client.harness.disk.reads, view_of(client).reads
    fetch.read_ahead()
    assert (client.harness.disk.reads, view_of(client).reads) == before
    ask(client, 1)
    client.harness.delete_topic("t")
    fetch.read_ahead()
    assert fetch.ahead == []


def test_slices_of_the_cache_count_apart_until_they_are_sent(client: WireClient) -> None:
    """They are memory of the cache, whoever refers to them."""
    session = client.session
    before = session.held_bytes
    request = fetch_request([("t", [fetch_part(0, 0, limit=4 * MIB)])], max_bytes=4 * MIB)
    client.feed(framed(request, 11, 1), client.end_turn)
    size = session.held_bytes - before
    assert size > COUNT * SIZE
    assert 0 < size - session.shared_bytes < 100_000
    waiting, sent = session.shared_bytes, 0
    while session.is_waiting:
        session.output(client.harness.broker.flushed_pos, 250_000)
        sent += session.taken_shared_bytes
        assert session.shared_bytes == waiting - sent
    assert session.shared_bytes == 0
