"""Lists of timers that are on the disk: a page shows them, and none is taken into memory."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from _core.bytes.layout import RUN_DUE
from appliance.admin.timer_listing import TimerListing, parse_place
from appliance.errors import FindError
from appliance.find import Finder
from appliance.pending_timers import (
    ListedTimer,
    PurgedTimers,
    TimerCountRequest,
    TimerListRequest,
    TimerSelection,
)
from appliance.store.keys.log_part import LogPart
from appliance.store.runs.saved_ids import SavedIds
from appliance.store.runs.timer_page import TimerPage
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.harness.loading import in_pieces
from tests.support.values.kafka_records import Record, cancel, delay
from tests.system.service.test_timer_loading import save

HOUR_MS: Final = 3_600_000
COUNT: Final = 120


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    """Room for ten timers."""
    with in_pieces(count_max=10):
        yield


async def schedule(client: Client, numbers: range, topic: str = "t") -> None:
    for number in numbers:
        headers = delay(HOUR_MS + number * 60_000, b"id-%d" % number)
        record = Record(b"%s %d" % (topic.encode(), number), headers=headers)
        assert (await client.produce(topic, 0, [record])).error == 0


async def saved(directory: Path) -> None:
    """A broker with timers in two topics, a minute apart, saved in two runs."""
    async with LiveBroker(directory) as live:
        live.broker.topics.create("u", 1, {})
        client = await live.connect()
        await schedule(client, range(0, COUNT, 2))
        await save(live)
        await schedule(client, range(1, COUNT, 2))
        await schedule(client, range(3), topic="u")
        await save(live)


async def pages(
    live: LiveBroker, limit: int, selection: TimerSelection | None = None
) -> list[list[dict[str, Any]]]:
    listing, after = TimerListing(live.broker), None
    found: list[list[dict[str, Any]]] = []
    while True:
        request = TimerListRequest(
            selection=selection or TimerSelection(), limit=limit, after=after, has_values=True
        )
        shown = json.loads(await listing.list_timers(live.server.pump, request))
        found.append(shown["timers"])
        if shown["next"] is None:
            return found
        after = parse_place(shown["next"])


def values(found: list[list[dict[str, Any]]]) -> list[str]:
    return [each["value"] for page in found for each in page]


async def test_pages_have_all_in_order_and_take_none_into_memory(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        due = live.broker._store.state.projections.due
        assert due.horizon_ms < HOUR_MS + time.time() * 1_000 + COUNT * 60_000
        found = await pages(live, 7, TimerSelection(topic="t"))
        assert [len(page) for page in found] == [7] * (COUNT // 7) + [COUNT % 7]
        assert values(found) == [f"t {number}" for number in range(COUNT)]
        assert values(await pages(live, 2, TimerSelection(topic="u"))) == ["u 0", "u 1", "u 2"]
        every = values(await pages(live, 50))
        assert every[:6] == ["t 0", "u 0", "t 1", "u 1", "t 2", "u 2"]
        assert len(every) == COUNT + 3
        assert not due.is_loaded


async def test_a_page_has_what_changed_since_the_runs_were_written(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        for number in (5, 60, 61, 119):
            record = Record(b"", headers=cancel(b"id-%d" % number))
            assert (await client.produce("t", 0, [record])).error == 0
        later = Record(b"t new", headers=delay(HOUR_MS + 70 * 60_000 + 30_000))
        assert (await client.produce("t", 0, [later])).error == 0
        moved = Record(b"t moved", headers=delay(HOUR_MS + 200 * 60_000, b"id-7"))
        assert (await client.produce("t", 0, [moved])).error == 0
        expected = [f"t {n}" for n in range(COUNT) if n not in (5, 7, 60, 61, 119)]
        expected.insert(expected.index("t 70") + 1, "t new")
        found = values(await pages(live, 10, TimerSelection(topic="t")))
        assert found == [*expected, "t moved"]
        assert live.broker.gauges(0).unloaded_timers > 0
        await save(live)
        assert values(await pages(live, 1_000, TimerSelection(topic="t"))) == [*expected, "t moved"]


async def test_one_topic_is_counted_and_none_is_taken_into_memory(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        for number in (5, 60, 119):
            record = Record(b"", headers=cancel(b"id-%d" % number))
            assert (await client.produce("t", 0, [record])).error == 0
        shown = (await pages(live, 1_000, TimerSelection(topic="t")))[0]
        dues = [each["due"] for each in shown]
        for begin_ms in (dues[0], dues[30] + 1, dues[-1] + 1):
            for topic, partition, wanted in (("t", None, dues), ("t", 0, dues), ("u", 0, None)):
                request = TimerCountRequest(
                    selection=TimerSelection(topic=topic, partition=partition),
                    from_at=begin_ms,
                    step_ms=120_000,
                    interval_count=20,
                )
                found = await TimerListing(live.broker).count_timers(live.server.pump, request)
                if wanted is None:
                    assert found.before + sum(found.counts) + found.after == 3
                    continue
                slots = Counter((due - begin_ms) // 120_000 for due in wanted)
                assert found.counts == [slots[at] for at in range(20)]
                assert found.before == sum(due < begin_ms for due in wanted)
                assert found.after == len(wanted) - found.before - sum(found.counts)
        assert not live.broker._store.state.projections.due.is_loaded


async def test_timers_of_a_topic_that_is_deleted_meanwhile_hide_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        (every,) = await pages(live, 1_000, TimerSelection(topic="t"))
        timers_of = live.broker.saved_timers.timers_of
        gone: list[ListedTimer] = []

        def without_first(page: TimerPage, bodies: dict[int, int]) -> list[ListedTimer]:
            found = timers_of(page, bodies)
            if gone:
                return found
            gone.extend(found)
            return []

        monkeypatch.setattr(live.broker.saved_timers, "timers_of", without_first)
        far = TimerSelection(topic="t", due=(every[-40]["due"], None))
        shown = await pages(live, 5, far)
        following = [each["due"] for each in every].index(gone[-1][0]) + 1
        assert shown[0] == every[following : following + 5]


async def test_a_range_of_time_far_ahead_is_listed(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        first = (await pages(live, 1_000, TimerSelection(topic="t")))[0]
        low, high = first[80]["due"], first[95]["due"]
        found = await pages(live, 4, TimerSelection(topic="t", partition=0, due=(low, high)))
        assert values(found) == [f"t {number}" for number in range(80, 95)]


async def test_after_damage_to_the_timer_log_the_timers_are_loaded(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        entries = live.broker.checkpoints._runs.entries
        for entry in [each for each in entries if each.kind == RUN_DUE]:
            path = live.broker.config.data_dir / "timerlog" / f"{entry.number:020}"
            damaged = bytearray(path.read_bytes())
            damaged[100] ^= 1
            path.write_bytes(damaged)
        found = values(await pages(live, 1_000, TimerSelection(topic="t")))
        assert found == [f"t {number}" for number in range(COUNT)]
        await until(lambda: live.broker.gauges(0).unloaded_timers == 0)


@pytest.fixture
def no_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop reads no id from the disk."""

    def fail(_ids: SavedIds, key: bytes) -> None:
        raise AssertionError(f"{key!r} was read on the event loop")

    monkeypatch.setattr(SavedIds, "recall", fail)


