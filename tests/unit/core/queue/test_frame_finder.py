"""Units rebuilt from frames."""

import random
import struct

import pytest

from _core.queue.frame_finder import LOST, UnitScan, find_candidate
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.values.kafka_records import Record, delay

UNIT = struct.Struct(">qiq")


@pytest.fixture
def harness() -> BrokerHarness:
    """Three partitions with batches of different sizes in turn, some of them delivered."""
    harness, rng = BrokerHarness(), random.Random(5)
    harness.create_topic("t", 3)
    for number in range(60):
        headers = tuple(delay(number)) if number % 4 == 0 else ()
        records = [
            Record(b"x" * rng.randrange(400), headers=headers) for _ in range(number % 5 + 1)
        ]
        harness.produce("t", number % 3, records)
        harness.tick(5)
    harness.tick(1000)
    return harness


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("index", range(3))
def test_rebuilt_units_are_the_ones_that_were(
    harness: BrokerHarness, index: int, seed: int
) -> None:
    """Whatever pieces the log comes in, as long as each begins with a frame."""
    rng = random.Random(seed)
    partition = harness.broker.topics.all()[0].partitions[index]
    first = rng.randrange(partition.next_offset)
    stop = rng.randrange(first, partition.next_offset) + 1
    scan = UnitScan(topic_id=1, partition=index, first=first, stop=stop)
    for path in harness.segment_paths():
        data, pos = harness.disk.files()[path], int(path.name)
        end = pos + len(data)
        size = 0
        while pos < end and scan.reached < stop:
            size += rng.randrange(100, 900)
            behind = scan.feed(data[pos - int(path.name) :][:size], pos)
            if behind == pos and size > len(data):
                break  # the end of the log
            size = size if behind == pos else 0
            pos = behind
    assert scan.reached == stop
    units = [partition.unit(offset) for offset in range(first, stop)]
    assert list(UNIT.iter_unpack(scan.finish())) == units


def test_offsets_that_no_frame_has_are_lost() -> None:
    scan = UnitScan(topic_id=1, partition=0, first=3, stop=5)
    assert scan.feed(bytes(500), 0) == 0
    assert list(UNIT.iter_unpack(scan.finish())) == [(0, LOST, 0)] * 2


def test_the_next_header_is_looked_for_at_its_own_place(harness: BrokerHarness) -> None:
    data = harness.disk.files()[harness.segment_paths()[0]]
    second = int.from_bytes(data[4:8], "big")
    assert find_candidate(data, 0, 0) == 0
    assert find_candidate(data, 0, 8) == second
    assert find_candidate(data[8:], 8, 0) == second - 8
    assert find_candidate(data[:second], 0, 8) == second
    assert find_candidate(data[second:], 8, 0) > 0  # it says to be elsewhere
    assert find_candidate(b"", 0, 0) == 0
