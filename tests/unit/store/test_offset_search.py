"""Search by time with lower and upper boundary, on the running maximum of timestamps.

RocketMQ's getOffsetInQueueByTime takes either boundary of a time; `search` computes both from
`OffsetSearch.find`. RocketMQ asserts of it: no queue and an empty queue; the time of each message;
times between two messages; times before the first and after the last; several messages of one
time; a clock that was set back by a little and by much. Each is a test here, against a search from
end to end.
"""

import random
from enum import Enum
from typing import Final

import pytest

from appliance.offset_search import NO_RECORD
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.values.kafka_records import Record, delay
from tests.support.values.topic_requests import delete_records

START_MS: Final = 1_700_000_000_000


class Boundary(Enum):
    """Which record is the answer for a time that several records have, or none."""

    LOWER = "lower"
    """The first at which the running maximum reaches the time: first of several, or the next."""
    UPPER = "upper"
    """The last at which it does not exceed the time: last of several, or the one before."""


def filled(batches: list[list[int]]) -> BrokerHarness:
    """A broker whose topic "t" has batches of records with these times, in ms after START_MS."""
    harness = with_topic()
    for times in batches:
        records = [Record(b"x", timestamp_ms=START_MS + each) for each in times]
        assert harness.produce("t", 0, records).error == 0
    return harness


def search(harness: BrokerHarness, time_ms: int, boundary: Boundary) -> int:
    queue = harness.broker.topics.all()[0].partitions[0]
    after = 0 if boundary is Boundary.LOWER else 1
    found = harness.broker.search.find(queue, START_MS + time_ms + after)
    end = queue.visible_offset if found is None else found[0]
    return end if boundary is Boundary.LOWER else max(end - after, queue.start_offset)


def expected(times: list[int], time_ms: int, boundary: Boundary, start: int = 0) -> int:
    """What looking at every record finds."""
    highest, maxima = -1, []
    for each in times:
        highest = max(highest, each)
        maxima.append(highest)
    if boundary is Boundary.LOWER:
        fitting = [i for i, each in enumerate(maxima) if each >= time_ms and i >= start]
        return fitting[0] if fitting else len(times)
    fitting = [i for i, each in enumerate(maxima) if each <= time_ms and i >= start]
    return fitting[-1] if fitting else start


CASES: Final = {
    "one message": [[10]],
    "a message each": [[10 * i] for i in range(8)],
    "one batch": [[0, 10, 20, 30, 40]],
    "several of one time": [[5], [10], [10, 10], [10], [20]],
    "all of one time": [[10, 10], [10], [10, 10, 10]],
    "a clock set back a little": [[10], [20], [18], [22], [21, 30]],
    "a clock set back by much": [[10_000], [20_000], [10], [15], [30_000]],
    "in a batch": [[10, 5, 20, 15], [1, 30, 2]],
}


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("case", CASES)
def test_every_time_leads_where_looking_at_each_record_does(case: str, boundary: Boundary) -> None:
    """Those of the records, those beside them, those before the first and after the last."""
    harness = filled(CASES[case])
    times = [each for batch in CASES[case] for each in batch]
    asked = {each + beside for each in times for beside in (-1, 0, 1)}
    for time_ms in sorted(asked | {-100, max(times) + 100}):
        assert search(harness, time_ms, boundary) == expected(times, time_ms, boundary), time_ms


@pytest.mark.parametrize("boundary", Boundary)
def test_an_empty_queue_has_its_first_offset(boundary: Boundary) -> None:
    """A queue that is not there cannot be asked; see the answers of ListOffsets."""
    assert search(filled([]), 5, boundary) == 0


@pytest.mark.parametrize("boundary", Boundary)
def test_deleted_records_are_not_found(boundary: Boundary) -> None:
    times = [10, 20, 30, 40, 50]
    harness = filled([[each] for each in times])
    assert delete_records(WireClient(harness), "t", (0, 2)) == {0: (0, 2)}
    for time_ms in (5, 15, 20, 30, 35, 50, 60):
        assert search(harness, time_ms, boundary) == expected(times, time_ms, boundary, 2), time_ms


@pytest.mark.parametrize("seed", range(12))
def test_random_times_lead_where_they_should(seed: int) -> None:
    rng = random.Random(seed)
    batches = [[rng.randrange(200) for _ in range(rng.randrange(1, 6))] for _ in range(40)]
    harness = filled(batches)
    times = [each for batch in batches for each in batch]
    for boundary in Boundary:
        for time_ms in range(-1, 202, 3):
            found = search(harness, time_ms, boundary)
            assert found == expected(times, time_ms, boundary), f"seed {seed}, {time_ms}"


def test_a_place_in_the_log_leads_to_the_first_record_after_it() -> None:
    harness = filled([[1, 2], [3], [4, 5, 6]])
    queue = harness.broker.topics.all()[0].partitions[0]
    starts = [harness.position_of(queue, offset) for offset in range(6)]
    for pos in sorted({each + beside for each in starts for beside in (-8, 0, 8)}):
        offset = next((i for i, each in enumerate(starts) if each >= pos), 6)
        assert harness.broker.search.find_position(queue, pos) == offset


def test_what_became_visible_since_a_time_is_found_whatever_its_timestamp() -> None:
    """Each record is from long ago; a held one counts from its delivery."""
    harness = with_topic()
    begin_ms = harness.clock.wall_ms()
    old = {"timestamp_ms": START_MS}
    assert harness.produce("t", 0, [Record(b"held", headers=delay(100), **old)]).error == 0
    assert harness.produce("t", 0, [Record(b"0", **old), Record(b"1", **old)]).error == 0
    harness.tick(50)
    assert harness.produce("t", 0, [Record(b"2", **old)]).error == 0
    harness.tick(50)  # delivers
    harness.tick(50)
    queue = harness.broker.topics.all()[0].partitions[0]
    assert queue.visible_offset == 4

    def find(since_ms: int) -> tuple[int, int] | None:
        found = harness.broker.search.find_stored(queue, begin_ms + since_ms)
        return None if found is None else (found[0], found[1] - begin_ms)

    assert find(-1_000_000) == find(0) == (0, 0)
    assert find(1) == find(50) == (2, 50)
    assert find(51) == find(100) == (3, 100)
    assert find(101) is None
    assert find(NO_RECORD >> 1) is None