async def shows(live: LiveBroker, topic: str = "t") -> dict[str, int]:
    """The due times of what a list shows of a topic, by their values."""
    (page,) = await pages(live, 1_000, TimerSelection(topic=topic))
    return {each["value"]: each["due"] for each in page}


async def schedule_unnamed(directory: Path) -> None:
    """A broker with named timers, and an hour later unnamed ones; all of them are saved."""
    await saved(directory)
    async with LiveBroker(directory) as live:
        client = await live.connect()
        for number in range(40):
            record = Record(b"no %d" % number, headers=delay(5 * HOUR_MS + number))
            assert (await client.produce("t", 0, [record])).error == 0
        await save(live)


@pytest.mark.usefixtures("no_recall")
@pytest.mark.parametrize("together", [1, 7, 1_000])
async def test_a_purge_cancels_what_is_on_the_disk_and_takes_none_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("appliance.admin.timer_listing.PURGED_TOGETHER", together)
    monkeypatch.setattr("appliance.admin.timer_listing.PURGE_PAGE", 3 * together)
    await schedule_unnamed(tmp_path)
    async with LiveBroker(tmp_path) as live:
        due = live.broker._store.state.projections.due
        before = await shows(live)
        dues = sorted(before.values())
        client = await live.connect()
        assert (await client.produce("t", 0, [Record(b"", headers=cancel(b"id-60"))])).error == 0
        chosen = TimerSelection(topic="t", due=(dues[50], dues[COUNT + 10]))
        purged = await TimerListing(live.broker).purge_timers(live.server.pump, chosen)
        assert (purged.cancelled, purged.left) == (COUNT + 10 - 50 - 1, 0)
        assert not due.is_loaded
        expected = {
            each: at for each, at in before.items() if not dues[50] <= at < dues[COUNT + 10]
        }
        assert await shows(live) == expected
        await save(live)
        assert await shows(live) == expected
        again = await TimerListing(live.broker).purge_timers(live.server.pump, chosen)
        assert (again.cancelled, again.left) == (0, 0)
    async with LiveBroker(tmp_path) as live:
        assert await shows(live) == expected
        assert live.broker.pending_timers == len(expected) + 3
        every = TimerSelection(topic="t")
        purged = await TimerListing(live.broker).purge_timers(live.server.pump, every)
        assert (purged.cancelled, purged.left) == (len(expected), 0)
        assert live.broker.pending_timers == 3
        assert list(await shows(live, "u")) == ["u 0", "u 1", "u 2"]


