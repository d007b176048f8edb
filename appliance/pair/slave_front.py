"""A slave, as Kafka clients see it while it follows. Layer 6."""

import logging
from collections.abc import Sequence
from socket import socket

from appliance.broker import Broker
from appliance.model import Endpoint
from appliance.pump import Pump
from appliance.replication.slave import Following
from appliance.replication.states import UP_TO_DATE, WITH_STREAM
from appliance.routes import Member, Routes
from appliance.slave_broker import SlaveBroker
from appliance.slave_pump import SlavePump
from appliance.store.follower import Follower
from compat.kafka.network.connection import KafkaConnection
from compat.kafka.network.server import KafkaServer

_log = logging.getLogger(__name__)


class SlaveFront:
    """Serves clients from the first frame of the log on, until the promotion.

    It listens on copies of the sockets. So who connects while the promotion goes on is served
    after it.
    """

    def __init__(
        self,
        broker: Broker,
        follower: Follower,
        sockets: Sequence[socket],
        endpoint: Endpoint,
        file_limit: int | None,
    ) -> None:
        """Prepare to listen.

        Args:
            broker: its start has come to the follower.
            follower: what follows.
            sockets: bound to the address for Kafka clients; they stay the caller's.
            endpoint: where clients are told to connect.
            file_limit: open files that this process may have; None if it is not bounded.
        """
        self._broker, self._follower = broker, follower
        self._sockets, self._file_limit = sockets, file_limit
        self._slave: SlaveBroker | None = None
        self._server: KafkaServer[SlavePump] | None = None
        self._kept: list[KafkaConnection] = []
        """Open connections whose clients wait for the promotion."""
        self.routes = Routes(Member(follower.node, endpoint), leads=False, is_open=False)

    @property
    def serves_reads(self) -> bool:
        """Consumers may read here now."""
        return self._slave is not None and self._slave.serves_reads

    @property
    def read_bytes(self) -> int:
        """Bytes of records that consumers read here."""
        return 0 if self._slave is None else self._slave.sent_bytes

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return 0 if self._server is None else self._server.connection_count

    @property
    def held_bytes(self) -> int:
        """Memory used by their requests and responses, bytes."""
        return 0 if self._server is None else self._server.held_bytes

    async def serve(self, following: Following) -> None:
        """Listen as soon as there is a log; called often.

        Args:
            following: what is known of the master.

        Raises:
            AddressError, ConfigError: another process listens there.
            Exception: what ended the work of the server; the process must end.
        """
        if self._server is not None:
            if self._server.pump.has_failed:
                raise self._server.pump.failure.result()
            return
        if not self._follower.has_log:
            return
        self._slave = self._broker.slave()
        self._server = KafkaServer(
            self._slave, SlavePump(self._slave), self._file_limit, routes=self.routes
        )
        await self._server.start([each.dup() for each in self._sockets])
        self.note(following)
        _log.info("answers Kafka clients at %s as a slave", self._server.bound)

    def note(self, following: Following) -> None:
        """Note what is known of the master; called after each change of it."""
        routes, endpoint = self.routes, following.facts.endpoint
        if endpoint is not None:
            routes.peer = Member(following.node, endpoint)
        routes.is_open = is_heard = following.state in WITH_STREAM
        routes.is_peer_in_sync = following.state in UP_TO_DATE
        if self._slave is None or self._server is None:
            self._follower.show(following.visible_pos)  # marks must not accumulate
            return
        self._server.pump.show(self._slave.follow(following.visible_pos, is_heard=is_heard))

    async def stop(self) -> None:
        """Stop to serve; nothing uses the log after it. May be called twice.

        Connections with nothing under way stay open. Clients such as librdkafka take a second or
        two once they have lost all brokers, and the master's connections are lost just then.
        """
        if self._server is not None:
            self._kept += await self._server.stop(keeps_idle=True)

    def hand_on(self, server: KafkaServer[Pump]) -> None:
        """Let the server of the promoted master serve the connections that stayed open."""
        kept, self._kept = self._kept, []
        server.adopt(kept)

    def close(self) -> None:
        """Close the connections that stayed open. May be called twice."""
        kept, self._kept = self._kept, []
        for connection in kept:
            connection.abort()
