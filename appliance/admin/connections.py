"""The connections of the admin address: how many there are, what they hold, and how long they wait.

Each one stands between the socket and aiohttp's protocol, which bounds the lines of a request, but
neither their sum nor the time that they take. The head and the body of a request are small here and
arrive within seconds. Answers leave in pieces as the client reads them. Requests and slices of
lists are heavy work of the loop: each waits for its turn.

At the limit of an address, or of all, a new connection takes the place of the one that has waited
longest for its client. So nobody is kept out by connections that ask for nothing. Layer 5; runs on
the event loop.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias, cast

from aiohttp import web

from appliance.client_log import ClientLog
from appliance.config.config import Address
from appliance.loop_turns import LoopTurns
from appliance.metrics import Metrics
from appliance.system.clock import SystemClock
from appliance.units import KIB, MIB

COUNT_MAX: Final = 128
"""Connections in all: people, probes, scrapers and scripts."""

ADDRESS_COUNT_MAX: Final = 32
"""The same for one address: that of a proxy as well."""

HEAD_MAX_BYTES: Final = 16 * KIB
"""A browser sends 1 KB, and some more if other servers of this host have set cookies."""

HEADER_COUNT_MAX: Final = 128

ARRIVED_MAX_BYTES: Final = 32 * KIB
"""Head and body, and what follows before the answer is given; further bytes are not read."""

CROWDED_S: Final = 1.0
"""A connection has at least so long before a new one takes its place."""

REQUEST_S: Final = 10.0
"""From the first byte of a request to its last."""

IDLE_S: Final = 30.0
"""Between two requests, and before the first."""

READ_S: Final = 30.0
READ_MIN_BYTES: Final = 64 * KIB
"""A client reads so many bytes of an answer in each READ_S, or all of it."""

PIECE_BYTES: Final = 64 * KIB
"""Of a large answer: the next one is made when the client has read most of the one before."""

ANSWERS_MAX_BYTES: Final = 32 * MIB
"""Of all answers that are made whole and that nobody has read yet. The largest, of a search, has a
third of that; without other such answers, any is given."""

CONNECTION_BYTES: Final = 20 * KIB
"""What a connection takes with its parser and its task."""

JSON_TYPE: Final = "application/json; charset=utf-8"

assert HEAD_MAX_BYTES < ARRIVED_MAX_BYTES
assert ADDRESS_COUNT_MAX < COUNT_MAX

RefusalReason: TypeAlias = Literal["count", "address"]
CloseReason: TypeAlias = Literal["idle", "slow_request", "slow_reader", "request", "crowded"]

_HEAD_END: Final = b"\r\n\r\n"
_CLOSE_TEXTS: Final[dict[CloseReason, str]] = {
    "idle": f"the client sent nothing for {IDLE_S:.0f} s",
    "slow_request": f"a request did not arrive completely within {REQUEST_S:.0f} s",
    "slow_reader": f"the client read less than {READ_MIN_BYTES} bytes in {READ_S:.0f} s",
    "request": f"the head of a request has more than {HEAD_MAX_BYTES} bytes",
    "crowded": "a new connection needs its place",
}

_log = logging.getLogger(__name__)


class AdminConnection(asyncio.Protocol):
    """One connection; hands everything within the limits to aiohttp.

    Attributes:
        address: the client's IP address, once connected.
        peer: the same with its port.
    """

    def __init__(self, owner: "AdminConnections", handler: web.RequestHandler) -> None:
        self._owner = owner
        self._handler = handler
        self._transport: asyncio.Transport
        self._is_closed = False
        self._request: web.Request | None = None
        """The request that is handled."""
        self._head_bytes = 0
        self._head_tail = b""
        self._has_head = False
        self._arrived_bytes = 0
        self._arrives_since_s: float | None = None
        self._waits_since_s = owner.now_s()
        self._answer_bytes = 0
        self._written_bytes = 0
        self._window = (0.0, 0)
        """Since when the client's reading is observed, and what it had read then; (0, 0) if it has
        nothing to read."""
        self._read_at_s = 0.0
        self._read_bytes = 0
        """What it had read at the last check that found more, and when that was."""
        self.address = ""
        self.peer = ""
        self._unfed = b""
        """What has arrived and waits for a turn of the loop."""
        self._is_at_end = False
        self._is_full = False
        """The client has much to read."""

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.address, self.peer = str(peer[0]), str(Address(str(peer[0]), peer[1]))
        if not self._owner.admit(self):
            self._is_closed = True
            self._transport.write(_raw_answer(503, "too many connections to the admin address"))
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=PIECE_BYTES)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        if self._arrives_since_s is None:
            self._arrives_since_s = self._owner.now_s()
        turns = self._owner.turns
        if not self._unfed and not turns.is_spent:
            self._feed(data)
            return
        if not self._unfed:
            turns.ask(self._feed_later)
        self._unfed += data
        if len(self._unfed) > ARRIVED_MAX_BYTES:
            self._transport.pause_reading()  # for good: the rest is lost in any case

    def _feed_later(self) -> None:
        data, self._unfed = self._unfed, b""
        if self._is_closed:
            return
        self._feed(data)
        if self._is_at_end:
            self._handler.eof_received()

    def _feed(self, data: bytes) -> None:
        began_ns = self._owner.now_ns()
        self._parse(data)
        self._owner.turns.spend(self._owner.now_ns() - began_ns)

    def _parse(self, data: bytes) -> None:
        if self._request is None and not self._has_head and not self._note_head(data):
            self._transport.write(_raw_answer(431, _CLOSE_TEXTS["request"]))
            self.close("request")
            return
        # Further requests may follow in the same bytes: those beyond the limit are lost.
        rest = ARRIVED_MAX_BYTES - self._arrived_bytes
        self._arrived_bytes += len(data)
        self._handler.data_received(data[:rest])
        if len(data) > rest:
            self._handler.close()  # after the answer
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def _note_head(self, data: bytes) -> bool:
        """Return whether the head of a request is still within the limit with these bytes."""
        if not self._head_bytes:
            data = data.lstrip(b"\r\n")  # which a parser skips before a request
        seen = self._head_tail + data
        end = seen.find(_HEAD_END)
        self._has_head = end >= 0
        self._head_bytes += len(data) if end < 0 else end - len(self._head_tail)
        self._head_tail = seen[1 - len(_HEAD_END) :]
        return self._head_bytes <= HEAD_MAX_BYTES

    def eof_received(self) -> None:
        if self._unfed:
            self._is_at_end = True
        elif not self._is_closed:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._window == (0.0, 0):
            self._read_at_s = self._owner.now_s()
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._owner.forget(self):
            self._handler.connection_lost(exc)

    # Called around each request

    def begin(self, request: web.Request) -> None:
        """Note that the head of a request is complete and its handler starts."""
        self._request = request
        self._answer_bytes = 0

    def end(self, answer: web.StreamResponse | None) -> web.StreamResponse | None:
        """Note the answer that the handler returned; None if it failed.

        Returns:
            The answer to give.
        """
        self._request = None
        self._has_head = False
        self._head_bytes = self._arrived_bytes = 0
        self._head_tail = b""
        self._arrives_since_s = None
        self._waits_since_s = self._owner.now_s()
        if not isinstance(answer, web.Response):
            return answer
        size = len(answer.body) if isinstance(answer.body, bytes) else 0
        if size > PIECE_BYTES and not self._owner.has_room(size):
            answer = busy()
            size = len(cast(bytes, answer.body))
        self._answer_bytes = size
        self._written_bytes += size
        return answer

    async def take_turn(self) -> None:
        """Wait for a turn of the loop; what follows, without waiting, is its work."""
        await self._owner.turns.take()

    def note_piece(self, size_bytes: int) -> None:
        """Note that a piece of an answer is written."""
        self._written_bytes += size_bytes

    # Limits

    @property
    def handler(self) -> web.RequestHandler:
        """aiohttp's protocol of this connection."""
        return self._handler

    @property
    def held_bytes(self) -> int:
        """Memory of it, bytes, without what it always takes."""
        arrived_bytes = self._arrived_bytes + len(self._unfed)
        return arrived_bytes + max(self.answer_bytes, self._unsent_bytes)

    @property
    def answer_bytes(self) -> int:
        """Of an answer that was made whole and that is not read yet."""
        return self._answer_bytes if self._unsent_bytes else 0

    @property
    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def waited_s(self, now_s: float) -> float:
        """Return how long it has waited for its client, to send or to read; 0 if it does not."""
        if self._unsent_bytes:
            is_observed = self._is_full or self._window != (0.0, 0)
            return now_s - self._read_at_s if is_observed else 0.0
        return now_s - self._waits_since_s if self._request is None else 0.0

    def judge(self, now_s: float) -> CloseReason | None:
        """Return why the connection must be closed, or None.

        Args:
            now_s: monotonic seconds, not below those of the last call.
        """
        if self._unsent_bytes:
            return self._judge_reading(now_s)
        self._answer_bytes = 0
        self._window = (0.0, 0)
        since_s = self._arrives_since_s
        is_arriving = self._request is None or not self._request.content.is_eof()
        if since_s is not None and is_arriving:
            return "slow_request" if now_s - since_s > REQUEST_S else None
        return "idle" if self.waited_s(now_s) > IDLE_S else None

    def _judge_reading(self, now_s: float) -> CloseReason | None:
        since_s, read_before = self._window
        read_bytes = self._written_bytes - self._unsent_bytes
        if self._window == (0.0, 0) or read_bytes > self._read_bytes:
            self._read_at_s, self._read_bytes = now_s, read_bytes
        if self._window != (0.0, 0):
            if now_s - since_s <= READ_S:
                return None
            if read_bytes - read_before < READ_MIN_BYTES:
                return "slow_reader"
        self._window = now_s, read_bytes
        return None

    def close(self, reason: CloseReason) -> None:
        """Close the connection now: unsent bytes but a last short answer are lost."""
        self._owner.note_closed(self, reason, _CLOSE_TEXTS[reason])
        self._is_closed = True
        if reason == "request":
            self._handler.force_close()
            self._transport.close()
        else:
            self._transport.abort()


