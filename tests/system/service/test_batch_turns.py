"""Batches that become much larger in the log wait while clients that ask for little are served."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from appliance.loop_turns import LoopTurns
from appliance.system.clock import SystemClock
from appliance.units import KIB, MIB, MS_PER_SECOND, NS_PER_MS
from compat.kafka.network.batch_turns import WAIT_MAX_NS
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import ZSTD, Raw, compress, make_batch, records_of
from tests.support.values.record_requests import produce_request

HELD: Final = ((b"x-delay", b"3600000"),)
BATCH_BYTES: Final = 3 * MIB
STORAGE_ERROR: Final = 56
PAID_NS: Final = 3 * MS_PER_SECOND * NS_PER_MS
"""In this time an address pays for a batch."""


class StillClock(SystemClock):
    """A clock that moves when it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1

    def monotonic_ns(self) -> int:
        return self.now_ns


class Stage:
    """A broker that serves clients that ask for little, as far as it knows.

    Attributes:
        live: the broker.
        clock: of the broker.
    """

    def __init__(self, live: LiveBroker, clock: StillClock) -> None:
        self.live = live
        self.clock = clock

    @property
    def held_back(self) -> int:
        return self.live.broker.metrics.batches_held_back

    @property
    def waiting_count(self) -> int:
        return self.live.server.batches.held_count

    async def use_up_credit(self) -> Client:
        """A client whose address owes more than its credit, for less than PAID_NS."""
        client = await self.live.connect()
        for _ in range(3):
            client.send_bytes(zeros())
            assert (await client.read_produced()).error == 0
        assert self.held_back == 0
        return client

    async def is_served(self) -> bool:
        """Whether a batch that is not compressed is accepted at once."""
        client = await self.live.connect()
        return (await client.produce("t", 1, [Record(b"b")])).error == 0


@pytest.fixture(autouse=True)
def _serves_light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopTurns, "serves_light", lambda turns, now_ns: True)


@asynccontextmanager
async def staged(tmp_path: Path) -> AsyncIterator[Stage]:
    clock = StillClock()
    settings: dict[str, Any] = {
        "batch_size_max_bytes": MIB,
        "record_size_max_bytes": 4 * MIB,
        "delayed_size_max_bytes": 4 * MIB,
        "decompressed_size_max_bytes": 4 * MIB,
        "request_decompressed_size_max_bytes": 64 * MIB,
        "request_size_max_bytes": 16 * MIB,
        "segment_size_bytes": 64 * MIB,
        "inflight_max_bytes": 64 * MIB,
    }
    async with LiveBroker(tmp_path, 5, clock=clock, **settings) as live:
        yield Stage(live, clock)


def packed(value: bytes, headers: tuple[tuple[bytes, bytes], ...], **fields: Any) -> bytes:
    """A request with a record in a compressed batch; its fields may be given."""
    records = compress(ZSTD, records_of([Raw(value, headers=headers)]))
    batch = make_batch(records, count=1, attributes=ZSTD, **fields)
    return framed(produce_request([("t", [(0, batch)])]), 8, 1)


def zeros(size: int = BATCH_BYTES) -> bytes:
    """A request with a held record that is compressed to almost nothing."""
    return packed(bytes(size), HELD)


async def test_an_address_that_owes_too_much_waits_and_then_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path) as stage:
        caplog.set_level(logging.WARNING)
        client = await stage.use_up_credit()
        client.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 1)
        assert await stage.is_served()
        assert stage.live.broker.pending_timers == 3
        assert stage.held_back == 1
        assert [line.getMessage() for line in caplog.records] == [
            "compressed batches from 127.0.0.1 wait: delayed records are stored unpacked, and "
            "these take more than 256 times their size of the log; beyond that an address gets "
            "1 MiB/s"
        ]
        stage.clock.now_ns += PAID_NS
        assert (await client.read_produced()).error == 0
        assert stage.live.broker.pending_timers == 4
        assert stage.waiting_count == 0