async def test_what_changes_while_a_purge_reads_is_not_cancelled_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schedule_unnamed(tmp_path)
    async with LiveBroker(tmp_path) as live:
        before = await shows(live)
        client = await live.connect()
        listing, read = TimerListing(live.broker), TimerListing._read
        others: list[asyncio.Task[PurgedTimers]] = []

        async def changed(*args: Any, **kwargs: Any) -> Any:
            items = await read(*args, **kwargs)
            if not others:
                every = TimerSelection(topic="t")
                others.append(asyncio.create_task(listing.purge_timers(live.server.pump, every)))
                gone = Record(b"", headers=cancel(b"id-100"))
                moved = Record(b"t moved", headers=delay(20 * HOUR_MS, b"id-101"))
                for record in (gone, moved):
                    assert (await client.produce("t", 0, [record])).error == 0
            return items

        monkeypatch.setattr(TimerListing, "_read", changed)
        far = TimerSelection(topic="t", due=(before["t 90"], 1 << 60))
        purged = await listing.purge_timers(live.server.pump, far)
        assert (purged.cancelled, purged.left) == (COUNT - 90 - 2 + 40, 2)
        rest = await others[0]
        assert (rest.cancelled, rest.left) == (90 + 1, 0)  # it waited, and has the moved one
        assert await shows(live) == {}
        assert live.broker.pending_timers == 3


@pytest.mark.usefixtures("no_recall")
@pytest.mark.parametrize("value", ["t 100", "no 7", "no 0"])
async def test_a_timer_on_the_disk_is_moved_by_its_place_and_no_other_one_is_loaded(
    tmp_path: Path, value: str
) -> None:
    await schedule_unnamed(tmp_path)
    async with LiveBroker(tmp_path) as live:
        due = live.broker._store.state.projections.due
        (page,) = await pages(live, 1_000, TimerSelection(topic="t"))
        before = {each["value"]: each["due"] for each in page}
        place = parse_place(next(each["place"] for each in page if each["value"] == value))
        listing, pump = TimerListing(live.broker), live.server.pump
        to_ms = before[value] + 2 * HOUR_MS
        moved = await listing.move_at(pump, place, to_ms)
        assert (moved.due_at, moved.topic, moved.partition) == (to_ms, "t", 0)
        assert not due.is_loaded
        assert await shows(live) == before | {value: to_ms}
        with pytest.raises(FindError, match="no pending record is there"):
            await listing.move_at(pump, place, to_ms)
        back = await listing.move_at(pump, parse_place(moved.place), before[value])
        assert back.due_at == before[value]
        assert await shows(live) == before
        await save(live)
    async with LiveBroker(tmp_path) as live:
        assert await shows(live) == before
        client = await live.connect()
        await TimerListing(live.broker).move_at(live.server.pump, parse_place(back.place), None)
        await until(lambda: live.broker.pending_timers == len(before) + 2)
        await until(lambda: live.broker.flushed_pos == live.broker.wrote_pos)
        assert [each.value for each in await client.fetch("t", 0, 0)] == [value.encode()]


