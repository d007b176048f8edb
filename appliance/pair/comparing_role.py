"""A master before its first write: it compares its log with the other node's. Layer 6.

It listens for its slave as a master does. If it knows where the other node replicates, it asks
there whether that one is the master now. It goes on when a slave's log goes together with its own,
or when an operator or the coordinator says so. It becomes a slave when the other node is the master
of a higher term.
"""

import asyncio
import enum
import logging
from collections.abc import Sequence
from socket import socket
from typing import Any, Final

from appliance.admin.status import ReplicationStatus
from appliance.broker import Broker
from appliance.config.setting import Address
from appliance.coordination.fail_over import FailOver
from appliance.coordination.standing import Standing
from appliance.errors import LatermqError, RemoteProtocolError, RoleError
from appliance.pair.coordination import PeerView
from appliance.pair.link_settings import link_limits
from appliance.replication.common_point import CommonPoint
from appliance.replication.facts import Facts, Role
from appliance.replication.logs import SourceLog
from appliance.replication.master import Replicated, ReplicationServer
from appliance.replication.member import Member, MemberEvent, MemberState, judge_master
from appliance.replication.question import Asker, ask
from appliance.replication.wire import Hello
from appliance.store.comparison import Comparison
from appliance.units import MS_PER_SECOND, NS_PER_MS

ASK_S: Final = 1.0
"""Between two questions to the other node."""

WAITS: Final = (
    "it compares its log with the other node's first, which may be the master now: start that one, "
    "or if it is off for long, say so with `latermq alone`"
)

_log = logging.getLogger(__name__)


class Compared(enum.Enum):
    """How a comparison ended."""

    GOES_ON = enum.auto()
    FOLLOWS = enum.auto()
    """The role file says that this node is a slave: a new start follows."""
    REPAIRED = enum.auto()
    """Damaged bytes were replaced: a new start reads them, and compares again."""
    STOPPED = enum.auto()


async def ask_peer(
    peer: Address, log: SourceLog, facts: Facts, secret: bytes, *, limit_s: float
) -> Facts | str:
    """Return what the other node says of itself, or why it says nothing.

    Args:
        peer: where it replicates.
        log: of this node.
        facts: what this node says of itself.
        secret: what both know.
        limit_s: the answer takes at most so long.
    """
    asker = Asker(log.cluster, log.node, log.format_version, log.segment_size_bytes, facts)
    try:
        return (await ask(peer, asker, secret, limit_s=limit_s)).facts
    except RemoteProtocolError as error:
        return error.message
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error) or "it does not answer"


