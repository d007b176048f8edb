"""A slave between what its master sends and its log: ids that a thread reads, and the watermark."""

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

from appliance.errors import CorruptionError, ReplicaError, StorageError
from appliance.replication.states import State
from appliance.store.log.watermark import WatermarkJob
from appliance.store.runs.saved_ids import IdLookup
from tests.support.harness.replica_logs import MemoryLog, filled
from tests.support.harness.replica_pair import LIMITS, Proxy, is_there, running, until

SILENT = replace(LIMITS, silence_ms=100_000, beat_ms=50_000)
"""Nobody says anything of its own accord."""


class ReadingLog(MemoryLog):
    """Frames are applied once a thread has read ids, for some of them twice.

    Attributes:
        may_read: the thread goes on.
        is_reading: it waits for that.
        errors: what the next looks-up end with.
    """

    def __init__(self, node: int, seed: int = 2) -> None:
        super().__init__(node)
        self.may_read = threading.Event()
        self.is_reading = False
        self.errors: list[Exception] = []
        self._chance = random.Random(seed)
        self._waiting: tuple[int, bytes] | None = None

    def append(self, pos: int, data: bytes) -> IdLookup | None:
        assert self._waiting is None
        if self._chance.random() < 0.3:
            return super().append(pos, data)
        self._waiting = pos, data
        return cast(IdLookup, self)

    def run(self) -> None:
        self.is_reading = True
        assert self.may_read.wait(10)
        self.is_reading = False

    def end_lookup(self, lookup: IdLookup) -> IdLookup | None:
        assert self._waiting is not None
        if self._chance.random() < 0.3:
            return lookup
        waiting, self._waiting = self._waiting, None
        if self.errors:
            raise self.errors.pop()
        return super().append(*waiting)

    def truncate(self, pos: int, *, may_be_acknowledged: bool = False) -> None:
        assert self._waiting is None
        super().truncate(pos, may_be_acknowledged=may_be_acknowledged)

    def restart(self, start_pos: int) -> None:
        assert self._waiting is None
        super().restart(start_pos)


def test_what_arrives_while_ids_are_read_follows_in_its_order() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, count=100), ReadingLog(2)
        async with running(source, replica, limits=SILENT) as pair:
            client = pair.follow()
            await until(lambda: replica.is_reading)
            source.write(11, b"more")
            pair.server.notify()
            await asyncio.sleep(0.05)
            assert pair.server.replicated.durable_pos <= replica.end_pos < source.committed_pos
            assert pair.server.replicated.received_pos <= replica.end_pos + LIMITS.window_bytes
            replica.may_read.set()
            await until(is_there(pair))
            for number in range(20):
                source.write(11, b"record %d" % number)
                pair.server.notify()
                await until(is_there(pair))
            assert client.following.state is State.STREAMING
            assert pair.catch_ups == 1

    asyncio.run(play())


def test_no_connection_begins_before_what_came_on_the_one_before_is_applied() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, count=100), ReadingLog(2)
        async with running(source, replica) as pair, Proxy(pair.address, (200_000,)) as proxy:
            client = pair.follow(proxy.address)
            await until(lambda: replica.is_reading and client.following.state is State.LOST)
            await asyncio.sleep(0.1)
            assert proxy.connection_count == 1
            proxy.to_master.clear()
            replica.may_read.set()
            await until(lambda: proxy.connection_count == 2)
            assert replica.end_pos > 150_000
            assert replica.data == source.data[: replica.end_pos]
            proxy.to_master.set()
            await until(is_there(pair))
            assert not client.failure.done()

    asyncio.run(play())


def test_a_slave_that_stops_applies_what_it_has_received() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, count=40), ReadingLog(2)
        async with running(source, replica) as pair:
            client = pair.follow()
            await until(lambda: replica.is_reading)
            await asyncio.sleep(0.1)
            asyncio.get_running_loop().call_later(0.05, replica.may_read.set)
            await client.stop()
            assert len(source.data) < LIMITS.window_bytes
            assert replica.data == source.data
            assert not client.failure.done()

    asyncio.run(play())


def test_ids_that_cannot_be_read_end_the_slaves_work() -> None:
    error = CorruptionError(Path("run"), 8, "a block", "other bytes")

    async def play() -> None:
        replica = ReadingLog(2)
        replica.errors, replica.is_reading = [error], False
        replica.may_read.set()
        async with running(filled(1, 11), replica) as pair:
            client = pair.follow()
            assert await asyncio.wait_for(client.failure, 5) is error
            end_pos = replica.end_pos
            await client.stop()
            assert replica.end_pos == end_pos

    asyncio.run(play())


def test_nothing_is_applied_after_the_end_of_a_slaves_work() -> None:
    error = StorageError(Path("segment"), "fdatasync", 5, "Input/output error")

    async def play() -> None:
        replica = ReadingLog(2)
        async with running(filled(1, 11, count=100), replica) as pair:
            client = pair.follow()
            await until(lambda: replica.is_reading)
            client.fail(error)
            end_pos = replica.end_pos
            replica.may_read.set()
            await client.stop()
            assert replica.end_pos == end_pos
            assert client.failure.result() is error

    asyncio.run(play())


def test_frames_that_do_not_fit_after_ids_were_read_end_the_connection() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, count=100), ReadingLog(2)
        replica.errors = [ReplicaError("no frame of this log")]
        async with running(source, replica) as pair, Proxy(pair.address) as proxy:
            client = pair.follow(proxy.address)
            await until(lambda: replica.is_reading)
            await asyncio.sleep(0.1)  # more arrives
            replica.may_read.set()
            await until(is_there(pair))
            assert proxy.connection_count == 2
            assert not client.failure.done()

    asyncio.run(play())


class RaisingLog(MemoryLog):
    """Its watermark is to be raised all the time, once the log may not be cut any more.

    Attributes:
        may_go_on: the thread goes on.
        threads: those that raised it.
        ended: so many raises have ended.
    """

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.may_go_on = threading.Event()
        self.threads: list[threading.Thread] = []
        self.ended = 0

    def begin_raise(self) -> WatermarkJob | None:
        assert self.calls, "an empty log begins anew at first"
        return cast(WatermarkJob, self) if len(self.threads) == self.ended else None

    def run(self) -> None:
        self.threads.append(threading.current_thread())
        assert self.may_go_on.wait(10)

    def end_raise(self, job: WatermarkJob) -> None:
        self.ended += 1
        assert self.ended == len(self.threads)


def test_the_watermark_is_raised_on_a_thread_and_one_that_fails_ends_the_work() -> None:
    error = StorageError(Path("checkpoint"), "fdatasync", 5, "Input/output error")

    class Failing(RaisingLog):
        def run(self) -> None:
            super().run()
            if len(self.threads) == 3:
                raise error

    async def play() -> None:
        replica = Failing(2)
        replica.may_go_on.set()
        async with running(filled(1, 11, count=100), replica) as pair:
            client = pair.follow()
            assert await asyncio.wait_for(client.failure, 5) is error
            assert replica.ended == 2
            assert threading.current_thread() not in replica.threads

    asyncio.run(play())


def test_a_slave_that_stops_waits_for_a_raise_of_the_watermark() -> None:
    async def play() -> None:
        replica = RaisingLog(2)
        async with running(filled(1, 11), replica) as pair:
            client = pair.follow()
            await until(lambda: bool(replica.threads))
            asyncio.get_running_loop().call_later(0.05, replica.may_go_on.set)
            await client.stop()
            assert replica.ended == 1

    asyncio.run(play())
