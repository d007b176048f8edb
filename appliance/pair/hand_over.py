"""A master hands over to its slave: what happens, in which order. Layer 6.

 prepare     the slave lets no checkpoint be in the way of its promotion, and says READY
 stop        this node serves nobody any more; its log is complete, and durable
 wait        the slave has all of it on its disk
 yield       the role file says that this node yielded; then YIELD is sent
 take        the slave writes its role file and says TAKEN; this node follows it

Before `yield` is on the disk this node is the master, whatever fails. After it this node is the
master again only if the other one says that it did not take over, or if an operator says so.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import Final

from appliance.broker import Broker
from appliance.config.setting import Address
from appliance.errors import NotReadyError, RoleError
from appliance.replication.facts import Facts
from appliance.replication.master import ReplicationServer
from appliance.replication.member import Member, MemberEvent, MemberState, other_node
from appliance.replication.states import State
from appliance.store.role_file import next_term

READY_S: Final = 60.0
"""The slave may have to end a checkpoint."""

STEP_S: Final = 5.0
"""For the end of the log to reach the slave, and for its answer to YIELD: a log that is complete at
the slave but for a window takes milliseconds."""

GOES_ON: Final = (State.HANDING_OVER, State.YIELDED)

_log = logging.getLogger(__name__)


class HandOver:
    """One attempt."""

    def __init__(
        self,
        broker: Broker,
        server: ReplicationServer,
        node: int,
        stops_serving: asyncio.Event,
    ) -> None:
        """Prepare.

        Args:
            broker: serves clients.
            server: has the slave.
            node: of this master, 1 or 2.
            stops_serving: set when this node must serve nobody any more; then call `finish`.
        """
        self._broker, self._server, self._node = broker, server, node
        self._member = Member(broker.role, node)
        self._member.state = MemberState.SERVING
        self._changed = asyncio.Event()
        self._over: asyncio.Future[None] | None = None
        self._stops_serving = stops_serving

    @property
    def is_going_on(self) -> bool:
        """An attempt has begun and has no outcome yet."""
        return self._over is not None and not self._over.done()

    def note_change(self) -> None:
        """Look at the slave again."""
        self._changed.set()

    async def begin(self) -> None:
        """Hand over; return when the slave has taken over.

        Raises:
            RoleError: the slave cannot take over, or did not; this node goes on as the master, or
                finds out by itself whether it is.
            NotReadyError: the broker stops.
        """
        if self.is_going_on:
            raise RoleError("a hand-over goes on already")
        if self._server.replicated.state is not State.STREAMING:
            raise RoleError("the slave is not up to date: wait until it streams")
        self._peer()
        over = self._over = asyncio.get_running_loop().create_future()
        try:
            self._server.prepare(next_term(self._broker.role.term, other_node(self._node)))
            if not await self._until(lambda: self._server.replicated.is_ready, READY_S):
                raise RoleError("the slave was not ready in time, or was lost: nothing has changed")
            self._member.go(MemberEvent.HANDOVER)
            self._stops_serving.set()
            await asyncio.shield(over)
        finally:
            if not self._stops_serving.is_set():  # the slave takes no checkpoint until it is told
                self._server.drop_slave("no hand-over follows")
                over.cancel()

    async def finish(self) -> bool:
        """Let the slave take over, after this node has stopped to serve; its log is flushed.

        Returns:
            This node is the master still, because the slave could not get all of the log.

        Raises:
            StorageError: the role file could not be written; the process must end.
        """
        server, end_pos = self._server, self._broker.committed_pos
        server.notify()
        if not await self._until(lambda: self._slave_has(end_pos), STEP_S):
            self._member.go(MemberEvent.KEPT)
            server.drop_slave("it lacks the end of the log")
            self._fail("the slave was lost, or too slow: this node goes on as the master")
            return True
        peer = self._peer()
        self._put(MemberEvent.YIELDS, peer)
        server.give_up_mastery()
        if await self._until(lambda: server.replicated.is_taken, STEP_S):
            self._put(MemberEvent.TAKEN, peer)
            _log.warning("handed over: node %d is the master now", other_node(self._node))
            if self._over is not None and not self._over.done():
                self._over.set_result(None)
        else:
            self._fail("the slave did not say whether it took over: this node asks it")
        return False

    def _slave_has(self, end_pos: int) -> bool:
        """The slave that is ready is there, and has the log to a position on its disk."""
        known = self._server.replicated
        return known.state is State.HANDING_OVER and known.durable_pos >= end_pos

    def end(self) -> None:
        """Note that the broker stops."""
        if self.is_going_on:
            assert self._over is not None
            self._over.set_exception(NotReadyError("the broker is stopping"))
            self._over.exception()  # who asked may be gone

    def _fail(self, reason: str) -> None:
        _log.error("hand-over: %s", reason)
        if self._over is not None and not self._over.done():
            self._over.set_exception(RoleError(reason))
            self._over.exception()  # who asked may be gone

    def _put(self, event: MemberEvent, peer: Address) -> None:
        record = self._member.go(event, term=self._member.record.term, peer=peer)
        assert record is not None
        self._broker.role_file.put(record)

    def _peer(self) -> Address:
        """Where this node follows the other one.

        Raises:
            RoleError: nobody knows.
        """
        known = self._broker.role_file.configured_peer
        if known is not None:
            return known
        said = self._server.slave_facts or Facts()
        if said.listen is None or not said.listen.port:
            raise RoleError(
                "the slave would have no slave, or this node does not know where: set "
                "replication.mode and a port of replication.listen there, or replication.peer here"
            )
        host = said.listen.host
        try:
            is_any = ipaddress.ip_address(host).is_unspecified
        except ValueError:
            is_any = False
        if is_any:
            host = self._server.replicated.address.rpartition(":")[0].strip("[]")
        return Address(host, said.listen.port)

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        """Wait until something is so; return False if the slave is lost, or it takes too long.

        A slave that connected again knows nothing of this hand-over.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not is_so():
                    if self._server.replicated.state not in GOES_ON:
                        return False
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
