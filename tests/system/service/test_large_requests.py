"""Large requests arrive beside the loop, and whatever happens meanwhile leaves nothing behind."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance import loop_turns
from appliance.system.clock import SystemClock
from appliance.units import MIB, MS_PER_SECOND, NS_PER_MS
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.server import SWEEP_S
from perf.attacks.requests import fetch_with_tag
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.values.kafka_records import Record

TAG_BYTES = 5 * MIB
LARGE = fetch_with_tag("t", 0, wait_ms=0, tag_size=TAG_BYTES)
READ_BY_LOOP_MAX_BYTES = MIB
SETTINGS: dict[str, Any] = {
    "flush": "async",
    "request_size_max_bytes": 8 * MIB,
    "inflight_max_bytes": 1_024 * MIB,
    "receive_timeout_ms": 30_000,
    "idle_timeout_ms": 86_400_000,
}


class MovedClock(SystemClock):
    """The system's clock, ahead by what a test adds."""

    ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


class StillClock(SystemClock):
    """A clock that moves when it is moved."""

    now_ns = 1 << 40

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who asks for little was served, however long ago that is."""
    monkeypatch.setattr(loop_turns, "LIGHT_NS", 1 << 62)


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read by the loop."""
    sizes: list[int] = []
    receive = KafkaConnection._received

    def count(connection: KafkaConnection, size: int) -> None:
        sizes.append(size)
        receive(connection, size)

    monkeypatch.setattr(KafkaConnection, "_received", count)
    return sizes


async def send_most(live: LiveBroker, client: Client, missing: int = 1) -> None:
    """Send a large request but for its end, and wait until that has arrived."""
    before = live.broker.metrics.received_bytes
    client.send_bytes(LARGE[:-missing])
    await until(
        lambda: any(
            connection.session.partial_bytes == len(LARGE) - missing
            for connection in live.server._connections.values()
        )
    )
    assert live.broker.metrics.received_bytes - before < READ_BY_LOOP_MAX_BYTES


def open_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the list itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


async def assert_served(live: LiveBroker) -> None:
    client = await live.connect()
    produced = await client.produce("t", 0, [Record(b"after")])
    assert produced.error == 0
    client.send_bytes(LARGE)
    await client.read_answer()


@pytest.mark.usefixtures("loop")
async def test_the_loop_reads_only_the_beginning(tmp_path: Path, read_sizes: list[int]) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        client = await live.connect()
        await client.produce("t", 0, [Record(b"before")])
        for _ in range(3):
            read_sizes.clear()
            before = live.broker.metrics.received_bytes
            client.send_bytes(LARGE)
            assert b"before" in await client.read_answer()
            assert sum(read_sizes) < READ_BY_LOOP_MAX_BYTES
            assert live.broker.metrics.received_bytes - before == len(LARGE)
        (connection,) = live.server._connections.values()
        assert connection.session.held_bytes < MIB
        assert live.server.budget.reserved_bytes == 0


@pytest.mark.usefixtures("loop")
async def test_the_loop_reads_all_of_it_while_nobody_would_wait(
    tmp_path: Path, read_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_turns, "LIGHT_NS", MS_PER_SECOND * NS_PER_MS)
    clock = StillClock()
    async with LiveBroker(tmp_path, clock=clock, **SETTINGS) as live:
        client, other = await live.connect(), await live.connect()
        await client.produce("t", 0, [Record(b"before")])
        read_sizes.clear()
        client.send_bytes(LARGE)
        await client.read_answer()
        assert sum(read_sizes) == len(LARGE)
        # Time in which another one asks for nothing, then a little.
        clock.now_ns += 2 * MS_PER_SECOND * NS_PER_MS
        await other.produce("t", 0, [Record(b"little")])
        read_sizes.clear()
        client.send_bytes(LARGE)
        await client.read_answer()
        assert sum(read_sizes) < READ_BY_LOOP_MAX_BYTES


