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
from appliance.replication.greeting import Greeting
from appliance.replication.logs import NO_POS
from appliance.replication.message_reader import MessageReader
from appliance.replication.wire import Data, Hello, Welcome

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

    def introduce(self) -> Hello:
        """Return the HELLO of an empty log."""
        return Hello(
            cluster=self.cluster,
            node=self.node,
            format_version=self.format_version,
            segment_size_bytes=self.segment_size_bytes,
            start_pos=0,
            end_pos=0,
            last_pos=NO_POS,
            last_crc=0,
            epochs=(),
            facts=self.facts,
        )


class Question:
    """One question, without the connection."""

    def __init__(self, asker: Asker, secret: bytes, nonce: bytes) -> None:
        """Wait for a CHALLENGE.

        Args:
            asker: who asks.
            secret: what both nodes know.
            nonce: NONCE_SIZE random bytes, never used before.
        """
        self._reader = MessageReader()
        self._greeting = Greeting(asker.introduce, secret, nonce)

    def received(self, data: bytes) -> tuple[bytes, Welcome | None]:
        """Handle what arrived; return what to send, and the answer if it is there.

        Raises:
            RemoteProtocolError: the peer breaks a rule, does not know the secret, or refuses.
        """
        self._reader.feed(data)
        greeting, output = self._greeting, b""
        while greeting.welcome is None:
            message = self._reader.next_message(greeting.expected)
            if message is None:
                break
            assert not isinstance(message, Data)
            output += greeting.handle(*message)
        return output, greeting.welcome


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
