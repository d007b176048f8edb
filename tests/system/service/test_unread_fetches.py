"""Fetches whose answers nobody reads: what they refer to counts once, and the kernel has little."""

import array
import fcntl
import termios
from pathlib import Path

from appliance.units import MIB
from compat.kafka.network.server import UNSENT_KERNEL_BYTES
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.values.kafka_records import Record
from tests.support.values.record_requests import fetch_part, fetch_request

COUNT = 5


SETTINGS = {
    "segment_size_bytes": 64 * MIB,
    "fetch_size_max_bytes": 4 * MIB,
    "decompressed_size_max_bytes": MIB,
    "request_decompressed_size_max_bytes": MIB,
    "record_size_max_bytes": MIB,
    "batch_size_max_bytes": MIB,
    "request_size_max_bytes": 4 * MIB,
}


async def test_slices_of_the_cache_count_once_and_only_out_of_it(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as broker:
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


async def test_the_kernel_takes_little_of_what_nobody_reads(tmp_path: Path, loop: object) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as broker:
        client = await broker.connect()
        for _ in range(8):
            assert (await client.produce("t", 0, [Record(bytes(500_000))])).error == 0
        fetch = fetch_request([("t", [fetch_part(0, 0, limit=4 * MIB)])], max_bytes=4 * MIB)
        client.send_bytes(framed(fetch, 11, 1) * 8)
        (connection,) = broker.server._connections.values()
        await until(lambda: connection._is_write_paused)
        unsent = array.array("i", [0])
        socket = connection._transport.get_extra_info("socket")
        fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, unsent)
        # The kernel takes whole buffers.
        assert unsent[0] < 2 * UNSENT_KERNEL_BYTES
        for _ in range(8):
            await client.read_answer()
