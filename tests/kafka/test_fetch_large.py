"""Fetch of large batches: locked where they lie, copied where that cannot be, read ahead."""

import random

import pytest

from _core.log_view import LogView
from _core.session import Session
from appliance.units import MIB
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.kafka_records import read_batches
from tests.support.raw_batch import Raw, make_batch
from tests.support.wire_client import WireClient, fetch_part, fetch_request

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
    rig = BrokerRig(config=config)
    rig.create_topic("t")
    first = WireClient(rig)
    for index in range(COUNT):
        first.produce("t", 0, make_batch([Raw(value_of(index))]))
    rig = rig.restart()
    rig.broker._store.view.clear()
    return WireClient(rig)


def view_of(client: WireClient) -> LogView:
    return client.rig.broker._store.view


def session_of(client: WireClient) -> Session:
    return client.rig.broker.open_session(client.rig._answer_rare)


def assert_all_served(client: WireClient) -> None:
    found = read_batches(client.fetch_records("t", 0, limit=4 * MIB, max_bytes=4 * MIB))
    assert [record.offset for record in found] == list(range(COUNT))
    assert [record.value for record in found] == [value_of(index) for index in range(COUNT)]


def test_large_batches_are_sent_from_where_they_are_locked(client: WireClient) -> None:
    assert_all_served(client)
    assert view_of(client).memory.locked_size > COUNT * SIZE


def test_large_batches_are_copied_where_no_more_may_be_locked(client: WireClient) -> None:
    client.rig.disk.may_lock = False
    assert_all_served(client)
    assert view_of(client).memory.locked_size == 0
    assert view_of(client).cached_bytes > COUNT * SIZE


def test_what_is_locked_gives_way_when_no_more_may_be_locked(client: WireClient) -> None:
    """The limit counts what is cached too: the oldest goes, and the next is locked."""
    assert_all_served(client)
    view = view_of(client)
    before = view.memory.locked_size
    client.rig.disk.may_lock = False
    client.rig.broker._store._cold._frames.read_hot(0, LIMIT)
    assert view.memory.locked_size < before


@pytest.mark.parametrize("may_lock", [True, False])
def test_rot_in_memory_is_not_served(client: WireClient, may_lock: bool) -> None:
    rig = client.rig
    rig.disk.may_lock = may_lock
    path = rig.segment_paths()[0]
    at = rig.disk.files()[path].index(value_of(3)[:100])
    rig.disk.flip(path, at + SIZE // 2, 1)
    found = [
        record.offset
        for offset in (0, 3)
        for record in read_batches(
            client.fetch_records("t", 0, offset, limit=4 * MIB, max_bytes=4 * MIB)
        )
    ]
    assert found == [0, 1, 2, 4, 5, 6, 7]
    assert len(client.damage) == 1


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
    for path in client.rig.segment_paths():
        client.rig.disk.evict(path)
    before = client.rig.disk.reads, view_of(client).reads
    fetch.read_ahead()
    assert (client.rig.disk.reads, view_of(client).reads) == before
    ask(client, 1)
    client.rig.delete_topic("t")
    fetch.read_ahead()
    assert fetch.ahead == []
