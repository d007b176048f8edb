"""The states of a connection between master and slave, as tables. docs/REPLICATION.md shows them.

`MasterSession` and `SlaveSession` walk these tables through a `Walk`, and know no other states. A
message that is no event of the present state ends the connection. Layer 3; does no I/O.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

from appliance.replication.wire import MessageType


class State(Enum):
    """Of one connection."""

    HANDSHAKE = "handshake"
    COMPARING = "comparing"
    REPAIRING = "repairing"
    CATCH_UP = "catch-up"
    STREAMING = "streaming"
    HANDING_OVER = "handing over"
    YIELDED = "yielded"
    LOST = "lost"


class Event(Enum):
    """What happens on a connection."""

    CHALLENGE = "CHALLENGE arrives"
    HELLO = "HELLO arrives and is accepted"
    WELCOME = "WELCOME arrives"
    ANSWERED = "all is said, and no stream begins"
    NO_STREAM = "WELCOME of a master that compares arrives"
    LACKS = "HELLO shows that the slave has what this master lost"
    DAMAGED = "HELLO of a slave whose log is damaged arrives"
    READ = "READ is sent, or arrives"
    BYTES = "BYTES is sent, or arrives"
    REQUEST = "REQUEST arrives"
    SUPPLY = "SUPPLY is sent"
    REFUSED = "REFUSED is sent, or arrives"
    DATA = "DATA arrives"
    BEAT = "BEAT arrives"
    ACK = "ACK arrives"
    PREPARE = "PREPARE is sent, or arrives"
    READY = "READY is sent, or arrives"
    YIELD = "YIELD is sent, or arrives"
    TAKEN = "TAKEN is sent, or arrives"
    CAUGHT_UP = "the slave has caught up"
    FAULT = "the peer breaks a rule, or a log refuses its part"
    SILENCE = "nothing arrived for too long"
    CLOSED = "the connection ends"


ARRIVALS: Final[dict[MessageType, Event]] = {
    MessageType.CHALLENGE: Event.CHALLENGE,
    MessageType.HELLO: Event.HELLO,
    MessageType.WELCOME: Event.WELCOME,
    MessageType.REFUSED: Event.REFUSED,
    MessageType.DATA: Event.DATA,
    MessageType.BEAT: Event.BEAT,
    MessageType.ACK: Event.ACK,
    MessageType.PREPARE: Event.PREPARE,
    MessageType.READY: Event.READY,
    MessageType.YIELD: Event.YIELD,
    MessageType.TAKEN: Event.TAKEN,
    MessageType.READ: Event.READ,
    MessageType.BYTES: Event.BYTES,
    MessageType.REQUEST: Event.REQUEST,
    MessageType.SUPPLY: Event.SUPPLY,
}

WITH_STREAM: Final = (State.CATCH_UP, State.STREAMING, State.HANDING_OVER, State.YIELDED)
UP_TO_DATE: Final = (State.STREAMING, State.HANDING_OVER, State.YIELDED)
"""The slave has caught up."""

States: TypeAlias = Mapping[tuple[State, Event], State]

MASTER_READS: Final = frozenset(
    {
        MessageType.HELLO,
        MessageType.ACK,
        MessageType.READY,
        MessageType.TAKEN,
        MessageType.BYTES,
        MessageType.REQUEST,
    }
)
SLAVE_READS: Final = frozenset(MessageType) - MASTER_READS
"""The messages that one end may receive at all."""

MASTER_STATES: Final[States] = {
    (State.HANDSHAKE, Event.HELLO): State.CATCH_UP,
    (State.HANDSHAKE, Event.ANSWERED): State.LOST,
    (State.HANDSHAKE, Event.LACKS): State.COMPARING,
    (State.HANDSHAKE, Event.DAMAGED): State.REPAIRING,
    (State.HANDSHAKE, Event.REFUSED): State.LOST,
    (State.HANDSHAKE, Event.FAULT): State.LOST,
    (State.HANDSHAKE, Event.SILENCE): State.LOST,
    (State.HANDSHAKE, Event.CLOSED): State.LOST,
    (State.COMPARING, Event.READ): State.COMPARING,
    (State.COMPARING, Event.BYTES): State.COMPARING,
    (State.COMPARING, Event.ANSWERED): State.LOST,
    (State.COMPARING, Event.FAULT): State.LOST,
    (State.COMPARING, Event.SILENCE): State.LOST,
    (State.COMPARING, Event.CLOSED): State.LOST,
    (State.REPAIRING, Event.REQUEST): State.REPAIRING,
    (State.REPAIRING, Event.SUPPLY): State.REPAIRING,
    (State.REPAIRING, Event.FAULT): State.LOST,
    (State.REPAIRING, Event.SILENCE): State.LOST,
    (State.REPAIRING, Event.CLOSED): State.LOST,
    (State.CATCH_UP, Event.ACK): State.CATCH_UP,
    (State.CATCH_UP, Event.CAUGHT_UP): State.STREAMING,
    (State.CATCH_UP, Event.FAULT): State.LOST,
    (State.CATCH_UP, Event.SILENCE): State.LOST,
    (State.CATCH_UP, Event.CLOSED): State.LOST,
    (State.STREAMING, Event.ACK): State.STREAMING,
    (State.STREAMING, Event.PREPARE): State.HANDING_OVER,
    (State.STREAMING, Event.FAULT): State.LOST,
    (State.STREAMING, Event.SILENCE): State.LOST,
    (State.STREAMING, Event.CLOSED): State.LOST,
    (State.HANDING_OVER, Event.ACK): State.HANDING_OVER,
    (State.HANDING_OVER, Event.READY): State.HANDING_OVER,
    (State.HANDING_OVER, Event.YIELD): State.YIELDED,
    (State.HANDING_OVER, Event.FAULT): State.LOST,
    (State.HANDING_OVER, Event.SILENCE): State.LOST,
    (State.HANDING_OVER, Event.CLOSED): State.LOST,
    (State.YIELDED, Event.ACK): State.YIELDED,
    (State.YIELDED, Event.TAKEN): State.LOST,
    (State.YIELDED, Event.FAULT): State.LOST,
    (State.YIELDED, Event.SILENCE): State.LOST,
    (State.YIELDED, Event.CLOSED): State.LOST,
}

SLAVE_STATES: Final[States] = {
    (State.HANDSHAKE, Event.CHALLENGE): State.HANDSHAKE,
    (State.HANDSHAKE, Event.WELCOME): State.CATCH_UP,
    (State.HANDSHAKE, Event.NO_STREAM): State.COMPARING,
    (State.HANDSHAKE, Event.REFUSED): State.LOST,
    (State.HANDSHAKE, Event.FAULT): State.LOST,
    (State.HANDSHAKE, Event.SILENCE): State.LOST,
    (State.HANDSHAKE, Event.CLOSED): State.LOST,
    (State.COMPARING, Event.READ): State.COMPARING,
    (State.COMPARING, Event.BYTES): State.COMPARING,
    (State.COMPARING, Event.FAULT): State.LOST,
    (State.COMPARING, Event.SILENCE): State.LOST,
    (State.COMPARING, Event.CLOSED): State.LOST,
    (State.CATCH_UP, Event.DATA): State.CATCH_UP,
    (State.CATCH_UP, Event.BEAT): State.CATCH_UP,
    (State.CATCH_UP, Event.CAUGHT_UP): State.STREAMING,
    (State.CATCH_UP, Event.FAULT): State.LOST,
    (State.CATCH_UP, Event.SILENCE): State.LOST,
    (State.CATCH_UP, Event.CLOSED): State.LOST,
    (State.STREAMING, Event.DATA): State.STREAMING,
    (State.STREAMING, Event.BEAT): State.STREAMING,
    (State.STREAMING, Event.PREPARE): State.HANDING_OVER,
    (State.STREAMING, Event.FAULT): State.LOST,
    (State.STREAMING, Event.SILENCE): State.LOST,
    (State.STREAMING, Event.CLOSED): State.LOST,
    (State.HANDING_OVER, Event.DATA): State.HANDING_OVER,
    (State.HANDING_OVER, Event.BEAT): State.HANDING_OVER,
    (State.HANDING_OVER, Event.READY): State.HANDING_OVER,
    (State.HANDING_OVER, Event.YIELD): State.YIELDED,
    (State.HANDING_OVER, Event.FAULT): State.LOST,
    (State.HANDING_OVER, Event.SILENCE): State.LOST,
    (State.HANDING_OVER, Event.CLOSED): State.LOST,
    (State.YIELDED, Event.BEAT): State.YIELDED,
    (State.YIELDED, Event.TAKEN): State.LOST,
    (State.YIELDED, Event.FAULT): State.LOST,
    (State.YIELDED, Event.SILENCE): State.LOST,
    (State.YIELDED, Event.CLOSED): State.LOST,
}


class Walk:
    """The way of one connection through a table.

    Attributes:
        state: where it is.
        expected: the messages that may come next.
        reason: why it is lost; "" before.
    """

    __slots__ = ("_messages", "_table", "expected", "reason", "state")

    def __init__(self, table: States) -> None:
        self._table = table
        self._messages = MASTER_READS if table is MASTER_STATES else SLAVE_READS
        self.state = State.HANDSHAKE
        self.reason = ""
        self.expected = self._find_expected()

    @property
    def is_lost(self) -> bool:
        """Nothing happens any more."""
        return self.state is State.LOST

    @property
    def has_stream(self) -> bool:
        """The handshake is done, and the connection is not lost."""
        return self.state in WITH_STREAM

    def go(self, event: Event, reason: str = "") -> None:
        """Take the step that the table has for an event; `reason` counts if it leads to LOST."""
        assert (self.state, event) in self._table, f"{event} in {self.state}"
        state = self._table[self.state, event]
        if state is not self.state:
            self.state = state
            self.expected = self._find_expected()
        if state is State.LOST:
            self.reason = reason

    def _find_expected(self) -> list[MessageType]:
        return [
            kind
            for kind, event in ARRIVALS.items()
            if kind in self._messages and (self.state, event) in self._table
        ]
