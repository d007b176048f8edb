"""Offsets by time of what is not in memory: read and checked first, damage is passed over."""

import random
from typing import Final

import pytest

from appliance.errors import ColdFrameError
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record
from tests.support.values.topic_requests import HIGHEST, list_offset, list_offsets

COUNT: Final = 40
START_MS: Final = 1_700_000_000_000


def time_of(offset: int) -> int:
    return START_MS + 1000 * offset


@pytest.fixture
def client() -> WireClient:
    """A client of a broker whose log, batches of two records, is on the disk alone."""
    harness = with_topic()
    for offset in range(0, COUNT, 2):
        pair = (offset, offset + 1)
        harness.produce(
            "t", 0, [Record(b"%d" % each * 200, timestamp_ms=time_of(each)) for each in pair]
        )
    harness = harness.restart()
    harness.make_cold()
    return WireClient(harness)


def spoil(harness: BrokerHarness, offset: int) -> None:
    """Flip a bit of the frame that holds an offset."""
    pos = harness.position_of(harness.partition(), offset)
    path = max(path for path in harness.segment_paths() if int(path.name) <= pos)
    harness.disk.flip(path, pos - int(path.name) + 70, 4)


def test_nothing_is_touched_before_it_was_read(client: WireClient) -> None:
    search, partition = client.harness.broker.search, client.harness.partition()
    with pytest.raises(ColdFrameError):
        search.find(partition, time_of(5))
    with pytest.raises(ColdFrameError):
        search.find_highest(partition)


@pytest.mark.parametrize("offset", range(COUNT))
def test_cold_frames_are_read_and_then_looked_at(client: WireClient, offset: int) -> None:
    assert list_offset(client, "t", 0, time_of(offset)) == (0, offset, time_of(offset))
    assert list_offset(client, "t", 0, time_of(offset) - 1) == (0, offset, time_of(offset))
    assert client.harness.control_damage == []


def test_ends_are_found_too(client: WireClient) -> None:
    assert list_offset(client, "t", 0, HIGHEST) == (0, COUNT - 1, time_of(COUNT - 1))
    client.harness.make_cold()
    assert list_offset(client, "t", 0, time_of(COUNT)) == (0, -1, -1)


@pytest.mark.parametrize("bad", range(0, COUNT, 2))
def test_damaged_frames_are_passed_over_and_reported(client: WireClient, bad: int) -> None:
    spoil(client.harness, bad)
    readable = [offset for offset in range(COUNT) if offset - bad not in {0, 1}]
    for offset in range(COUNT):
        expected = next((each for each in readable if each >= offset), None)
        found = (0, -1, -1) if expected is None else (0, expected, time_of(expected))
        assert list_offset(client, "t", 0, time_of(offset)) == found
        client.harness.make_cold()
    assert list_offset(client, "t", 0, HIGHEST) == (0, readable[-1], time_of(readable[-1]))
    assert len({damage.offset for damage in client.harness.control_damage}) == 1


def test_partition_with_nothing_but_damage_has_no_times(client: WireClient) -> None:
    for offset in range(0, COUNT, 2):
        spoil(client.harness, offset)
    assert list_offset(client, "t", 0, time_of(3)) == (0, -1, -1)
    assert list_offset(client, "t", 0, HIGHEST) == (0, -1, -1)


def large(codec: int) -> WireClient:
    """A client of a broker with one large batch."""
    config = small_config(
        batch_size_max_bytes=60_000,
        record_size_max_bytes=60_000,
        decompressed_size_max_bytes=80_000,
        segment_size_bytes=1 << 20,
    )
    harness = with_topic(config=config)
    rng = random.Random(3)
    records = [Record(rng.randbytes(100), timestamp_ms=time_of(each)) for each in range(400)]
    assert harness.produce("t", 0, records, codec=codec).error == 0
    return WireClient(harness)


@pytest.mark.parametrize("codec", [0, 4], ids=["plain", "zstd"])
@pytest.mark.parametrize("start", [0, 7])
def test_a_large_batch_is_searched_on_a_thread(codec: int, start: int) -> None:
    client = large(codec)
    client.harness.broker.topics.delete_records(client.harness.topic(), {0: start})
    for count, offset in enumerate((start, 200, 399), start=1):
        assert list_offset(client, "t", 0, time_of(offset)) == (0, offset, time_of(offset))
        assert client.harness.aside_count == count
    assert list_offset(client, "t", 0, time_of(400)) == (0, -1, -1)
    assert client.harness.aside_count == 3  # headers say it
    assert list_offset(client, "t", 0, HIGHEST) == (0, 399, time_of(399))


def test_an_error_on_the_thread_is_one_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    client = large(4)

    def fail(_codec: int, _data: memoryview, _size_max: int | None) -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(client.harness.broker.search, "_decompress", fail)
    with pytest.raises(ZeroDivisionError):
        list_offset(client, "t", 0, time_of(200))
    assert client.harness.aside_count == 1


def test_a_partition_that_is_named_twice_is_refused(client: WireClient) -> None:
    refused = (ErrorCode.invalid_request, -1, -1)
    asked = [0, 5, 0, 0]
    unknown = (ErrorCode.unknown_topic_or_partition, -1, -1)
    assert list_offsets(client, "t", asked, time_of(1)) == [refused, unknown, refused, refused]
    assert client.harness.control_damage == []
