"""DeleteRecords: a partition's start rises and stays; timers and what is left are untouched."""

import random
from typing import Any

import pytest

from appliance import offset_search
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import Stop, with_topic
from tests.support.oracles.kafka_oracle import DeleteRecordsResponse, FetchResponse, decode_response
from tests.support.values.raw_batch import GZIP, Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request
from tests.support.values.topic_requests import (
    EARLIEST,
    HIGHEST,
    LATEST,
    create_partitions,
    delete_records,
    delete_records_request,
    list_offset,
)

ALL = -1
OUT_OF_RANGE = int(ErrorCode.offset_out_of_range)
UNKNOWN = int(ErrorCode.unknown_topic_or_partition)


def fill(client: WireClient, counts: list[int], partition: int = 0) -> None:
    """Batches of so many records each; the value of each is its offset."""
    offset = 0
    for count in counts:
        batch = make_batch([Raw(b"%d" % (offset + index)) for index in range(count)])
        assert client.produce("t", partition, batch).base_offset == offset
        offset += count


def values(client: WireClient, partition: int, offset: int) -> list[int]:
    return [int(record.value) for record in client.harness.fetch("t", partition, offset)]


@pytest.mark.parametrize("version", range(3))
def test_records_below_the_offset_are_gone(client: WireClient, version: int) -> None:
    fill(client, [3, 3, 3])
    assert delete_records(client, "t", (0, 4), version=version) == {0: (0, 4)}
    assert list_offset(client, "t", 0, EARLIEST)[1] == 4
    assert list_offset(client, "t", 0, LATEST)[1] == 9
    assert values(client, 0, 4) == [4, 5, 6, 7, 8]
    below = client.fetch("t", 0, 3)
    assert below.error_code == OUT_OF_RANGE
    assert (below.log_start_offset, below.high_watermark) == (4, 9)
    assert client.fetch("t", 0, 8).log_start_offset == 4


@pytest.mark.parametrize("version", range(3))
def test_minus_one_deletes_all_that_is_visible(client: WireClient, version: int) -> None:
    fill(client, [3, 3])
    assert delete_records(client, "t", (0, ALL), (1, ALL), version=version) == {
        0: (0, 6),
        1: (0, 0),
    }
    assert list_offset(client, "t", 0, EARLIEST)[1] == 6
    assert client.fetch("t", 0, 6).error_code == 0
    assert client.produce("t", 0, make_batch([Raw(b"6")])).base_offset == 6
    assert values(client, 0, 6) == [6]


def test_an_offset_that_was_deleted_before_changes_nothing(client: WireClient) -> None:
    fill(client, [5])
    assert delete_records(client, "t", (0, 3)) == {0: (0, 3)}
    wrote_pos = client.harness.broker.wrote_pos
    assert delete_records(client, "t", (0, 2)) == {0: (0, 3)}
    assert delete_records(client, "t", (0, 0), (1, ALL)) == {0: (0, 3), 1: (0, 0)}
    assert client.harness.broker.wrote_pos == wrote_pos


def test_each_partition_is_answered_for_itself(client: WireClient) -> None:
    fill(client, [5])
    fill(client, [5], partition=1)
    asked = (0, 6), (1, 5), (2, 0), (-1, 0)
    assert delete_records(client, "t", *asked) == {
        0: (OUT_OF_RANGE, -1),
        1: (0, 5),
        2: (UNKNOWN, -1),
        -1: (UNKNOWN, -1),
    }
    assert delete_records(client, "none", (0, 0)) == {0: (UNKNOWN, -1)}
    assert delete_records(client, "t", (0, -2)) == {0: (OUT_OF_RANGE, -1)}
    assert delete_records(client, "t", (0, 2**63 - 1)) == {0: (OUT_OF_RANGE, -1)}


