"""Hosts and the network between them: who reaches whom, how late, and who listens where.

It keeps the promises of TCP and no more. Bytes arrive in order or not at all, in other pieces than
they were sent in. A connection may be cut within a message. Two hosts may be cut off in one
direction: what is sent then waits, and arrives after that, for as long as both ends keep the
connection. A process that is killed resets its connections; a machine without power is silent.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from appliance.units import NS_PER_MS
from tests.support.simulator.sim_transport import SimTransport
from tests.support.simulator.world import World

if TYPE_CHECKING:
    from tests.support.simulator.sim_loop import SimLoop

SYN_AGAIN_MS: Final = 1_000
"""How often a connection is tried to a host that does not answer."""


class SimSocket:
    """What is bound to an address, or stands for the socket of a connection."""

    def __init__(self, host: str, port: int) -> None:
        self._name = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def dup(self) -> "SimSocket":
        return self

    def setsockopt(self, *_option: object) -> None:
        """Nothing: this network knows no options."""

    def close(self) -> None:
        """Nothing: who listens is closed by its server."""


class SimServer:
    """Listens on an address of a host."""

    def __init__(
        self,
        loop: "SimLoop",
        host: "Host",
        sock: SimSocket,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self.loop, self.factory = loop, factory
        self._host, self._port = host, sock.getsockname()[1]

    async def start_serving(self) -> None:
        self._host.listeners[self._port] = self

    def close(self) -> None:
        if self._host.listeners.get(self._port) is self:
            del self._host.listeners[self._port]


class Host:
    """A machine in the network.

    Attributes:
        network: what it is connected to.
        name: its address.
        listeners: by port.
        is_up: it has power.
    """

    def __init__(self, network: "Network", name: str) -> None:
        self.network, self.name = network, name
        self.listeners: dict[int, SimServer] = {}
        self.is_up = True
        self._transports: dict[SimTransport, None] = {}
        self._silent: list[SimTransport] = []

    def add(self, transport: SimTransport) -> None:
        self._transports[transport] = None

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)

    @property
    def transports(self) -> list[SimTransport]:
        """The ends of connections that this host has."""
        return list(self._transports)

    def end_process(self, *, is_silent: bool) -> None:
        """Close what its process had open.

        Args:
            is_silent: the power is gone: nobody hears of it before `boot`.
        """
        self.listeners.clear()
        for transport in self.transports:
            transport.vanish()
            if is_silent:
                self._silent.append(transport)
            else:
                transport.outgoing.reset()
        self._transports.clear()
        self.is_up = self.is_up and not is_silent

    def boot(self) -> None:
        """Have power again: whoever still believes in an old connection is reset."""
        self.is_up = True
        for transport in self._silent:
            transport.outgoing.reset()
        self._silent.clear()


class Network:
    """Connects hosts.

    Attributes:
        latency_ms: of a packet, one way, between any two hosts.
        extra_ms: more of it, from one host to another.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = world.fork()
        self._hosts: dict[str, Host] = {}
        self._blocked: set[tuple[str, str]] = set()
        self.latency_ms = 0.2
        self.extra_ms: dict[tuple[str, str], float] = {}

    def add_host(self, name: str) -> Host:
        """Return a new host with that address."""
        host = self._hosts[name] = Host(self, name)
        return host

    def latency_ns(self, source: str, target: str, rng: random.Random) -> int:
        """Return how long a packet takes now."""
        base_ms = self.latency_ms + self.extra_ms.get((source, target), 0.0)
        return int(base_ms * (0.5 + rng.random()) * NS_PER_MS)

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether nothing gets from one host to another."""
        return (source, target) in self._blocked

    def block(self, source: str, target: str) -> None:
        """Let nothing get from one host to another, in this direction."""
        self._blocked.add((source, target))

    def heal(self) -> None:
        """Let everything through, without further delay, and what waits as well."""
        self._blocked.clear()
        self.extra_ms.clear()
        for host in self._hosts.values():
            for transport in host.transports:
                transport.outgoing.release()
            for transport in host._silent:
                transport.outgoing.release()

    def cut(self, host: str, port: int | None = None) -> int:
        """Cut connections of a host within whatever is on its way; return how many.

        Args:
            host: one end of them.
            port: only those that were made to this port of it.
        """
        found = [
            each
            for each in self._hosts[host].transports
            if port is None or each.listening_port == port
        ]
        for transport in found:
            transport.cut()
        return len(found)

    # Connections

    def connect(
        self,
        loop: "SimLoop",
        source: Host,
        address: tuple[str, int],
        factory: Callable[[], asyncio.BaseProtocol],
        done: asyncio.Future[asyncio.BaseTransport],
    ) -> None:
        """Try to connect; `done` completes if that succeeds or fails.

        Args:
            loop, source: the process that connects, and its host.
            address: host and port.
            factory: makes the protocol that has the connection then.
            done: completes with the transport.
        """
        host, port = address
        rng = random.Random(self._rng.getrandbits(64))
        target = self._hosts[host]
        near = SimTransport(loop, source, target, rng=rng)

        def arrive() -> None:
            if done.done() or loop.is_dead:
                return
            server = target.listeners.get(port)
            is_lost = self.is_blocked(source.name, host) or not target.is_up
            if is_lost or self.is_blocked(host, source.name):
                self.world.after_ms(SYN_AGAIN_MS, arrive)
            elif server is None:
                answer(refuse)
            else:
                far = SimTransport(server.loop, target, source, rng=random.Random(rng.random()))
                far.listening_port = port
                far.join(near)
                server.loop.post_ns(self.world.now_ns, far.begin, server.factory)
                answer(establish)

        def answer(then: Callable[[], None]) -> None:
            delay_ns = self.latency_ns(host, source.name, rng)
            loop.post_ns(self.world.now_ns + delay_ns, then)

        def refuse() -> None:
            if not done.done():
                done.set_exception(ConnectionRefusedError(111, "Connection refused"))

        def establish() -> None:
            if done.done():  # it took too long
                near.abort()
                return
            near.begin(factory)
            done.set_result(near)

        self.world.after_ns(self.latency_ns(source.name, host, rng), arrive)
