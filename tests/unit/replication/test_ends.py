"""Two real ends on loopback: whatever happens between them, the slave gets the master's bytes."""

import asyncio
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from appliance.errors import StorageError
from appliance.replication import wire
from appliance.replication.link import BUFFER_MAX_BYTES
from appliance.replication.link_limits import LinkLimits
from appliance.replication.master import HANDSHAKE_COUNT_MAX
from appliance.replication.slave_session import SlaveSession
from appliance.replication.states import State
from appliance.store.runs.saved_ids import IdLookup
from appliance.units import MIB
from tests.support.harness.replica_logs import MemoryLog, filled
from tests.support.harness.replica_pair import LIMITS, SECRET, Proxy, is_there, running, until

LOOPS = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


def run(what: Coroutine[None, None, None], make_loop: MakeLoop | None = None) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(what)


@LOOPS
def test_an_empty_slave_gets_the_whole_log_and_what_follows(make_loop: MakeLoop) -> None:
    async def play() -> None:
        source, replica = filled(1, 11, 13, count=100), MemoryLog(2)
        async with running(source, replica) as pair:
            client = pair.follow()
            await until(is_there(pair), "the catch-up")
            await until(lambda: client.following.has_caught_up)
            for number in range(20):
                source.write(13, b"record %d" % number)
                pair.server.notify()
                await asyncio.sleep(0)
            await until(pair.is_equal, "the stream")
            await until(lambda: client.following.lag_bytes == 0)
            assert pair.catch_ups == 1
            assert replica.calls == ["restart 0"]
            assert client.following.committed_pos == source.committed_pos
            assert (client.following.node, client.following.epoch) == (1, 13)
            assert pair.server.replicated.node == 2
            assert pair.server.replicated.proved_ms is not None

    run(play(), make_loop)


@LOOPS
def test_a_stream_that_is_cut_anywhere_goes_on_after_the_last_whole_frame(
    make_loop: MakeLoop,
) -> None:
    async def play() -> None:
        source, replica = filled(1, 11, 13, count=50), MemoryLog(2)
        size = source.committed_pos
        cuts = (3, 60, 200, 5_000, 66_000, 70_001, 140_000)
        async with running(source, replica) as pair, Proxy(pair.address, cuts) as proxy:
            pair.follow(proxy.address)
            await until(is_there(pair), "the catch-up")
            assert proxy.connection_count == len(cuts) + 1
            assert replica.calls[0] == "restart 0"
            assert not [call for call in replica.calls if call.startswith("truncate")]
            # What arrived is not read again, except of pieces that were on their way.
            assert sum(source.read_sizes) < size + sum(LIMITS.window_bytes for _ in cuts)
            assert pair.catch_ups == 1

    run(play(), make_loop)


def test_a_slave_that_caught_up_once_says_so_once() -> None:
    async def play() -> None:
        source = filled(1, 11)
        async with running(source, MemoryLog(2)) as pair, Proxy(pair.address, (300_000,)) as proxy:
            pair.follow(proxy.address)
            await until(is_there(pair))
            source.write(11, *(bytes(10_000) for _ in range(30)))
            pair.server.notify()
            await until(lambda: proxy.connection_count == 2 and is_there(pair)())
            assert pair.catch_ups == 1
            assert [each.state for each in pair.followings].count(State.LOST) == 1

    run(play())


def test_a_changed_byte_on_the_way_ends_the_connection_and_no_more() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, count=50), MemoryLog(2)
        async with running(source, replica) as pair, Proxy(pair.address, flip_at=9_000) as proxy:
            pair.follow(proxy.address)
            await until(is_there(pair))
            assert any(each.reason.startswith("no frame at") for each in pair.followings)

    run(play())


def test_a_slave_with_another_end_cuts_it_off_and_follows() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, 13), filled(2, 11, 12)
        common_pos = filled(1, 11).committed_pos
        diverged = replica.data[common_pos:]
        async with running(source, replica) as pair:
            pair.follow()
            await until(is_there(pair))
            assert replica.calls == [f"truncate {common_pos}"]
            assert replica.diverged == diverged

    run(play())


def test_a_slave_that_lacks_a_freed_segment_starts_anew_by_itself() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, 13), filled(2, 11, count=5)
        start_pos = source.epochs()[1][1]
        source.free(start_pos)
        async with running(source, replica) as pair:
            pair.follow()
            await until(is_there(pair))
            assert replica.calls == [f"restart {start_pos}"]
            assert replica.start_pos == start_pos

    run(play())


@pytest.mark.parametrize("direction", ["both", "to_slave", "to_master"])
def test_a_network_that_is_silent_is_lost_on_the_end_that_hears_nothing(direction: str) -> None:
    async def play() -> None:
        source = filled(1, 11)
        async with running(source, MemoryLog(2)) as pair, Proxy(pair.address) as proxy:
            client = pair.follow(proxy.address)
            await until(is_there(pair))
            if direction != "to_master":
                proxy.to_slave.clear()
            if direction != "to_slave":
                proxy.to_master.clear()
            if direction != "to_master":
                await until(lambda: client.following.state is State.LOST)
                assert "silent" in client.following.reason
            if direction != "to_slave":
                await until(lambda: not pair.is_streaming())
                assert "silent" in pair.server.replicated.reason
            source.write(11, b"meanwhile")
            proxy.to_slave.set()
            proxy.to_master.set()
            await until(is_there(pair), "the way back")

    run(play())


