"""Connections that misbehave: whoever meets them, nobody else is harmed and nothing is lost."""

import asyncio
import errno
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from appliance.broker import Broker
from appliance.clock import SystemClock
from appliance.errors import StorageError
from appliance.fs import OsFileSystem
from appliance.main import KAFKA_FACADE
from appliance.units import MIB
from tests.support.kafka_records import Record
from tests.support.live_broker import LIMIT_S, LiveBroker, until

MALFORMED_METADATA = b"\0\0\0\x0e" + b"\0\x03\0\x05" + b"\0\0\0\x07" + b"\xff\xff" + b"\x7f" * 4
TINY_API_VERSIONS = b"\0\0\0\x0a" + b"\0\x12\0\0" + b"\0\0\0\x07" + b"\xff\xff"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * LIMIT_S))


def test_a_batch_in_front_of_garbage_is_stored_whole(tmp_path: Path) -> None:
    """Its bytes lie in the buffer of a connection that is about to be closed."""

    async def test() -> None:
        async with LiveBroker(tmp_path) as live:
            live.create_topic("t")
            other = await live.connect()
            for value in (b"a" * 6000, b"b" * 6000):
                client = await live.connect()
                client.send_produce("t", 0, [Record(value)])
                client.send_bytes(MALFORMED_METADATA)
                await client.read_to_the_end()
                assert (await other.produce("t", 0, [Record(b"after")])).error == 0
            values = [record.value for record in await other.fetch("t", 0, 0)]
            assert values == [b"a" * 6000, b"after", b"b" * 6000, b"after"]
        again = Broker(SystemClock(), OsFileSystem(), live.broker.config, KAFKA_FACADE)
        for _ in again.recover():
            pass
        assert again.report.damage == ()
        assert again.topics()[0].partitions[0].next_offset == 4
        again.close()

    run(test())


def test_a_flood_of_tiny_requests_is_answered_in_order(tmp_path: Path) -> None:
    async def test() -> None:
        settings = {"request_size_max_bytes": 4 * MIB}
        async with LiveBroker(tmp_path, **settings) as live:
            live.create_topic("t")
            client, other = await live.connect(), await live.connect()
            # A large request first: its buffer then takes in thousands of small ones at once.
            client.send_produce("no such topic", 0, [Record(b"x" * 3 * MIB)])
            assert (await client.read_produced()).error == 3
            client.send_bytes(TINY_API_VERSIONS * 100_000)
            assert (await other.produce("t", 0, [Record(b"a")])).error == 0
            for _ in range(100_000):
                await client.read_answer()
            assert not live.server.pump.has_failed

    run(test())


def test_requests_and_refusals_are_counted(tmp_path: Path) -> None:
    async def test() -> None:
        async with LiveBroker(tmp_path) as live:
            live.create_topic("t")
            client = await live.connect()
            await client.produce("t", 0, [Record(b"a")])
            await client.produce("t", 7, [Record(b"a")])
            await client.produce("t", 0, [Record(b"a", headers=(("x-delay", b"soon"),))])
            assert len(await client.fetch("t", 0, 0)) == 1
            client.send_bytes(TINY_API_VERSIONS)
            await client.read_answer()
            metrics = live.broker.collect_metrics()
            assert metrics.requests == {0: 3, 1: 1, 18: 1}
            assert metrics.request_errors == {3: 1, 87: 1}

    run(test())


def test_a_sync_that_fails_during_the_stop_is_not_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with LiveBroker(tmp_path) as live:
            live.create_topic("t")
            client = await live.connect()
            live.disk.hold()
            before = live.disk.syncs
            client.send_produce("t", 0, [Record(b"a")])
            await until(lambda: live.disk.syncs > before)
            live.disk.error = StorageError(tmp_path, "fdatasync", errno.EIO, "broken")
            stopping = asyncio.ensure_future(live.server.stop())
            await asyncio.sleep(0.02)
            live.disk.let_go()
            await asyncio.wait_for(stopping, LIMIT_S)
            assert live.server.pump.failure.result() is live.disk.error
            assert live.disk.syncs == before + 1

    run(test())
