"""The pump on a real disk: what is acknowledged and visible when, how many syncs that takes, and
what a failing disk does."""

import asyncio
import errno
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from appliance.errors import NotReadyError, StorageError
from appliance.retention import Cleanup
from appliance.units import KIB, MIB
from compat.kafka.network import connection
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import framed
from tests.support.harness.broker_harness import Produced
from tests.support.harness.live_broker import LIMIT_S, Client, LiveBroker, until
from tests.support.harness.small_files import WATERMARK_STEP_BYTES, small_watermark
from tests.support.oracles.kafka_oracle import ProduceResponse
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import Record, build_batch, delay
from tests.support.values.record_requests import produce_request

T = TypeVar("T")

STORAGE_ERROR: Final = int(ErrorCode.kafka_storage_error)

SOON_S: Final = 0.15
"""So long a test looks whether something happens that must not."""


async def does_not_happen(waited_for: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """The task that waits, after a while in which it did not get what it waits for."""
    task = asyncio.ensure_future(waited_for)
    done, _ = await asyncio.wait([task], timeout=SOON_S)
    assert not done, "it happened too early"
    return task


async def until_synced(live: LiveBroker, count: int) -> None:
    """Wait until fdatasync was called `count` times."""
    await until(lambda: live.disk.syncs >= count)


async def test_sync_flush_acknowledges_after_the_disk_has_it(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        live.disk.hold()
        client.send_produce("t", 0, [Record(b"a")])
        answer = await does_not_happen(client.read_produced())
        live.disk.let_go()
        assert await answer == Produced(0, 0, None)


async def test_sync_flush_shows_a_record_after_the_disk_has_it(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        producer, consumer = await live.connect(), await live.connect()
        live.disk.hold()
        producer.send_produce("t", 0, [Record(b"a")])
        await until_synced(live, live.disk.syncs + 1)
        assert await consumer.fetch("t", 0, 0) == []
        consumer.send_fetch("t", 0, 0, wait_ms=10_000)
        waiting = await does_not_happen(consumer.read_fetched())
        live.disk.let_go()
        assert [record.value for record in await waiting] == [b"a"]


async def test_requests_that_come_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, 8) as live:
        clients = [await live.connect() for _ in range(8)]
        live.disk.hold()
        before = live.disk.syncs
        clients[0].send_produce("t", 0, [Record(b"first")])
        await until_synced(live, before + 1)
        for partition, client in enumerate(clients[1:], 1):
            for _ in range(5):
                client.send_produce("t", partition, [Record(b"x")])
        partitions = live.broker.topics.all()[0].partitions
        await until(lambda: sum(p.next_offset for p in partitions) == 36)
        live.disk.let_go()
        await clients[0].read_produced()
        for client in clients[1:]:
            assert [(await client.read_produced()).error for _ in range(5)] == [0] * 5
        # One was under way; all that came meanwhile took one more.
        assert live.disk.syncs - before == 2


@pytest.mark.parametrize("acks", [-1, 0])
async def test_a_fast_producer_waits_for_a_slow_disk(tmp_path: Path, acks: int) -> None:
    """What it sends beyond the backlog stays unread, so nobody waits long after it."""
    backlog, count, size = 256 * KIB, 400, 7 * KIB
    async with LiveBroker(
        tmp_path, segment_size_bytes=8 * MIB, flush_backlog_max_bytes=backlog
    ) as live:
        producer, other = await live.connect(), await live.connect()
        live.disk.hold()
        for _ in range(count):
            producer.send_produce("t", 0, [Record(bytes(size))], acks=acks)
        start = live.broker.flushed_pos
        await until(lambda: live.server.pump.release.is_backed_up)
        await asyncio.sleep(SOON_S)
        # What one read of the socket brought is taken whole.
        assert backlog < live.broker.wrote_pos - start < backlog + MIB
        # Others are served.
        assert await other.fetch("t", 0, 0) == []
        live.disk.let_go()
        for number in range(count if acks else 0):
            assert (await producer.read_produced()).base_offset == number
        assert (await producer.produce("t", 0, [Record(b"last")])).base_offset == count


@pytest.mark.parametrize("is_stalled", [False, True])
async def test_a_long_request_waits_for_the_disk_between_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stalled: bool
) -> None:
    """Unless the disk takes so long that the request would not be answered in its time."""
    settings = {
        "segment_size_bytes": 64 * MIB,
        "flush_backlog_max_bytes": MIB,
        "batch_size_max_bytes": 2 * MIB,
        "decompressed_size_max_bytes": 2 * MIB,
        "request_decompressed_size_max_bytes": 2 * MIB,
        "record_size_max_bytes": 2 * MIB,
        "request_size_max_bytes": 32 * MIB,
        "inflight_max_bytes": 64 * MIB,
    }
    if is_stalled:
        monkeypatch.setattr(connection, "HELD_MS", 0)
    async with LiveBroker(tmp_path, 12, **settings) as live:
        producer, other = await live.connect(), await live.connect()
        live.disk.hold()
        parts = [(each, build_batch([Record(bytes(MIB))])) for each in range(12)]
        producer.send_bytes(framed(produce_request([("t", parts)]), 8, 1))
        start = live.broker.flushed_pos
        await until(lambda: live.server.pump.release.is_backed_up)
        if is_stalled:
            await until(lambda: live.broker.wrote_pos - start > 12 * MIB)
        else:
            await asyncio.sleep(SOON_S)
            # What one turn takes, and the batch in which it ended.
            assert live.broker.wrote_pos - start < 5 * MIB
        assert await other.fetch("t", 0, 0) == []
        live.disk.let_go()
        answer = ProduceResponse.decode(await producer.read_answer(), 8, header=True)
        (topic,) = answer.responses
        found = [(each.error_code, each.base_offset) for each in topic.partition_responses]
        assert found == [(0, 0)] * 12


async def test_producers_get_less_far_ahead_while_due_records_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    settings = {"segment_size_bytes": 8 * MIB, "flush_backlog_max_bytes": 256 * KIB}
    async with LiveBroker(tmp_path, 2, clock=clock, **settings) as live:
        producer, other = await live.connect(), await live.connect()
        pump, start = live.server.pump, live.broker.flushed_pos
        await other.produce("t", 1, [Record(b"due", headers=[("x-delay", b"250")])])
        live.disk.hold()
        for _ in range(20):
            producer.send_produce("t", 0, [Record(bytes(7 * KIB))])
        await until(lambda: live.broker.wrote_pos - start > 139 * KIB)
        assert not pump.release.is_backed_up
        clock.advance_ms(250)
        await until(lambda: live.broker.pending_timers == 0)
        assert pump.release.is_backed_up
        live.disk.let_go()
        await until(lambda: live.broker.flushed_pos == live.broker.wrote_pos)
        assert not pump.release.is_backed_up


async def test_async_flush_acknowledges_before_the_disk_has_it(tmp_path: Path) -> None:
    settings = {"flush": "async", "flush_interval_ms": 1000, "flush_bound_ms": 60_000}
    async with LiveBroker(tmp_path, **settings) as live:
        client = await live.connect()
        live.disk.hold()
        assert await client.produce("t", 0, [Record(b"a")]) == Produced(0, 0, None)
        assert [record.value for record in await client.fetch("t", 0, 0)] == [b"a"]
        assert live.broker.flushed_pos < live.broker.committed_pos


async def test_the_event_loop_never_waits_until_the_log_may_be_written_further(
    tmp_path: Path,
) -> None:
    settings = {"flush": "async", "flush_bound_ms": 60_000, "segment_size_bytes": MIB}
    with small_watermark():
        async with LiveBroker(tmp_path, **settings) as live:
            client = await live.connect()
            log, disk = live.broker.log, live.disk
            disk.hold(log_only=True)  # one flush lasts longer than it takes to get there
            disk.synced_by.clear()
            for _ in range(5 * WATERMARK_STEP_BYTES // (4 * KIB)):
                assert (await client.produce("t", 0, [Record(bytes(4 * KIB))])).error == 0
                await until(
                    lambda: log.watermark.pos - log.pointers.committed > WATERMARK_STEP_BYTES // 2
                )
            assert live.broker.flushed_pos < live.broker.committed_pos - 4 * WATERMARK_STEP_BYTES
            assert threading.current_thread() not in disk.synced_by


async def test_async_flush_acknowledges_up_to_its_bound_and_not_a_millisecond_longer(
    tmp_path: Path,
) -> None:
    settings = {"flush": "async", "flush_interval_ms": 1, "flush_bound_ms": 500}
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock, **settings) as live:
        client = await live.connect()
        live.disk.hold()
        assert (await client.produce("t", 0, [Record(b"a")])).error == 0
        clock.advance_ms(500)
        assert (await client.produce("t", 0, [Record(b"b")])).error == 0
        clock.advance_ms(1)
        client.send_produce("t", 0, [Record(b"c")])
        answer = await does_not_happen(client.read_produced())
        # A reason other than the bound would let the broker acknowledge what it has written.
        assert live.server.pump.release.durable_pos == live.broker.flushed_pos
        assert live.broker.flushed_pos < live.broker.committed_pos
        live.disk.let_go()
        assert await answer == Produced(0, 2, None)
        assert (await client.produce("t", 0, [Record(b"d")])).error == 0


async def test_async_flush_reaches_the_disk_without_further_requests(tmp_path: Path) -> None:
    settings = {"flush": "async", "flush_interval_ms": 10, "flush_bound_ms": 200}
    async with LiveBroker(tmp_path, **settings) as live:
        client = await live.connect()
        await client.produce("t", 0, [Record(b"a")])
        await until(lambda: live.broker.flushed_pos == live.broker.committed_pos)


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_failed_sync_ends_the_process_and_acknowledges_nothing(
    tmp_path: Path, flush: str
) -> None:
    settings = {"flush": flush, "flush_interval_ms": 10, "flush_bound_ms": 10}
    async with LiveBroker(tmp_path, **settings) as live:
        client = await live.connect()
        live.disk.hold()
        live.disk.error = StorageError(tmp_path, "fdatasync", errno.EIO, "broken")
        await asyncio.sleep(0.05)  # async: let the bound pass for what is not flushed
        client.send_produce("t", 0, [Record(b"a")])
        answer = asyncio.ensure_future(client.read_produced())
        if flush == "sync":
            live.disk.let_go()
            failure = await asyncio.wait_for(live.server.pump.failure, LIMIT_S)
            assert failure is live.disk.error
            assert not answer.done()
        else:
            await asyncio.wait([answer], timeout=SOON_S)
            live.disk.let_go()
            assert await asyncio.wait_for(live.server.pump.failure, LIMIT_S) is live.disk.error
        syncs = live.disk.syncs
        await asyncio.sleep(SOON_S)
        assert live.disk.syncs == syncs, "a failed sync was tried again"
        answer.cancel()


async def test_due_timers_wake_a_waiting_consumer(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        producer, consumer = await live.connect(), await live.connect()
        late, soon = (
            Record(value, headers=delay(delay_ms))
            for value, delay_ms in ((b"late", 120), (b"soon", 40))
        )
        await producer.produce("t", 0, [late, soon])
        values: list[bytes] = []
        while len(values) < 2:
            found = await consumer.fetch("t", 0, len(values), wait_ms=10_000)
            now_ms = live.broker.clock.wall_ms()
            for record in found:
                assert int(record.header("x-due-at") or b"0") <= now_ms
            values += [record.value for record in found]
        assert values == [b"soon", b"late"]


async def test_answers_keep_their_order_after_a_long_poll(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, 2) as live:
        client, other = await live.connect(), await live.connect()
        client.send_fetch("t", 0, 0, wait_ms=10_000)
        client.send_produce("t", 1, [Record(b"behind")])
        first = await does_not_happen(client.read_fetched())
        await other.produce("t", 0, [Record(b"a")])
        assert [record.value for record in await first] == [b"a"]
        assert await client.read_produced() == Produced(0, 0, None)


async def test_a_long_poll_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        assert await client.fetch("t", 0, 0, wait_ms=30) == []
        assert live.broker.topics.all()[0].partitions[0].waiters == {}


async def refused(client: Client, data: bytes) -> None:
    client.send_bytes(data)
    assert await client.is_closed_by_broker()


async def test_garbage_closes_its_connection_and_no_other(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        good = await live.connect()
        for data in (
            b"\xff\xff\xff\xff",
            b"\x7f\xff\xff\xff" + b"x" * 100,
            b"\0\0\0\x07" + b"x" * 7,
            b"\0\0\0\x0a\0\0\0\x09" + b"\xff" * 6,
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            await refused(await live.connect(), data)
        assert (await good.produce("t", 0, [Record(b"a")])).error == 0


async def test_a_refused_batch_with_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        client.send_produce("t", 0, [Record(b"a")], acks=0)
        assert (await client.produce("t", 0, [Record(b"b")])).base_offset == 1
        client.send_produce("t", 0, [Record(b"c", headers=(("x-delay", b"soon"),))], acks=0)
        assert await client.is_closed_by_broker()


async def test_a_client_that_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        client, other = await live.connect(), await live.connect()
        await client.produce("t", 0, [Record(b"x" * 6000)])
        # Each answer has 6 KB; 20,000 of them do not fit into any socket buffer.
        for _ in range(20_000):
            client.send_fetch("t", 0, 0)
        assert (await other.produce("t", 0, [Record(b"y")])).error == 0
        await asyncio.sleep(0.3)
        session = next(iter(live.server._connections))
        assert session.requests < 20_000
        for _ in range(20_000):
            assert len(await client.read_fetched()) >= 1


async def test_a_file_system_that_does_not_say_how_full_it_is_holds_up_nothing(
    tmp_path: Path,
) -> None:
    is_answered = threading.Event()

    def answer(_: Path) -> tuple[int, int]:
        assert is_answered.wait(LIMIT_S), "the test never let it answer"
        return 95 * MIB, 5 * MIB

    async with LiveBroker(tmp_path, disk_refuse_percent=90) as live:
        live.disk.answer_usage = answer
        client = await live.connect()
        waits = live.disk.usage_calls
        await until(lambda: live.disk.usage_calls > waits)
        assert (await client.produce("t", 0, [Record(b"a")])).error == 0
        is_answered.set()
        await until(lambda: live.broker.disk_space.refusal is not None)
        assert (await client.produce("t", 0, [Record(b"a")])).error == STORAGE_ERROR
        live.disk.answer_usage = lambda _: (50 * MIB, 50 * MIB)
        await until(lambda: live.broker.disk_space.refusal is None)
        assert (await client.produce("t", 0, [Record(b"a")])).error == 0


async def test_cleanups_run_one_after_the_other_and_end_when_the_broker_stops(
    tmp_path: Path,
) -> None:
    async with LiveBroker(tmp_path, retention_time_ms=-1) as live:
        client = await live.connect()
        assert (await client.produce("t", 0, [Record(b"a")])).error == 0
        pump, found = live.server.pump, [Cleanup(before_ms=0) for _ in range(20)]
        await asyncio.gather(*(pump.clean_up(each) for each in found))
        assert all(each.done is not None and not each.expired for each in found)
        waiting = [asyncio.ensure_future(pump.clean_up(Cleanup())) for _ in range(3)]
        await asyncio.sleep(0)
        await pump.stop()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, NotReadyError) for each in ended)
