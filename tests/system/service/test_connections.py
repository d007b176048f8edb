"""Connections that misbehave harm no other connection, and lose nothing."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from appliance.broker import Broker
from appliance.errors import StorageError, UnappliedChangeError
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.state.topic_store import TopicStore
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import KIB, MIB
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.read_pace import BURST_BYTES
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import LIMIT_S, LiveBroker, until
from tests.support.oracles.kafka_oracle import CreateTopicsRequest
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import produce_request

MALFORMED_METADATA = b"\0\0\0\x0e" + b"\0\x03\0\x05" + b"\0\0\0\x07" + b"\xff\xff" + b"\x7f" * 4
TINY_API_VERSIONS = b"\0\0\0\x0a" + b"\0\x12\0\0" + b"\0\0\0\x07" + b"\xff\xff"


async def test_a_batch_in_front_of_garbage_is_stored_whole(tmp_path: Path) -> None:
    """Its bytes lie in the buffer of a connection that is about to be closed."""
    async with LiveBroker(tmp_path) as live:
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
    assert again.topics.all()[0].partitions[0].next_offset == 4
    again.close()


async def test_a_flood_of_tiny_requests_is_answered_in_order(tmp_path: Path) -> None:
    settings = {"request_size_max_bytes": 4 * MIB}
    async with LiveBroker(tmp_path, **settings) as live:
        client, other = await live.connect(), await live.connect()
        # A large request first: its buffer then takes in thousands of small ones at once.
        client.send_produce("no such topic", 0, [Record(b"x" * 3 * MIB)])
        assert (await client.read_produced()).error == 3
        client.send_bytes(TINY_API_VERSIONS * 30_000)
        assert (await other.produce("t", 0, [Record(b"a")])).error == 0
        for _ in range(30_000):
            await client.read_answer()
        assert not live.server.pump.has_failed


async def test_requests_and_refusals_are_counted(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
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


async def test_a_sync_that_fails_during_the_stop_is_not_tried_again(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
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


@pytest.mark.parametrize("count", [1, 8])
async def test_a_connection_with_answers_on_their_way_is_closed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """However its last answers leave: the socket takes a little of them at a time."""
    async with LiveBroker(tmp_path, segment_size_bytes=8 * MIB) as live:
        client = await live.connect()
        for _ in range(50):
            await client.produce("t", 0, [Record(bytes(7 * KIB))])
        (connection,) = live.server._connections.values()
        its_socket = connection._transport.get_extra_info("socket")
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
        for _ in range(count):
            client.send_fetch("t", 0, 0)
        client.send_bytes(MALFORMED_METADATA)
        assert len(await client.read_to_the_end()) > count * 300 * KIB
        await until(lambda: live.server.connection_count == 0)
        assert live.broker.metrics.connections_closed == {"request": 1}
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_a_change_that_takes_half_effect_ends_the_process_and_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that asked for it is cut off as after any mistake of ours; that alone would
    leave memory and log apart for everybody else."""

    def fail(*_: object) -> None:
        raise ArithmeticError("a mistake")

    async with LiveBroker(tmp_path) as live:
        client, other = await live.connect(), await live.connect()
        assert (await other.produce("t", 0, [Record(b"a")])).error == 0
        end = live.broker.committed_pos
        monkeypatch.setattr(TopicStore, "_apply", fail)
        topic = CreateTopicsRequest.CreatableTopic(
            name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=False)
        client.send_bytes(framed(request, 4, 1))
        failure = await asyncio.wait_for(live.server.pump.failure, LIMIT_S)
        assert isinstance(failure, UnappliedChangeError)
        assert live.broker.committed_pos == end
        other.send_produce("t", 0, [Record(b"b")])
        await live.server.stop()
        assert live.broker.committed_pos == end
    monkeypatch.undo()
    again = Broker(SystemClock(), OsFileSystem(), live.broker.config, KAFKA_FACADE)
    for _ in again.recover():
        pass
    assert [topic.name for topic in again.topics.all()] == ["t"]
    assert again.report.damage == ()
    again.close()


async def test_nothing_is_handled_after_the_stop_has_begun(tmp_path: Path) -> None:
    """What a connection left for its next turn comes too late, and does not make it an unclean
    one."""
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        assert (await client.produce("t", 0, [Record(b"a")])).error == 0
        (connection,) = live.server._connections.values()
        request = framed(produce_request([("t", [(0, make_batch([Raw(b"b")]))])]), 8, 1)
        connection.get_buffer(-1)[: len(request)] = request
        stopping = asyncio.ensure_future(live.server.stop())
        await until(lambda: live.server.pump.is_stopped)
        end = live.broker.wrote_pos
        connection.buffer_updated(len(request))
        await asyncio.wait_for(stopping, LIMIT_S)
        assert live.broker.wrote_pos == end
        assert not live.server.pump.has_failed


@pytest.mark.usefixtures("loop")
async def test_a_flood_leaves_the_loop_time_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop alone would read 32 times in a row."""
    read_in_turn = [0]

    def count(connection: KafkaConnection, nbytes: int) -> None:
        read_in_turn[-1] += nbytes
        handle(connection, nbytes)

    handle = KafkaConnection.buffer_updated
    monkeypatch.setattr(KafkaConnection, "buffer_updated", count)

    loop = asyncio.get_running_loop()

    def turn() -> None:
        read_in_turn.append(0)
        loop.call_soon(turn)

    sizes = {"request_size_max_bytes": 2 * MIB, "batch_size_max_bytes": MIB}
    records = {"record_size_max_bytes": MIB, "decompressed_size_max_bytes": 2 * MIB}
    settings = {"flush": "async", "segment_size_bytes": 64 * MIB, **sizes, **records}
    async with LiveBroker(tmp_path, **settings) as live:
        turn()
        batch = make_batch([Raw(bytes(200 * KIB))])
        request = framed(produce_request([("t", [(0, batch)])]), 8, 1)
        with socket.create_connection(live.server.bound) as flood:
            await loop.run_in_executor(None, flood.sendall, request * 100)
            await until(lambda: live.broker.topics.all()[0].partitions[0].next_offset == 100)
    assert sum(read_in_turn) > 100 * 200 * KIB
    # A read that is under way when enough was read may bring a buffer more.
    assert max(read_in_turn) < BURST_BYTES + 2 * MIB
