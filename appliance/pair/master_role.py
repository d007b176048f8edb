"""A master that serves clients, and its slave. Layer 6."""

import asyncio
import logging
from collections.abc import Sequence
from socket import socket
from typing import Final

from appliance.admin.status import ReplicationStatus
from appliance.broker import Broker
from appliance.coordination.fail_over import FailOver
from appliance.coordination.standing import Standing
from appliance.errors import RoleError
from appliance.pair.comparing_role import ASK_S, ask_peer
from appliance.pair.coordination import PeerView
from appliance.pair.hand_over import HandOver
from appliance.pair.lease_watch import LeaseWatch
from appliance.pair.link_settings import link_limits, since_ms
from appliance.pump import Pump
from appliance.replication.facts import Facts, Role
from appliance.replication.lease import NO_LEASE, Lease
from appliance.replication.master import Replicated, ReplicationServer
from appliance.replication.states import UP_TO_DATE, WITH_STREAM, State
from appliance.routes import Member, Routes
from appliance.store.source_log import SourceLog
from appliance.system.process import total_memory_bytes
from appliance.units import MS_PER_SECOND, NS_PER_MS

NO_SLAVE: Final = (
    "no slave has caught up, and replication.mode is sync: start it, or if it is off for long, let "
    "the master go on alone with `latermq solo --slave-is-off`"
)

NO_KEY: Final = (
    "etcd does not say that this node has the key and that its slave is in sync: try again once "
    "`latermq replication` shows both"
)

_KEPT: Final = {
    "sync": "acknowledged records survive a power cut of this machine",
    "async": "acknowledged records survive a crash; a power cut may lose the newest",
}

SHOWN_BEAT_S: Final = 0.01
"""After consumers may see more, until the slave hears of that, which is soon enough for consumers
of the slave and a small part of what a busy master sends it."""

LISTED_S: Final = 300.0
"""So long clients still hear of a slave that is away, as long as they keep what they heard: a
client that asks while the slave starts again would not find it when the master is lost later."""

_log = logging.getLogger(__name__)


