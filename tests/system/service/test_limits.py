"""Limits on real sockets: who is refused or closed, and that everybody else is served meanwhile."""

import asyncio
import random
import socket
from pathlib import Path

import pytest

from appliance.units import KIB, MIB
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

IDLE_MS = 1_500
RECEIVE_MS = 150
NEVER_MS = 10**8
DAY_MS = 86_400_000


async def is_served(client: Client) -> bool:
    return (await client.produce("t", 0, [Record(b"a")])).error == 0


def closed(live: LiveBroker) -> dict[str, int]:
    return live.broker.metrics.connections_closed


# Connections


async def test_one_address_cannot_take_all_connections(tmp_path: Path) -> None:
    """Others are admitted until there are too many in all; who leaves makes room."""
    settings = {"connection_count_max_per_address": 3, "connection_count_max": 5}
    async with LiveBroker(tmp_path, **settings) as live:
        refused = live.broker.metrics.connections_refused
        first = [await live.connect() for _ in range(3)]
        assert await is_served(first[0])
        assert await (await live.connect()).is_closed_by_broker()
        assert refused == {"address": 1}
        others = [await live.connect("127.0.0.2") for _ in range(2)]
        assert await is_served(others[1])
        assert await (await live.connect("127.0.0.3")).is_closed_by_broker()
        assert refused == {"address": 1, "count": 1}
        await first[0].close()
        await until(lambda: live.server.connection_count == 4)
        assert await is_served(await live.connect())


async def test_silent_connections_are_closed_and_waiting_ones_are_not(tmp_path: Path) -> None:
    """A parked fetch is no silence, however long it waits."""
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock, idle_timeout_ms=IDLE_MS) as live:
        waiting = await live.connect()
        waiting.send_fetch("t", 0, 0, wait_ms=600_000)
        topic = live.broker.topics.all()[0]
        await until(lambda: len(topic.partitions[0].waiters) == 1)
        for _ in range(3):
            silent = await live.connect()
            await until(lambda: live.server.connection_count == 2)
            clock.advance_ms(IDLE_MS + 1)
            assert await silent.is_closed_by_broker()
        assert closed(live) == {"idle": 3}
        assert await is_served(await live.connect())
        assert [each.value for each in await waiting.read_fetched()] == [b"a"]


@pytest.mark.parametrize("step", [0, 1])
async def test_request_that_never_ends_is_closed(tmp_path: Path, step: int) -> None:
    """Half of it and then nothing, or one byte after the other."""
    clock = VirtualClock()
    settings = {"idle_timeout_ms": NEVER_MS, "receive_timeout_ms": RECEIVE_MS}
    async with LiveBroker(tmp_path, clock=clock, **settings) as live:
        client, other = await live.connect(), await live.connect()
        data = framed(produce_request([("t", [(0, make_batch([Raw(bytes(4_000))]))])]), 8, 1)
        client.send_bytes(data[:300])

        async def trickle() -> None:
            for byte in data[300:-1]:
                if step:
                    client.send_bytes(bytes([byte]))
                clock.advance_ms(RECEIVE_MS // 10)
                await asyncio.sleep(0.005)

        sending = asyncio.ensure_future(trickle())
        assert await client.is_closed_by_broker()
        sending.cancel()
        assert closed(live) == {"slow_request": 1}
        assert await is_served(other)


async def test_connections_are_watched_by_the_kernel_too(tmp_path: Path) -> None:
    """What is set on the socket that listens holds for those it accepts."""
    async with LiveBroker(tmp_path) as live:
        assert await is_served(await live.connect())
        (connection,) = live.server._connections.values()
        peer = connection._transport.get_extra_info("socket")
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_garbage_harms_nobody_else(tmp_path: Path, seed: int) -> None:
    """Random bytes, some after a plausible size and a real key: answered or closed, all of it."""
    rng = random.Random(seed)
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock, receive_timeout_ms=RECEIVE_MS) as live:
        good = await live.connect()
        for round_ in range(30):
            client = await live.connect()
            size = rng.choice([8, 20, 100, 5_000])
            head = size.to_bytes(4, "big") + bytes([0, rng.randrange(70), 0, rng.randrange(13)])
            client.send_bytes(rng.choice([b"", head]) + rng.randbytes(size))
            assert await is_served(good), f"seed {seed}, round {round_}"

        def are_closed() -> bool:
            clock.advance_ms(1)
            return sum(closed(live).values()) >= 15

        await until(are_closed)
        assert not live.server.pump.has_failed


# Memory


