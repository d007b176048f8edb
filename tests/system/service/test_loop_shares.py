"""Connections whose requests take long share the loop: a turn has a bounded part of their work."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from appliance import loop_turns, pump
from appliance.loop_turns import TURN_NS, LoopTurns
from appliance.system.clock import SystemClock
from appliance.units import KIB, MIB, NS_PER_MS
from compat.kafka.network.connection import SPENT_READ_BYTES, KafkaConnection
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.values.kafka_records import Record

ROUND_NS = 3 * NS_PER_MS


class SlowMachine(SystemClock):
    """A clock that moves when it is asked: a round of requests takes ROUND_NS or more."""

    def __init__(self) -> None:
        self._now_ns = 0

    def monotonic_ns(self) -> int:
        self._now_ns += ROUND_NS
        return self._now_ns


class StillClock(SystemClock):
    """A clock that moves when it is moved."""

    def __init__(self) -> None:
        self.now_ns = ROUND_NS

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.mark.usefixtures("loop")
async def test_many_connections_with_heavy_requests_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds_in_turn = [0]
    handle = KafkaConnection._round

    def count(connection: KafkaConnection, *rest: object) -> None:
        rounds_in_turn[-1] += 1
        handle(connection, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(KafkaConnection, "_round", count)
    loop = asyncio.get_running_loop()

    def turn() -> None:
        rounds_in_turn.append(0)
        loop.call_soon(turn)

    settings: dict[str, Any] = {"flush": "async", "idle_timeout_ms": 86_400_000}
    async with LiveBroker(tmp_path, clock=SlowMachine(), **settings) as live:
        clients = [await live.connect() for _ in range(30)]
        await until(lambda: live.server.connection_count == 30)
        turn()
        for _ in range(5):
            for number, client in enumerate(clients):
                client.send_produce("t", 0, [Record(b"%d" % number)])
            for client in clients:
                assert (await client.read_produced()).error == 0
        reader = await live.connect()
        values = [record.value for record in await reader.fetch("t", 0, 0)]
    assert sorted(values) == sorted(b"%d" % number for number in range(30) for _ in range(5))
    # What arrives until the turn is spent, and one that waited.
    assert max(rounds_in_turn) <= -(-TURN_NS // ROUND_NS) + 1


@pytest.mark.usefixtures("loop")
async def test_a_turn_reads_large_pieces_until_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of thirty connections have sent much, and to read it takes all the time."""
    large_in_turn = [0]
    receive = KafkaConnection._received
    clock = StillClock()

    def count(connection: KafkaConnection, size: int) -> None:
        if size > SPENT_READ_BYTES:
            large_in_turn[-1] += 1
            clock.now_ns += ROUND_NS
        receive(connection, size)

    monkeypatch.setattr(KafkaConnection, "_received", count)
    loop = asyncio.get_running_loop()

    def turn() -> None:
        large_in_turn.append(0)
        loop.call_soon(turn)

    settings: dict[str, Any] = {
        "flush": "async",
        "idle_timeout_ms": 86_400_000,
        "receive_timeout_ms": 86_400_000,
        "batch_size_max_bytes": MIB,
        "record_size_max_bytes": MIB,
        "decompressed_size_max_bytes": MIB,
        "request_decompressed_size_max_bytes": MIB,
        "request_size_max_bytes": 2 * MIB,
        "segment_size_bytes": 64 * MIB,
    }
    async with LiveBroker(tmp_path, clock=clock, **settings) as live:
        clients = [await live.connect() for _ in range(30)]
        await until(lambda: live.server.connection_count == 30)
        turn()
        for client in clients:
            client.send_produce("t", 0, [Record(bytes(500_000))])
        for client in clients:
            assert (await client.read_produced()).error == 0
    assert sum(large_in_turn) > 30
    # What is read until the turn is spent.
    assert max(large_in_turn) <= -(-TURN_NS // ROUND_NS)


@pytest.mark.usefixtures("loop")
async def test_requests_that_wait_for_their_turn_keep_their_order(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"flush": "async", "idle_timeout_ms": 86_400_000}
    async with LiveBroker(tmp_path, clock=SlowMachine(), **settings) as live:
        clients = [await live.connect() for _ in range(4)]
        for number in range(50):
            for client in clients:
                client.send_produce("t", 0, [Record(b"%d" % number)])
            await asyncio.sleep(0)  # so that they arrive in several reads
        for client in clients:
            offsets = [(await client.read_produced()).base_offset for _ in range(50)]
            assert offsets == sorted(offsets)
        assert live.broker.topics.all()[0].partitions[0].next_offset == 200


async def test_connection_that_is_lost_while_it_waits_for_its_turn_harms_nobody(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"flush": "async", "idle_timeout_ms": 86_400_000}
    async with LiveBroker(tmp_path, clock=SlowMachine(), **settings) as live:
        clients = [await live.connect() for _ in range(20)]
        for client in clients:
            client.send_produce("t", 0, [Record(b"a")])
        for client in clients[::2]:
            await client.close()
        for client in clients[1::2]:
            assert (await client.read_produced()).error == 0
        assert not live.server.pump.has_failed


@pytest.mark.usefixtures("loop")
async def test_requests_of_a_connection_have_the_work_of_a_turn_that_the_loop_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request counts as 8 KiB, so that one ends the turn. None shares a turn with another."""
    monkeypatch.setattr(loop_turns, "SHORT_NS", 0)
    monkeypatch.setattr(LoopTurns, "work_bytes", lambda *_: 8 * KIB)
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        before = live.server.turns.turn_count
        for number in range(20):
            client.send_produce("t", 0, [Record(b"%d" % number)])
        offsets = [(await client.read_produced()).base_offset for _ in range(20)]
        assert offsets == list(range(20))
        assert live.server.turns.turn_count - before >= 19


async def test_the_thread_of_searches_leaves_the_interpreter_to_the_loop_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of short ones would keep the loop waiting for it."""
    done: list[str] = []
    monkeypatch.setattr(pump, "let_others_in", lambda: done.append("pause"))

    def fail() -> None:
        done.append("search")
        raise ValueError("a bug")

    async with LiveBroker(tmp_path) as live:
        await live.server.pump.find(lambda: done.append("search"))
        with pytest.raises(ValueError, match="a bug"):
            await live.server.pump.find(fail)
    assert done == ["search", "pause"] * 2
