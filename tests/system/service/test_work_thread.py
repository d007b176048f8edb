"""Work of requests that a thread does: who waits for it, and what becomes of errors in it."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from appliance.work_thread import FLUSHES_MAX, UNFLUSHED_MAX_BYTES, Turn, WorkThread
from compat.kafka import dispatch
from compat.kafka.protocol import codecs
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.oracles.kafka_oracle import ListOffsetsResponse, decode_response
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import ZSTD, Raw, compress, make_batch, records_of
from tests.support.values.record_requests import produce_request
from tests.support.values.topic_requests import list_offset_request

KIB = 1024
MIB = 1024 * KIB
STORAGE_ERROR = 56
OUT_OF_SEQUENCE = 45


def settings(unpacked_max_bytes: int = 6 * MIB) -> dict[str, Any]:
    return {
        "batch_size_max_bytes": MIB,
        "decompressed_size_max_bytes": unpacked_max_bytes,
        "request_decompressed_size_max_bytes": 64 * MIB,
        "record_size_max_bytes": unpacked_max_bytes,
        "request_size_max_bytes": 16 * MIB,
        "segment_size_bytes": 32 * MIB,
        "inflight_max_bytes": 64 * MIB,
    }


def large_batch(size: int = 2 * MIB) -> bytes:
    return make_batch(
        compress(ZSTD, records_of([Raw(b"a"), Raw(bytes(size))])), count=2, attributes=ZSTD
    )


def produce(batch: bytes) -> bytes:
    return framed(produce_request([("t", [(0, batch)])]), 8, 1)


class HeldCodec:
    """Lets threads, but not the loop, wait before they unpack.

    Attributes:
        entered: set when a thread waits.
        count: how often a thread began to unpack.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.count = 0
        self._may_go_on = threading.Event()
        self._loop_thread = threading.get_ident()
        self._unpack = codecs._DECOMPRESSORS[ZSTD]
        monkeypatch.setitem(codecs._DECOMPRESSORS, ZSTD, self._wait)

    def _wait(self, data: memoryview, size_max: int) -> bytes:
        if threading.get_ident() != self._loop_thread:
            self.count += 1
            self.entered.set()
            assert self._may_go_on.wait(30)
        return self._unpack(data, size_max)

    def let_go(self) -> None:
        self._may_go_on.set()

    def hold(self) -> None:
        """Hold threads again, and count anew."""
        self._may_go_on.clear()
        self.entered.clear()
        self.count = 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldCodec]:
    codec = HeldCodec(monkeypatch)
    yield codec
    codec.let_go()


async def test_others_are_served_while_a_thread_unpacks(tmp_path: Path, held: HeldCodec) -> None:
    async with LiveBroker(tmp_path, **settings()) as live:
        large, small = await live.connect(), await live.connect()
        large.send_bytes(produce(large_batch()))
        await until(held.entered.is_set)
        assert (await small.produce("t", 0, [Record(b"b")])).base_offset == 0
        held.let_go()
        assert (await large.read_produced()).base_offset == 1
        assert (await large.produce("t", 0, [Record(b"c")])).base_offset == 3


async def test_requests_that_wait_for_the_thread_share_the_memory(
    tmp_path: Path, held: HeldCodec
) -> None:
    """They are complete, but nothing frees them before their turn."""
    count, random_bytes = 40, Random(7).randbytes(700 * KIB)
    records = records_of([Raw(random_bytes), Raw(bytes(2 * MIB))])
    request = produce(make_batch(compress(ZSTD, records), count=2, attributes=ZSTD))
    limit = 4 * MIB
    async with LiveBroker(tmp_path, **settings() | {"inflight_max_bytes": limit}) as live:
        clients = [await live.connect() for _ in range(count)]
        for client in clients:
            client.send_bytes(request)
        await until(lambda: live.server.budget.is_scarce and held.entered.is_set())
        other = await live.connect()
        for _ in range(20):  # many turns of the loop, in which more could arrive
            assert (await other.produce("t", 0, [Record(b"b")])).error == 0
            assert live.server.budget.total_bytes < limit + count * 400 * KIB
        held.let_go()
        assert sorted([(await client.read_produced()).error for client in clients]) == [0] * count