class AdminConnections:
    """All connections of the admin address.

    Args:
        lines: writes lines about them.
        metrics: counts those that are refused and closed.

    Attributes:
        turns: of the loop: each request, and each slice of a list, is the heavy work of one. They
            are set before the first connection.
    """

    def __init__(self, lines: ClientLog, metrics: Metrics) -> None:
        self._lines = lines
        self._metrics = metrics
        self._all: dict[web.RequestHandler, AdminConnection] = {}
        self.turns: LoopTurns
        self.now_ns: Callable[[], int] = SystemClock().monotonic_ns
        self.now_s: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        """Monotonic seconds."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def held_bytes(self) -> int:
        """Memory of all of them, bytes."""
        held_bytes = sum(each.held_bytes for each in self._all.values())
        return held_bytes + len(self._all) * CONNECTION_BYTES

    def has_room(self, size_bytes: int) -> bool:
        """Return whether an answer may be given whole besides those that are not read yet."""
        unread_bytes = sum(each.answer_bytes for each in self._all.values())
        return not unread_bytes or unread_bytes + size_bytes <= ANSWERS_MAX_BYTES

    def of(self, request: web.Request) -> AdminConnection:
        """Return the connection of a request.

        Raises:
            ConnectionError: it is closed.
        """
        connection = self._all.get(request.protocol)
        if connection is None:
            raise ConnectionAbortedError
        return connection

    def admit(self, connection: AdminConnection) -> bool:
        """Accept a new connection unless a limit is reached; returns whether it is accepted."""
        of_address = [each for each in self._all.values() if each.address == connection.address]
        reason: RefusalReason | None = None
        if len(of_address) >= ADDRESS_COUNT_MAX:
            reason = None if self._close_longest(of_address) else "address"
        elif len(self._all) >= COUNT_MAX:
            reason = None if self._close_longest(list(self._all.values())) else "count"
        if reason is None:
            self._all[connection.handler] = connection
            return True
        refused = self._metrics.admin_connections_refused
        refused[reason] = refused.get(reason, 0) + 1
        self._lines.write(
            _log,
            logging.WARNING,
            ("admin connection", connection.address),
            "refused a connection to the admin address from %s: there are %d in all, %d from there",
            connection.peer,
            len(self._all),
            len(of_address),
        )
        return False

    def _close_longest(self, connections: list[AdminConnection]) -> bool:
        """Close the one that has waited longest for its client; False if none has long enough."""
        now_s = self.now_s()
        longest = max(connections, key=lambda each: each.waited_s(now_s))
        if longest.waited_s(now_s) < CROWDED_S:
            return False
        longest.close("crowded")
        # Its socket is closed in the next turn of the loop; its place is free at once.
        self.forget(longest)
        longest.handler.connection_lost(None)
        return True

    def forget(self, connection: AdminConnection) -> bool:
        """Remove a connection that is closed; returns False if it is removed already."""
        return self._all.pop(connection.handler, None) is not None

    def note_closed(self, connection: AdminConnection, reason: CloseReason, text: str) -> None:
        """Count and log that a connection is closed by the broker."""
        closed = self._metrics.admin_connections_closed
        closed[reason] = closed.get(reason, 0) + 1
        if reason == "idle":
            return  # as HTTP clients expect
        self._lines.write(
            _log,
            logging.INFO,
            ("admin connection", connection.address),
            "closing admin connection %s: %s",
            connection.peer,
            text,
        )

    def sweep(self, now_s: float) -> None:
        """Close the connections that are too slow; call it about once a second.

        Args:
            now_s: monotonic seconds.
        """
        for connection in list(self._all.values()):
            reason = connection.judge(now_s)
            if reason is not None:
                connection.close(reason)
        self._lines.tick()


def busy() -> web.Response:
    """Return the answer to a request for which there is no memory now."""
    text = "too many answers are being read: try again later"
    return web.json_response({"error": text}, status=503)


def _raw_answer(status: int, sentence: str) -> bytes:
    """Return an answer to a connection that is closed after it."""
    names = {431: "Request Header Fields Too Large", 503: "Service Unavailable"}
    body = json.dumps({"error": sentence})
    head = (
        f"HTTP/1.1 {status} {names[status]}",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Server: latermq",
        "Cache-Control: no-store",
        "Connection: close",
    )
    return ("\r\n".join(head) + f"\r\n\r\n{body}").encode()


async def send_parts(
    connection: AdminConnection,
    request: web.Request,
    parts: Iterator[tuple[str, int]],
    *,
    slice_work: int,
    content_type: str = JSON_TYPE,
) -> web.StreamResponse:
    """Answer with a text, in pieces if it is long: the next one is made when there is room for it.

    Args:
        connection: of the request.
        request: what is answered.
        parts: of the text, each with the work that it took; "" for work that led to none.
        slice_work: work per turn of the loop.
        content_type: of the text, in UTF-8.

    Raises:
        ConnectionError: the client is gone.
    """
    piece: list[str] = []
    size = 0
    response: web.StreamResponse | None = None

    def take_slice() -> bool:
        """Take parts until a piece is full or the work of a turn is done; return if any is left."""
        nonlocal size
        work = 0
        for text, cost in parts:
            if text:
                piece.append(text)
            size += len(text)
            work += cost
            if size >= PIECE_BYTES or work >= slice_work:
                return True
        return False

    has_more = True
    while has_more:
        has_more = take_slice()
        if has_more:
            # A turn of the loop has one slice, however many connections ask for lists.
            await connection.take_turn()
        if not has_more and response is None:
            headers = {"Content-Type": content_type}
            return web.Response(body="".join(piece).encode(), headers=headers)
        if not has_more or size >= PIECE_BYTES:
            if response is None:
                response = web.StreamResponse(headers={"Content-Type": content_type})
                await response.prepare(request)
            data = "".join(piece).encode()
            piece.clear()
            size = 0
            connection.note_piece(len(data))
            if data:
                await response.write(data)
    assert response is not None
    await response.write_eof()
    return response