async def test_those_that_wait_go_one_after_the_other(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.use_up_credit()
        clients = [await stage.live.connect() for _ in range(3)]
        for number, client in enumerate(clients, 1):
            client.send_bytes(zeros())
            await until(lambda number=number: stage.waiting_count == number)  # type: ignore[misc]
        for number, client in enumerate(clients, 1):
            stage.clock.now_ns += PAID_NS
            assert (await client.read_produced()).error == 0
            assert await stage.is_served()
            assert stage.live.broker.pending_timers == 3 + number
            assert stage.waiting_count == 3 - number


async def test_those_that_waited_for_the_thread_already_wait_as_well(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        clients = [await stage.live.connect() for _ in range(6)]
        for client in clients:
            client.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 3)
        assert stage.live.broker.pending_timers == 3
        for _ in range(3):
            stage.clock.now_ns += PAID_NS
            waiting = stage.waiting_count
            await until(lambda waiting=waiting: stage.waiting_count < waiting)  # type: ignore[misc]
        for client in clients:
            assert (await client.read_produced()).error == 0


async def test_small_compressed_batches_wait_as_well_and_others_do_not(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        client = await stage.use_up_credit()
        client.send_bytes(packed(b"a", ()))
        await until(lambda: stage.waiting_count == 1)
        assert await stage.is_served()
        stage.clock.now_ns += PAID_NS
        assert (await client.read_produced()).error == 0


async def test_other_addresses_do_not_wait(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.use_up_credit()
        other = await stage.live.connect("127.0.0.2")
        other.send_bytes(zeros())
        assert (await other.read_produced()).error == 0
        assert stage.held_back == 0


async def test_a_connection_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.use_up_credit()
        gone, stays = await stage.live.connect(), await stage.live.connect()
        gone.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 1)
        (waiting,) = stage.live.server.batches._asked
        stays.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 2)
        waiting.abort()
        await until(lambda: stage.waiting_count == 1)
        stage.clock.now_ns += PAID_NS
        assert (await stays.read_produced()).error == 0
        assert stage.live.broker.pending_timers == 4
        assert not stage.live.server.batches._asked


async def test_a_batch_that_waits_too_long_is_refused_and_may_come_again(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        client = await stage.use_up_credit()
        for _ in range(5):  # they are sent before anybody has to wait
            stage.live.server.batches.charge("127.0.0.1", BATCH_BYTES)
        client.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 1)
        stage.clock.now_ns += WAIT_MAX_NS
        assert (await client.read_produced()).error == STORAGE_ERROR
        assert stage.waiting_count == 0
        assert (await client.produce("t", 0, [Record(b"c")])).error == 0
        client.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 1)
        stage.clock.now_ns += 2 * PAID_NS
        assert (await client.read_produced()).error == 0
        assert stage.live.broker.pending_timers == 4


async def test_a_batch_that_waits_is_refused_once_memory_is_scarce(tmp_path: Path) -> None:
    """Its memory is needed, and its client sends it again."""
    async with staged(tmp_path) as stage:
        client = await stage.use_up_credit()
        client.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 1)
        other: Any = "a connection that holds much"
        budget = stage.live.server.budget
        budget.update(other, 128 * MIB, "192.0.2.1", is_large=False)
        assert (await client.read_produced()).error == STORAGE_ERROR
        assert stage.waiting_count == 0
        budget.forget(other)
        stage.clock.now_ns += 2 * PAID_NS
        client.send_bytes(zeros())
        assert (await client.read_produced()).error == 0


async def test_a_new_producer_whose_batch_was_refused_has_to_send_that_first(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        client = await stage.use_up_credit()
        for _ in range(5):
            stage.live.server.batches.charge("127.0.0.1", BATCH_BYTES)
        first = packed(b"a", (), producer_id=7, producer_epoch=0, base_sequence=0)
        second = packed(b"b", (), producer_id=7, producer_epoch=0, base_sequence=1)
        client.send_bytes(first + second)
        await until(lambda: stage.waiting_count == 1)
        stage.clock.now_ns += WAIT_MAX_NS
        assert [(await client.read_produced()).error for _ in range(2)] == [STORAGE_ERROR] * 2
        client.send_bytes(first + second)
        await until(lambda: stage.waiting_count == 1)
        stage.clock.now_ns += 3 * PAID_NS
        assert [(await client.read_produced()).base_offset for _ in range(2)] == [0, 1]


async def test_alone_an_address_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        client = await stage.use_up_credit()
        client.send_bytes(zeros())
        await until(lambda: stage.waiting_count == 1)
        monkeypatch.setattr(LoopTurns, "serves_light", lambda turns, now_ns: False)
        assert (await client.read_produced()).error == 0
        client.send_bytes(zeros())
        assert (await client.read_produced()).error == 0
        assert stage.held_back == 1


async def test_a_request_of_many_batches_waits_between_two_of_them(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        records = compress(ZSTD, records_of([Raw(bytes(BATCH_BYTES), headers=HELD)]))
        batch = make_batch(records, count=1, attributes=ZSTD)
        client = await stage.live.connect()
        client.send_bytes(framed(produce_request([("t", [(n, batch) for n in range(5)])]), 8, 1))
        await until(lambda: stage.waiting_count == 1)
        assert stage.live.broker.pending_timers == 3
        stage.clock.now_ns += PAID_NS
        await until(lambda: stage.live.broker.pending_timers == 4)
        await until(lambda: stage.waiting_count == 1)
        assert await stage.is_served()
        stage.clock.now_ns += PAID_NS
        assert (await client.read_produced()).error == 0
        assert stage.live.broker.pending_timers == 5


@pytest.mark.parametrize(
    ("value", "headers"),
    [(bytes(BATCH_BYTES), ()), (Random(7).randbytes(16 * KIB) + bytes(BATCH_BYTES), HELD)],
    ids=["not held", "within the ratio"],
)
async def test_what_the_log_takes_for_no_more_than_its_size_is_no_debt(
    tmp_path: Path, value: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    async with staged(tmp_path) as stage:
        client = await stage.live.connect()
        for _ in range(8):
            client.send_bytes(packed(value, headers))
            assert (await client.read_produced()).error == 0
        assert stage.held_back == 0
