"""The quota of producers with connections: by address, and with a real client that waits."""

import asyncio
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer as RealProducer

from appliance.allowance import Allowance
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.values.kafka_records import Producer, Record

pytestmark = pytest.mark.usefixtures("loop")

WAITS: Final = ErrorCode.kafka_storage_error


async def begin(client: Client, producer_id: int) -> int:
    """Send the first batch of a producer; returns the error code."""
    client.send_produce("t", 0, [Record(b"")], producer=Producer(producer_id, 0, 0))
    return (await client.read_produced()).error


async def test_new_producers_count_for_the_address_of_their_connection(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        live.broker.producers._allowance = Allowance(2, 1)
        mine, also_mine = await live.connect("127.0.0.2"), await live.connect("127.0.0.2")
        other = await live.connect("127.0.0.3")
        assert [await begin(mine, 1), await begin(also_mine, 2)] == [0, 0]
        assert await begin(mine, 3) == WAITS
        assert await begin(other, 4) == 0
        assert await begin(also_mine, 5) == WAITS
        assert await begin(mine, 1) == 0  # known: sent again


async def test_a_client_waits_for_its_producer_id(tmp_path: Path) -> None:
    """librdkafka asks again, twice a second, and sends its record then."""
    async with LiveBroker(tmp_path, producer_count_max=1) as live:
        live.broker.topics.create("full", 1, {})
        client = await live.connect()
        client.send_produce("full", 0, [Record(b"")], producer=Producer(7, 0, 0))
        assert (await client.read_produced()).error == 0
        host, port = live.server.bound
        producer = RealProducer(
            {"bootstrap.servers": f"{host}:{port}", "enable.idempotence": True, "log_level": 0}
        )
        answers: list[object] = []
        producer.produce("t", b"value", on_delivery=lambda error, _: answers.append(error))
        sending = asyncio.create_task(asyncio.to_thread(producer.flush, 60))
        await until(lambda: live.broker.producers.refused.get("count", 0) >= 1)
        assert answers == []
        live.broker.topics.delete("full")
        assert await sending == 0
        assert answers == [None]
