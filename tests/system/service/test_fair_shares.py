"""Many connections of one address beside a single one of another, which asks for as much."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.broker import Broker
from appliance.errors import ColdFrameError
from appliance.model import ColdPlace
from appliance.offset_search import OffsetSearch
from appliance.store.cold_reads import ColdRead
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.limits import SMALL_BYTES
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.oracles.kafka_oracle import MetadataRequest
from tests.support.values.kafka_records import Record
from tests.support.values.topic_requests import list_offset_request

KIB = 1024
MIB = 1024 * KIB
COUNT = 30
OTHER = "127.0.0.2"
LIMIT = 4 * MIB
SETTINGS: dict[str, Any] = {
    "request_size_max_bytes": 2 * MIB,
    "batch_size_max_bytes": MIB,
    "record_size_max_bytes": MIB,
    "decompressed_size_max_bytes": MIB,
    "request_decompressed_size_max_bytes": 2 * MIB,
    "segment_size_bytes": 32 * MIB,
    "inflight_max_bytes": LIMIT,
}


async def test_long_answers_of_many_do_not_delay_that_of_another_address(tmp_path: Path) -> None:
    request = framed(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9, 7)
    async with LiveBroker(tmp_path) as live:
        for number in range(100):
            live.broker.topics.create(f"topic-{number}", 60, {})
        live.broker.flush()
        many = [await live.connect() for _ in range(COUNT)]
        other = await live.connect(OTHER)
        for client in many:
            client.send_bytes(request)
        await until(lambda: live.server.answers.slice_count >= COUNT)
        before = live.server.answers.slice_count
        other.send_bytes(request)
        await other.read_answer()
        during = live.server.answers.slice_count - before
        for client in many:
            await client.read_answer()
        of_one = live.server.answers.slice_count / (COUNT + 1)
        assert of_one > 2
        # Its own slices, as many of the others, and those of one turn at the begin and the end.
        assert during <= 3 * of_one + 4


class HeldReads:
    """Reads of the disk that wait on their threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_go_on = threading.Event()
        read = Broker.read_cold

        def wait(broker: Broker, places: list[ColdPlace]) -> ColdRead:
            assert self._may_go_on.wait(30)
            return read(broker, places)

        monkeypatch.setattr(Broker, "read_cold", wait)

    def let_go(self) -> None:
        self._may_go_on.set()


class ColdSearches:
    """Searches by time of which each finds first that something has to be read from the disk.

    Attributes:
        count: searches that began.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._is_over = False
        self._find = OffsetSearch.find
        searches = self

        def find(search: OffsetSearch, *what: Any) -> Any:
            if searches._is_over:
                return searches._find(search, *what)
            searches.count += 1
            raise ColdFrameError(0)

        monkeypatch.setattr(OffsetSearch, "find", find)

    def end(self) -> None:
        self._is_over = True


async def test_cold_reads_of_many_do_not_delay_that_of_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, searches = HeldReads(monkeypatch), ColdSearches(monkeypatch)
    done: list[None] = []
    async with LiveBroker(tmp_path) as live:
        many = [await live.connect() for _ in range(COUNT)]
        other = await live.connect(OTHER)
        await other.produce("t", 0, [Record(b"a")])
        request = framed(list_offset_request("t", [0], 5), 5, 1)
        for number, client in enumerate([*many, other]):
            client.send_bytes(request)
            await until(lambda number=number: searches.count == number + 1)  # type: ignore[misc]
        searches.end()
        readers = live.server.pump._readers
        end = readers._end

        def end_counted(*what: Any) -> None:
            done.append(None)
            end(*what)

        monkeypatch.setattr(readers, "_end", end_counted)
        held.let_go()
        await other.read_answer()
        assert len(done) <= 6
        for client in many:
            await client.read_answer()
        assert len(done) >= COUNT - 2


def wide_search(size: int) -> bytes:
    """A search in one partition; the request also names much that does not exist."""
    request = list_offset_request("t", [0], 5)
    kind = type(request.topics[0])
    request.topics += [
        kind(name=f"{number:05}" * 1_000, partitions=request.topics[0].partitions)
        for number in range(size // 5_000)
    ]
    return framed(request, 5, 1)


async def test_requests_that_wait_for_the_disk_leave_memory_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one address: they are complete, and nothing frees them before they are answered."""
    held, searches = HeldReads(monkeypatch), ColdSearches(monkeypatch)
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        many = [await live.connect() for _ in range(COUNT)]
        other = await live.connect(OTHER)
        await other.produce("t", 0, [Record(b"a")])
        update, growths = live.server.budget.update, list[int]()

        def note(*what: Any, growth_bytes: int, **how: Any) -> list[KafkaConnection]:
            growths.append(growth_bytes)
            return update(*what, growth_bytes=growth_bytes, **how)

        monkeypatch.setattr(live.server.budget, "update", note)
        for client in many:
            client.send_bytes(wide_search(900 * KIB))
        await until(lambda: sum(map(live.server.budget.is_held_back, connections(live))) > 10)
        assert max(growths) > SMALL_BYTES
        large = Record(bytes(300 * KIB))
        for _ in range(20):
            assert (await other.produce("t", 0, [large])).error == 0
            assert live.server.budget.total_bytes < LIMIT + COUNT * SMALL_BYTES + 2 * MIB
        searches.end()
        held.let_go()
        # Side by side: an answer that goes ahead waits for its own client.
        await asyncio.gather(*(client.read_answer() for client in many))
        assert (await many[0].produce("t", 0, [large])).error == 0


async def test_a_connection_takes_64_kib_while_memory_is_scarce(tmp_path: Path) -> None:
    """Its buffer does not grow beyond that, except of the one that goes ahead."""
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        await live.connect(OTHER)
        await until(lambda: bool(connections(live)))
        budget, (full,) = live.server.budget, connections(live)
        budget.update(full, LIMIT + 1, OTHER, is_large=False)
        for client in [await live.connect() for _ in range(COUNT)]:
            client.send_bytes(wide_search(900 * KIB)[: 60 * KIB])
        await until(lambda: sum(map(budget.is_held_back, connections(live))) == COUNT - 1)
        assert budget.total_bytes == LIMIT + 1 + (COUNT + 1) * SMALL_BYTES


async def test_what_is_left_of_a_request_counts_until_it_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, searches = HeldReads(monkeypatch), ColdSearches(monkeypatch)
    async with LiveBroker(tmp_path) as live:
        other, client = await live.connect(OTHER), await live.connect()
        await other.produce("t", 0, [Record(b"a")])
        client.send_bytes(wide_search(900 * KIB))
        await until(lambda: searches.count == 1)
        budget = live.server.budget
        assert 900 * KIB < budget.total_bytes < 3 * MIB
        note_shared, seen = budget.note_shared, list[int]()

        def note(shared_bytes: int) -> list[KafkaConnection]:
            seen.append(shared_bytes)
            return note_shared(shared_bytes)

        monkeypatch.setattr(budget, "note_shared", note)
        await client.close()
        await until(lambda: seen[-1:] == [0])
        assert 900 * KIB < max(seen) < 3 * MIB
        assert budget.total_bytes < SMALL_BYTES
        searches.end()
        held.let_go()


def connections(live: LiveBroker) -> list[KafkaConnection]:
    return list(live.server._connections.values())
