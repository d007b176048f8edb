"""What was carried out of a segment is found once, by all that it could be found by before."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from _core.tables.key_scan import KeyRows
from appliance.errors import FindError
from appliance.find import FindAnswer, Finder, FindRequest
from appliance.store.keys.key_runs import Covered, MemoryPiece
from appliance.store.keys.key_search import KeySearch
from appliance.store.keys.log_part import LogPart
from compat.kafka.protocol.codecs import decompress
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.carried_log import PATHS, CarriedLog, lived
from tests.support.harness.carrying import carry, last_base
from tests.support.values.kafka_records import Record

SECRET: Final = b"0123456789abcdef"
UNPACKED_MAX: Final = 1 << 20
ALL: Final = 100_000
PLACE: Final = ("topic", "partition", "offset", "accept_position", "index", "what")

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def log() -> CarriedLog:
    return lived(7)


def finder_of(log: CarriedLog, *, is_indexed: bool) -> Finder:
    """A search of the log as it is now, with an index of all of it or of nothing."""
    plan = log.advance()
    salt = plan.salt

    def unpack(codec: int, section: memoryview) -> bytes:
        return decompress(codec, section, UNPACKED_MAX)

    def part() -> LogPart:
        return LogPart(log.disk, PATHS.commit_log, plan.reader.segments, plan.end, salt=salt)

    pieces = []
    if is_indexed:
        rows = KeyRows(unpack, salt, SECRET)
        start = part().start
        assert part().scan(rows, start, until=plan.end, stop=plan.end, goes_on=lambda: True)
        covered = Covered(
            from_pos=start,
            to_pos=plan.end,
            last_pos=rows.last_pos,
            last_crc=rows.last_crc,
            stored=rows.stored,
            left_out=frozenset(),
        )
        pieces.append(MemoryPiece(covered, rows.take()))
    search = KeySearch(part(), pieces, secret=SECRET, salt=salt, decompress=unpack)
    projections = plan.state.projections
    topics, timer_place = projections.topics_by_id, projections.moved.place
    return Finder(search._part, search, topics, timer_place, decompress, unpacked_max=UNPACKED_MAX)


def found(finder: Finder, **request: Any) -> list[dict[str, Any]]:
    answer: FindAnswer = finder.find(FindRequest(limit=ALL, **request), goes_on=lambda: True)
    assert answer.next is None
    return answer.found


def places(items: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    rows = [tuple(item.get(name) for name in (*PLACE, "stored_at")) for item in items]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_keys_and_times_find_carried_records_and_timers_once(
    log: CarriedLog, times: int, *, is_indexed: bool
) -> None:
    before = finder_of(log, is_indexed=False)
    whole = found(before, stored=(0, None))
    pending = {
        (each["accept_position"], each["index"])
        for each in whole
        if each["what"] == "timer" and _is_pending(log, each)
    }
    log.carry(log.bases[2])
    for _ in range(times):
        cut = log.bases[2]
        log.carry(cut)
        log.free(cut)
    start = log.bases[0]
    kept = [
        item
        for item in whole
        if item["position"] >= start
        or "offset" in item
        or (item["what"] == "timer" and (item["accept_position"], item["index"]) in pending)
    ]
    after = finder_of(log, is_indexed=is_indexed)
    keys = {item["key"] for item in kept if item.get("key")}
    for key in sorted(keys)[:60]:
        wanted = [item for item in kept if item.get("key") == key]
        assert _same(places(found(after, key=key)), places(wanted))
    instants = sorted({item["stored_at"] for item in kept})
    low, high = instants[len(instants) // 5], instants[len(instants) // 3]
    wanted = [item for item in kept if low <= item["stored_at"] < high]
    assert _same(places(found(after, stored=(low, high))), places(wanted))
    ids = {item["id"] for item in kept if item["what"] == "timer" and "id" in item}
    for user_id in ids:
        timers = [
            (item["accept_position"], item["index"])
            for item in found(after, user_id=user_id)
            if item["what"] == "timer"
        ]
        assert sorted(timers) == sorted(
            (item["accept_position"], item["index"])
            for item in kept
            if item["what"] == "timer" and item.get("id") == user_id
        )


def _same(some: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> bool:
    """Compare places; a carried record is no longer called a delivery and lost its timer's name."""

    def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
        if row[2] is not None:
            return (*row[:3], None, None, "record", row[-1])
        return row

    return sorted(map(plain, some), key=repr) == sorted(map(plain, others), key=repr)