async def test_whoever_hangs_up_has_no_turn(tmp_path: Path, held: HeldCodec) -> None:
    """Of 20 searches that wait for the thread, it works for the one whose client stays."""
    async with LiveBroker(tmp_path, **settings()) as live:
        stored, first = await live.connect(), await live.connect()
        held.let_go()
        stored.send_bytes(produce(large_batch()))
        assert (await stored.read_produced()).error == 0
        held.hold()
        first.send_bytes(produce(large_batch()))
        await until(held.entered.is_set)
        waiting = [await live.connect() for _ in range(20)]
        for client in waiting:
            client.send_bytes(framed(list_offset_request("t", [0], 5), 5, 1))
        work = live.server.pump.work
        await until(lambda: work.waiting_count == 20)
        assert live.server.held_bytes < MIB
        for client in waiting[:-1]:
            await client.close()
        await until(lambda: live.server.connection_count == 3)
        held.let_go()
        assert (await first.read_produced()).error == 0
        answer = decode_response(ListOffsetsResponse, 5, await waiting[-1].read_answer())
        assert answer.topics[0].partitions[0].error_code == 0
        assert held.count == 2
        assert work.waiting_count == 0


async def test_a_large_batch_behind_one_that_needs_no_thread_any_more(
    tmp_path: Path, held: HeldCodec
) -> None:
    """While the first waits, its producer goes on elsewhere: it is out of sequence then."""
    large = make_batch(
        compress(ZSTD, records_of([Raw(b"a"), Raw(bytes(2 * MIB))])),
        count=2,
        attributes=ZSTD,
        producer_id=7,
        producer_epoch=0,
        base_sequence=5,
    )
    small = make_batch([Raw(b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    async with LiveBroker(tmp_path, **settings()) as live:
        first, both, other = await live.connect(), await live.connect(), await live.connect()
        first.send_bytes(produce(large_batch()))
        await until(held.entered.is_set)
        both.send_bytes(produce(large) + produce(large_batch()))
        await until(lambda: live.server.pump.work.waiting_count == 1)
        other.send_bytes(produce(small))
        assert (await other.read_produced()).error == 0
        held.let_go()
        assert (await first.read_produced()).error == 0
        assert (await both.read_produced()).error == OUT_OF_SEQUENCE
        assert (await both.read_produced()).base_offset == 3


async def test_a_search_that_waits_keeps_nothing_of_a_client_that_is_gone(
    tmp_path: Path, held: HeldCodec
) -> None:
    async with LiveBroker(tmp_path, **settings()) as live:
        held.let_go()
        client, first = await live.connect(), await live.connect()
        client.send_bytes(produce(large_batch()))
        assert (await client.read_produced()).error == 0
        held.hold()
        first.send_bytes(produce(large_batch()))
        await until(held.entered.is_set)
        gone = await live.connect()
        gone.send_bytes(framed(list_offset_request("t", [0], 5), 5, 1))
        await until(lambda: live.server.pump.work.waiting_count == 1)
        gc.collect()
        assert find_requests()
        await gone.close()
        await until(lambda: live.server.connection_count == 2)
        gc.collect()
        assert not find_requests()
        held.let_go()  # else the broker waits for its thread


def find_requests() -> list[object]:
    """The decoded requests of the control plane that something refers to."""
    return [each for each in gc.get_objects() if isinstance(each, dispatch._Request)]


async def test_a_stored_batch_beyond_a_lower_limit_fails_its_search_only(tmp_path: Path) -> None:
    """The limit was larger when it was accepted."""
    async with LiveBroker(tmp_path, **settings()) as live:
        client = await live.connect()
        client.send_bytes(produce(large_batch(4 * MIB)))
        assert (await client.read_produced()).error == 0
    async with LiveBroker(tmp_path, **settings(2 * MIB)) as live:
        client = await live.connect()
        client.send_bytes(framed(list_offset_request("t", [0], 5), 5, 1))
        answer = decode_response(ListOffsetsResponse, 5, await client.read_answer())
        assert answer.topics[0].partitions[0].error_code == STORAGE_ERROR
        assert not live.server.pump.has_failed
        assert (await client.produce("t", 0, [Record(b"b")])).error == 0


@pytest.mark.parametrize("is_search", [False, True])
async def test_a_bug_in_the_work_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_search: bool
) -> None:
    async with LiveBroker(tmp_path, **settings()) as live:
        client, failed = await live.connect(), await live.connect()
        client.send_bytes(produce(large_batch()))
        assert (await client.read_produced()).error == 0
        unpack, loop_thread = codecs._DECOMPRESSORS[ZSTD], threading.get_ident()

        def fail(data: memoryview, size_max: int) -> bytes:
            if threading.get_ident() != loop_thread:
                raise ZeroDivisionError("a bug")
            return unpack(data, size_max)

        monkeypatch.setitem(codecs._DECOMPRESSORS, ZSTD, fail)
        request = framed(list_offset_request("t", [0], 5), 5, 1)
        failed.send_bytes(request if is_search else produce(large_batch()))
        assert await failed.is_closed_by_broker()
        assert not live.server.pump.has_failed
        assert (await client.produce("t", 0, [Record(b"b")])).error == 0


async def test_turns_come_in_order_and_only_to_those_who_still_want_them() -> None:
    seen: list[str] = []
    failures: list[BaseException] = []

    def guard(step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 (as the pump does)
            failures.append(error)

    thread = WorkThread(asyncio.get_running_loop(), guard, lambda: 0)

    def turn(name: str, work: Callable[[], None] | None) -> Turn:
        def begin() -> Callable[[], None] | None:
            seen.append(f"begin {name}")
            return work

        return Turn(begin, lambda: seen.append(f"then {name}"), lambda _: seen.append(f"no {name}"))

    def fail() -> None:
        raise ValueError

    for name, work in (("a", lambda: None), ("gone", None), ("bad", fail), ("b", lambda: None)):
        thread.ask(turn(name, work))
    assert seen == []
    await until(lambda: seen[-1:] == ["then b"])
    assert seen == ["begin a", "then a", "begin gone", "begin bad", "no bad", "begin b", "then b"]
    assert not failures
    thread.shutdown()


async def test_addresses_take_turns_for_the_thread() -> None:
    seen: list[str] = []
    thread = WorkThread(asyncio.get_running_loop(), lambda step: step(), lambda: 0)
    for name in ("a1", "a2", "a3", "b1"):
        then = partial(seen.append, name)
        thread.ask(Turn(lambda: lambda: None, then, lambda _: None, name[0]))
    await until(lambda: len(seen) == 4)
    assert seen == ["a1", "b1", "a2", "a3"]
    thread.shutdown()


async def test_work_that_appends_waits_for_the_disk_but_not_for_ever() -> None:
    seen: list[str] = []
    unflushed_bytes = UNFLUSHED_MAX_BYTES + 1
    loop = asyncio.get_running_loop()
    thread = WorkThread(loop, lambda step: step(), lambda: unflushed_bytes)

    def ask(name: str, *, is_append: bool = True) -> None:
        then = lambda: seen.append(name)  # noqa: E731 (two words more say no more)
        thread.ask(Turn(lambda: lambda: None, then, lambda _: None, is_append=is_append))

    async def waits(count: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        assert thread.waiting_count == count

    ask("a search", is_append=False)
    await until(lambda: seen == ["a search"])
    for name in ("first", "second", "third"):
        ask(name)
    await waits(3)
    unflushed_bytes = UNFLUSHED_MAX_BYTES
    thread.note_flush()
    await until(lambda: len(seen) == 4)
    assert seen[1:] == ["first", "second", "third"]
    unflushed_bytes += 1
    ask("others write all the time")
    for _ in range(FLUSHES_MAX - 1):
        thread.note_flush()
        await waits(1)
    thread.note_flush()
    await until(lambda: len(seen) == 5)
    thread.shutdown()


async def test_a_large_batch_is_not_unpacked_while_another_waits_for_the_disk(
    tmp_path: Path, held: HeldCodec
) -> None:
    held.let_go()
    async with LiveBroker(tmp_path, **settings() | {"batch_size_max_bytes": 4 * MIB}) as live:
        first, second, small = await live.connect(), await live.connect(), await live.connect()
        live.disk.hold()
        first.send_produce("t", 0, [Record(bytes(UNFLUSHED_MAX_BYTES + 1))])
        await until(lambda: live.broker.committed_pos - live.broker.flushed_pos > 2 * MIB)
        second.send_bytes(produce(large_batch()))
        await until(lambda: live.server.pump.work.waiting_count == 1)
        before = live.broker.committed_pos
        small.send_produce("t", 0, [Record(b"small")])
        await until(lambda: live.broker.committed_pos > before)
        assert held.count == 0
        live.disk.let_go()
        assert (await first.read_produced()).base_offset == 0
        assert (await small.read_produced()).base_offset == 1
        assert (await second.read_produced()).base_offset == 2
        assert held.count == 1
