"""The quota of pending timers with connections: by address, and with a real client that waits."""

import asyncio
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer as RealProducer

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.values.kafka_records import Record

pytestmark = pytest.mark.usefixtures("loop")

WAITS: Final = ErrorCode.kafka_storage_error
HELD: Final = Record(b"", headers=(("x-delay", b"1h"),))
NAMED: Final = Record(b"", headers=(*HELD.headers, ("x-deliver-id", b"a")))


async def hold(client: Client, count: int = 1) -> int:
    """Send records that are held; returns the error code."""
    return (await client.produce("t", 0, [HELD] * count)).error


async def test_timers_count_for_the_address_of_their_connection(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, pending_timers_max=8) as live:
        mine, also_mine = await live.connect("127.0.0.2"), await live.connect("127.0.0.2")
        other = await live.connect("127.0.0.3")
        assert [await hold(mine, 2), await hold(also_mine, 2)] == [0, 0]
        assert await hold(mine) == await hold(also_mine) == WAITS
        assert await hold(other, 2) == 0
        assert (await mine.produce("t", 0, [Record(b"now")])).error == 0


async def test_a_client_sends_its_record_again_until_there_is_room(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, pending_timers_max=1) as live:
        client = await live.connect()
        assert (await client.produce("t", 0, [NAMED])).error == 0
        host, port = live.server.bound
        producer = RealProducer(
            {"bootstrap.servers": f"{host}:{port}", "enable.idempotence": True, "log_level": 0}
        )
        answers: list[object] = []
        for value in (b"1", b"2"):
            producer.produce(
                "t",
                value,
                partition=0,
                headers={"x-delay": b"1h"} if value == b"1" else {},
                on_delivery=lambda error, _: answers.append(error),
            )
        sending = asyncio.create_task(asyncio.to_thread(producer.flush, 60))
        refused = live.broker._produce.delays
        await until(lambda: refused.refused["full"] >= 2)
        assert answers == []
        cancel = Record(b"", headers=(("x-deliver-cancel", b"a"),))
        assert (await client.produce("t", 0, [cancel])).error == 0
        assert await sending == 0
        assert answers == [None, None]
        assert live.broker.pending_timers == 1
