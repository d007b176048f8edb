"""Fetches whose answers nobody reads: what they refer to counts once, and the kernel has little."""

import array
import asyncio
import fcntl
import socket
import termios
from pathlib import Path

from appliance.units import MIB
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.unsent_bounds import FAST_NS, UNSENT_BYTES, WIDE_UNSENT_BYTES
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import Client, LiveBroker, until
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


FETCH = fetch_request([("t", [fetch_part(0, 0, limit=4 * MIB)])], max_bytes=4 * MIB)


async def test_slices_of_the_cache_count_once_and_only_out_of_it(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as broker:
        producer = await broker.connect()
        for _ in range(8):
            assert (await producer.produce("t", 0, [Record(bytes(500_000))])).error == 0
        clients = [await broker.connect() for _ in range(COUNT)]
        for client in clients:
            client.send_bytes(framed(FETCH, 11, 1) * 8)
        server = broker.server
        sessions = list(server._connections)
        await until(lambda: sum(each.shared_bytes > 3 * MIB for each in sessions) == COUNT)
        slices = sum(each.shared_bytes for each in sessions)
        assert server.held_bytes < slices / 2
        assert server.budget.shared_bytes < MIB
        view = broker.broker.log.view
        view.clear()
        server.note_shared()
        # The same few blocks, whoever waits for them.
        assert 3 * MIB < server.budget.shared_bytes == view.memory.size < slices / 2
        for client in clients:
            await client.close()
        await until(lambda: server.budget.shared_bytes < MIB)


async def test_the_kernel_takes_little_of_what_nobody_reads(tmp_path: Path, loop: object) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as broker:
        client = await _produced_and_asked(broker)
        (connection,) = broker.server._connections.values()
        await until(lambda: connection._is_write_paused)
        assert _bound(connection) == UNSENT_BYTES
        # The kernel takes whole buffers.
        assert _unsent_bytes(connection) < 2 * UNSENT_BYTES
        for _ in range(8):
            await client.read_answer()


async def test_the_kernel_takes_more_for_who_reads_fast(tmp_path: Path, loop: object) -> None:
    async with LiveBroker(tmp_path, **SETTINGS) as broker:
        client = await _produced_and_asked(broker)
        (connection,) = broker.server._connections.values()
        bounds = _note_bounds(broker)
        while _bound(connection) == UNSENT_BYTES:
            client.send_bytes(framed(FETCH, 11, 1))
            await client.read_answer()
        assert bounds == [WIDE_UNSENT_BYTES]
        # Now it reads nothing for longer than a fast reader needs.
        client.send_bytes(framed(FETCH, 11, 1) * 8)
        await until(lambda: connection._is_write_paused)
        await asyncio.sleep(1.5 * FAST_NS / 1e9)
        for _ in range(16):
            await client.read_answer()
        assert bounds[:2] == [WIDE_UNSENT_BYTES, UNSENT_BYTES]


async def _produced_and_asked(broker: LiveBroker) -> Client:
    """A client that asked eight times for 4 MB, and has not read."""
    client = await broker.connect()
    for _ in range(8):
        assert (await client.produce("t", 0, [Record(bytes(500_000))])).error == 0
    client.send_bytes(framed(FETCH, 11, 1) * 8)
    return client


def _note_bounds(broker: LiveBroker) -> list[int]:
    """Note each bound that is set from now on."""
    bounds: list[int] = []

    def note(connection: KafkaConnection, size: int) -> None:
        bounds.append(size)
        connection.bound_unsent(size)

    broker.server.unsent._set_bound = note
    return bounds


def _bound(connection: KafkaConnection) -> int:
    kernel = connection._transport.get_extra_info("socket")
    size: int = kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    return size


def _unsent_bytes(connection: KafkaConnection) -> int:
    unsent = array.array("i", [0])
    kernel = connection._transport.get_extra_info("socket")
    fcntl.ioctl(kernel.fileno(), termios.TIOCOUTQ, unsent)
    return unsent[0]