@pytest.mark.usefixtures("loop")
async def test_requests_after_a_large_one_are_answered_in_order(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        client = await live.connect()
        for number in range(5):
            client.send_produce("t", 0, [Record(b"%d" % number)])
            client.send_bytes(LARGE)
        for number in range(5):
            assert (await client.read_produced()).base_offset == number
            assert b"%d" % number in await client.read_answer()


@pytest.mark.usefixtures("loop")
async def test_a_large_request_begins_in_the_read_of_one_that_waits_for_the_disk(
    tmp_path: Path,
) -> None:
    async with LiveBroker(tmp_path, **{**SETTINGS, "flush": "sync"}) as live:
        client = await live.connect()
        live.disk.hold()
        for number in range(5):
            client.send_produce("t", 0, [Record(b"%d" % number)])
            await asyncio.sleep(0.02)
        client.send_bytes(LARGE)
        client.send_produce("t", 0, [Record(b"5")])
        client.send_bytes(LARGE)
        await asyncio.sleep(0.1)
        live.disk.let_go()
        for number in range(5):
            assert (await client.read_produced()).base_offset == number
        await client.read_answer()  # nothing was visible when it was handled
        assert (await client.read_produced()).base_offset == 5
        await client.read_answer()
        assert not live.server.pump.has_failed


@pytest.mark.usefixtures("loop")
async def test_more_large_requests_than_the_thread_takes_are_read_by_the_loop(
    tmp_path: Path, read_sizes: list[int]
) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        writer = await live.connect()
        await writer.produce("t", 0, [Record(b"before")])
        await writer.close()
        clients = [await live.connect() for _ in range(80)]
        for client in clients:
            client.send_bytes(LARGE[:-1])
        await until(
            lambda: all(each.session.partial_bytes == len(LARGE) - 1 for each in connections(live))
        )
        assert sum(read_sizes) > 10 * len(LARGE)
        for client in clients:
            client.send_bytes(LARGE[-1:])
        for client in clients:
            assert b"before" in await client.read_answer()


def connections(live: LiveBroker) -> list[KafkaConnection]:
    return list(live.server._connections.values())


@pytest.mark.usefixtures("loop")
async def test_a_client_that_hangs_up_leaves_nothing(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        await assert_served(live)
        sockets = open_sockets()
        for missing in (1, MIB, len(LARGE) - 100_000):
            client = await live.connect()
            await send_most(live, client, missing)
            await client.close()
            await until(lambda: live.server.connection_count == 1)
            await until(lambda: open_sockets() == sockets)
        assert live.server.budget.total_bytes < MIB
        await assert_served(live)


@pytest.mark.usefixtures("loop")
async def test_a_request_that_never_ends_is_closed_in_its_time(tmp_path: Path) -> None:
    clock = MovedClock()
    async with LiveBroker(tmp_path, clock=clock, **SETTINGS) as live:
        client = await live.connect()
        await send_most(live, client)
        await asyncio.sleep(3 * SWEEP_S)
        clock.ahead_ns += 31 * MS_PER_SECOND * NS_PER_MS
        await asyncio.sleep(3 * SWEEP_S)
        assert live.server.budget.reserved_bytes <= 1  # what has arrived is no longer reserved
        assert live.server.connection_count == 1  # a second for each MiB, besides
        clock.ahead_ns += 31 * MS_PER_SECOND * NS_PER_MS
        assert await client.is_closed_by_broker()
        await until(lambda: live.server.connection_count == 0)
        assert live.server.budget.total_bytes == 0
        await assert_served(live)


@pytest.mark.usefixtures("loop")
async def test_a_stop_gives_up_what_arrives(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        client = await live.connect()
        await send_most(live, client)
        await live.server.stop()
        assert "latermq-receive" not in {thread.name for thread in threading.enumerate()}
        assert await client.is_closed_by_broker()
    async with LiveBroker(tmp_path, **SETTINGS) as live:
        await assert_served(live)
