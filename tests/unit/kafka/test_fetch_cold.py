"""Fetch of what is not in memory: read and checked first, never served if it is damaged."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from _core.paths.session import Session
from tests.support.clients.wire_client import WireClient, receive
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.values.kafka_records import read_batches
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

COUNT = 6


def value_of(index: int) -> bytes:
    """So large that a page holds nothing else: what the disk cannot read is whole pages."""
    return b"value %d " % index + random.Random(index).randbytes(7_900)


@pytest.fixture
def client() -> WireClient:
    """A client of a broker whose log, six batches of one record, is on the disk alone."""
    harness = with_topic()
    first = WireClient(harness)
    for index in range(COUNT):
        first.produce("t", 0, make_batch([Raw(value_of(index))]))
    harness = harness.restart()
    harness.make_cold()
    return WireClient(harness)


def place_of(harness: BrokerHarness, index: int) -> tuple[Path, int, int]:
    """File and offset of the frame of a batch, and the offset of its value."""
    pos = harness.position_of(harness.partition(), index)
    path = max(path for path in harness.segment_paths() if int(path.name) <= pos)
    return path, pos - int(path.name), harness.disk.files()[path].index(value_of(index))


def offsets(records: bytes) -> list[int]:
    """Offsets of the records, whose values must be what was sent."""
    found = read_batches(records)
    assert [record.value for record in found] == [value_of(record.offset) for record in found]
    return [record.offset for record in found]


def test_cold_frames_are_read_and_then_served(client: WireClient) -> None:
    """The fetch waits for the disk only, so it is answered in the round of its request."""
    client.send(fetch_request([("t", [fetch_part(0, 2)])], wait_ms=60_000), 11)
    assert client.parked == []
    assert client.take() != b""
    assert offsets(client.fetch_records("t", 0)) == list(range(COUNT))
    assert client.damage == []


def test_cold_fetch_does_not_touch_memory_before_the_disk_was_read(client: WireClient) -> None:
    """Until then it is parked, and names the frame to be read."""
    harness = client.harness
    topic = harness.topic()
    request = fetch_request([("t", [fetch_part(0, 3)])])
    session = receive(harness, request)
    (parked,) = session.new_parked
    assert parked.cold == [(topic.partitions[0].handle, 3)]
    assert session.output(harness.broker.flushed_pos) == []
    assert not session.retry(parked)
    harness.read_cold(parked.cold)
    assert session.retry(parked)
    assert session.output(harness.broker.flushed_pos) != []


PARTITIONS = 50


def cold_partitions(names: Sequence[str]) -> BrokerHarness:
    """A broker with a record in each of many partitions, of which it has read nothing yet."""
    harness = BrokerHarness()
    for name in names:
        harness.create_topic(name, PARTITIONS)
    client = WireClient(harness)
    parts = [(each, make_batch([Raw(b"value")])) for each in range(PARTITIONS)]
    client.send(produce_request([(name, parts) for name in names]), 8)
    harness = harness.restart()
    harness.make_cold()
    return harness


def ask_all(harness: BrokerHarness, names: Sequence[str], max_bytes: int) -> Session:
    """Send a Fetch of all partitions."""
    parts = [fetch_part(each, 0) for each in range(PARTITIONS)]
    wanted = [(name, parts) for name in names]
    request = fetch_request(wanted, wait_ms=60_000, min_bytes=max_bytes, max_bytes=max_bytes)
    return receive(harness, request)


def test_a_fetch_of_many_cold_partitions_is_answered_when_some_were_read() -> None:
    """Else what is read for one would be dropped for another, over and over."""
    names = ["a", "b", "c", "d"]
    harness = cold_partitions(names)
    session = ask_all(harness, names, 1 << 20)
    (parked,) = session.new_parked
    assert len(parked.cold) == 128
    harness.read_cold(parked.cold[:1])
    assert session.retry(parked)
    assert session.output(harness.broker.flushed_pos) != []


def test_nothing_is_read_that_an_answer_has_no_room_for() -> None:
    harness = cold_partitions(["a"])
    topic = harness.topic("a")
    harness.read_cold([(topic.partitions[0].handle, 0)])
    assert ask_all(harness, ["a"], 1).new_parked == []


@pytest.mark.parametrize("bad", range(COUNT))
@pytest.mark.parametrize("where", ["value", "header", "batch header", "magic"])
def test_flipped_bit_is_never_served(client: WireClient, bad: int, where: str) -> None:
    """It is reported with its file and offset, and the next readable batch is the answer."""
    path, frame, value = place_of(client.harness, bad)
    at = {"value": value + 20, "header": frame + 40, "batch header": value - 30, "magic": frame}
    client.harness.disk.flip(path, at[where], 4)
    seen = []
    offset = 0
    while found := offsets(client.fetch_records("t", 0, offset)):
        seen += [each for each in found if each >= offset]
        offset = found[-1] + 1
        client.harness.make_cold()
    assert seen == [index for index in range(COUNT) if index != bad]
    if bad == COUNT - 1:
        assert offset == bad
    assert [(damage.path, damage.offset) for damage in client.damage] == [(path, frame)]
    assert client.fetch("t", 0).high_watermark == COUNT


def test_unreadable_sector_is_reported_and_passed_over(client: WireClient) -> None:
    path, frame, value = place_of(client.harness, 0)
    client.harness.disk.spoil(path, value + 3_950, 1)
    assert offsets(client.fetch_records("t", 0)) == list(range(1, COUNT))
    (damage,) = client.damage
    assert (damage.path, damage.offset) == (path, frame)
    assert "pread" in damage.fault or "Input/output" in damage.fault


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_fetches_gets_at_a_flipped_bit(client: WireClient, seed: int) -> None:
    """Nor a frame that came into memory only because it lies beside one that was read."""
    rng = random.Random(seed)
    flipped = set()
    for index in rng.sample(range(COUNT), 2):
        path, frame, value = place_of(client.harness, index)
        client.harness.disk.flip(path, rng.randrange(frame, value + 300), 1 << rng.randrange(8))
        flipped.add((path, frame))
    found = set()
    for _ in range(20):
        found.update(offsets(client.fetch_records("t", 0, rng.randrange(COUNT))))
        chance = rng.random()
        if chance < 0.3:
            client.harness.make_cold()
        elif chance < 0.6:
            client.harness.clock.advance_ms(2_000)
            client.harness.broker.housekeep()
    for index in range(COUNT):
        found.update(offsets(client.fetch_records("t", 0, index)))
    assert len(found) == COUNT - 2, f"seed {seed}"
    assert {(damage.path, damage.offset) for damage in client.damage} == flipped
    assert len(client.damage) == 2


@pytest.mark.parametrize("at", range(0, 144, 2))
def test_header_that_rots_in_the_page_cache_is_found(at: int) -> None:
    """Also where the kernel has the page: nothing is served that was not checked."""
    harness = with_topic()
    client = WireClient(harness)
    for index in range(3):
        client.produce("t", 0, make_batch([Raw(value_of(index))]))
    client = WireClient(harness.restart())
    path, frame, _ = place_of(client.harness, 1)
    client.harness.disk.flip(path, frame + at, 1 << at % 8)
    found = set(offsets(client.fetch_records("t", 0)))
    found.update(offsets(client.fetch_records("t", 0, 1)))
    assert found == {0, 2}
    assert [(damage.path, damage.offset) for damage in client.damage] == [(path, frame)]


def wait(harness: BrokerHarness, duration_ms: int) -> None:
    harness.clock.advance_ms(duration_ms)
    harness.broker.housekeep()


def test_a_sector_that_heals_is_served_again(client: WireClient) -> None:
    """It is asked for again at most once a second, then more and more seldom."""
    harness = client.harness
    path, _, value = place_of(harness, 2)
    harness.disk.spoil(path, value + 3_950, 1)
    assert offsets(client.fetch_records("t", 0, 2)) == [3, 4, 5]
    harness.disk.repair(path)
    assert offsets(client.fetch_records("t", 0, 2)) == [3, 4, 5], "too early to try again"
    wait(harness, 1_000)
    assert offsets(client.fetch_records("t", 0, 2)) == [2, 3, 4, 5]
    assert len(client.damage) == 1
    assert harness.broker.damage == []
    assert offsets(client.fetch_records("t", 0)) == list(range(COUNT))


def test_a_frame_that_rots_in_memory_alone_is_read_from_the_disk_again(client: WireClient) -> None:
    harness = client.harness
    path, _, value = place_of(harness, 2)
    harness.disk.rot_in_memory(path, value, 4)
    assert offsets(client.fetch_records("t", 0, 2)) == [3, 4, 5]
    wait(harness, 1_000)
    assert offsets(client.fetch_records("t", 0, 2)) == [2, 3, 4, 5]
    assert harness.broker.damage == []


def test_what_stays_damaged_is_reported_once_and_read_more_and_more_seldom(
    client: WireClient,
) -> None:
    harness = client.harness
    path, _, value = place_of(harness, 0)
    harness.disk.spoil(path, value + 3_950, 1)
    tries = []
    for second in range(200):
        harness.disk.reads = 0
        assert offsets(client.fetch_records("t", 0)) == list(range(1, COUNT))
        if harness.disk.reads:
            tries.append(second)
        wait(harness, 1_000)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len(client.damage) == 1
