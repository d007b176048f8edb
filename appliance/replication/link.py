"""One connection between master and slave: a session, its socket and its timer.

What both ends have in common. The owner handles what arrives, and is asked what else to do after
each step. Layer 5; on the event loop.
"""

import asyncio
from typing import Final, Generic, Protocol, TypeVar, cast

from appliance.replication import transport as transports
from appliance.replication.states import State
from appliance.system.clock import Clock
from appliance.units import KIB, MS_PER_SECOND, NS_PER_MS

BUFFER_MAX_BYTES: Final = 1024 * KIB
"""With more unsent bytes than that nothing more is read of the log."""

_SMALL_BYTES: Final = 64 * KIB
"""Smaller pieces are joined, so that they leave in one packet; copying costs less than a call."""

_LINGER_S: Final = 1.0
"""How long a peer may take to receive the last message, such as a REFUSED."""


class Session(Protocol):
    """What both sessions have."""

    @property
    def state(self) -> State: ...

    def take_output(self) -> list[bytes]: ...

    def closed(self, reason: str) -> None: ...

    def tick(self, now_ms: int) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


S = TypeVar("S", bound=Session)


class Owner(Protocol[S]):
    """The server or the client."""

    def handle(self, link: "Link[S]", data: bytes) -> None:
        """Pass what arrived to the session; an error in it ends the owner's work."""

    def stepped(self, link: "Link[S]") -> None:
        """Note that anything may have changed, also to LOST; may use the session."""

    def fail(self, error: Exception) -> None:
        """Note an error of `handle` or `stepped`."""


class Link(asyncio.Protocol, Generic[S]):
    """The connection.

    Attributes:
        session: decides everything.
        address: of the peer; "" before there is a connection.
        is_paused: the socket takes no more for now.
        shown: the last state that the log of this process has.
    """

    def __init__(self, session: S, owner: Owner[S], clock: Clock) -> None:
        self.session = session
        self.address = ""
        self.is_paused = False
        self.shown = State.HANDSHAKE
        self._owner = owner
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._is_over = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait in this process to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._is_over:  # it was dropped before there was a connection
            transport.abort()  # type: ignore[attr-defined]
            return
        # uvloop's class is none of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.address = transports.prepare(self._transport, buffer_max_bytes=BUFFER_MAX_BYTES)
        self.step()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            self._owner.handle(self, data)
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the owner)
            self._owner.fail(error)
            return
        self.step()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.step()

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.closed("the peer closed the connection" if exc is None else str(exc))
        self.step()

    def now_ms(self) -> int:
        """Return boottime in ms."""
        return self._clock.boottime_ns() // NS_PER_MS

    def step(self) -> None:
        """Let the owner go on, send what there is, and arm the timer, after any change."""
        if self._is_over:
            return
        try:
            self._owner.stepped(self)
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the owner)
            self._owner.fail(error)
            return
        self._send()
        due_ms = self.session.next_deadline_ms()
        if due_ms is None:
            self._end()
        elif self._timer is None or due_ms < self._due_ms:
            self._arm(due_ms)

    def drop(self, reason: str) -> None:
        """Close the connection at once; the owner hears nothing of it."""
        self.session.closed(reason)
        self._is_over = True
        self._cancel()
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        output = self.session.take_output()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        small: list[bytes] = []
        for piece in output:
            if len(piece) <= _SMALL_BYTES:
                small.append(piece)
                continue
            # A large piece goes to the socket without a copy.
            if small:
                transport.write(b"".join(small))
                small.clear()
            transport.write(piece)
        if small:
            transport.write(b"".join(small))

    def _arm(self, due_ms: int) -> None:
        self._cancel()
        self._due_ms = due_ms
        delay_s = max(0, due_ms - self.now_ms()) / MS_PER_SECOND
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due_ms = self.session.next_deadline_ms()
        now_ms = self.now_ms()
        if due_ms is not None and due_ms > now_ms:
            self._arm(due_ms)  # it moved, as it does with every message
        else:
            # If this process was stopped, the loop has read by now what came meanwhile: both kinds
            # of loop read before they run timers.
            self.session.tick(now_ms)
            self.step()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """The session is lost: what it said last may leave, if the peer takes it now."""
        self._is_over = True
        self._cancel()
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size() > _SMALL_BYTES:
            transport.abort()
        else:
            transport.close()
            self._loop.call_later(_LINGER_S, transport.abort)
