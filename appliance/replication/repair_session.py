"""The end of a slave that asks its master for the damaged parts of its log, without the connection.

The connection begins as any does, with the HELLO of a slave that repairs. After WELCOME the slave
sends a REQUEST for each piece, one at a time, and gets a SUPPLY. Layer 3; does no I/O but that of
its log.
"""

from appliance.errors import RemoteProtocolError, ReplicaError
from appliance.replication import wire
from appliance.replication.facts import Facts
from appliance.replication.greeting import Greeting
from appliance.replication.logs import NO_POS, DamagedLog
from appliance.replication.message_reader import MessageReader
from appliance.replication.slave_session import introduce
from appliance.replication.wire import Data, MessageType, Welcome


class RepairSession:
    """See the module.

    Attributes:
        is_done: all damaged parts are written, durably.
    """

    def __init__(self, log: DamagedLog, facts: Facts, secret: bytes, nonce: bytes) -> None:
        """Wait for a CHALLENGE.

        Args:
            log: has damaged parts.
            facts: what HELLO says of this node, which repairs.
            secret: what both nodes know.
            nonce: NONCE_SIZE random bytes, never used before.
        """
        self._log, self._reader = log, MessageReader()
        self._greeting = Greeting(lambda: introduce(log, facts), secret, nonce)
        self._missing = log.damaged()
        self.is_done = False

    def received(self, data: bytes) -> bytes:
        """Handle what arrived; return what to send.

        Raises:
            RemoteProtocolError: the peer breaks a rule, does not know the secret, or refuses.
            ReplicaError: the master cannot have what is damaged here.
            StorageError: the disk failed.
        """
        self._reader.feed(data)
        output = b""
        while not self.is_done and (message := self._reader.next_message(self._expected)):
            assert not isinstance(message, Data), "no DATA is expected"
            output += self._handle(*message)
        return output

    @property
    def _expected(self) -> tuple[MessageType, ...]:
        return self._greeting.expected or (MessageType.SUPPLY,)

    def _handle(self, kind: MessageType, body: bytes) -> bytes:
        if kind is MessageType.SUPPLY:
            self._write(wire.decode_bytes(body))
            return self._request()
        output = self._greeting.handle(kind, body)
        if self._greeting.welcome is None:
            return output
        self._check(self._greeting.welcome)
        return self._request()

    def _check(self, welcome: Welcome) -> None:
        """Check that this is the master, and that it has what is damaged here."""
        hello = self._greeting.hello
        assert hello is not None
        if welcome.segment_size_bytes != hello.segment_size_bytes:
            raise RemoteProtocolError("the master does not fit, and does not refuse either")
        if welcome.facts.term < hello.facts.term:
            raise RemoteProtocolError(f"the master is of term {welcome.facts.term}, which ended")
        start, end = welcome.start_pos, welcome.common_pos
        if hello.last_pos == NO_POS:
            end = start
        elif end == hello.end_pos:  # what is damaged beyond that was the master's as well
            end = welcome.end_pos
        for begin, stop in self._missing:
            if not start <= begin < stop <= end:
                raise ReplicaError(
                    f"log positions {begin} to {stop} are damaged, and the master's log is known "
                    f"to be the same from {start} to {end} only"
                )

    def _request(self) -> bytes:
        if not self._missing:
            self._log.flush()
            self.is_done = True
            return b""
        begin, end = self._missing[0]
        size = min(end - begin, wire.READ_SIZE_MAX_BYTES)
        return wire.encode_read(begin, size, MessageType.REQUEST)

    def _write(self, supply: Data) -> None:
        begin, end = self._missing[0]
        after = supply.pos + len(supply.data)
        if supply.pos != begin or after > end:
            raise RemoteProtocolError(f"a SUPPLY from {supply.pos} to {after}, not from {begin}")
        self._log.write(supply.pos, supply.data)
        self._missing[:1] = [(after, end)] if after < end else []
