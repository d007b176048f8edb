"""What a search finds besides keys, and what it says about a log that is damaged."""

import pytest

from appliance.errors import FindError
from appliance.find import FindRequest
from tests.support.harness.broker_harness import with_topic
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.keys.index_harness import Sent, ask, build, index_of, places


def whats(answer: object) -> list[tuple[str, str | None]]:
    return [(item["what"], item.get("why")) for item in answer.found]  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
def test_an_id_finds_what_was_accepted_replaced_cancelled_and_delivered(
    *, is_indexed: bool
) -> None:
    sent = Sent()
    sent.hold(b"k", 1_000, b"id")
    sent.hold(b"k", 2_000, b"id")
    sent.cancel(b"id")
    sent.hold(b"k", 3_000, b"id")
    sent.hold(b"k", 3_000, b"other")
    sent.harness.tick(3_000)
    index = sent.new_index()
    build(index, 1_000 if is_indexed else 1)
    answer = ask(sent.harness, index, FindRequest(user_id=b"id"))
    assert whats(answer) == [
        ("timer", None),
        ("timer", None),
        ("cancel", "cancel"),
        ("timer", None),
        ("delivered", None),
    ]
    accepted, *_, last, delivered = answer.found
    assert (delivered["accept_position"], delivered["index"]) == (last["position"], 0)
    assert (delivered["offset"], delivered["value"]) == (0, b"later")
    assert accepted["due"] == accepted["stored_at"] + 1_000
    keys = ask(sent.harness, index, FindRequest(key=b"k"))
    assert [item["what"] for item in keys.found] == ["timer"] * 4 + ["delivered"] * 2
    assert (answer.scanned_bytes == 0) == is_indexed


def test_a_record_of_a_deleted_offset_or_topic_is_not_found() -> None:
    harness = with_topic()
    for number in range(6):
        harness.produce("t", 0, [Record(b"%d" % number, b"k")])
    harness.create_topic("gone")
    harness.produce("gone", 0, [Record(b"x", b"k")])
    harness.broker.topics.delete_records(harness.topic(), {0: 4})
    harness.delete_topic("gone")
    harness.flush()
    index = index_of(harness)
    build(index)
    answer = ask(harness, index, FindRequest(key=b"k"))
    assert [item["value"] for item in answer.found] == [b"4", b"5"]


def test_a_time_alone_finds_all_that_was_received_then() -> None:
    harness = with_topic()
    times = []
    for number in range(5):
        harness.clock.advance_ms(1_000)
        times.append(harness.clock.wall_ms())
        harness.produce("t", 0, [Record(b"%d" % number), Record(b"+", b"k")])
    index = index_of(harness)
    build(index)
    request = FindRequest(stored=(times[1], times[3]))
    answer = ask(harness, index, request)
    assert [item["value"] for item in answer.found] == [b"1", b"+", b"2", b"+"]
    request = FindRequest(key=b"k", stored=(None, times[2]), limit=1)
    answer = ask(harness, index, request)
    assert places(answer) == [("t", 0, 1)]
    assert answer.next is not None


def test_a_position_finds_all_of_its_frame_in_parts() -> None:
    harness = with_topic()
    records = [
        Record(b"now", b"a"),
        Record(b"then", b"b", delay(1_000, b"id")),
        Record(b"", None, cancel(b"id")),
    ]
    harness.produce("t", 0, records)
    index = index_of(harness)
    position = ask(harness, index, FindRequest(key=b"a")).found[0]["position"]
    whole = ask(harness, index, FindRequest(position=position))
    assert [item["what"] for item in whole.found] == ["record", "timer", "cancel"]
    first = ask(harness, index, FindRequest(position=position, limit=2))
    rest = ask(harness, index, FindRequest(position=position, after=first.next))
    assert first.found + rest.found == whole.found
    for wrong in (position + 8, position - 8, position + 1):
        with pytest.raises(FindError, match=f"no frame begins at position {wrong}"):
            ask(harness, index, FindRequest(position=wrong))
    with pytest.raises(FindError, match="is not below"):
        ask(harness, index, FindRequest(position=1 << 40))
    with pytest.raises(FindError, match="is not a place to go on"):
        ask(harness, index, FindRequest(key=b"a", after="x"))


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
def test_damage_in_the_log_hides_only_its_own_frame(*, is_indexed: bool) -> None:
    harness = with_topic()
    for number in range(20):
        harness.produce("t", 0, [Record(b"%d" % number, b"k")])
    index = index_of(harness)
    found = ask(harness, index, FindRequest(key=b"k", limit=100)).found
    damaged = found[7]["position"]
    build(index, 1_000 if is_indexed else 1)
    harness.disk.flip(harness.segment_paths()[0], damaged + 170, 1)
    answer = ask(harness, index, FindRequest(key=b"k", limit=100))
    assert answer.found == [item for item in found if item["position"] != damaged]
    if not is_indexed:
        assert answer.unreadable == [(damaged, found[8]["position"])]


def test_a_frame_larger_than_a_slice_is_taken_whole() -> None:
    harness = with_topic()
    value = bytes(7_000)
    for number in range(30):
        harness.produce("t", 0, [Record(value, b"%d" % (number % 3))])
    index = index_of(harness)
    build(index)
    assert index.indexed_pos == harness.broker.flushed_pos
    answer = ask(harness, index, FindRequest(key=b"1", limit=100))
    assert [item["offset"] for item in answer.found] == list(range(1, 30, 3))
