"""The master's side of replication on sockets: listens, and streams the log to one slave.

A thread of its own reads the log, a piece at a time. In memory are at most that piece and what the
socket has not taken yet. Whoever connects and does not complete the handshake is closed soon, and
there are never many of them. Layer 5; on the event loop.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from typing import Final, TypeAlias

from appliance.client_log import ClientLog, LineKind
from appliance.errors import LogRefusedError, StorageError
from appliance.log_text import quoted
from appliance.replication import transport, wire
from appliance.replication.common_point import CommonPoint
from appliance.replication.facts import NO_FACTS, Facts
from appliance.replication.link import Link
from appliance.replication.link_limits import LinkLimits
from appliance.replication.logs import ReplicaError, SourceLog, Taker
from appliance.replication.master_session import MasterSession
from appliance.replication.states import State
from appliance.replication.wire import Hello, RefusalCode, Refused
from appliance.system.clock import Clock
from appliance.units import NS_PER_MS

HANDSHAKE_COUNT_MAX: Final = 8
"""Connections without a slave on them. One more closes the one that has waited longest."""

_log = logging.getLogger(__name__)

SlaveLink: TypeAlias = Link[MasterSession]


@dataclass(frozen=True, slots=True)
class Replicated:
    """What the master knows of its slave.

    Attributes:
        state: of its connection; LOST if there is none.
        reason: why it is LOST; "" if it is not.
        address: of the slave, host:port; "" before there was one.
        node: its number; 0 before there was one.
        facts: what it said of itself in its last HELLO.
        sent_pos: the end of what was sent.
        received_pos, durable_pos: what the slave acknowledged last on its last connection; 0 before
            its first ACK.
        acked_ms: boottime at which the last ACK arrived; None before it.
        proved_ms: boottime after which the slave certainly was connected to this master; None
            before its first ACK of a BEAT. A lease counts from here.
        is_ready, is_taken: of a hand-over: nothing is in the way of the slave's promotion; the
            slave is the master now.
    """

    state: State
    reason: str = ""
    address: str = ""
    node: int = 0
    facts: Facts = NO_FACTS
    sent_pos: int = 0
    received_pos: int = 0
    durable_pos: int = 0
    acked_ms: int | None = None
    proved_ms: int | None = None
    is_ready: bool = False
    is_taken: bool = False


class ReplicationServer:
    """Serves one slave from `start` until `stop`; start it once.

    Attributes:
        replicated: what is known of the slave.
        failure: completes with an error that is a bug; the owner ends the process.
    """

    def __init__(
        self,
        log: SourceLog,
        secret: bytes,
        *,
        clock: Clock,
        lines: ClientLog,
        changed: Callable[[Replicated], None],
        limits: LinkLimits | None = None,
        facts: Callable[[], Facts] = Facts,
        compared: Callable[[Hello, CommonPoint], None] | None = None,
        taker: Taker | None = None,
        fenced: Callable[[int], None] = lambda _: None,
        catch_up_rate: Callable[[], int] = lambda: 0,
        make_nonce: Callable[[int], bytes] = token_bytes,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            log: what is streamed.
            secret: what both nodes know, at least SECRET_SIZE_MIN_BYTES.
            clock: its boottime counts.
            lines: writes the lines of the log, some of which anybody can cause.
            changed: called on the loop with `replicated` after each change of it.
            limits: as the slave has them; None: the default ones.
            facts: returns what this node says of itself.
            compared: called on the loop with a slave and how its log relates to this one; if given,
                logs are compared alone, and nothing is streamed.
            taker: writes what this node lacks and a slave has; a server that compares has one.
            fenced: called on the loop with the higher term that the other node knows.
            catch_up_rate: see `MasterSession`.
            make_nonce: returns that many random bytes.
        """
        self._source = log
        self._secret = secret
        self._clock = clock
        self._lines = lines
        self._changed = changed
        self._limits = limits or LinkLimits()
        self._facts, self._compared, self._fenced = facts, compared, fenced
        self._taker = taker
        self._catch_up_rate = catch_up_rate
        self._make_nonce = make_nonce
        self._loop = asyncio.get_running_loop()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-repl-read")
        self._reading: set[SlaveLink] = set()
        self._servers: list[asyncio.Server] = []
        self._handshakes: list[SlaveLink] = []
        self._slave: SlaveLink | None = None
        self._is_stopped = False
        self.replicated = Replicated(State.LOST, "no slave has connected yet")
        self.failure: asyncio.Future[Exception] = self._loop.create_future()

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen on what `listening.bind` returned.

        Raises:
            OSError: another process listens there.
        """
        self._servers = await transport.listen(sockets, self._accept)

    def prepare(self, term: int) -> None:
        """Begin to hand over to the slave, which has caught up.

        Args:
            term: that it is to begin.
        """
        assert self._slave is not None
        self._slave.session.prepare(term)
        self._slave.step()

    def give_up_mastery(self) -> None:
        """Let the slave take over, which is ready and has all of the log on its disk."""
        assert self._slave is not None
        self._slave.session.give_up_mastery(self._source.committed_pos)
        self._slave.step()

    def drop_slave(self, reason: str) -> None:
        """Close the connection to the slave, which connects again."""
        if self._slave is not None:
            self._slave.session.fail(reason)
            self._slave.step()

    @property
    def slave_facts(self) -> Facts | None:
        """What the connected slave says of itself; None if there is none."""
        hello = None if self._slave is None else self._slave.session.hello
        return None if hello is None else hello.facts

    def notify(self) -> None:
        """Send what the log has now; called at the end of each turn in which it moved."""
        slave = self._slave
        if slave is not None and not slave.is_paused:
            slave.session.moved(slave.now_ms())
            slave.step()

    async def stop(self) -> None:
        """Close everything, and wait for a read in flight. May be called twice."""
        self._is_stopped = True
        for server in self._servers:
            server.close()
        for link in [*self._handshakes, *([self._slave] if self._slave else [])]:
            link.drop("this node stops")
        self._handshakes.clear()
        self._slave = None
        self._reader.shutdown()

    def handle(self, link: SlaveLink, data: bytes) -> None:
        """Pass what arrived to the session."""
        link.session.received(data, link.now_ms())

    def stepped(self, link: SlaveLink) -> None:
        """Read what is to be sent next, and report what changed."""
        if self._is_stopped:
            return
        session = link.session
        if session.found is not None:
            self._take(session)
        if link is not self._slave and session.has_stream:
            self._handshakes.remove(link)
            self._slave = link
        self._read_on(link)
        self._show(link)
        if link is self._slave:
            self._report(link)
        if session.state is State.LOST:
            self._forget(link)
            self._note_hello(session)

    def _take(self, session: MasterSession) -> None:
        """Write what the slave has and this node lacks."""
        found, taker = session.found, self._taker
        assert found is not None
        assert taker is not None
        try:
            taker.write(found.pos, found.data)
            if session.takes_all:
                taker.flush()
        except (ReplicaError, LogRefusedError) as error:
            session.fail(error.message)
            return
        session.took()

    def _note_hello(self, session: MasterSession) -> None:
        """Report what a handshake without a stream has shown."""
        hello = session.hello
        if hello is None or self._is_stopped:
            return
        if hello.facts.term > self._facts().term:
            self._fenced(hello.facts.term)
        elif session.compared is not None and self._compared is not None:
            self._compared(hello, session.compared)

    def fail(self, error: Exception) -> None:
        """End all work because of a bug."""
        if not self.failure.done():
            self.failure.set_result(error)
        self._is_stopped = True

    def _accept(self) -> SlaveLink:
        session = MasterSession(
            self._source,
            self._secret,
            nonce=self._make_nonce(wire.NONCE_SIZE),
            now_ms=self._clock.boottime_ns() // NS_PER_MS,
            admit=self._admit,
            limits=self._limits,
            facts=self._facts,
            compares=self._compared is not None,
            damaged=tuple if self._taker is None else self._taker.damaged,
            catch_up_rate=self._catch_up_rate,
        )
        link = Link(session, self, self._clock)
        if len(self._handshakes) >= HANDSHAKE_COUNT_MAX:
            # Whoever floods the port crowds out itself.
            count = Counter(each.address.rpartition(":")[0] for each in self._handshakes)
            busiest, _ = count.most_common(1)[0]
            place = next(
                place
                for place, each in enumerate(self._handshakes)
                if each.address.rpartition(":")[0] == busiest
            )
            self._handshakes.pop(place).drop("too many connections in their handshake")
        self._handshakes.append(link)
        return link

    def _admit(self, hello: Hello) -> Refused | None:
        """Refuse a second slave. One that reconnects finds its old connection silent, or closed."""
        slave = self._slave
        if slave is None:
            return None
        known = slave.session.hello
        assert known is not None
        silent_ms = slave.now_ms() - slave.session.heard_ms
        if known.node == hello.node and silent_ms >= self._limits.silence_ms // 2:
            slave.session.fail("the slave connected again")
            slave.step()
            return None
        return Refused(RefusalCode.OTHER_SLAVE, f"has a slave at {slave.address}")

    def _read_on(self, link: SlaveLink) -> None:
        if link.is_paused or link in self._reading:
            return
        wanted = link.session.next_read(link.now_ms())
        if wanted is not None:
            self._reading.add(link)
            future = self._loop.run_in_executor(self._reader, self._source.read, *wanted)
            future.add_done_callback(partial(self._loaded, link, wanted[0]))

    def _loaded(self, link: SlaveLink, pos: int, future: asyncio.Future[bytes]) -> None:
        self._reading.discard(link)
        error = future.exception()
        if self._is_stopped:
            return
        if error is None:
            link.session.loaded(pos, future.result(), link.now_ms())
        elif isinstance(error, StorageError):
            link.session.fail(error.message)
        else:
            assert isinstance(error, Exception)
            self.fail(error)
            return
        link.step()

    def _forget(self, link: SlaveLink) -> None:
        if link is self._slave:
            self._slave = None
        elif link in self._handshakes:
            self._handshakes.remove(link)

    def _report(self, link: SlaveLink) -> None:
        session = link.session
        assert session.hello is not None
        replicated = Replicated(
            state=session.state,
            reason=session.reason,
            address=link.address,
            node=session.hello.node,
            facts=session.hello.facts,
            sent_pos=session.sent_pos,
            received_pos=session.received_pos,
            durable_pos=session.durable_pos,
            acked_ms=session.acked_ms,
            proved_ms=session.proved_ms,
            is_ready=session.is_ready,
            is_taken=session.is_taken,
        )
        if replicated != self.replicated:
            self.replicated = replicated
            self._changed(replicated)

    def _show(self, link: SlaveLink) -> None:
        """Write a line for a new state."""
        session = link.session
        if session.state is link.shown:
            return
        link.shown = session.state
        if session.is_answered:
            return
        hello = session.hello
        source: tuple[LineKind, str] = "replication", link.address.rpartition(":")[0]
        node = 0 if hello is None else hello.node
        if session.state is State.LOST:
            message = "replication lost address=%s node=%d reason=%s"
            facts: tuple[object, ...] = (quoted(session.reason, char_count_max=300),)
            self._lines.write(_log, logging.WARNING, source, message, link.address, node, *facts)
            return
        message = "replication %s address=%s node=%d relation=%s from=%d sent=%d"
        relation = session.relation
        assert relation is not None
        self._lines.write(
            _log,
            logging.INFO,
            source,
            message,
            session.state.value,
            link.address,
            node,
            relation.name.lower(),
            session.common_pos,
            session.sent_pos,
        )
