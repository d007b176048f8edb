"""One client connection of the Kafka facade: feeds a socket's bytes to a session, sends responses.

For each read, the session handles every complete request, the pump ends the turn (one write to the
log for all of them), and all responses that may leave go out in one write. The session keeps the
responses in strict order, also those after a long-polled fetch.

The memory of a connection is bounded. The broker does not read from it while the client does not
receive its responses, while too many of them wait, and while the server holds it back because
memory is scarce. Responses go to the transport incrementally, so that unsent ones stay in the
session as slices of the log, which take no memory. A connection without progress is closed
(`compat.kafka.network.limits`). Layer 5.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

from _core.paths.answer import Reply, ResponseSlot
from _core.paths.parked_fetch import ParkedFetch
from _core.paths.session import QUEUED_MAX_BYTES, Session
from appliance.client_log import LineKind
from appliance.config.config import Address
from appliance.errors import RemoteProtocolError, StorageError
from appliance.model import ColdPlace
from appliance.units import KIB, MIB, NS_PER_MS
from appliance.work_thread import Turn, Work
from compat.kafka import dispatch
from compat.kafka.network.host import Host
from compat.kafka.network.large_requests import find_claim
from compat.kafka.network.limits import SMALL_BYTES, CloseReason, ConnectionStats, IdleDetector
from compat.kafka.network.parked_fetches import ParkedFetches
from compat.kafka.network.read_pace import ReadPace
from compat.kafka.network.request_trace import RequestTrace
from compat.kafka.node import Client, Node
from compat.kafka.protocol.slices import SlicedAnswer

WRITE_BUFFER_BYTES: Final = 256 * KIB
"""The broker stops reading from a connection with more unsent bytes than this."""

OUTPUT_BYTES: Final = 4 * MIB
SHARED_OUTPUT_BYTES: Final = 512 * KIB
"""Bytes passed to the transport at a time; the second value applies while others wait for their
turn, and if the transport copies what it cannot send. The rest stays in the session, which can drop
it. With small pieces a Fetch costs a tenth more; a MiB takes a millisecond or two."""

INPUT_KEEP_BYTES: Final = 4 * MIB
"""An input buffer up to this size is kept for the next request while memory is ample."""

TURN_NS: Final = 5 * NS_PER_MS
"""A turn ends after control-plane requests that took longer than this."""

SPENT_READ_BYTES: Final = 16 * KIB
"""Read at a time from a connection in a turn whose time is over."""

HELD_MS: Final = 1_000
"""While a flush takes longer, a request that was begun goes on, to be answered in its time."""

IDLE_TRIM_MS: Final = 10_000
"""A connection without a request for this long releases its buffers."""

_log = logging.getLogger(__name__)


class KafkaConnection(asyncio.BufferedProtocol):
    """One client connection.

    Attributes:
        session: the protocol state, once connected.
        peer: the client's IP address and port.
        end_reason: why the connection ends, once it does.
    """

    def __init__(self, server: "Host[KafkaConnection]") -> None:
        self._begin(server)

    def _begin(self, server: "Host[KafkaConnection]") -> None:
        self._server = server
        self.session: Session
        self._transport: asyncio.Transport
        self._parked = ParkedFetches(server, self)
        self._node: Node
        self._watch: IdleDetector
        self._pace: ReadPace
        self._deferred: SlicedAnswer | None = None
        self._is_write_paused = self._is_read_paused = False
        self._is_lost = self._has_ended = self._is_dropped = self._is_large = False
        self._is_resuming = self._is_resting = False
        self._turn_began_ns = self._read_began_ns = self._paused_ns = 0
        self._handed_bytes = 0
        self._in_transport_bytes = 0
        self._shared_in_transport_bytes = 0
        self._trace: RequestTrace | None = None
        self._address = ""
        self.peer = ""
        self.end_reason = "closed by the client"

    @property
    def address(self) -> str:
        """The client's IP address."""
        return self._address

    @property
    def unanswered_count(self) -> int:
        """Requests whose answers have not left; 0 unless they are traced."""
        return 0 if self._trace is None else self._trace.unanswered_count

    def abort(self) -> None:
        """Close the connection without sending unsent responses."""
        self.end_reason = "the broker stops"
        self._transport.abort()

    def bound_unsent(self, size: int) -> None:
        """Let the kernel take so many bytes beyond what the client has room for."""
        option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)
        self._transport.get_extra_info("socket").setsockopt(*option)

    # From one server to another

    @property
    def is_idle(self) -> bool:
        """Whether nothing that its client has sent, or is to receive, is under way."""
        session = self.session
        is_busy = (
            (session.is_waiting or session.partial_bytes > 0 or len(self._parked) > 0)
            or (session.paused or session.yielded or session.close_reason is not None)
            or (self._is_resuming or self._is_resting or self._server.batches.has_asked(self))
            or (self._deferred is not None or self._transport.get_write_buffer_size() > 0)
        )
        return not (is_busy or self._is_lost or self._is_dropped)

    def leave(self) -> None:
        """Leave the server, but stay open; what the client sends waits. REQUIRES: it is idle."""
        if not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()
        self._server.forget(self)
        self.session.close()

    def join(self, server: "Host[KafkaConnection]") -> None:
        """Go on as a new connection of another server. REQUIRES: `leave`."""
        if self._is_lost:
            return
        self._begin(server)
        self.connection_made(self._transport)
        if not self._is_lost:
            self._transport.resume_reading()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self._node = replace(
            self._server.node,
            client=Client(host=str(peer[0])),
            read_cold=self._read_cold_for,
            aside=self._aside_for,
            later=partial(self._server.answers.add, self, str(peer[0])),
        )
        self._address = str(peer[0])
        self.peer = str(Address(self._address, peer[1]))
        self.session = self._server.broker.open_session(self._answer_control_plane)
        self._watch = IdleDetector(self._server.broker.config, self._node.now_ms())
        now_ns = self._server.broker.clock.monotonic_ns()
        self._pace = ReadPace(now_ns, self._server.turns.addresses.of(self._address, now_ns))
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self._server.admit(self):
            self._is_lost = True
            self._transport.abort()
            return
        self._trace = RequestTrace.make_if_wanted(self._server.broker.clock, self.peer)
        self.session.trace = self._trace

    def eof_received(self) -> bool:
        self._server.ended.add_later(self)
        return True  # it stays open until `end`

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._server.ended.add_later(self)

    def end(self) -> None:
        """Close, and free everything: the client is gone."""
        self._transport.close()
        if self._has_ended or (self._transport.get_write_buffer_size() and not self._is_lost):
            return  # what is unsent counts until it was received or `connection_lost`
        self._is_lost = self._has_ended = True
        self._server.large.give_up(self.session)
        self._server.forget(self)
        self._parked.drop_all()
        # Without these cycles nothing waits for the garbage collector.
        del self._parked
        self._node = self._server.node
        if self._deferred is not None:
            self._deferred.abandon()
            self._deferred = None
            self._server.note_shared()
        self.session.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        window = self.session.get_buffer()
        if self._server.turns.is_spent:
            # The loop reads from every connection that has sent something before the next turn.
            window = window[:SPENT_READ_BYTES]
        self._pace.window_bytes = len(window)
        self._read_began_ns = self._server.broker.clock.monotonic_ns()
        return window

    def buffer_updated(self, nbytes: int) -> None:
        self._server.guard(partial(self._received, nbytes))

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._paused_ns = self._server.broker.clock.monotonic_ns()
        self.adjust_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        now_ns = self._server.broker.clock.monotonic_ns()
        self._server.unsent.note_drained(self, self._paused_ns, now_ns)
        self._server.guard(partial(self.send))

    # Rounds

    def _received(self, count: int) -> None:
        self._server.broker.metrics.received_bytes += count
        now_ns = self._server.broker.clock.monotonic_ns()
        self._server.turns.spend(self._pace.note_read(count, self._read_began_ns, now_ns))
        if self._server.turns.is_spent and self.session.work is None:
            self.session.postpone(count)
            self.resume_later()
            self.adjust_reading()
        else:
            self._round(partial(self.session.received, count))

    def take_back(self) -> None:
        """Handle a large request that was received."""
        self.session.take_back()
        self.session.postpone(0)
        self.resume_later()

    def _end_rest(self) -> None:
        self._is_resting = False
        self._pace.end_rest()
        self.adjust_reading()

    def _ask_for_turn(self, step: Callable[[], None]) -> None:
        """Call a function in a later turn of the loop, before those who take more of it."""
        server, address = self._server, self._address
        server.turns.ask(partial(server.guard, step), is_light=self._pace.is_light, address=address)

    def resume_later(self) -> None:
        """Go on with its requests in a later turn."""
        if not self._is_resuming:
            self._is_resuming = True
            self._ask_for_turn(self._resume)

    def _resume(self) -> None:
        """Handle requests that were postponed because of too many responses or too much work."""
        self._is_resuming = False
        if not self._is_lost:
            self._round(self.session.resume)

    def _round(self, handle: Callable[..., None]) -> None:
        """Let the session handle requests, and note what that took of the loop."""
        server, clock = self._server, self._server.broker.clock
        server.broker.note_client(self._address)
        server.broker.check_lease()
        began_ns = self._turn_began_ns = clock.monotonic_ns()
        self.session.turn_work_bytes = server.turns.work_bytes(began_ns, self._pace)
        produce = self.session.produce
        produce.defers_packed = server.batches.must_wait(self._address, began_ns)
        produce.amplified_bytes = 0
        handle(now_ns=clock.wall_ns())
        if produce.amplified_bytes:
            server.batches.charge(self._address, produce.amplified_bytes)
        self._end_round()
        ended_ns = clock.monotonic_ns()
        self._pace.note_round(began_ns, ended_ns)
        server.turns.note_round(began_ns, ended_ns, self._pace)
        if self._pace.must_rest and not self._is_resting:
            self._is_resting = True
            self._ask_for_turn(self._end_rest)
            self.adjust_reading()

    def _end_round(self) -> None:
        session = self.session
        budget = self._server.budget
        delays = session.produce.delays
        if delays.notices:
            self._server.delays.report(self.address, self.peer, delays.take())
        self._server.pump.end_turn()
        spent = session.compact(INPUT_KEEP_BYTES if budget.is_ample else SMALL_BYTES)
        self._server.large.free(spent)
        session.queued_max_bytes = SMALL_BYTES if budget.is_scarce else QUEUED_MAX_BYTES
        for parked in session.new_parked:
            self._parked.add(parked)
        self.send()
        self._server.end_turn()

    def _answer_control_plane(self, request: memoryview) -> Reply | ResponseSlot | str:
        """Answer a control-plane request; a text is the reason to close the connection."""
        broker = self._server.broker
        try:
            answer = dispatch.answer(self._node, request)
        except RemoteProtocolError as error:
            return error.message
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 (a bug in a handler)
            # Close only this connection.
            text = "internal error in a control-plane request: closing its connection"
            self._log_line(logging.ERROR, "internal error", text, error=error)
            return f"internal error: {error!r}"
        # Counted only here, because dispatch has now checked that the API key is a known one.
        broker.metrics.count_request(int.from_bytes(request[:2], "big"))
        if broker.clock.monotonic_ns() - self._turn_began_ns > TURN_NS:
            self.session.yield_turn()
        if isinstance(answer, Reply):
            return answer
        parked = ResponseSlot()
        self._deferred = answer
        answer.when_failed(self._fail_request)
        answer.when_complete(partial(self._complete, parked))
        return parked

    def go_on(self, answer: SlicedAnswer) -> None:
        """Do a slice of an answer of this connection."""
        answer.step()
        if not self._is_lost:
            self._note_memory()

    def _complete(self, parked: ResponseSlot, reply: Reply) -> None:
        self._deferred = None
        if not self._is_lost:
            parked.complete(reply)
            # The cause is a request in the current turn, whose changes are not written yet.
            self._server.note_completed(self)

    def _read_cold_for(self, places: list[ColdPlace], then: Callable[[], None]) -> None:
        """Read frames and units for a request of the control plane, then continue it."""
        self._server.read_cold(places, partial(self._continue, then), self._address)

    def _aside_for(self, begin: Callable[[], Work | None], then: Callable[[], None]) -> None:
        """Let a request of the control plane wait for the thread that does such work."""

        def begin_guarded() -> Work | None:
            found: list[Work | None] = [None]
            self._continue(lambda: found.append(begin()))
            return found[-1]

        turn = Turn(begin_guarded, partial(self._continue, then), self.fail_work, self._address)
        self._server.ask_for_work(turn)

    def fail_work(self, error: Exception) -> None:
        """Close the connection: the thread has failed with its request."""
        if isinstance(error, StorageError):
            raise error
        self._fail_request(error)

    def _continue(self, then: Callable[[], None]) -> None:
        try:
            then()
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 (a bug in a handler, which only searches)
            self._fail_request(error)

    def _fail_request(self, error: Exception) -> None:
        """Close only this connection: a request failed after it had waited."""
        reason = f"internal error: {error!r}"
        if isinstance(error, RemoteProtocolError):
            reason = error.message
        else:
            text = "internal error in a request that waited: closing its connection"
            self._log_line(logging.ERROR, "internal error", text, error=error)
        if not self._is_dropped:
            self._drop("request", reason)

    def send(self) -> None:
        """Send the responses that may leave, and resume reading if that made room."""
        if self._is_lost or self._server.pump.has_failed:
            return
        if not self._is_write_paused:
            self._send_some()
        if not self._is_lost:
            self._note_memory()
            self.adjust_reading()

    def _send_some(self) -> None:
        session = self.session
        is_shared = self._server.copies_output or self._server.turns.is_contended
        size_max = SHARED_OUTPUT_BYTES if is_shared else OUTPUT_BYTES
        durable_pos, local_pos = self._server.pump.release.positions()
        pieces = session.output(durable_pos, size_max, local_pos=local_pos)
        if pieces:
            size = sum(map(len, pieces))
            self._handed_bytes += size
            self._in_transport_bytes += session.taken_bytes
            if not self._server.copies_output:
                self._shared_in_transport_bytes += session.taken_shared_bytes
            self._server.broker.metrics.sent_bytes += size
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            else:
                self._transport.writelines(pieces)
            if session.fetch.ahead:
                self._server.loop.call_soon(self._server.guard, session.fetch.read_ahead)
        if session.close_reason is not None and not session.is_waiting:
            if not self._is_dropped:
                self._drop("request", session.close_reason)
            return
        self._server.await_flush(self, self._awaits_flush())
        if session.has_more:
            # A full transport calls resume_writing later. Otherwise let other callbacks run first.
            if not self._is_write_paused:
                self._ask_for_turn(self.send)
            return
        must_resume = session.yielded or (session.paused and not session.is_waiting)
        if session.work is not None:
            self._server.batches.ask(self)
        elif must_resume and self._is_too_fast():
            # The end of the next flush calls `send` again.
            self._server.await_flush(self, True)
        elif must_resume:
            # In a separate turn, so that others come first and turns do not nest.
            self.resume_later()

    def resume_work(self) -> bool:
        """Go on with Produce requests; return whether a batch of them still needs the thread."""
        self._resume()
        return not self._is_lost and self.session.work is not None

    def _is_too_fast(self) -> bool:
        """Return whether its next records would make everybody wait longer for the disk."""
        is_producing = self.session.is_begun or self._awaits_flush()
        return is_producing and self._server.pump.release.is_backed_up

    def _awaits_flush(self) -> bool:
        """Return whether a response, or a Produce request with acks=0, waits for a flush."""
        session = self.session
        return session.awaits_flush or session.silent_pos > self._server.pump.release.local_pos

    def _note_memory(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if not unsent_bytes:
            self._in_transport_bytes = self._shared_in_transport_bytes = 0
        elif self._server.copies_output:
            self._in_transport_bytes = unsent_bytes
        session = self.session
        held_bytes = session.held_bytes + self._in_transport_bytes
        # The server counts the frame cache once, whoever refers to it.
        held_bytes -= session.shared_bytes + self._shared_in_transport_bytes
        if self._deferred is not None:
            held_bytes += self._deferred.held_bytes
        partial_bytes = session.partial_bytes
        claim = find_claim(session, self._address) if partial_bytes else None
        self._is_large = claim is not None
        # Of a request beyond 1 MiB, all is granted before it is read.
        growth_bytes = session.growth_bytes if partial_bytes and claim is None else 0
        is_arriving = partial_bytes > SMALL_BYTES or growth_bytes > 0
        # A request that waits for the broker counts as well: else the next one would be received.
        is_whole = not is_arriving and held_bytes > SMALL_BYTES and self._awaits_broker()
        self._server.note_memory(
            self, held_bytes, claim, growth_bytes, is_arriving=is_arriving, is_whole=is_whole
        )

    def _awaits_broker(self) -> bool:
        """Return whether a request waits for the thread, or for turns of the loop."""
        answer = self._deferred
        return self.session.work is not None or (answer is not None and not answer.awaits_clients)

    def adjust_reading(self) -> None:
        """Pause or resume reading to match back-pressure."""
        session = self.session
        # Input on a connection that is about to be closed is ignored.
        is_ending = session.close_reason is not None
        is_behind = self._is_write_paused or session.paused or session.yielded
        # The end of the next flush resumes it.
        is_too_fast = self._server.pump.release.is_backed_up and self._awaits_flush()
        should_pause = (
            is_ending
            or is_behind
            or is_too_fast
            or self._is_resting
            or self._server.budget.is_held_back(self)
        )
        if self._is_large and not should_pause and not self._is_lost:
            should_pause = self._server.large.receives(self, self._transport)
        if self._is_lost or should_pause == self._is_read_paused:
            return
        self._is_read_paused = should_pause
        if should_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _drop(self, label: CloseReason, reason: str) -> None:
        text = "closing connection %s: %s"
        self._log_line(logging.INFO, "closed connection", text, self.peer, reason)
        self.end_reason = reason
        self._server.broker.metrics.count_closed(label)
        self._is_dropped = True
        # Not at once: asyncio calls connection_lost twice after a close inside resume_writing.
        self._server.loop.call_soon(self._transport.close)

    def _log_line(
        self,
        level: int,
        kind: LineKind,
        message: str,
        *facts: object,
        error: Exception | None = None,
    ) -> None:
        lines = self._server.broker.client_log
        lines.write(_log, level, (kind, self.address), message, *facts, error=error)

    # Sweeps

    def look(self, now_ms: int, *, is_scarce: bool, is_awaited: bool) -> None:
        """Close the connection if it makes no progress, else free unneeded buffers.

        Args:
            now_ms: monotonic ms.
            is_scarce: memory is scarce.
            is_awaited: others wait for memory that is granted to the connection, or for answers.
        """
        if self._is_lost:
            return
        session = self.session
        unsent_bytes = self._transport.get_write_buffer_size()
        claim = find_claim(session, self._address)
        sight = ConnectionStats(
            requests=session.requests,
            partial_bytes=session.partial_bytes,
            taken_bytes=self._handed_bytes - unsent_bytes,
            unsent_bytes=unsent_bytes,
            is_owed=session.is_waiting or session.yielded or self._awaits_flush(),
            is_held_back=self._server.budget.is_held_back(self),
            is_large=session.held_bytes + self._in_transport_bytes > SMALL_BYTES,
            claimed_bytes=0 if claim is None else claim.size_bytes,
        )
        verdict = self._watch.judge(now_ms, sight, is_scarce=is_scarce, is_awaited=is_awaited)
        if verdict is not None:
            if not self._is_dropped:
                self._drop(*verdict)
            # Abort: a client that receives nothing would delay a close.
            self._transport.abort()
        elif self._is_dropped:
            config = self._server.broker.config
            if self._watch.still_ms(now_ms) > config.receive_timeout_ms:
                self._transport.abort()
        elif is_scarce or self._watch.still_ms(now_ms) > IDLE_TRIM_MS:
            session.trim()
            self._note_memory()
        elif session.lent is not None:
            self._note_memory()

    def time_out(self, now_ms: int) -> None:
        """Answer requests that waited too long for a flush, or have no lease, at a monotonic ms."""
        broker, session = self._server.broker, self.session
        before = session.late_count
        # The lease may come back, but a client is better served by whoever has it meanwhile.
        wait_max_ms = broker.config.flush_timeout_ms if broker.has_lease else 0
        if session.time_out(now_ms, wait_max_ms, *self._server.pump.release.positions()):
            broker.metrics.late_answers += session.late_count - before
            self.send()
        if session.is_begun and self._server.pump.release.unflushed_ms >= HELD_MS:
            self.resume_later()

    # Parked fetches

    def look_again(self, parked: ParkedFetch) -> None:
        """Retry a parked fetch, for which there may be more data."""
        if not self._is_lost:
            self._parked.look_again(parked)

    def retry(self, parked: ParkedFetch) -> bool:
        """Try to answer a parked fetch; return whether nothing more is to be done for it now."""
        if self._is_lost:
            return True
        try:
            is_answered = self.session.retry(parked)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 (a fault of this request, which only reads)
            self._fail_request(error)
            return True
        if is_answered:
            self._parked.end(parked)
            self.send()
        return is_answered

    def ask_for_step(self, step: Callable[[], None]) -> None:
        """Do the next part of a long fetch in a later turn."""
        self._ask_for_turn(partial(self._server.measured, step))
