"""Dead letters in the admin API of a real broker: listed, given back and deleted, durably."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.admin import dlq, dlq_reading
from appliance.errors import StorageError
from appliance.store.state.group_frames import OffsetEntry
from tests.support.clients.admin_client import Answer
from tests.support.harness.live_broker import until
from tests.support.values.kafka_records import Fetched, Record, delay
from tests.system.service.test_admin_api import check_answer
from tests.system.service.test_admin_live import Served, served

DLQ: Final = "/api/v1/groups/g/dlq"
DEAD: Final = (
    ("x-retry-attempt", b"16"),
    ("x-origin", b"orders/1/42"),
    ("x-retry-reason", b"no such customer"),
    ("x-accepted-at", b"1767225600000"),
)


@dataclass
class Desk:
    """A broker with the dead letters of the group g, in two partitions."""

    s: Served

    async def ask(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        method = "GET" if body is None else "POST"
        data = None if body is None else json.dumps(body).encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        answer: Answer = await self.s.client.ask(DLQ + path, method, headers, data)
        check_answer(method, DLQ + path, answer)
        assert answer.status == status, answer
        return answer.json()

    async def die(self, partition: int, *records: Record) -> None:
        connection = await self.s.live.connect()
        assert (await connection.produce("g.dlq", partition, records)).error == 0

    async def replayed(self, partition: int) -> list[Fetched]:
        connection = await self.s.live.connect()
        found: list[Fetched] = []
        while some := await connection.fetch("g.retry", partition, len(found)):
            found += some
        return found

    async def values(self) -> list[list[bytes | None]]:
        return [[each.value for each in await self.replayed(n)] for n in (0, 1)]

    async def places(self, query: str = "") -> list[str]:
        return [each["place"] for each in (await self.ask(query))["records"]]

    def topic(self, name: str) -> Any:
        return self.s.live.broker.topics.find(name)

    def committed(self) -> dict[int, OffsetEntry]:
        entries = self.s.live.broker.groups.offsets("g.dlq").values()
        return {each.partition: each for each in entries}


@asynccontextmanager
async def desk(directory: Path, **settings: Any) -> AsyncIterator[Desk]:
    async with served(directory, **settings) as s:
        if s.live.broker.topics.find("g.dlq") is None:
            s.live.broker.topics.create("g.dlq", 2, {})
        yield Desk(s)


def dead(value: bytes | None, key: bytes | None = None, *headers: tuple[str, bytes]) -> Record:
    return Record(value, key=key, headers=(*DEAD, *headers))


@pytest.mark.usefixtures("loop")
async def test_dead_records_are_listed_page_by_page_and_shown_whole(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        await d.die(1, Record(b"\x00\xff", key=b"\xff"))
        await d.die(0, *(dead(b"%d" % n, b"k", ("trace", b"\xfe")) for n in range(40)))
        await d.die(0, dead(None))
        found: list[Any] = []
        query = "?limit=7"
        while True:
            page = await d.ask(query)
            assert len(page["records"]) <= 7
            found += page["records"]
            if page["next"] is None:
                break
            query = f"?limit=7&after={page['next']}"
        assert [each["place"] for each in found] == [*(f"0:{n}" for n in range(41)), "1:0"]
        assert found[0] == {
            "place": "0:0",
            "partition": 0,
            "offset": 0,
            "came_at": 1_767_225_600_000,
            "timestamp": found[0]["timestamp"],
            "key": "k",
            "attempts": 16,
            "origin": "orders/1/42",
            "reason": "no such customer",
        }
        assert found[-1]["attempts"] is None
        assert found[-1]["came_at"] == found[-1]["timestamp"]
        whole = await d.ask("/0:3")
        assert whole | found[3] == whole
        assert whole["headers"] == [
            *([name, value.decode()] for name, value in DEAD),
            ["trace", {"base64": "/g=="}],
        ]
        assert whole["value"] == "3"
        assert (await d.ask("/1:0"))["value"] == {"base64": "AP8="}
        assert (await d.ask("/0:40"))["value"] is None
        assert len(await d.places("?partition=1")) == 1
        assert await d.places("?after=1:0") == []


@pytest.mark.usefixtures("loop")
async def test_records_that_came_by_a_timer_are_read_and_replayed_as_well(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        before_ms = d.s.live.broker.clock.wall_ms()
        for n in range(3):
            await d.die(1, Record(b"%d" % n, headers=(*DEAD[:3], *delay(1))))
        await until(lambda: d.topic("g.dlq").partitions[1].visible_offset == 3)
        listed = (await d.ask(""))["records"]
        assert [each["place"] for each in listed] == ["1:0", "1:1", "1:2"]
        assert all(each["came_at"] >= before_ms > each["timestamp"] for each in listed)
        assert await d.ask("/replay", {"all": True}) == {"replayed": 3, "left": 0}
        assert await d.values() == [[], [b"0", b"1", b"2"]]


@pytest.mark.usefixtures("loop")
async def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        assert await d.places() == []
        await d.die(0, dead(b"a"), dead(b"b"))
        assert await d.ask("/purge", {"before": "0:1"}) == {"deleted": 1}
        for path, body in (
            *(("/2:0", None), ("/0:0", None), ("/0:2", None), ("/1:0", None)),
            *(("?partition=2", None), ("?after=2:0", None), ("/purge", {"before": "0:3"})),
            *(("/purge", {"before": "9:0"}), ("/replay", {"places": ["0:1", "0:2"]})),
            ("/replay", {"all": True, "partition": 2}),
        ):
            await d.ask(path, body, status=404)
        assert d.topic("g.retry") is None
        assert "begins at 1" in (await d.ask("/0:0", status=404))["error"]
        d.s.live.broker.topics.delete("g.dlq")
        for path, body in (
            *(("", None), ("/0:1", None), ("/replay", {"all": True}), ("/purge", {})),
            ("/replay", {"places": ["0:1"]}),
        ):
            said = await d.ask(path, body, status=404)
            assert "there is no topic 'g.dlq'" in said["error"]


@pytest.mark.usefixtures("loop")
async def test_a_list_ends_in_time_and_passes_over_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "LIST_NS", 0)
    async with desk(tmp_path) as d:
        for n in range(5):
            await d.die(0, dead(b"%d" % n))
        seen: list[str] = []
        query = "?limit=1000"
        while True:
            page = await d.ask(query)
            assert len(page["records"]) <= 1
            seen += [each["place"] for each in page["records"]]
            if page["next"] is None:
                break
            query = f"?limit=1000&after={page['next']}"
        assert seen == [f"0:{n}" for n in range(5)]
        monkeypatch.undo()
        segment = next((tmp_path / "data" / "commitlog").glob("*"))
        at = segment.read_bytes().index(b"\x01\x022") - 60  # in the batch of the third one
        broker = d.s.live.broker
        pos, _ = broker.search.positions_from(d.topic("g.dlq").partitions[0], 2)
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff" * 8)
        assert pos < at + 60
        assert await d.places() == ["0:0", "0:1", "0:3", "0:4"]
        await d.ask("/0:2", status=404)
        assert await d.ask("/replay", {"all": True}) == {"replayed": 4, "left": 0}


@pytest.mark.usefixtures("loop")
async def test_records_are_replayed_with_all_but_their_attempts(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        own = (("\u00fc", b"\xff"), ("empty", b""))
        await d.die(1, dead(b"\x00v", b"\xffk", *own), dead(None, None))
        assert await d.ask("/replay", {"places": ["1:0", "1:1", "1:0"]}) == {
            "replayed": 2,
            "left": 0,
        }
        assert len(d.topic("g.retry").partitions) == 2
        first, second = await d.replayed(1)
        assert (first.key, first.value) == (b"\xffk", b"\x00v")
        names = [name for name, _ in first.headers]
        assert names == ["x-origin", "x-accepted-at", "\u00fc", "empty"]
        assert second.key is None
        assert d.committed() == {}
        assert (await d.ask("/replay", {"places": ["1:1"]}))["replayed"] == 1
        assert len(await d.places()) == 2


@pytest.mark.usefixtures("loop")
async def test_all_replays_what_was_not_replayed_before_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "OFFSETS_TOGETHER", 7)
    monkeypatch.setattr(dlq, "APPENDED_TOGETHER", 3)
    rng = random.Random(3)
    async with desk(tmp_path) as d:
        expected: list[list[bytes | None]] = [[], []]
        for n in range(60):
            count = rng.choice((1, 1, 1, 13))
            values = [b"%d.%d" % (n, each) for each in range(count)]
            await d.die(n % 2, *map(dead, values))
            expected[n % 2] += values
        await d.ask("/purge", {"before": "0:5"})
        del expected[0][:5]
        assert await d.ask("/replay", {"all": True, "partition": 1}) == {
            "replayed": len(expected[1]),
            "left": 0,
        }
        done = await d.ask("/replay", {"all": True})
        assert done == {"replayed": len(expected[0]), "left": 0}
        assert await d.values() == expected
        assert await d.ask("/replay", {"all": True}) == {"replayed": 0, "left": 0}
        entry = d.committed()[0]
        assert (entry.offset, entry.retention_ms) == (len(expected[0]) + 5, 315_360_000_000)
        assert d.s.live.server.groups.find("g.dlq") is not None


@pytest.mark.usefixtures("loop")
async def test_a_replay_of_all_ends_in_time_and_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as d:
        for n in range(6):
            await d.die(n % 2, dead(b"%d" % n))
        monkeypatch.setattr(dlq, "REPLAY_NS", 0)
        assert await d.ask("/replay", {"all": True}) == {"replayed": 0, "left": 6}
        monkeypatch.undo()
        await asyncio.gather(*(d.ask("/replay", {"all": True}) for _ in range(3)))
        assert await d.values() == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


@pytest.mark.usefixtures("loop")
async def test_a_crash_keeps_no_offset_without_its_records(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        await d.die(0, dead(b"a"), dead(b"b"))
        await d.ask("/replay", {"all": True})
        await d.die(0, dead(b"c"))
        d.s.live.disk.hold()
        syncs = d.s.live.disk.syncs
        replaying = asyncio.create_task(d.ask("/replay", {"all": True}, status=503))
        await until(lambda: d.s.live.disk.syncs > syncs)
        assert not replaying.done()
        d.s.live.disk.error = StorageError(Path("log"), "fdatasync", 5, "Input/output error")
        d.s.live.disk.let_go()
        await replaying
    async with desk(tmp_path) as d:
        await d.ask("/replay", {"all": True})
        assert await d.values() == [[b"a", b"b", b"c"], []]


@pytest.mark.usefixtures("loop")
async def test_a_record_that_is_refused_ends_a_replay_after_those_before_it(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as d:
        d.s.live.broker.topics.create("g.retry", 1, {"max.message.bytes": "500"})
        await d.die(1, dead(b"a"), dead(b"b" * 1_000), dead(b"c"))
        said = (await d.ask("/replay", {"all": True}, status=409))["error"]
        assert said.startswith("record 1:1 was refused: the record is larger than max.message")
        assert said.endswith("; 1 before it were replayed")
        assert [each.value for each in await d.replayed(0)] == [b"a"]
        assert d.committed()[1].offset == 1
        await d.ask("/replay", {"places": ["1:2", "1:1"]}, status=409)
        assert [each.value for each in await d.replayed(0)] == [b"a", b"c"]


@pytest.mark.usefixtures("loop")
async def test_a_purge_deletes_what_it_names(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        for n in range(6):
            await d.die(n % 2, dead(b"%d" % n))
        assert await d.ask("/purge", {"before": "1:2"}) == {"deleted": 2}
        assert await d.places() == ["0:0", "0:1", "0:2", "1:2"]
        assert await d.ask("/purge", {"before": "1:1"}) == {"deleted": 0}
        assert await d.ask("/purge", {}) == {"deleted": 4}
        assert await d.ask("/purge", {}) == {"deleted": 0}
        assert await d.places() == []


@pytest.mark.usefixtures("loop")
async def test_a_replay_of_all_waits_for_the_members_of_its_group(tmp_path: Path) -> None:
    async with desk(tmp_path) as d:
        await d.die(0, dead(b"a"))
        coordinator = d.s.live.server.groups
        check = coordinator.check_commit
        coordinator.check_commit = lambda *_, **__: 25  # type: ignore
        said = await d.ask("/replay", {"all": True}, status=409)
        assert "stop its members" in said["error"]
        assert d.topic("g.retry") is None
        coordinator.check_commit = check  # type: ignore
        assert (await d.ask("/replay", {"all": True}))["replayed"] == 1


@pytest.mark.usefixtures("loop")
async def test_records_that_were_carried_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look-up of a frame and its reading it may be appended again and freed."""
    look_up = dlq_reading.DeadReading._look_up
    calls = 0

    async def stale(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        places, end = await look_up(self, *arguments)
        return ([(places[0][0] + 8, places[0][1]), *places[1:]] if calls == 1 else places), end

    async with desk(tmp_path) as d:
        for n in range(3):
            await d.die(0, dead(b"%d" % n))
        monkeypatch.setattr(dlq_reading.DeadReading, "_look_up", stale)
        assert await d.places() == ["0:0", "0:1", "0:2"]
        assert calls == 2