@pytest.mark.parametrize("step_ms", [7_000, 61_500, HOUR_MS + 1])
async def test_any_intervals_of_all_topics_are_counted_and_none_is_taken_into_memory(
    tmp_path: Path, step_ms: int
) -> None:
    await schedule_unnamed(tmp_path)
    async with LiveBroker(tmp_path) as live:
        dues = [each["due"] for page in await pages(live, 1_000) for each in page]
        begin_ms = dues[10] + 1
        request = TimerCountRequest(
            selection=TimerSelection(), from_at=begin_ms, step_ms=step_ms, interval_count=300
        )
        found = await TimerListing(live.broker).count_timers(live.server.pump, request)
        slots = Counter((each - begin_ms) // step_ms for each in dues)
        assert found.counts == [slots[at] for at in range(300)]
        assert found.before == sum(each < begin_ms for each in dues)
        assert found.after == len(dues) - found.before - sum(found.counts)
        assert not live.broker._store.state.projections.due.is_loaded


async def test_a_timer_on_the_disk_that_is_cancelled_meanwhile_is_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(tmp_path)
    async with LiveBroker(tmp_path) as live:
        (page,) = await pages(live, 1_000, TimerSelection(topic="t"))
        listing, read = TimerListing(live.broker), TimerListing._frame_of
        client = await live.connect()

        async def changed(*args: Any, **kwargs: Any) -> Any:
            found = await read(*args, **kwargs)
            gone = Record(b"", headers=cancel(b"id-100"))
            assert (await client.produce("t", 0, [gone])).error == 0
            return found

        monkeypatch.setattr(TimerListing, "_frame_of", changed)
        with pytest.raises(FindError, match="no pending record is there"):
            await listing.move_at(live.server.pump, parse_place(page[100]["place"]), None)
        assert len(await shows(live)) == COUNT - 1
        assert live.broker.pending_timers == COUNT - 1 + 3


async def test_a_purge_counts_what_cannot_be_read_once_and_cancels_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.admin.timer_listing.PURGE_PAGE", 8)
    await schedule_unnamed(tmp_path)
    async with LiveBroker(tmp_path) as live:
        (page,) = await pages(live, 1_000, TimerSelection(topic="t"))
        segment = min((live.broker.config.data_dir / "commitlog").glob("0*"))
        with segment.open("r+b") as file:
            for number in (82, 84, COUNT + 20):
                file.seek(page[number]["position"] + 200)
                file.write(b"?")
        far = TimerSelection(topic="t", due=(page[80]["due"], None))
        purged = await TimerListing(live.broker).purge_timers(live.server.pump, far)
        assert (purged.cancelled, purged.left) == (COUNT - 80 + 40 - 3, 3)
        assert live.broker.pending_timers == 80 + 3 + 3


@pytest.mark.usefixtures("no_recall")
async def test_timers_whose_records_were_carried_are_found_by_what_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not know where a record is that was carried before the start."""
    await schedule_unnamed(tmp_path)
    async with LiveBroker(tmp_path) as live:
        pump, listing, before = live.server.pump, TimerListing(live.broker), await shows(live)
        (page,) = await pages(live, 1_000, TimerSelection(topic="t"))
        places = {each["value"]: parse_place(each["place"]) for each in page}
        begin_find = live.broker.begin_find

        def without_places() -> tuple[Finder, LogPart]:
            finder, part = begin_find()
            finder.timer_place = lambda accept_pos: -1
            return finder, part

        monkeypatch.setattr(live.broker, "begin_find", without_places)
        monkeypatch.setattr(live.broker.timers, "is_placed", lambda timer: False)
        to_ms = before["no 39"] + HOUR_MS
        moved = await listing.move_at(pump, places["no 3"], to_ms)
        assert moved.due_at == to_ms
        topic = live.broker.topics.find("t")
        assert topic is not None
        _, is_moved = await listing.move_timer(pump, topic, b"id-99", to_ms + 1)
        assert is_moved
        far = TimerSelection(topic="t", due=(before["t 100"], before["no 30"]))
        purged = await listing.purge_timers(pump, far)
        assert (purged.cancelled, purged.left) == (20 + 29, 0)
        monkeypatch.undo()
        expected = {
            each: at
            for each, at in before.items()
            if not before["t 100"] <= at < before["no 30"] and each != "t 99"
        }
        assert await shows(live) == expected | {"no 3": to_ms, "t 99": to_ms + 1}