async def connect_slowly(live: LiveBroker) -> socket.socket:
    """A connection whose client has little room for what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, tuple(live.server.bound))
    return client


@pytest.mark.parametrize("size", [500, 20_000])
async def test_clients_that_take_no_answers_hold_little_memory(tmp_path: Path, size: int) -> None:
    """Ten ask for a gigabyte; records below 8 KiB are copied, of larger ones slices wait."""
    clock = VirtualClock()
    settings = {"idle_timeout_ms": IDLE_MS, "segment_size_bytes": 64 * MIB}
    settings |= {"fetch_size_max_bytes": 4 * MIB, "batch_size_max_bytes": 64 * KIB}
    settings |= {"decompressed_size_max_bytes": 64 * KIB, "record_size_max_bytes": 64 * KIB}
    async with LiveBroker(tmp_path, clock=clock, **settings) as live:
        good = await live.connect()
        batch = make_batch([Raw(bytes(size))])
        request = framed(produce_request([("t", [(0, batch)])]), 8, 1)
        for _ in range(4 * MIB // len(batch) // 50):
            good.send_bytes(request * 50)
            for _ in range(50):
                await good.read_answer()
        part = fetch_part(0, 0, limit=4 * MIB)
        fetch = framed(fetch_request([("t", [part])], max_bytes=4 * MIB), 11, 1)
        greedy = [await connect_slowly(live) for _ in range(10)]
        for client in greedy:
            await asyncio.get_running_loop().sock_sendall(client, fetch * 25)
        peak = 0

        def are_closed() -> bool:
            nonlocal peak
            peak = max(peak, live.server.held_bytes)
            return live.server.connection_count == 1

        while not are_closed():
            assert await is_served(good)
            clock.advance_ms(10)
        # 8 MiB of answers may wait in a session; then there are its buffers and the transport.
        assert peak < 10 * 10 * MIB
        # The slices of all ten are of the same blocks.
        assert live.broker._store.log.view.memory.size < 16 * MIB
        assert closed(live) == {"slow_reader": 10}
        for client in greedy:
            client.close()


async def test_large_requests_share_the_memory_and_all_get_done(tmp_path: Path) -> None:
    """Twenty of 1 MiB where there is room for four; small ones do not wait for them."""
    settings = {"inflight_max_bytes": 4 * MIB, "batch_size_max_bytes": 900 * KIB}
    settings |= {"decompressed_size_max_bytes": 900 * KIB, "segment_size_bytes": 64 * MIB}
    settings |= {"record_size_max_bytes": 900 * KIB}
    # The clock is stopped: whoever may proceed must do so within some seconds.
    async with LiveBroker(tmp_path, clock=VirtualClock(), **settings) as live:
        good = await live.connect()
        clients = [await live.connect() for _ in range(20)]
        batch = make_batch([Raw(bytes(890 * KIB))])
        data = framed(produce_request([("t", [(0, batch)])]), 8, 1)
        for client in clients:
            client.send_bytes(data[:-1])
        await until(lambda: live.server.budget.is_scarce)
        for _ in range(50):
            assert await is_served(good)
        assert live.server.held_bytes < 4 * MIB + 20 * 400 * KIB
        for client in clients:
            client.send_bytes(data[-1:])
        for client in clients:
            await client.read_answer()
        await until(lambda: not live.server.budget.is_scarce)
        topic = live.broker.topics.find("t")
        assert topic is not None
        assert topic.partitions[0].next_offset == 70
        assert closed(live) == {}


GRANTS = {"inflight_max_bytes": 10 * MIB, "request_size_max_bytes": 8 * MIB}
LARGE = framed(produce_request([("no such topic", [(0, bytes(3 * MIB))])]), 8, 1)


async def test_half_received_requests_do_not_keep_others_from_theirs(tmp_path: Path) -> None:
    """One address cannot take all the memory, however many requests it begins."""
    # The clock is stopped: nobody is closed for being slow.
    async with LiveBroker(tmp_path, clock=VirtualClock(), **GRANTS) as live:
        good = await live.connect()
        greedy = [await live.connect("127.0.0.2") for _ in range(8)]
        for client in greedy:
            client.send_bytes(LARGE[:-1])
        connections, budget = live.server._connections, live.server.budget
        await until(lambda: any(map(budget.is_awaited, connections.values())))
        good.send_bytes(LARGE)
        await good.read_answer()
        assert await is_served(good)
        assert live.server.budget.total_bytes < 8 * MIB
        for client in greedy:
            client.send_bytes(LARGE[-1:])
        for client in greedy:
            await client.read_answer()
        assert closed(live) == {}


async def test_large_requests_that_stop_make_room_for_those_that_wait(tmp_path: Path) -> None:
    """From many addresses they can take all that is for large ones, for some seconds."""
    clock = VirtualClock()
    settings = GRANTS | {"idle_timeout_ms": NEVER_MS, "receive_timeout_ms": DAY_MS}
    async with LiveBroker(tmp_path, clock=clock, **settings) as live:
        greedy = [await live.connect(f"127.0.0.{index}") for index in (2, 3)]
        for client in greedy:
            client.send_bytes(LARGE[: 100 * KIB])
        await until(lambda: live.server.budget.total_bytes > 6 * MIB)
        assert live.server.held_bytes < MIB
        good = await live.connect()
        good.send_bytes(LARGE)
        answer = asyncio.ensure_future(good.read_answer())
        while not answer.done():
            clock.advance_ms(200)
            await asyncio.wait([answer], timeout=0.01)
        assert set(closed(live)) == {"memory"}
        assert await is_served(good)
