"""The first messages of a connection that asks for no stream: CHALLENGE, HELLO, then WELCOME.

A question ends with WELCOME; a repair goes on after it. Layer 3; does no I/O.
"""

from collections.abc import Callable
from typing import Final

from appliance.errors import RemoteProtocolError
from appliance.replication import wire
from appliance.replication.logs import NO_CLUSTER
from appliance.replication.wire import Hello, MessageType, Welcome

BEFORE_HELLO: Final = (MessageType.CHALLENGE,)
AFTER_HELLO: Final = (MessageType.WELCOME, MessageType.REFUSED)


class Greeting:
    """The end that connects.

    Attributes:
        hello: what was said; None before.
        welcome: what was answered; None before.
        expected: the messages that may come next.
    """

    def __init__(self, introduce: Callable[[], Hello], secret: bytes, nonce: bytes) -> None:
        """Wait for a CHALLENGE.

        Args:
            introduce: returns what this end says of itself.
            secret: what both nodes know.
            nonce: NONCE_SIZE random bytes, never used before.
        """
        self._introduce, self._secret, self._nonce = introduce, secret, nonce
        self.hello: Hello | None = None
        self.welcome: Welcome | None = None
        self.expected: tuple[MessageType, ...] = BEFORE_HELLO

    def handle(self, kind: MessageType, body: bytes) -> bytes:
        """Handle a message that is expected; return what to send.

        Raises:
            RemoteProtocolError: the peer breaks a rule, does not know the secret, refuses, or is
                not the other node of this pair.
        """
        if kind is MessageType.CHALLENGE:
            return self._answer(body)
        if kind is MessageType.REFUSED:
            refused = wire.decode_refused(body, secret=self._secret, slave_nonce=self._nonce)
            raise RemoteProtocolError(wire.refusal_text(refused))
        welcome = wire.decode_welcome(body, secret=self._secret, slave_nonce=self._nonce)
        assert self.hello is not None
        if welcome.node == self.hello.node:
            raise RemoteProtocolError(f"it is node {welcome.node} as well")
        is_known = self.hello.cluster != NO_CLUSTER
        if is_known and welcome.cluster not in (NO_CLUSTER, self.hello.cluster):
            raise RemoteProtocolError(f"it is of cluster {welcome.cluster.hex()}")
        self.welcome, self.expected = welcome, ()
        return b""

    def _answer(self, body: bytes) -> bytes:
        challenge = wire.decode_challenge(body)
        if challenge.version != wire.VERSION:
            raise RemoteProtocolError(f"it speaks version {challenge.version} of the protocol")
        self.hello, self.expected = self._introduce(), AFTER_HELLO
        return wire.encode_hello(
            self.hello, nonce=self._nonce, secret=self._secret, master_nonce=challenge.nonce
        )