def _is_pending(log: CarriedLog, item: dict[str, Any]) -> bool:
    outcomes = log.plan.state.projections.outcomes  # type: ignore[attr-defined]
    state: str = outcomes.outcome(item["accept_position"], item["index"])[0]
    return state == "pending"


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
def test_both_positions_find_what_was_carried(log: CarriedLog, *, is_indexed: bool) -> None:
    cut = log.bases[2]
    log.carry(cut)
    log.free(cut)
    finder = finder_of(log, is_indexed=is_indexed)
    checked = set()
    for frame in log.frames(start=cut):
        if frame.carried_origin():
            origin = frame.carried_origin()["original_position"]
            items = found(finder, position=frame.pos)
            assert [each["original_position"] for each in items] == [origin] * len(items)
            wanted = [each for each in found(finder, position=origin) if each["what"] == "record"]
            assert wanted == items
            checked.add("records")
        elif frame.timers_held and frame.kind == 4:
            for timer in frame.timers():
                items = found(finder, position=timer["accept_position"])
                named = [(each.get("accept_position"), each.get("index")) for each in items]
                assert (timer["accept_position"], timer["index"]) in named
                assert len(set(named)) == len([each for each in named if each[0] is not None]) + (
                    (None, None) in named
                )
                checked.add("timers")
    assert checked == {"records", "timers"}
    with pytest.raises(FindError, match="where the log begins, and nothing was carried"):
        finder.find(FindRequest(position=8), goes_on=lambda: True)


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
@pytest.mark.parametrize("is_freed", [False, True], ids=["originals", "copies alone"])
def test_pages_have_each_item_once(log: CarriedLog, *, is_freed: bool, is_indexed: bool) -> None:
    """The admin API makes a finder for each page."""
    everything = places(found(finder_of(log, is_indexed=False), stored=(0, None)))
    cut = log.bases[2]
    log.carry(cut)
    if is_freed:
        log.free(cut)
        once = places(found(finder_of(log, is_indexed=False), stored=(0, None)))
        log.carry(log.bases[-1])  # again; the earlier copies are still in the log
    else:
        once = everything
    paged: list[dict[str, Any]] = []
    after = None
    while True:
        request = FindRequest(stored=(0, None), limit=7, after=after)
        answer = finder_of(log, is_indexed=is_indexed).find(request, goes_on=lambda: True)
        paged += answer.found
        after = answer.next
        if after is None:
            break
    assert places(paged) == once


def test_a_page_reads_the_original_of_a_batch_once() -> None:
    harness = BrokerHarness()
    harness.create_topic("kept", 1, {"retention.ms": "-1"})
    records = [Record(b"", key=b"k") for _ in range(400)]
    assert harness.produce("kept", 0, records).error == 0
    size = harness.broker.wrote_pos
    while len(harness.broker.log.files.bases) == 1:
        assert harness.produce("kept", 0, [Record(bytes(5_000))]).error == 0
    harness.flush()
    carry(harness, last_base(harness))
    finder, part = harness.broker.begin_find()
    answer = finder.find(FindRequest(key=b"k", limit=400), goes_on=lambda: True)
    assert len(answer.found) == 400
    before = part.read_bytes
    answer = finder.find(FindRequest(key=b"k", limit=400, after=answer.next), goes_on=lambda: True)
    assert answer.found == []
    assert size < part.read_bytes - before < harness.broker.wrote_pos + 3 * size