class MasterRole:
    """A master that serves clients; it has a slave if `replication.mode` says so.

    With sync replication nothing is acknowledged with acks=all, and nothing readable, before the
    slave has it; without a slave such batches are refused. Without a lease nothing is acknowledged
    or delivered at all. Solo, which an operator orders, the master waits for nobody until the slave
    has caught up.

    Attributes:
        lease: lets it acknowledge and deliver.
        fenced: set when the other node is known to have a higher term: serve nobody then.
        stops_serving: set when this node hands over: serve nobody, then call `yield_mastery`.
    """

    def __init__(
        self,
        broker: Broker,
        pump: Pump,
        secret: bytes,
        *,
        is_solo: bool,
        routes: Routes | None = None,
    ) -> None:
        """Prepare to serve a slave.

        Args:
            broker, pump: serve clients.
            secret: what both nodes know.
            is_solo: nobody else is a master, and the slave is not expected at once.
            routes: gets the slave while it is connected; None: clients do not hear of it.
        """
        self._routes = routes
        self._is_beat_due = False
        self._forgetting: asyncio.TimerHandle | None = None
        percent = broker.config.slave_reads_percent
        self._late_bytes = total_memory_bytes() * percent // 100
        self._config, self._clock = broker.config, broker.clock
        self._broker, self._pump = broker, pump
        self._source: SourceLog = broker.source_log()
        self._is_sync = broker.config.replication == "sync"
        self._is_solo = self._is_sync and is_solo
        self._alone_pos: int | None = None
        """The end of what was acknowledged alone, once the slave has caught up but for that."""
        self._secret = secret
        self._is_promotion_forbidden = False
        self.lease = Lease(broker.clock, broker.config.replication_lease_ms)
        self._is_coordinated = bool(broker.config.etcd)
        self._decides: FailOver | None = None
        self._was_licensed = False
        self._wants_solo = False
        self.lease.is_required = self._needs_lease
        self._lease_watch = LeaseWatch(self.lease, lambda: pump.show([]))
        self._admitted = asyncio.Event()
        self._asking: asyncio.Future[None] | None = None
        self.fenced = asyncio.Event()
        self._hand_over: HandOver | None = None
        self.stops_serving = asyncio.Event()
        if not self._is_sync or self._is_solo:
            self._admitted.set()
        self._server: ReplicationServer | None = None
        if broker.config.replication != "none":
            self._server = ReplicationServer(
                self._source,
                secret,
                clock=broker.clock,
                lines=broker.client_log,
                changed=self._changed,
                limits=link_limits(broker.config),
                facts=self._facts,
                fenced=self._note_newer,
                catch_up_rate=self._catch_up_rate,
            )
            broker.lease = self.lease
            if routes is not None:
                routes.may_lead = lambda: self.lease.is_held
            # A bug there ends the process: else nobody would notice that the slave gets nothing.
            self._server.failure.add_done_callback(lambda done: pump.fail(done.result()))

    def _facts(self) -> Facts:
        endpoint = None if self._routes is None else self._routes.me.at
        needs_lease = self._is_sync or self._is_coordinated
        lease_ms = self.lease.duration_ms if needs_lease else 0
        return Facts(self._broker.role.term, Role.MASTER, endpoint, lease_ms=lease_ms)

    def _catch_up_rate(self) -> int:
        """Return how fast the slave may catch up, bytes a second; 0 for no bound."""
        is_waited_for = self._is_sync and not self._is_solo
        return 0 if is_waited_for else self._config.catch_up_max_bytes_per_s

    @property
    def _needs_lease(self) -> bool:
        """It may not acknowledge by itself: the slave or the coordinator must let it."""
        return self._is_coordinated or (self._is_sync and not self._is_solo)

    def look(self) -> PeerView:
        """See `CoordinatedRole`."""
        known = None if self._server is None else self._server.replicated
        if known is None:
            return PeerView()
        is_there = known.state in UP_TO_DATE
        wants: bool | None = is_there
        if self._is_sync and (self._is_solo or (self._wants_solo and not is_there)):
            wants = False
        elif self._is_sync and not is_there:
            wants = None  # it acknowledges nothing that the slave lacks, which stays in sync so
        until_ms = 0
        if known.proved_ms is not None:
            until_ms = known.proved_ms + self.lease.duration_ms
        return PeerView(heard_until_ms=until_ms, wants_in_sync=wants)

    def act(self, decides: FailOver) -> None:
        """See `CoordinatedRole`."""
        is_alone = decides.is_alone(self._clock.boottime_ns() // NS_PER_MS)
        self.forbid_promotion(is_forbidden=is_alone)
        # With a slave that is waited for, only that one lets it acknowledge.
        counts = not self._is_sync or (self._is_solo and is_alone)
        self.lease.key_until_ms = decides.key_until_ms if counts else 0
        self._lease_watch.look()
        if self._wants_solo and is_alone and not self._is_solo:
            self._begin_solo("nobody may promote the slave")
        self._decides, pair = decides, decides.pair
        self._was_licensed |= decides.standing in (Standing.HOLDS, Standing.LEANS)
        if decides.standing is Standing.HOLDS and decides.term > self._broker.role.term:
            # An operator let it take the key from the other node, which has a lower term then.
            self._broker.role_file.change(term=decides.term, is_master=True)
            if self._server is not None:
                self._server.drop_slave("this node is of a later term")  # it hears of it in WELCOME
        # One that waits for its license may hear its slave, whose promotion came to nothing.
        is_superseded = decides.standing is Standing.YIELDS and self._was_licensed
        if is_superseded and not self.stops_serving.is_set():
            self._note_newer(decides.term + 1 if pair is None else pair.term)

    def fail(self, error: Exception) -> None:
        """See `CoordinatedRole`."""
        self._pump.fail(error)

    @property
    def _is_key_ours(self) -> bool:
        """This node has the key, and etcd says that the slave may have it next."""
        decides = self._decides
        if decides is None or decides.pair is None or not decides.pair.in_sync:
            return False
        now_ms = self._clock.boottime_ns() // NS_PER_MS
        return decides.standing is Standing.HOLDS and now_ms < decides.key_until_ms

    async def start(self, sockets: Sequence[socket]) -> None:
        """Listen for the slave."""
        if self._server is not None:
            await self._server.start([each.dup() for each in sockets])
            self._asking = asyncio.ensure_future(self._ask_peer())
            self._asking.add_done_callback(self._end_asking)
        if not self._admitted.is_set():
            self._broker.need_replica(NO_SLAVE)

    async def admitted(self, stop: asyncio.Event) -> None:
        """Wait until the log is that of the pair, or until `stop` is set.

        The end of the log of a sync master may lack on the slave after a crash. What a consumer saw
        of it would be gone if the slave was promoted next.
        """
        if self._admitted.is_set():
            return
        _log.warning("serves nobody yet: %s", NO_SLAVE)
        events = (self._admitted, self.fenced, stop)
        waits = [asyncio.ensure_future(each.wait()) for each in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    def notify(self) -> None:
        """Note that the log may be longer."""
        if self._server is not None:
            self._server.notify()

    def note_shown(self) -> None:
        """Note that consumers may see more; the slave hears of it soon, and not each time."""
        server = self._server
        if server is None or self._is_beat_due or server.replicated.state is State.LOST:
            return
        self._is_beat_due = True
        asyncio.get_running_loop().call_later(SHOWN_BEAT_S, self._say_shown)

    def _say_shown(self) -> None:
        self._is_beat_due = False
        self.notify()

    async def stop(self) -> None:
        """Close the connection to the slave."""
        self._keep_peer()
        if self._asking is not None:
            self._asking.cancel()
        self._lease_watch.stop()
        if self._hand_over is not None:
            self._hand_over.end()
        if self._server is not None:
            await self._server.stop()

    def _end_asking(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            error = done.exception()
            assert error is not None
            self._pump.fail(error)

    async def _ask_peer(self) -> None:
        """Ask the other node now and then, while it is no slave, whether it is the master now."""
        peer, server = self._broker.role_file.peer, self._server
        if peer is None or server is None:
            return
        limit_s = link_limits(self._config).silence_ms / MS_PER_SECOND
        while not self.fenced.is_set():
            await asyncio.sleep(ASK_S)
            if server.replicated.state is State.LOST:
                said = await ask_peer(
                    peer, self._source, self._facts(), self._secret, limit_s=limit_s
                )
                if isinstance(said, Facts) and said.term > self._broker.role.term:
                    self._note_newer(said.term)

    def _note_newer(self, term: int) -> None:
        if not self.fenced.is_set():
            _log.error(
                "is the master of term %d no longer, because the other node knows term %d: serves "
                "nobody",
                self._broker.role.term,
                term,
            )
            self.fenced.set()

    def _changed(self, known: Replicated) -> None:
        if self._hand_over is not None:
            self._hand_over.note_change()
        is_connected = known.state in WITH_STREAM
        self._broker.head_freer.hold.note_slave(known.durable_pos if is_connected else None)
        self._route(known, is_connected=is_connected)
        is_there = known.state in UP_TO_DATE
        is_sync_flush = self._config.flush == "sync"
        pos = known.durable_pos if is_sync_flush else known.received_pos
        if self._is_solo:
            self._end_solo(pos if is_there else None)
        # With etcd, a solo master may acknowledge what its slave lacks only if that one is not
        # promoted: its answers do not say so.
        if known.proved_ms is not None and not (self._is_coordinated and self._is_solo):
            self.lease.renew(known.proved_ms)
        if not self._is_sync:
            if self._is_coordinated:
                self._lease_watch.look()
            return
        if not self._is_solo:
            self._broker.need_replica(None if is_there else NO_SLAVE)
            if is_there:
                self._wants_solo = False
                self._admitted.set()
        self._lease_watch.look()
        shows = known.acked_ms is not None and (not self._is_solo or self._alone_pos is not None)
        if shows and self.lease.is_held:
            self._pump.show(self._broker.replicated(pos))

    def _route(self, known: Replicated, *, is_connected: bool) -> None:
        """Tell clients of the slave, and consumers once it has caught up."""
        routes, endpoint = self._routes, known.facts.endpoint
        if routes is None:
            return
        if is_connected and endpoint is not None:
            routes.peer = Member(known.node, endpoint)
            self._keep_peer()
        elif routes.peer is not None and self._forgetting is None:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(LISTED_S, self._forget_peer)
        routes.is_peer_in_sync = known.state in UP_TO_DATE and endpoint is not None
        if endpoint is None or not routes.is_peer_in_sync or routes.shares_address:
            self._broker.read_at_slave(None, "", 0)
            return
        rack = "" if endpoint.rack == routes.me.at.rack else endpoint.rack
        self._broker.read_at_slave(known.node, rack, self._late_bytes)

    def _keep_peer(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None

    def _forget_peer(self) -> None:
        self._forgetting = None
        assert self._routes is not None
        self._routes.peer = None

    def _end_solo(self, slave_pos: int | None) -> None:
        """Wait for the slave again, and be solo until it has all that was acknowledged alone.

        A slave has caught up when little is on its way. What was acknowledged of that would be lost
        if it was promoted then.

        Args:
            slave_pos: what the slave has; None if it has not caught up.
        """
        if slave_pos is None:
            if self._alone_pos is not None:  # it is away again
                self._alone_pos = None
                self._pump.show(self._broker.release_replica())
            return
        if self._alone_pos is None:
            self._broker.need_replica(None)
            self._alone_pos = self._broker.replicated_pos
        if slave_pos >= self._alone_pos:
            self._alone_pos = None
            self._is_solo = False
            self.lease.is_required = True
            _log.warning("the slave has caught up: acknowledgements wait for it again")

    async def promote(self, *, is_forced: bool = False) -> None:
        """See `Pair`."""
        raise RoleError("this node is the master already")

    async def hand_over(self) -> None:
        """See `Pair`."""
        server = self._server
        if server is None:
            raise RoleError("this node has no slave: replication.mode is none")
        if self._is_coordinated and not self._is_key_ours:
            raise RoleError(NO_KEY)
        if self._is_solo:
            raise RoleError("this node waits for no slave now: it goes solo")
        if self._hand_over is None or not self._hand_over.is_going_on:
            self._hand_over = HandOver(self._broker, server, self._source.node, self.stops_serving)
        await self._hand_over.begin()

    @property
    def _is_handing_over(self) -> bool:
        is_asked = self._hand_over is not None and self._hand_over.is_going_on
        return is_asked or self.stops_serving.is_set()

    async def yield_mastery(self) -> bool:
        """Let the slave take over, after all servers for clients have stopped.

        From here on this role acknowledges nothing, whatever its slave answers: who takes over
        does not wait for the lease.

        Returns:
            This node is the master still.

        Raises:
            StorageError: the disk failed; the process must end.
        """
        assert self._hand_over is not None
        self._lease_watch.stop()
        self.lease.end()
        self._broker.flush()
        return await self._hand_over.finish()

    def go_alone(self) -> None:
        """See `Pair`."""
        raise RoleError("this node compares no logs")

    def forbid_promotion(self, *, is_forbidden: bool) -> None:
        """Note whether the coordinator lets nobody promote the slave, which lets `solo` be asked.

        It must not be allowed again before the slave has caught up.
        """
        self._is_promotion_forbidden = is_forbidden

    def go_solo(self, *, is_slave_off: bool) -> None:
        """See `Pair`."""
        if not self._is_sync:
            raise RoleError("this node waits for no slave: replication.mode is not sync")
        assert self._server is not None
        if self._is_handing_over:
            raise RoleError("this node hands over to its slave: wait until that is over")
        if self._server.replicated.state in UP_TO_DATE:
            raise RoleError("the slave is connected: stop it first")
        if self._is_coordinated and not self._is_promotion_forbidden:
            self._wants_solo = True
            raise RoleError(
                "etcd is being asked to let nobody promote the slave: this node goes on alone once "
                "etcd says so; `latermq replication` shows it"
            )
        if not is_slave_off and not self._is_promotion_forbidden:
            raise RoleError(
                "if the slave is promoted meanwhile, there are two masters, and what this one "
                "acknowledges alone is lost: make sure that the slave is off and stays so until it "
                "follows this node again, then say so with --slave-is-off"
            )
        who = "the operator says that the slave is off" if is_slave_off else "nobody may promote it"
        self._begin_solo(who)

    def _begin_solo(self, reason: str) -> None:
        self._is_solo = True
        self.lease.is_required = self._needs_lease
        self._lease_watch.look()
        self._pump.show(self._broker.release_replica())
        self._admitted.set()
        _log.warning("goes on alone: %s", reason)

    def status(self) -> ReplicationStatus:
        """See `Pair`."""
        known = None if self._server is None else self._server.replicated
        state = "off"
        if known is not None:
            state = "waiting" if known.state is State.LOST else known.state.value
        acked = known if known is not None and known.acked_ms is not None else None
        lag_bytes = None
        if acked is not None:
            lag_bytes = max(0, self._source.committed_pos - acked.durable_pos)
        return ReplicationStatus(
            role="master",
            term=self._broker.role.term,
            mode=self._config.replication,
            solo=self._is_solo,
            node=self._source.node,
            state=state,
            peer=known.address if known is not None and state != "waiting" else None,
            end=self._source.committed_pos,
            received=None if acked is None else acked.received_pos,
            durable=None if acked is None else acked.durable_pos,
            lag_bytes=lag_bytes,
            catch_up_max_bytes_per_s=self._catch_up_rate() if state == "catch-up" else 0,
            heard_ms_ago=None if acked is None else since_ms(self._clock, acked.acked_ms),
            promise=self._promise(state),
            lease_left_ms=self.lease.left_ms() if self.lease.is_required else None,
            held_bytes=self._broker.head_freer.hold.held_bytes,
            given_up=self._broker.head_freer.hold.has_given_up,
        )

    def _promise(self, state: str) -> str:
        kept = _KEPT[self._config.flush]
        if self._server is None:
            return kept
        if not self._is_sync or self._is_solo:
            return f"{kept}; the slave may lack the newest"
        if not self.lease.is_held:
            return f"nothing is acknowledged or delivered: {NO_LEASE}"
        if state not in {each.value for each in UP_TO_DATE}:
            return f"with acks=1, {kept}; acks=all is refused: {NO_SLAVE}"
        return f"{kept}; with acks=all they also survive the loss of this machine"