def test_a_topic_is_written_once_however_often_it_is_named(client: WireClient) -> None:
    """The highest offset of a partition counts; one bad one refuses it."""
    fill(client, [9])
    fill(client, [9], partition=1)
    wrote_pos = client.harness.broker.wrote_pos
    topics = [("t", [(0, offset), (1, offset)]) for offset in (3, 8, 5)] + [("t", [(1, 10)])]
    (answer,) = client.ask(delete_records_request(topics), 2, DeleteRecordsResponse).topics
    found = {
        part.partition_index: (part.error_code, part.low_watermark) for part in answer.partitions
    }
    assert found == {0: (0, 8), 1: (OUT_OF_RANGE, -1)}
    assert client.harness.broker.wrote_pos - wrote_pos < 400


def test_what_is_not_durable_yet_is_not_visible_and_cannot_be_deleted(client: WireClient) -> None:
    fill(client, [2])
    client.send(produce_request([("t", [(0, make_batch([Raw(b"2")]))])]), 8)
    assert client.harness.broker.topics.all()[0].partitions[0].next_offset == 3
    client.send(delete_records_request([("t", [(0, 3)])]), 2)
    client.send(delete_records_request([("t", [(0, ALL)])]), 2)
    client.harness.flush()
    _, beyond, all_visible = split_answers(client.take())
    assert outcome(beyond) == (OUT_OF_RANGE, -1)
    assert outcome(all_visible) == (0, 2)


def outcome(payload: bytes) -> tuple[int, int]:
    (topic,) = decode_response(DeleteRecordsResponse, 2, payload).topics
    (part,) = topic.partitions
    return part.error_code, part.low_watermark


def test_the_answer_waits_for_the_flush(client: WireClient) -> None:
    fill(client, [2])
    client.send(delete_records_request([("t", [(0, 1)])]), 2)
    assert client.take() == b""
    client.harness.flush()
    assert len(list(split_answers(client.take()))) == 1


def test_pending_records_come_out_when_they_are_due(client: WireClient) -> None:
    fill(client, [2])
    later = make_batch([Raw(b"2", headers=((b"x-delay", b"1000"),))])
    assert client.produce("t", 0, later).error_code == 0
    assert delete_records(client, "t", (0, ALL)) == {0: (0, 2)}
    client.harness.tick(1000)
    assert values(client, 0, 2) == [2]


def test_a_parked_fetch_of_what_is_deleted_is_reported(client: WireClient) -> None:
    fill(client, [3])
    wanted = fetch_part(0, 1)
    client.send(fetch_request([("t", [wanted])], wait_ms=1000, min_bytes=100_000), 11)
    other = WireClient(client.harness)
    assert delete_records(other, "t", (0, ALL)) == {0: (0, 3)}
    client.end_waits()
    (payload,) = split_answers(client.take())
    (topic,) = decode_response(FetchResponse, 11, payload).responses
    (part,) = topic.partitions
    assert (part.error_code, part.log_start_offset) == (OUT_OF_RANGE, 3)


@pytest.mark.parametrize("mode", ["clean", "kept", "dropped"])
@pytest.mark.parametrize("filled", [0, 60])
def test_a_start_offset_survives(mode: Stop, filled: int) -> None:
    """Also when the segment of its frame is full, others have followed and partitions were added.

    What was never deleted is there as before.
    """
    harness = with_topic(2)
    client = WireClient(harness)
    fill(client, [4, 4])
    fill(client, [4, 4], partition=1)
    assert delete_records(client, "t", (0, 5)) == {0: (0, 5)}
    for _ in range(filled):
        client.produce("t", 1, make_batch([Raw(b"0" * 3000)]))
    assert create_partitions(client, "t", 3) == 0
    assert delete_records(client, "t", (1, 6)) == {1: (0, 6)}
    for _ in range(filled):
        client.produce("t", 1, make_batch([Raw(b"0" * 3000)]))
    harness = harness.reborn(mode)
    client = WireClient(harness)
    starts = [list_offset(client, "t", index, EARLIEST)[1] for index in range(3)]
    ends = [list_offset(client, "t", index, LATEST)[1] for index in range(3)]
    assert (starts, ends) == ([5, 6, 0], [8, 8 + 2 * filled, 0])
    assert values(client, 0, 5) == [5, 6, 7]
    assert values(client, 1, 6)[:2] == [6, 7]
    assert client.fetch("t", 0, 4).error_code == OUT_OF_RANGE
    assert delete_records(client, "t", (0, 8)) == {0: (0, 8)}


