"""The Kafka facade on sockets: listens, and connects the client connections to the pump.

It also enforces the limits across all connections: their number, the memory for their requests and
responses, and connections without progress. For the latter it checks some connections ten times a
second, so that a sweep stays short with any number of connections. Layer 5.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final, Generic, TypeVar

from _core.paths.parked_fetch import ParkedFetch
from _core.paths.session import Session
from appliance.config.config import Address, Config, is_wildcard
from appliance.log_text import quoted
from appliance.loop_turns import LoopTurns
from appliance.model import ColdPlace, Endpoint
from appliance.piece_queue import PieceQueue
from appliance.pump import Pump
from appliance.routes import Member, Routes
from appliance.slave_pump import SlavePump
from appliance.system import listening
from appliance.units import MS_PER_SECOND
from appliance.work_thread import Turn
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.network.answer_turns import AnswerTurns
from compat.kafka.network.batch_turns import BatchTurns
from compat.kafka.network.commit_turns import CommitTurns
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.delay_reports import DelayReports
from compat.kafka.network.driven import ServedBroker
from compat.kafka.network.large_requests import LargeRequests
from compat.kafka.network.limits import Admission
from compat.kafka.network.memory_budget import Claim, MemoryBudget
from compat.kafka.network.unsent_bounds import UNSENT_BYTES, UnsentBounds
from compat.kafka.node import Node
from compat.kafka.protocol.slices import SlicedAnswer

BACKLOG: Final = 1024

ENDS_NS: Final = 200_000
"""What connections that end may take of a turn: nobody waits for them."""

SWEEP_S: Final = 0.1
SWEEP_CONNECTIONS: Final = 64
"""Connections checked per sweep, or 1/SWEEP_PART of all if that is more: microseconds each."""

SWEEP_PART: Final = 50

SLOW_FLUSH_MS: Final = 200
"""If a flush takes longer, every sweep checks the connections that wait for it."""

SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES),
)
"""Set on the listening socket; connections inherit them. The kernel detects a dead peer within two
minutes, also while its fetch waits; small responses leave at once."""

REPORT_INTERVAL_S: Final = 10
"""Minimum interval between log lines about scarce memory or a slow disk."""

_log = logging.getLogger(__name__)


def advertised_endpoint(config: Config, sockets: Sequence[socket.socket]) -> Endpoint:
    """Return where clients are told to connect.

    Args:
        config: says so, if the bound address will not do.
        sockets: what `listening.bind` returned for the address.
    """
    host, port = sockets[0].getsockname()[:2]
    told = config.advertise or Address(host, port)
    assert not is_wildcard(told.host)
    return Endpoint(told.host, told.port or port, config.rack)


AnyPump = TypeVar("AnyPump", Pump, SlavePump)


class KafkaServer(Generic[AnyPump]):
    """Listens, and connects the client connections to the pump.

    Attributes:
        broker, pump, groups, loop, turns, node, budget, answers, ended, unsent, delays, large,
            batches: shared by the connections.
        routes: the brokers that clients know.
        copies_output: the transports copy bytes that they cannot send at once; uvloop's do not.
        bound: the listening address, once started.
    """

    def __init__(
        self,
        broker: ServedBroker,
        pump: AnyPump,
        file_limit: int | None = None,
        *,
        routes: Routes | None = None,
    ) -> None:
        """Connect the parts.

        Args:
            broker: a master that has recovered, or a slave.
            pump: drives it; not started.
            file_limit: open files that this process may have; None if it is not bounded.
            routes: the brokers that clients know; None: this one alone.
        """
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.pump: AnyPump = pump
        pump.progressed = self._progressed
        self.routes: Routes
        self._given_routes = routes
        self.groups = GroupCoordinator(broker.groups, broker.clock, broker.config)
        self._groups_due_ms: int | None = None
        self._groups_timer: asyncio.TimerHandle | None = None
        self.bound = broker.config.listen
        self._servers: list[asyncio.Server] = []
        self.budget: MemoryBudget[KafkaConnection] = MemoryBudget(broker.config.inflight_max_bytes)
        self.turns = LoopTurns(self.loop)
        self.answers = AnswerTurns(self.turns, self.budget, self._do_slice)
        now_ns = broker.clock.monotonic_ns
        self._woken = PieceQueue(
            self.turns, self.guard, now_ns, self._look_again, self._address_of_parked
        )
        address_of = attrgetter("address")
        self._to_send = PieceQueue(self.turns, self.guard, now_ns, KafkaConnection.send, address_of)
        # Not guarded: connections end also after the pump has stopped.
        self.ended = PieceQueue(
            self.turns,
            lambda step: step(),
            now_ns,
            KafkaConnection.end,
            address_of,
            at_once_ns=ENDS_NS,
        )
        self.unsent: UnsentBounds[KafkaConnection] = UnsentBounds(KafkaConnection.bound_unsent)
        self.delays = DelayReports(broker.client_log)
        self.large = LargeRequests(self.loop, self.guard, broker.metrics, broker.clock, self.turns)
        self.batches: BatchTurns[KafkaConnection] = BatchTurns(
            broker, self.turns, self.ask_for_work, self._call_later, lambda: self.budget.is_scarce
        )
        self._commits = CommitTurns(
            broker, self.turns, self.batches.debts, self._ask_turn, self._call_later
        )
        self.copies_output = isinstance(self.loop, asyncio.BaseEventLoop)
        self._admission = Admission(broker.config, file_limit)
        self._warn_of_files(file_limit)
        self._is_saving_memory = False
        self._reported_s: dict[str, float] = {}
        """When each kind of log line was written last."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._to_sweep: deque[KafkaConnection] = deque()
        self.node: Node
        self._view = broker.log.view
        self._completed: list[KafkaConnection] = []
        self._connections: dict[Session, KafkaConnection] = {}
        self._awaiting_flush: set[KafkaConnection] = set()
        self._is_debug = _log.isEnabledFor(logging.DEBUG)

    def _warn_of_files(self, file_limit: int | None) -> None:
        """Say so if fewer connections are served than configured."""
        if self._admission.count_max < self.broker.config.connection_count_max:
            _log.warning(
                "%d connections are served, not network.connection_count_max = %d: this process "
                "may open %d files, and the log needs some; raise LimitNOFILE of the unit, or "
                "ulimit -Hn",
                self._admission.count_max,
                self.broker.config.connection_count_max,
                file_limit,
            )

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, and start deliveries.

        Args:
            sockets: what `listening.bind` returned for the address; it is bound here if left.

        Raises:
            AddressError, ConfigError: the address cannot be used.
        """
        config = self.broker.config
        sockets = sockets or await listening.bind(config.listen, "--listen")
        for listener in sockets:
            for level, option, value in SOCKET_OPTIONS:
                listener.setsockopt(level, option, value)
        host, port = sockets[0].getsockname()[:2]
        for listener in sockets:
            server = await self.loop.create_server(
                lambda: KafkaConnection(self), sock=listener, backlog=BACKLOG, start_serving=False
            )
            self._servers.append(server)
        self.bound = Address(host, port)
        self.routes = self._given_routes or Routes(
            Member(self.broker.node_id, advertised_endpoint(config, sockets))
        )
        self.node = Node(
            self.broker,
            self.routes,
            self.groups,
            read_cold=self.read_cold,
            aside=self._aside,
            later=lambda _: None,  # each connection has its own
            commits=self._commits,
        )
        if self.broker.leads:
            self.groups.restore(self.node.now_ms())
        self._arm_groups()
        self.pump.start()
        self._sweep()
        try:
            for server in self._servers:
                await server.start_serving()
        except OSError as error:  # two brokers were bound to it, and the other was faster
            raise listening.explain(config.listen, "--listen")(error) from error

    def adopt(self, connections: Iterable[KafkaConnection]) -> None:
        """Serve connections that another server let go; see `stop`."""
        for connection in connections:
            connection.join(self)

    async def stop(self, *, keeps_idle: bool = False) -> list[KafkaConnection]:
        """Stop listening, close the connections and stop the pump.

        Args:
            keeps_idle: connections with nothing under way stay open, for another server.

        Returns:
            Those connections: the caller lets a server `adopt` them, or aborts them.
        """
        kept = []
        for timer in (self._sweeping, self._groups_timer):
            if timer is not None:
                timer.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._connections.values()):
            if keeps_idle and connection.is_idle:
                connection.leave()
                kept.append(connection)
            else:
                connection.abort()
        self.large.shutdown()
        await self.pump.stop()
        return kept

    @property
    def advertised(self) -> Address:
        """The address at which clients are told to connect."""
        return Address(self.node.host, self.node.port)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Memory of requests and answers, without the frame cache, of which answers are slices."""
        return self.budget.total_bytes - self.budget.reserved_bytes - self.budget.shared_bytes

    def guard(self, step: Callable[[], None]) -> None:
        """Run a step of a connection; an error in it ends the process.

        After an error, memory and log may differ; serving on could lose or duplicate a message.
        """
        if self.pump.is_stopped:
            return  # the process is about to end and closes the connections later
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.pump.fail(error)

    # Called by connections

    def admit(self, connection: KafkaConnection) -> bool:
        """Accept a new connection unless a limit is reached; returns whether it is accepted."""
        if self.pump.is_stopped:
            return False  # the kernel accepted it just before the listener was closed
        reason = self._admission.admit(connection.address)
        if reason is not None:
            self.broker.metrics.count_refused(reason)
            self._report_refusal(connection.address, reason)
            if self._is_debug:
                _log.debug("connection refused peer=%s limit=%s", connection.peer, reason)
            return False
        self._connections[connection.session] = connection
        self.turns.worked()  # thousands may come at once, and note nothing else
        if self._is_debug:
            count = len(self._connections)
            _log.debug("connection opened peer=%s connections=%d", connection.peer, count)
        return True

    def _report_refusal(self, address: str, reason: str) -> None:
        setting = "connection_count_max" + ("_per_address" if reason == "address" else "")
        self.broker.client_log.write(
            _log,
            logging.WARNING,
            ("refused connection", address),
            "refused a connection from %s: network.%s is reached; raise it or close unused "
            "connections",
            address,
            setting,
        )

    def _may_report(self, what: str) -> bool:
        """Return whether a line of this kind may be logged now; if so, note that it is."""
        now_s = self.loop.time()
        if now_s - self._reported_s.get(what, -REPORT_INTERVAL_S) < REPORT_INTERVAL_S:
            return False
        self._reported_s[what] = now_s
        return True

    def forget(self, connection: KafkaConnection) -> None:
        """Remove a connection that was closed or refused."""
        if self._connections.pop(connection.session, None) is None:
            return
        if self._is_debug:
            self._log_end(connection)
        self._admission.forget(connection.address)
        self._awaiting_flush.discard(connection)
        self._let_go_on(self.budget.forget(connection))
        self.answers.forget(connection)
        self.unsent.forget(connection)
        self.batches.forget(connection)

    def _log_end(self, connection: KafkaConnection) -> None:
        _log.debug(
            "connection closed peer=%s connections=%d requests=%d unanswered=%d reason=%s",
            connection.peer,
            len(self._connections),
            connection.session.requests,
            connection.unanswered_count,
            quoted(connection.end_reason),
        )

    def note_memory(
        self,
        connection: KafkaConnection,
        held_bytes: int,
        claim: Claim | None,
        growth_bytes: int,
        *,
        is_arriving: bool,
        is_whole: bool,
    ) -> None:
        """Update the memory use of a connection, and resume others if that frees memory.

        Args:
            connection: the connection.
            held_bytes: its memory.
            claim: the incomplete request, if it needs a grant.
            growth_bytes: what the next read adds to its memory.
            is_arriving: an incomplete request has more than SMALL_BYTES, or will have with that.
            is_whole: more than SMALL_BYTES are of a request that waits for the broker.
        """
        released = self.budget.update(
            connection,
            held_bytes,
            connection.address,
            is_large=is_arriving or is_whole,
            growth_bytes=growth_bytes,
            is_whole=is_whole,
            claim=claim,
        )
        self._let_go_on(released)
        self.note_shared()
        self.answers.note_memory(connection, held_bytes)
        if self.budget.is_scarce != self._is_saving_memory:
            self._is_saving_memory = self.budget.is_scarce
            connection.session.fetch.save_memory(self._is_saving_memory)
            if self._is_saving_memory:
                self._report_scarcity()

    def note_shared(self) -> None:
        """Update the memory that belongs to no connection, and resume others if that frees memory.

        Frames that only answers hold count once for all of them; and what is left of answers whose
        clients are gone.
        """
        shared_bytes = self._view.evicted_bytes + self.answers.garbage_bytes
        if shared_bytes != self.budget.shared_bytes:
            self._let_go_on(self.budget.note_shared(shared_bytes))

    def _report_scarcity(self) -> None:
        if self._may_report("scarcity"):
            _log.warning(
                "memory is scarce, large requests wait: network.inflight_max_bytes is reached"
            )

    def _let_go_on(self, released: list[KafkaConnection]) -> None:
        for connection in released:
            connection.adjust_reading()

    def await_flush(self, connection: KafkaConnection, is_waiting: bool) -> None:
        """Set whether a connection is notified of the next flush."""
        if is_waiting:
            self._awaiting_flush.add(connection)
        else:
            self._awaiting_flush.discard(connection)

    def note_completed(self, connection: KafkaConnection) -> None:
        """Note a completed deferred response; it is sent after the turn's changes were written."""
        self._completed.append(connection)

    def end_turn(self) -> None:
        """Send the responses completed in this turn, after its changes were written."""
        completed, self._completed = self._completed, []
        self._to_send.add(completed)
        self._arm_groups()

    def _arm_groups(self) -> None:
        """Set the timer to the next deadline of the groups."""
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
        self.end_turn()

    def read_cold(
        self, places: list[ColdPlace], then: Callable[[], None], address: str = ""
    ) -> None:
        """Read frames and units from the disk for a control-plane request."""
        self.pump.read_cold(places, partial(self._go_on, then), address)

    def _aside(
        self, begin: Callable[[], Callable[[], None] | None], then: Callable[[], None]
    ) -> None:
        self.ask_for_work(Turn(begin, then, self.pump.fail))

    def _ask_turn(self, step: Callable[[], None], address: str) -> None:
        """Do a piece of work of an address in a later turn, and note what it took of the loop."""
        turn = partial(self.guard, partial(self.measured, partial(self._go_on, step)))
        self.turns.ask(turn, address=address)

    def measured(self, step: Callable[[], None]) -> None:
        """Do a step that was queued, and note what it took of the loop."""
        began_ns = self.broker.clock.monotonic_ns()
        step()
        self.turns.spend(self.broker.clock.monotonic_ns() - began_ns)

    def ask_for_work(self, turn: Turn) -> None:
        """Let a connection wait for the thread that does the work of requests."""
        self.pump.work.ask(
            replace(
                turn,
                then=partial(self._go_on, turn.then),
                failed=lambda error: self._go_on(partial(turn.failed, error)),
            )
        )

    def _call_later(self, delay_s: float, step: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, self.guard, step)

    def _do_slice(self, connection: KafkaConnection, answer: SlicedAnswer) -> None:
        """Do a slice of an answer as a turn of its own."""
        self.guard(partial(self._go_on, partial(connection.go_on, answer)))
        self.note_shared()

    def _go_on(self, then: Callable[[], None]) -> None:
        began_ns = self.broker.clock.monotonic_ns()
        then()
        self.pump.end_turn()
        self.end_turn()
        self.turns.spend(self.broker.clock.monotonic_ns() - began_ns)

    def _sweep(self) -> None:
        """Check some of the connections, in rotation."""
        if not self._to_sweep:
            self._to_sweep.extend(self._connections.values())
        count = max(SWEEP_CONNECTIONS, len(self._connections) // SWEEP_PART)
        now_ms = self.node.now_ms()
        for _ in range(min(count, len(self._to_sweep))):
            connection = self._to_sweep.popleft()
            connection.look(
                now_ms,
                is_scarce=self.budget.is_scarce,
                is_awaited=self.answers.has_waiting or self.budget.is_awaited(connection),
            )
        if self._awaiting_flush and self._is_slow():
            self._time_out(now_ms)
        self.broker.client_log.tick()
        self.note_shared()
        self._sweeping = self.loop.call_later(SWEEP_S, self.guard, self._sweep)

    def _is_slow(self) -> bool:
        """Whether the disk takes long, or a sync pair lacks something, or its lease."""
        is_behind = self.broker.replicated_pos < self.broker.flushed_pos
        return (
            is_behind or not self.broker.has_lease or self.pump.release.unflushed_ms > SLOW_FLUSH_MS
        )

    def _time_out(self, now_ms: int) -> None:
        """Answer the connections that waited for a slow flush for flush_timeout_ms."""
        for connection in list(self._awaiting_flush):
            connection.time_out(now_ms)
        is_disk = self.pump.release.unflushed_ms > SLOW_FLUSH_MS
        if is_disk and self._may_report("slowness"):
            _log.warning(
                "the disk has not confirmed a flush for %d ms", self.pump.release.unflushed_ms
            )

    def _progressed(self, woken: list[ParkedFetch]) -> None:
        self._woken.add(woken)
        self._to_send.add(self._awaiting_flush)

    def _find_parked(self, parked: ParkedFetch) -> KafkaConnection | None:
        """The connection of a fetch, unless that was closed meanwhile."""
        session = parked.session
        return None if session is None else self._connections.get(session)

    def _address_of_parked(self, parked: ParkedFetch) -> str:
        connection = self._find_parked(parked)
        return "" if connection is None else connection.address

    def _look_again(self, parked: ParkedFetch) -> None:
        connection = self._find_parked(parked)
        if connection is not None:
            connection.look_again(parked)