def test_a_slave_that_connects_again_replaces_its_dead_connection() -> None:
    async def play() -> None:
        source = filled(1, 11)
        async with running(source, MemoryLog(2)) as pair, Proxy(pair.address) as proxy:
            dead = pair.follow(proxy.address)
            await until(is_there(pair))
            proxy.to_slave.clear()
            proxy.to_master.clear()
            again = pair.follow(log=filled(2, 11))
            await until(lambda: again.following.state is State.STREAMING)
            reasons = [each.reason for each in pair.replications if each.state is State.LOST]
            assert reasons
            await dead.stop()
            assert pair.server.replicated.state is State.STREAMING

    run(play())


def test_a_second_slave_is_refused_while_the_first_one_is_there() -> None:
    async def play() -> None:
        async with running(filled(1, 11), MemoryLog(2)) as pair:
            first = pair.follow()
            await until(is_there(pair))
            second = pair.follow(log=MemoryLog(2))
            await until(lambda: "other slave" in second.following.reason)
            await asyncio.sleep(2 * LIMITS.silence_ms / 1_000)
            assert first.following.state is State.STREAMING
            assert not second.following.has_caught_up
            await first.stop()
            await until(lambda: second.following.state is State.STREAMING)

    run(play())


@LOOPS
def test_a_wrong_secret_gets_nothing_and_is_in_no_log(
    make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        replica = filled(2, 12)
        async with running(filled(1, 11), replica) as pair:
            client = pair.follow(secret=b"this is not the one of both")
            await until(lambda: client.following.reason == "refused: wrong secret")
            await until(lambda: "wrong secret" in caplog.text.partition("node=0")[2])
            assert not pair.replications
            assert not replica.calls

    caplog.set_level(logging.DEBUG)
    run(play(), make_loop)
    assert SECRET.decode() not in caplog.text
    assert "this is not" not in caplog.text


def test_a_slave_waits_for_a_master_and_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        source = filled(1, 11)
        async with running(source, MemoryLog(2), is_listening=False) as pair:
            client = pair.follow()
            await asyncio.sleep(0.4)
            assert client.following.reason.startswith("cannot connect")
            await pair.listen()
            await until(is_there(pair))

    caplog.set_level(logging.INFO)
    run(play())
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert caplog.text.count("replication streaming") == 2


def test_those_who_send_garbage_or_nothing_do_not_hinder_the_slave() -> None:
    async def play() -> None:
        source, replica = filled(1, 11), MemoryLog(2)
        chance = random.Random(5)
        async with running(source, replica) as pair:
            strangers = []
            for number in range(3 * HANDSHAKE_COUNT_MAX):
                reader, writer = await asyncio.open_connection(*pair.address)
                if number % 2:
                    writer.write(chance.randbytes(1_000))
                strangers.append((reader, writer))
            pair.follow()
            await until(is_there(pair))
            assert len(pair.server._handshakes) <= HANDSHAKE_COUNT_MAX
            for reader, writer in strangers:
                try:
                    seen = await reader.read()
                    assert len(seen) <= 5 + wire.BODY_SIZES[wire.MessageType.CHALLENGE][1]
                except ConnectionError:
                    pass
                writer.transport.abort()
            assert not pair.server._handshakes
            assert pair.is_streaming()

    run(play())


async def shake_hands(address: tuple[str, int]) -> tuple[socket.socket, SlaveSession]:
    """Connect as a slave does, up to WELCOME, with a small buffer of the kernel."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.setblocking(False)
    await loop.sock_connect(connection, address)
    session = SlaveSession(MemoryLog(2), SECRET, nonce=bytes(32), now_ms=0, limits=LIMITS)
    while not session.has_stream:
        session.received(await loop.sock_recv(connection, 10), 0)  # no BEAT
        for data in session.take_output():
            await loop.sock_sendall(connection, data)
    return connection, session


@LOOPS
def test_a_slave_that_stops_reading_costs_a_few_pieces_of_memory(make_loop: MakeLoop) -> None:
    async def play() -> None:
        source = filled(1, 11, count=300, size_max=200_000)
        limits = LinkLimits(silence_ms=400, beat_ms=50, window_bytes=16 * MIB)
        async with running(source, MemoryLog(2), limits=limits) as pair:
            connection, _ = await shake_hands(pair.address)
            loop, most = asyncio.get_running_loop(), 0
            # It is there, but takes nothing.
            for _ in range(40):
                await loop.sock_sendall(connection, wire.encode_ack(wire.Ack(0, 0, 0)))
                slave = pair.server._slave
                assert slave is not None
                most = max(most, slave.unsent_bytes)
                source.write(11, b"more")
                pair.server.notify()
                await asyncio.sleep(0.01)
            assert 0 < most <= BUFFER_MAX_BYTES + limits.piece_bytes
            assert pair.server.replicated.sent_pos < source.committed_pos / 2
            await until(lambda: "silent" in pair.server.replicated.reason)
            connection.close()

    run(play(), make_loop)


@LOOPS
def test_a_master_that_was_stopped_hears_first_what_came_meanwhile(make_loop: MakeLoop) -> None:
    """A slave that was never silent would be lost if the loop ran timers before it reads."""
    is_over = threading.Event()

    def acknowledge(connection: socket.socket) -> None:
        connection.setblocking(True)
        while not is_over.wait(0.01):
            connection.sendall(wire.encode_ack(wire.Ack(0, 0, 0)))

    async def play() -> None:
        async with running(filled(1, 11), MemoryLog(2)) as pair:
            connection, _ = await shake_hands(pair.address)
            thread = threading.Thread(target=acknowledge, args=(connection,))
            thread.start()
            stop_this_thread_s = 1.5 * LIMITS.silence_ms / 1_000
            time.sleep(stop_this_thread_s)  # noqa: ASYNC251 (what the test is about)
            await asyncio.sleep(0.1)
            is_over.set()
            thread.join()
            assert pair.server.replicated.state is State.CATCH_UP
            assert all(each.state is not State.LOST for each in pair.replications)
            connection.close()

    run(play(), make_loop)


def test_a_disk_that_cannot_read_a_piece_ends_the_connection_not_the_master() -> None:
    class BadOnce(MemoryLog):
        def read(self, pos: int, size: int) -> bytes:
            if len(self.read_sizes) == 1:
                self.read_sizes.append(0)
                raise StorageError(Path("segment"), "pread", 5, "Input/output error")
            return super().read(pos, size)

    async def play() -> None:
        source = BadOnce(1)
        source.write(11, *(bytes(5_000) for _ in range(50)))
        async with running(source, MemoryLog(2)) as pair:
            pair.follow()
            await until(is_there(pair))
            assert any("pread" in each.reason for each in pair.replications)

    run(play())


@pytest.mark.parametrize("call", ["flush", "append", "restart"])
def test_a_disk_that_fails_ends_the_slaves_work(call: str) -> None:
    error = StorageError(Path("segment"), "fdatasync", 5, "Input/output error")

    class Bad(MemoryLog):
        def flush(self) -> int:
            if call == "flush":
                raise error
            return super().flush()

        def append(self, pos: int, data: bytes) -> IdLookup | None:
            if call == "append":
                raise error
            return super().append(pos, data)

        def restart(self, start_pos: int) -> None:
            if call == "restart":
                raise error
            super().restart(start_pos)

    async def play() -> None:
        async with running(filled(1, 11), MemoryLog(2)) as pair:
            client = pair.follow(log=Bad(2))
            assert await asyncio.wait_for(client.failure, 5) is error
            assert pair.server.replicated.durable_pos == 0
            await client.stop()

    run(play())


def test_no_connection_begins_before_the_flush_of_the_one_before_has_ended() -> None:
    """It would cut the log that is flushed."""

    class Slow(MemoryLog):
        def __init__(self, node: int) -> None:
            super().__init__(node)
            self.may_flush = threading.Event()
            self.is_flushing = False

        def flush(self) -> int:
            self.is_flushing = True
            assert self.may_flush.wait(10)
            self.is_flushing = False
            return super().flush()

        def truncate(self, pos: int, *, may_be_acknowledged: bool = False) -> None:
            assert not self.is_flushing
            super().truncate(pos, may_be_acknowledged=may_be_acknowledged)

    async def play() -> None:
        source, replica = filled(1, 11), Slow(2)
        async with running(source, replica) as pair, Proxy(pair.address, (30_000,)) as proxy:
            client = pair.follow(proxy.address)
            await until(lambda: replica.is_flushing and client.following.state is State.LOST)
            await asyncio.sleep(0.1)
            assert proxy.connection_count == 1
            replica.may_flush.set()
            await until(is_there(pair))
            assert not client.failure.done()
            replica.may_flush.clear()
            source.write(11, b"more")
            pair.server.notify()
            await until(lambda: replica.is_flushing)
            asyncio.get_running_loop().call_later(0.05, replica.may_flush.set)
            await client.stop()
            assert not replica.is_flushing

    run(play())


def test_a_slave_that_stops_leaves_its_log_alone() -> None:
    async def play() -> None:
        source, replica = filled(1, 11, count=300), MemoryLog(2)
        async with running(source, replica) as pair:
            client = pair.follow()
            await until(lambda: replica.end_pos > 0)
            await client.stop()
            end_pos, calls = replica.end_pos, list(replica.calls)
            source.write(11, b"later")
            pair.server.notify()
            await until(lambda: pair.server.replicated.state is State.LOST)
            assert (replica.end_pos, replica.calls) == (end_pos, calls)
            assert not client.failure.done()
            await client.stop()

    run(play())