def test_a_full_disk_deletes_records_until_its_reserve_is_used_up(client: WireClient) -> None:
    """Then it deletes nothing."""
    fill(client, [3])
    client.harness.disk.free = 0
    for size in (3000, 1):
        while client.produce("t", 1, make_batch([Raw(b"0" * size)])).error_code == 0:
            pass
    code = int(ErrorCode.kafka_storage_error)
    assert delete_records(client, "t", (0, 1)) == {0: (0, 1)}
    offset = 1
    while (answer := delete_records(client, "t", (1, offset))) == {1: (0, offset)}:
        offset += 1
    assert answer == {1: (code, -1)}
    assert delete_records(client, "t", (0, 2), (2, 0)) == {0: (code, -1), 2: (UNKNOWN, -1)}
    assert values(client, 0, 1) == [1, 2]


# Offsets by time, when records with other times were deleted


def stamped(client: WireClient, batches: list[list[int]], codec: int = 0, **how: Any) -> None:
    """Batches of records with these timestamps."""
    for stamps in batches:
        records = [Raw(b"0", timestamp_delta=stamp - stamps[0]) for stamp in stamps]
        batch = make_batch(records, base_timestamp=stamps[0], codec=codec, **how)
        assert client.produce("t", 0, batch).error_code == 0


def test_a_time_that_many_batches_hide_leads_to_an_earlier_record(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_search, "FRAMES_LOOKED_THROUGH_MAX", 3)
    stamped(client, [[99], [1], [2], [3], [4], [50], [51]])
    assert delete_records(client, "t", (0, 1)) == {0: (0, 1)}
    code, offset, timestamp = list_offset(client, "t", 0, 40)
    assert (code, offset, timestamp) == (0, 3, 3)
    assert list_offset(client, "t", 0, 4) == (0, 3, 3)
    assert list_offset(client, "t", 0, 3) == (0, 3, 3)
    # Where no deleted record was as late, nothing is hidden.
    stamped(client, [[200]])
    assert list_offset(client, "t", 0, 150) == (0, 7, 200)
    assert list_offset(client, "t", 0, HIGHEST) == (0, 7, 200)


def test_random_deletes_leave_what_a_list_leaves() -> None:
    """Against a list of timestamps: both kinds of search, also after restarts."""
    seed = 20_401
    rng = random.Random(seed)
    for _ in range(15):
        harness = with_topic()
        client = WireClient(harness)
        stamps: list[int] = []
        start = 0
        for _ in range(25):
            match rng.randrange(4):
                case 0:
                    start = max(start, rng.randrange(len(stamps) + 1))
                    assert delete_records(client, "t", (0, start)) == {0: (0, start)}
                case 1 if rng.random() < 0.3:
                    client = WireClient(client.harness.restart())
                case _:
                    batch = [rng.randrange(100) for _ in range(rng.randrange(1, 5))]
                    stamps += batch
                    stamped(client, [batch], rng.choice((0, GZIP)))
            left = list(enumerate(stamps))[start:]
            target = rng.randrange(100)
            wanted = next(((0, *each) for each in left if each[1] >= target), (0, -1, -1))
            assert list_offset(client, "t", 0, target) == wanted, (seed, stamps, start)
            highest = max(left, key=lambda each: (each[1], -each[0]), default=(-1, -1))
            assert list_offset(client, "t", 0, HIGHEST) == (0, *highest), (seed, stamps)
