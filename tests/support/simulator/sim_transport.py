"""One end of a connection of the simulated network, as asyncio knows it."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from appliance.units import KIB, NS_PER_MS

if TYPE_CHECKING:
    from tests.support.simulator.sim_loop import SimLoop
    from tests.support.simulator.sim_network import Host

WINDOW_BYTES: Final = 256 * KIB
"""So much is on its way, or waits in the kernel of the receiver; more waits at the sender."""

SPLIT_SHARE: Final = 0.1
"""Of the pieces that are sent arrive in two."""

AGAIN_MS: Final = 200
"""After a partition the kernel sends again within that."""

FIN: Final = b"FIN"
RST: Final = b"RST"
"""Marks in a pipe; they are compared by identity."""


class Pipe:
    """One direction of a connection."""

    def __init__(self, source: "SimTransport", target: "SimTransport", rng: random.Random) -> None:
        self._source, self._target, self._rng = source, target, rng
        self._network = source.host.network
        self._world = self._network.world
        self._waiting: deque[bytes] = deque()
        self._held: list[bytes] = []
        self._flying_bytes = 0
        self._last_ns = 0
        self._cut_after: int | None = None
        self._is_over = False
        self.waiting_bytes = 0

    def send(self, data: bytes) -> None:
        """Send bytes, or FIN or RST after all bytes before."""
        if self._is_over:
            return
        if self._waiting or self._flying_bytes + len(data) > WINDOW_BYTES:
            self._waiting.append(data)
            self.waiting_bytes += len(data)
        else:
            self._launch(data)

    def reset(self) -> None:
        """Forget what the sender still has, and reset the receiver after what is on its way."""
        self._waiting.clear()
        self.waiting_bytes = 0
        if not self._is_over:
            self._fly(RST)
            self._is_over = True

    def cut(self) -> None:
        """Let only a part of what is on its way arrive, then a reset."""
        self._waiting.clear()
        self.waiting_bytes = 0
        self._cut_after = self._rng.randrange(self._flying_bytes + 1)
        self._fly(RST)
        self._is_over = True

    def release(self) -> None:
        """Send again what was held by a partition."""
        held, self._held = self._held, []
        if held:
            delay_ns = int(self._rng.random() * AGAIN_MS * NS_PER_MS)
            self._last_ns = max(self._last_ns, self._world.now_ns + delay_ns)
            for data in held:
                self._fly(data)

    def _launch(self, data: bytes) -> None:
        size = len(data)
        self._flying_bytes += size
        if size > 1 and data is not FIN and self._rng.random() < SPLIT_SHARE:
            middle = self._rng.randrange(1, size)
            self._fly(data[:middle])
            data = data[middle:]
        self._fly(data)

    def _fly(self, data: bytes) -> None:
        network = self._network
        names = self._source.host.name, self._target.host.name
        arrival_ns = self._world.now_ns + network.latency_ns(*names, self._rng)
        self._last_ns = max(self._last_ns + 1, arrival_ns)
        self._world.at_ns(self._last_ns, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self._held or self._network.is_blocked(self._source.host.name, self._target.host.name):
            self._held.append(data)
            return
        limit = self._cut_after
        if limit is not None and data is not RST:
            data = data[:limit]
            self._cut_after = limit - len(data)
            if not data:
                return
        target = self._target
        target.loop.post_ns(self._world.now_ns, target.receive, data)

    def taken(self, size: int) -> None:
        """Note that the receiver's process took bytes; more may follow."""
        self._flying_bytes -= size
        while self._waiting and self._flying_bytes + len(self._waiting[0]) <= WINDOW_BYTES:
            data = self._waiting.popleft()
            self.waiting_bytes -= len(data)
            self._launch(data)
        self._source.loop.post_ns(self._world.now_ns, self._source.drained)


class SimTransport(asyncio.Transport):
    """One end.

    Attributes:
        loop, host: of the process that has it.
        listening_port: where it was accepted; None at the end that connected.
        outgoing: what it sends.
        other: the other end.
        written_ns: when its process wrote last.
    """

    def __init__(self, loop: "SimLoop", host: "Host", peer: "Host", *, rng: random.Random) -> None:
        super().__init__()
        self.loop, self.host, self._peer = loop, host, peer
        self._rng = rng
        self.outgoing: Pipe
        self.other: SimTransport
        self.written_ns = 0
        self._incoming: Pipe
        self.listening_port: int | None = None
        self._protocol: Any = None
        self._received: deque[bytes] = deque()
        self._high_bytes = 64 * KIB
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_closing = False
        self._is_over = False

    def join(self, other: "SimTransport") -> None:
        """Make the two ends one connection."""
        self.outgoing = other._incoming = Pipe(self, other, self._rng)
        other.outgoing = self._incoming = Pipe(other, self, other._rng)
        self.other, other.other = other, self
        self.host.add(self)
        other.host.add(other)

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Let the process have it."""
        if self._is_over:
            return
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._deliver()

    # What asyncio's protocols call

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        from tests.support.simulator.sim_network import SimSocket

        if name == "peername":
            return self._peer.name, 1024
        if name == "socket":
            return SimSocket(self.host.name, self.listening_port or 1024)
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not len(data):
            return
        self.written_ns = self.loop.now_ns
        self.outgoing.send(bytes(data))
        if not self._is_writing_paused and self.get_write_buffer_size() > self._high_bytes:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.outgoing.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = 64 * KIB if high is None else high

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self.loop.call_soon(self._deliver)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.outgoing.send(FIN)
            self._end_if_drained()

    def abort(self) -> None:
        if self._is_over:
            return
        self._is_closing = True
        self.outgoing.reset()
        self._end(None)

    # What the network calls

    def receive(self, data: bytes) -> None:
        """Take what arrived."""
        if not self._is_over:
            self._received.append(data)
            if self._protocol is not None:
                self._deliver()

    def drained(self) -> None:
        """Note that less waits to be sent."""
        if self._is_over:
            return
        if self._is_closing:
            self._end_if_drained()
        elif self._is_writing_paused and self.get_write_buffer_size() <= self._high_bytes // 4:
            self._is_writing_paused = False
            self._protocol.resume_writing()

    def vanish(self) -> None:
        """The process is gone: nothing is called any more."""
        self._is_over = self._is_closing = True

    def cut(self) -> None:
        """Reset both ends, within what is on its way."""
        self.outgoing.cut()
        self._incoming.cut()

    def _deliver(self) -> None:
        while self._received and not self._is_over:
            data = self._received[0]
            if data is RST:
                self._is_closing = True
                self._end(ConnectionResetError(104, "Connection reset by peer"))
                return
            if self._is_closing:  # nothing more is read
                self._received.popleft()
                self._incoming.taken(len(data))
                continue
            if self._is_reading_paused:
                return
            self._received.popleft()
            if data is FIN:
                if not self._protocol.eof_received():
                    self.close()
                continue
            self._incoming.taken(self._hand_over(data))

    def _hand_over(self, data: bytes) -> int:
        """Give bytes to the process, and return how many it took; the rest waits."""
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return len(data)
        start = 0
        while start < len(data) and not self._is_over:
            room = memoryview(self._protocol.get_buffer(-1))
            part = data[start : start + len(room)]
            room[: len(part)] = part
            start += len(part)
            self._protocol.buffer_updated(len(part))
            if self._is_reading_paused and start < len(data):
                self._received.appendleft(data[start:])
                break
        return start

    def _end_if_drained(self) -> None:
        if not self.get_write_buffer_size():
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self.host.forget(self)
            if self._protocol is not None:
                self.loop.call_soon(self._protocol.connection_lost, error)
