"""A Kafka client of the pair: knows both addresses, and goes on with the other one."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from tests.support.oracles.kafka_oracle import encode_request
from tests.support.pair.node import KAFKA_PORT, PairNode
from tests.support.simulator.sim_loop import SimLoop
from tests.support.simulator.sim_transport import SimTransport

REQUEST_MS: Final = 900
"""So long a client waits for an answer; then it connects again."""

PAUSE_MS: Final = 40
"""Before it connects again."""


class Gone(Exception):
    """There is no connection, or no answer came: what was asked for happened or not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        value: as kafka-python decodes it.
        node: the number of the node that answered.
    """

    value: Any
    node: int


class _Wire(asyncio.Protocol):
    """Collects answers, which have a size before them."""

    def __init__(self) -> None:
        self.lost = False
        self.transport: SimTransport
        self._data = bytearray()
        self._wanted: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_exception(Gone(str(exc)))

    def next_answer(self, loop: SimLoop) -> "asyncio.Future[bytes]":
        self._wanted = loop.create_future()
        self._look()
        return self._wanted

    def _look(self) -> None:
        wanted, data = self._wanted, self._data
        end = 4 + int.from_bytes(data[:4], "big")
        if wanted is not None and not wanted.done() and len(data) >= max(end, 8):
            wanted.set_result(bytes(data[4:end]))
            del data[:end]


class PairClient:
    """One connection at a time, and one request.

    Attributes:
        answered_ns: when the last answer left the node, by the world's time.
    """

    def __init__(self, loop: SimLoop, first: int) -> None:
        """Connect when there is something to ask.

        Args:
            loop: of the client's process.
            first: the number of the node that it tries first.
        """
        self._loop = loop
        self._node = first
        self._wire: _Wire | None = None
        self._last_id = 0
        self.answered_ns = 0

    async def ask(self, request: Any, version: int, response_class: Any) -> Answer:
        """Send a request and return the decoded answer; see `ask_raw`."""
        payload, node = await self.ask_raw(request, version)
        return Answer(response_class.decode(payload, version=version, header=True), node)

    async def ask_raw(self, request: Any, version: int) -> tuple[bytes, int]:
        """Send a request and return the answer, and which node gave it; see `ask_encoded`."""
        return await self.ask_encoded(encode_request(request, version, 0))

    async def ask_encoded(self, frame: bytes) -> tuple[bytes, int]:
        """Send a request without its size, and return the answer, and which node gave it.

        Raises:
            Gone: there is no answer. The other node is asked next.
        """
        try:
            async with asyncio.timeout(REQUEST_MS / 1000):
                wire = await self._connected()
                self._last_id += 1
                number = self._last_id.to_bytes(4, "big")
                wire.transport.write(len(frame).to_bytes(4, "big") + frame[:4] + number + frame[8:])
                payload = await wire.next_answer(self._loop)
                # Nothing else was asked for on this connection.
                self.answered_ns = wire.transport.other.written_ns
        except (OSError, Gone) as error:
            self.leave()
            raise Gone(repr(error)) from error
        assert int.from_bytes(payload[:4], "big") == self._last_id
        return payload, self._node

    async def _connected(self) -> _Wire:
        if self._wire is None or self._wire.lost:
            _, wire = await self._loop.create_connection(
                _Wire, PairNode.address_of(self._node), KAFKA_PORT
            )
            assert isinstance(wire, _Wire)
            self._wire = wire
        return self._wire

    def leave(self) -> None:
        """Close the connection, and go on with the other node."""
        if self._wire is not None:
            self._wire.transport.abort()
            self._wire = None
        self._node = 3 - self._node

    async def pause(self) -> None:
        """Wait before the next try."""
        await self.sleep_ms(PAUSE_MS)

    async def sleep_ms(self, duration_ms: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(duration_ms / 1000)