class ComparingRole:
    """A master that compares, until it goes on, follows or stops.

    Attributes:
        is_alone: an operator said that the other node is off.
    """

    def __init__(self, broker: Broker, comparison: Comparison, secret: bytes) -> None:
        """Prepare.

        Args:
            broker: its start has come to the comparison.
            comparison: the log.
            secret: what both nodes know.
        """
        self._broker, self._comparison, self._secret = broker, comparison, secret
        self._config = broker.config
        self._member = Member(broker.role, comparison.node)
        self._ended = asyncio.Event()
        self._reasons: dict[str, str] = {}
        self._failure: Exception | None = None
        self._refused_ms = 0
        self.is_alone = False

    def _facts(self) -> Facts:
        return Facts(self._broker.role.term, Role.COMPARING)

    async def compare(self, sockets: Sequence[socket], stop: asyncio.Event) -> Compared:
        """Wait for the outcome, or until `stop` is set.

        Args:
            sockets: on which a slave is awaited; they stay open.
            stop: set when the process is to end.

        Raises:
            StorageError: the new role could not be written; the process must end.
        """
        limits = link_limits(self._config)
        server = ReplicationServer(
            self._comparison,
            self._secret,
            clock=self._broker.clock,
            lines=self._broker.client_log,
            changed=self._ignore,
            limits=limits,
            facts=self._facts,
            compared=self._note_slave,
            taker=self._comparison,
            fenced=self._note_newer,
        )
        await server.start([each.dup() for each in sockets])
        _log.warning("serves nobody yet: %s", WAITS)
        asking = asyncio.ensure_future(self._ask_peer(limits.silence_ms / MS_PER_SECOND))
        waits = [asyncio.ensure_future(each.wait()) for each in (self._ended, stop)]
        try:
            tasks: list[asyncio.Future[Any]] = [*waits, asking, server.failure]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (asking, *waits):
                each.cancel()
            await server.stop()
        if server.failure.done():
            raise server.failure.result()
        if asking.done() and not asking.cancelled():
            asking.result()
        if self._failure is not None:
            raise self._failure
        if self._member.state is MemberState.FOLLOWING:
            return Compared.FOLLOWS
        if self._comparison.wants_start:
            return Compared.REPAIRED
        if self._member.state is MemberState.SERVING:
            self._comparison.go_on()
            return Compared.GOES_ON
        return Compared.STOPPED

    def _ignore(self, _: Replicated) -> None:
        """A server that compares streams nothing."""

    def _note_slave(self, hello: Hello, common: CommonPoint) -> None:
        if self._member.has_step(MemberEvent.SLAVE_FITS):
            _log.info(
                "compared its log with node %d: relation=%s from=%d slave_end=%d",
                hello.node,
                common.relation.name.lower(),
                common.pos,
                hello.end_pos,
            )
            if self._comparison.wants_start:
                self._ended.set()
            elif self._config.etcd and self._member.state is MemberState.YIELDED:
                # It may take the key at any time: the new term must be in etcd first.
                self._refused_ms = self._broker.clock.boottime_ns() // NS_PER_MS
            else:
                self._go(MemberEvent.SLAVE_FITS)

    def _note_newer(self, term: int) -> None:
        reason = f"the other node knows term {term}, above term {self._member.record.term}"
        self._say("term", reason)

    async def _ask_peer(self, limit_s: float) -> None:
        peer = self._broker.role_file.peer
        if peer is None:
            await asyncio.Event().wait()
        assert peer is not None
        while True:
            said = await ask_peer(
                peer, self._comparison, self._facts(), self._secret, limit_s=limit_s
            )
            if isinstance(said, str):
                self._say("peer", f"{peer}: {said}")
            elif judge_master(self._member.record, said) is MemberEvent.NEWER_MASTER:
                _log.warning("%s is the master of term %d: follows it", peer, said.term)
                self._go(MemberEvent.NEWER_MASTER, term=said.term, peer=peer)
                return
            else:
                self._say("peer", f"{peer} is a {said.role.name.lower()} of term {said.term}")
            await asyncio.sleep(ASK_S)

    def _say(self, what: str, reason: str) -> None:
        if reason != self._reasons.get(what):
            self._reasons[what] = reason
            _log.warning("serves nobody yet: %s", reason)

    def _go(self, event: MemberEvent, *, term: int = 0, peer: Address | None = None) -> None:
        record = self._member.go(event, term=term, peer=peer)
        try:
            if record is not None:
                self._broker.role_file.put(record)
        except LatermqError as error:
            self._failure = error
        self._ended.set()

    def look(self) -> PeerView:
        """See `CoordinatedRole`: nobody is heard before the logs are compared."""
        has_yielded = self._member.state is MemberState.YIELDED
        return PeerView(has_yielded=has_yielded, refused_ms=self._refused_ms)

    def act(self, decides: FailOver) -> None:
        """See `CoordinatedRole`."""
        holds = decides.standing is Standing.HOLDS
        if holds and self._member.has_step(MemberEvent.GRANTED):
            _log.warning("goes on: has the key in etcd, in term %d", decides.term)
            self._go(MemberEvent.GRANTED)
        elif holds and self._refused_ms and self._member.state is MemberState.YIELDED:
            _log.warning("is the master again: has the key in etcd, in term %d", decides.term)
            self._go(MemberEvent.SLAVE_FITS)
        elif decides.standing is Standing.YIELDS:
            self._say("etcd", "the other node took the key in etcd")

    def fail(self, error: Exception) -> None:
        """See `CoordinatedRole`."""
        self._failure = error
        self._ended.set()

    def go_alone(self) -> None:
        """See `Pair`."""
        if self._member.has_step(MemberEvent.ALONE):
            _log.warning("goes on alone: the operator says that the other node is off")
            self.is_alone = True
            self._go(MemberEvent.ALONE)

    async def promote(self, *, is_forced: bool = False) -> None:
        """See `Pair`."""
        raise RoleError(f"this node is the master already, and serves nobody yet: {WAITS}")

    async def hand_over(self) -> None:
        """See `Pair`."""
        raise RoleError(f"this node serves nobody yet: {WAITS}")

    def go_solo(self, *, is_slave_off: bool) -> None:
        """See `Pair`."""
        raise RoleError(f"this node serves nobody yet: {WAITS}")

    def status(self) -> ReplicationStatus:
        """See `Pair`."""
        reason = f" ({'; '.join(self._reasons.values())})" if self._reasons else ""
        return ReplicationStatus(
            role="master",
            term=self._broker.role.term,
            mode=self._config.replication,
            solo=False,
            node=self._comparison.node,
            state="comparing",
            peer=None,
            end=self._comparison.committed_pos,
            received=None,
            durable=None,
            lag_bytes=None,
            heard_ms_ago=None,
            promise=f"this node serves no client: {WAITS}{reason}",
        )
