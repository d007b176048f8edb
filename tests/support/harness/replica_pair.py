"""Both ends of replication on loopback, with logs in memory, and a proxy that cuts and delays."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from typing import Final

from appliance.client_log import ClientLog
from appliance.config.setting import Address
from appliance.replication.link_limits import LinkLimits
from appliance.replication.logs import ReplicaLog
from appliance.replication.master import Replicated, ReplicationServer
from appliance.replication.slave import Following, ReplicationClient
from appliance.replication.states import State
from appliance.system.clock import SystemClock
from tests.support.harness.replica_logs import MemoryLog

SECRET: Final = b"0123456789abcdef"

LIMITS: Final = LinkLimits(
    silence_ms=400,
    beat_ms=50,
    window_bytes=1 << 18,
    piece_bytes=1 << 16,
    back_off_min_ms=5,
    back_off_max_ms=40,
)
"""Small, so that tests are short."""

WAIT_S: Final = 10.0


class Pair:
    """A master, and slaves that follow it; use it within `running`.

    Attributes:
        source, replica: the logs.
        replications: every `Replicated` that the master reported.
        followings: every `Following` that slaves reported.
        catch_ups: how often a slave said that it has caught up.
    """

    def __init__(
        self, source: MemoryLog, replica: MemoryLog, *, limits: LinkLimits = LIMITS
    ) -> None:
        self._limits = limits
        self.source = source
        self.replica = replica
        self.replications: list[Replicated] = []
        self.followings: list[Following] = []
        self.catch_ups = 0
        self._clock = SystemClock()
        self._clients: list[ReplicationClient] = []
        self.server = ReplicationServer(
            source,
            SECRET,
            clock=self._clock,
            lines=ClientLog(self._clock),
            changed=self.replications.append,
            limits=limits,
        )
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        self.address = Address(*self._socket.getsockname()[:2])

    async def listen(self) -> None:
        """Begin to accept connections; the address refuses them before."""
        await self.server.start([self._socket])

    def follow(
        self,
        address: Address | None = None,
        *,
        secret: bytes = SECRET,
        log: ReplicaLog | None = None,
    ) -> ReplicationClient:
        """Start a slave.

        Args:
            address: where it connects; the master itself if left.
            log: what follows; `replica` if left.
        """
        client = ReplicationClient(
            log or self.replica,
            address or self.address,
            secret,
            clock=self._clock,
            lines=ClientLog(self._clock),
            changed=self.followings.append,
            caught_up=self._count,
            limits=self._limits,
        )
        client.start()
        self._clients.append(client)
        return client

    def _count(self) -> None:
        self.catch_ups += 1

    def is_equal(self) -> bool:
        """The slave has every byte, and the master knows that it is durable."""
        return (
            self.replica.data == self.source.data
            and self.server.replicated.durable_pos == self.source.committed_pos
        )

    def is_streaming(self) -> bool:
        return self.server.replicated.state is State.STREAMING

    async def stop(self) -> None:
        for client in self._clients:
            await client.stop()
        await self.server.stop()
        self._socket.close()
        assert not self.server.failure.done(), self.server.failure.result()


@contextlib.asynccontextmanager
async def running(
    source: MemoryLog,
    replica: MemoryLog,
    *,
    limits: LinkLimits = LIMITS,
    is_listening: bool = True,
) -> AsyncIterator[Pair]:
    """Yield a pair; stop it in the end."""
    pair = Pair(source, replica, limits=limits)
    if is_listening:
        await pair.listen()
    try:
        yield pair
    finally:
        await pair.stop()


def is_there(pair: Pair) -> Callable[[], bool]:
    """Return whether the slave streams and has all."""
    return lambda: pair.is_streaming() and pair.is_equal()


async def until(is_so: Callable[[], bool], what: str = "it") -> None:
    """Wait for a condition, and fail if it takes too long."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + WAIT_S
    while not is_so():
        assert loop.time() < end_s, f"{what} took longer than {WAIT_S} s"
        await asyncio.sleep(0.002)


class Proxy:
    """Passes bytes between a slave and its master.

    Attributes:
        address: where the slave connects.
        to_slave, to_master: bytes pass in that direction.
        delay_s: so long each piece of bytes is held back.
        connection_count: how many there were.

    Args:
        target: the master's address.
        cut_after: of each connection in turn, the bytes to the slave after which it is cut; None
            and further ones are not cut.
        flip_at: the byte to the slave, on the first connection, that is changed.
    """

    def __init__(
        self,
        target: Address,
        cut_after: tuple[int | None, ...] = (),
        *,
        flip_at: int | None = None,
    ) -> None:
        self.address = Address("127.0.0.1", 0)
        self.to_slave = asyncio.Event()
        self.to_master = asyncio.Event()
        self.to_slave.set()
        self.to_master.set()
        self.delay_s = 0.0
        self.connection_count = 0
        self._target = target
        self._cuts = itertools.chain(cut_after, itertools.repeat(None))
        self._flip_at = flip_at
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname()[:2])
        return self

    def lead_to(self, target: Address, cut_after: tuple[int | None, ...] = ()) -> None:
        """Pass what connects from now on to another address, with other cuts."""
        self._target = target
        self._cuts = itertools.chain(cut_after, itertools.repeat(None))

    def cut(self) -> None:
        """End all connections that there are."""
        for task in list(self._tasks):
            task.cancel()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _delay_s(self) -> float:
        return self.delay_s

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connection_count += 1
        cut, flip_at = next(self._cuts), self._flip_at
        self._flip_at = None
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(_pass(reader, far_writer, self.to_master, self._delay_s)),
            asyncio.create_task(
                _pass(far_reader, writer, self.to_slave, self._delay_s, cut=cut, flip_at=flip_at)
            ),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            far_writer.transport.abort()


async def _pass(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    is_open: asyncio.Event,
    delay_s: Callable[[], float],
    *,
    cut: int | None = None,
    flip_at: int | None = None,
) -> None:
    """Pass bytes in one direction until its end, or up to `cut` of them."""
    passed = 0
    with contextlib.suppress(OSError):
        while data := bytearray(await reader.read(1 << 16)):
            await asyncio.sleep(delay_s())
            await is_open.wait()
            if flip_at is not None and passed <= flip_at < passed + len(data):
                data[flip_at - passed] ^= 1
            is_cut = cut is not None and passed + len(data) >= cut
            writer.write(data[: cut - passed] if is_cut and cut is not None else data)
            await writer.drain()
            passed += len(data)
            if is_cut:
                return
