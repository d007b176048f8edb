"""Fetches whose answers nobody reads: what they refer to counts once."""

from pathlib import Path

from appliance.units import MIB
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.values.kafka_records import Record
from tests.support.values.record_requests import fetch_part, fetch_request

COUNT = 5


async def test_slices_of_the_cache_count_once_and_only_out_of_it(tmp_path: Path) -> None:
    settings = {
        "segment_size_bytes": 64 * MIB,
        "fetch_size_max_bytes": 4 * MIB,
        "decompressed_size_max_bytes": MIB,
        "request_decompressed_size_max_bytes": MIB,
        "record_size_max_bytes": MIB,
    }
    async with LiveBroker(
        tmp_path, batch_size_max_bytes=MIB, request_size_max_bytes=4 * MIB, **settings
    ) as broker:
        producer = await broker.connect()
        for _ in range(8):
            assert (await producer.produce("t", 0, [Record(bytes(500_000))])).error == 0
        fetch = fetch_request([("t", [fetch_part(0, 0, limit=4 * MIB)])], max_bytes=4 * MIB)
        clients = [await broker.connect() for _ in range(COUNT)]
        for client in clients:
            client.send_bytes(framed(fetch, 11, 1) * 8)
        server = broker.server
        sessions = list(server._connections)
        await until(lambda: sum(each.shared_bytes > 3 * MIB for each in sessions) == COUNT)
        slices = sum(each.shared_bytes for each in sessions)
        assert server.held_bytes < slices / 2
        assert server.budget.shared_bytes < MIB
        view = broker.broker.log.view
        view.clear()
        server._note_evicted()
        # The same few blocks, whoever waits for them.
        assert 3 * MIB < server.budget.shared_bytes == view.memory.size < slices / 2
        for client in clients:
            await client.close()
        await until(lambda: server.budget.shared_bytes < MIB)
