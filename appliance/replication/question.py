"""Asks the other node what it is: a connection that ends with the answer.

The question is the HELLO of a node that is no slave, with an empty log. The answer is a WELCOME, or
a REFUSED. Layer 5; on the event loop.
"""

import asyncio
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final

from appliance.config.setting import Address
from appliance.errors import RemoteProtocolError
from appliance.replication import wire
from appliance.replication.facts import Facts
from appliance.replication.logs import NO_CLUSTER, NO_POS
from appliance.replication.message_reader import MessageReader
from appliance.replication.wire import Data, Hello, MessageType, Welcome

READ_SIZE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks.

    Attributes:
        cluster, node, format_version, segment_size_bytes: as a log says them.
        facts: the term and the role of the asker, which is no slave.
    """

    cluster: bytes
    node: int
    format_version: int
    segment_size_bytes: int
    facts: Facts


class Question:
    """One question, without the connection."""

    def __init__(self, asker: Asker, secret: bytes, nonce: bytes) -> None:
        """Wait for a CHALLENGE.

        Args:
            asker: who asks.
            secret: what both nodes know.
            nonce: NONCE_SIZE random bytes, never used before.
        """
        self._asker, self._secret, self._nonce = asker, secret, nonce
        self._reader = MessageReader()
        self._has_asked = False

    def received(self, data: bytes) -> tuple[bytes, Welcome | None]:
        """Handle what arrived; return what to send, and the answer if it is there.

        Raises:
            RemoteProtocolError: the peer breaks a rule, does not know the secret, or refuses.
        """
        self._reader.feed(data)
        output = b""
        while True:
            expected = [MessageType.WELCOME, MessageType.REFUSED]
            message = self._reader.next_message(
                expected if self._has_asked else [MessageType.CHALLENGE]
            )
            if message is None:
                return output, None
            assert not isinstance(message, Data)
            kind, body = message
            if kind is MessageType.CHALLENGE:
                self._has_asked = True
                output += self._ask(body)
            elif kind is MessageType.REFUSED:
                refused = wire.decode_refused(body, secret=self._secret, slave_nonce=self._nonce)
                raise RemoteProtocolError(wire.refusal_text(refused))
            else:
                return output, self._check(body)

    def _ask(self, body: bytes) -> bytes:
        challenge, asker = wire.decode_challenge(body), self._asker
        if challenge.version != wire.VERSION:
            raise RemoteProtocolError(f"it speaks version {challenge.version} of the protocol")
        hello = Hello(
            cluster=asker.cluster,
            node=asker.node,
            format_version=asker.format_version,
            segment_size_bytes=asker.segment_size_bytes,
            start_pos=0,
            end_pos=0,
            last_pos=NO_POS,
            last_crc=0,
            epochs=(),
            facts=asker.facts,
        )
        return wire.encode_hello(
            hello, nonce=self._nonce, secret=self._secret, master_nonce=challenge.nonce
        )

    def _check(self, body: bytes) -> Welcome:
        welcome = wire.decode_welcome(body, secret=self._secret, slave_nonce=self._nonce)
        if welcome.node == self._asker.node:
            raise RemoteProtocolError(f"it is node {welcome.node} as well")
        known = (NO_CLUSTER, self._asker.cluster)
        if self._asker.cluster != NO_CLUSTER and welcome.cluster not in known:
            raise RemoteProtocolError(f"it is of cluster {welcome.cluster.hex()}")
        return welcome


async def ask(address: Address, asker: Asker, secret: bytes, *, limit_s: float) -> Welcome:
    """Ask the node at an address.

    Args:
        address: where it replicates.
        asker: who asks.
        secret: what both nodes know.
        limit_s: the answer takes at most so long.

    Raises:
        RemoteProtocolError: it refuses, does not know the secret, or is no node of latermq.
        OSError: nobody is there, or it does not answer in time.
        UnicodeError: the name cannot be a host's.
    """
    question = Question(asker, secret, token_bytes(wire.NONCE_SIZE))
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            while data := await reader.read(READ_SIZE_BYTES):
                output, welcome = question.received(data)
                if welcome is not None:
                    return welcome
                writer.write(output)
        finally:
            writer.transport.abort()
    raise RemoteProtocolError("it closed the connection without an answer")
