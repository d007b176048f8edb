"""Lists of timers that are on the disk: a page shows them, and none is taken into memory."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from _core.bytes.layout import RUN_DUE
from appliance.admin.timer_listing import TimerListing, parse_place
from appliance.pending_timers import (
    ListedTimer,
    TimerCountRequest,
    TimerListRequest,
    TimerSelection,
)
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
