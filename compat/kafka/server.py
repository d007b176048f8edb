"""The Kafka facade on sockets: asyncio around `_core.session`.

One protocol object for each connection. For each read: the session handles every whole request, the
pump ends the turn (one write to the log for all of them), and what may be answered goes out in one
write. Strict order of answers, also past a long-polled fetch, is the session's.

Memory is bounded: the size of a request is checked before memory is taken for it, a connection that
does not read its answers is not read either, and fetched records are slices of the log that are not
copied. Layer 5.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

from _core.session import ParkedAnswer, ParkedFetch, Session
from appliance.broker import Broker
from appliance.config import Address, is_wildcard
from appliance.errors import ConfigError, RemoteProtocolError, StorageError
from appliance.pump import Pump
from appliance.units import KIB, MS_PER_SECOND
from compat.kafka import control
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.node import Client, Node
from compat.kafka.registry import Later

WRITE_BUFFER_BYTES: Final = 256 * KIB
"""A connection with more unsent bytes than this is not read any further."""

BACKLOG: Final = 1024

IDLE_TRIM_S: Final = 10
"""A connection without a request for so long gives its buffers back."""

_log = logging.getLogger(__name__)


class KafkaConnection(asyncio.BufferedProtocol):
    """One client connection."""

    def __init__(self, server: "KafkaServer") -> None:
        self._server = server
        self._session: Session
        self._transport: asyncio.Transport
        self._parked: set[ParkedFetch] = set()
        self._node: Node
        self._later: Later | None = None
        self._is_write_paused = False
        self._is_read_paused = False
        self._is_lost = False
        self._is_resuming = False
        self._requests_seen = 0

    @property
    def session(self) -> Session:
        """The protocol state, once connected."""
        return self._session

    def abort(self) -> None:
        """Drop the connection without sending what is left."""
        self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("",)
        self._node = replace(self._server.node, client=Client(host=str(peer[0])))
        self._session = self._server.broker.open_session(self._answer_rare)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self._server.admit(self):
            self._is_lost = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._server.forget(self)
        for parked in self._parked:
            self._cancel(parked)
            parked.unpark()
        self._parked.clear()
        if self._later is not None:
            self._later.is_abandoned = True
        self._session.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._server.guard(partial(self._received, nbytes))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._server.guard(partial(self.send))

    # Rounds

    def _received(self, count: int) -> None:
        self._server.broker.metrics.received_bytes += count
        self._session.received(count, self._server.broker.clock.wall_ms())
        self._end_round()

    def _resume(self) -> None:
        """Handle requests that were left because too many answers waited."""
        self._is_resuming = False
        if not self._is_lost:
            self._session.resume(self._server.broker.clock.wall_ms())
            self._end_round()

    def _end_round(self) -> None:
        self._server.pump.end_turn()
        self._session.compact()
        for parked in self._session.new_parked:
            self._watch(parked)
        self.send()
        self._server.send_completed()
        self._server.arm_groups()

    def _answer_rare(self, request: bytes) -> tuple[bytes, int] | ParkedAnswer | str:
        """Answer a request of the control plane; a text says why to close the connection."""
        broker = self._server.broker
        try:
            answer = control.answer(self._node, request)
        except RemoteProtocolError as error:
            return error.message
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 (a bug in a handler)
            # Whoever met it is cut off, all others are served on.
            _log.exception("a request could not be answered")
            return f"internal error: {error!r}"
        # Only now is the key known to be one of ours, and not any number from the network.
        broker.metrics.count_request(int.from_bytes(request[:2], "big"))
        if isinstance(answer, bytes):
            return answer, broker.control_pos
        parked = ParkedAnswer()
        self._later = answer.later
        answer.when_complete(partial(self._complete, parked))
        return parked

    def _complete(self, parked: ParkedAnswer, payload: bytes) -> None:
        self._later = None
        if not self._is_lost:
            parked.complete(payload, self._server.broker.control_pos)
            # Whoever caused this is in the middle of a turn: what it changed is not written yet.
            self._server.note_completed(self)

    def send(self) -> None:
        """Send what may leave, and go on reading if that made room."""
        if self._is_lost or self._is_write_paused or self._server.pump.has_failed:
            return
        session = self._session
        pieces = session.output(self._server.pump.durable_pos)
        if pieces:
            self._server.broker.metrics.sent_bytes += sum(map(len, pieces))
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            else:
                self._transport.writelines(pieces)
        if session.close_reason is not None and not session.is_waiting:
            self._drop(session.close_reason)
            return
        self._server.await_flush(self, session.awaits_flush)
        if session.paused and not session.is_waiting and not self._is_resuming:
            # In a turn of its own: others come first, and nothing nests.
            self._is_resuming = True
            self._server.loop.call_soon(self._server.guard, partial(self._resume))
        self._adjust_reading()

    def _adjust_reading(self) -> None:
        session = self._session
        # Nobody looks at what a connection sends that is about to be closed.
        is_ending = session.close_reason is not None
        should_pause = self._is_write_paused or session.paused or is_ending
        if self._is_lost or should_pause == self._is_read_paused:
            return
        self._is_read_paused = should_pause
        if should_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _drop(self, reason: str) -> None:
        _log.info("closing %s: %s", self._transport.get_extra_info("peername"), reason)
        self._transport.close()

    def trim_if_idle(self) -> None:
        """Called now and then: give memory back if there was no request since the last call."""
        if self._session.requests == self._requests_seen:
            self._session.trim()
        self._requests_seen = self._session.requests

    # Parked fetches

    def _watch(self, parked: ParkedFetch) -> None:
        """Time a fetch that could not be answered at once."""
        if parked.answered:
            return  # by the end of the very turn that it came in
        self._parked.add(parked)
        wait_ms = min(max(parked.wait_ms, 0), self._server.broker.config.fetch_wait_max_ms)
        parked.timer = self._server.loop.call_later(
            wait_ms / MS_PER_SECOND, self._server.guard, partial(self._expire, parked)
        )
        self._read_cold(parked)

    def _read_cold(self, parked: ParkedFetch) -> None:
        if parked.cold:
            self._server.pump.read_cold(parked.cold, lambda: self.look_again(parked))

    def look_again(self, parked: ParkedFetch) -> None:
        """There may be more for a parked fetch."""
        if parked.answered or self._is_lost:
            return
        if self._session.retry(parked):
            self._parked.discard(parked)
            self._cancel(parked)
            self.send()
        else:
            self._read_cold(parked)

    def _expire(self, parked: ParkedFetch) -> None:
        parked.is_expired = True
        self.look_again(parked)

    @staticmethod
    def _cancel(parked: ParkedFetch) -> None:
        if parked.timer is not None:
            parked.timer.cancel()
            parked.timer = None


class KafkaServer:
    """Listens, and ties connections to the pump.

    Attributes:
        broker, pump, groups, loop: what the connections use.
        bound: the address that is listened on, once started.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.pump = Pump(broker, self._progressed)
        self.groups = GroupCoordinator(broker, broker.config)
        self._groups_due_ms: int | None = None
        self._groups_timer: asyncio.TimerHandle | None = None
        self.bound = broker.config.listen
        self._server: asyncio.Server | None = None
        self._trimming: asyncio.TimerHandle | None = None
        self.node: Node
        self._completed: list[KafkaConnection] = []
        self._connections: set[KafkaConnection] = set()
        self._by_session: dict[Session, KafkaConnection] = {}
        self._awaiting_flush: set[KafkaConnection] = set()

    async def start(self) -> None:
        """Listen and deliver.

        Raises:
            ConfigError: the address cannot be used.
        """
        config = self.broker.config
        try:
            self._server = await self.loop.create_server(
                lambda: KafkaConnection(self),
                config.listen.host,
                config.listen.port,
                backlog=BACKLOG,
                start_serving=False,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {config.listen}: {error.strerror}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self.bound = Address(host, port)
        told = config.advertise or self.bound
        assert not is_wildcard(told.host)
        self.node = Node(
            self.broker, told.host, told.port or port, self.groups, read_cold=self._read_cold
        )
        self.groups.restore(self.node.now_ms())
        self.arm_groups()
        self.pump.start()
        self._trim_idle()
        await self._server.start_serving()

    async def stop(self) -> None:
        """Stop listening, drop the connections and stand still."""
        for timer in (self._trimming, self._groups_timer):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self.pump.stop()

    @property
    def advertised(self) -> Address:
        """Where clients are told to connect."""
        return Address(self.node.host, self.node.port)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def sessions(self) -> list[Session]:
        """Those of the open connections, oldest first."""
        return list(self._by_session)

    def guard(self, step: Callable[[], None]) -> None:
        """Run a step of a connection; an error in it ends the process.

        Memory and log may be apart after it; serving on could lose or double a message.
        """
        if self.pump.has_failed:
            return  # the process is about to end
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.pump.fail(error)

    # What connections call

    def admit(self, connection: KafkaConnection) -> bool:
        """Take a new connection in, unless there are too many."""
        if len(self._connections) >= self.broker.config.connection_count_max:
            _log.warning("a connection is refused: network.connection_count_max is reached")
            return False
        self._connections.add(connection)
        self._by_session[connection.session] = connection
        return True

    def forget(self, connection: KafkaConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        self._awaiting_flush.discard(connection)
        self._by_session.pop(connection.session, None)

    def await_flush(self, connection: KafkaConnection, is_waiting: bool) -> None:
        """Note whether a connection wants to be told of the next flush."""
        if is_waiting:
            self._awaiting_flush.add(connection)
        else:
            self._awaiting_flush.discard(connection)

    def note_completed(self, connection: KafkaConnection) -> None:
        """An answer that was waited for is known; it leaves at the end of the turn."""
        self._completed.append(connection)

    def send_completed(self) -> None:
        """Send answers that became known in this turn, which has been written."""
        completed, self._completed = self._completed, []
        for connection in completed:
            connection.send()

    def arm_groups(self) -> None:
        """Wake when the groups want to; call it after each turn."""
        due_ms = self.groups.next_deadline_ms()
        if due_ms == self._groups_due_ms:
            return
        self._groups_due_ms = due_ms
        if self._groups_timer is not None:
            self._groups_timer.cancel()
            self._groups_timer = None
        if due_ms is not None:
            delay_s = max(0, due_ms - self.node.now_ms()) / MS_PER_SECOND
            self._groups_timer = self.loop.call_later(delay_s, self.guard, self._expire_groups)

    def _expire_groups(self) -> None:
        self._groups_due_ms = None
        self.groups.expire(self.node.now_ms())
        self.pump.end_turn()
        self.send_completed()
        self.arm_groups()

    def _read_cold(self, positions: list[int], then: Callable[[], None]) -> None:
        """Have frames read for a request of the control plane."""

        def go_on() -> None:
            then()
            self.pump.end_turn()
            self.send_completed()

        self.pump.read_cold(positions, go_on)

    def _trim_idle(self) -> None:
        for connection in self._connections:
            connection.trim_if_idle()
        self._trimming = self.loop.call_later(IDLE_TRIM_S, self._trim_idle)

    def _progressed(self, woken: list[ParkedFetch]) -> None:
        for parked in woken:
            connection = self._by_session.get(parked.session)
            if connection is not None:
                connection.look_again(parked)
        if self._awaiting_flush:
            for connection in list(self._awaiting_flush):
                connection.send()
