"""What a black-box run records (each record sent, its outcome, each record read), and the
violations that can be found in it.

All times are wall clock milliseconds of the machine on which broker and clients run together.
"""

import re
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Headers = tuple[tuple[str, bytes], ...]

_VALUE = re.compile(rb"([a-z0-9]+)/(\d+)/([0-9a-f]{8})/")


class MessageId(NamedTuple):
    producer: str
    counter: int  # grows by one with every message of that producer, over all partitions


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Attempted:
    """A record is about to be sent: immediate, delayed, replacing a timer or cancelling one."""

    message: MessageId
    topic: str
    partition: int
    at_ms: int
    value: bytes
    key: bytes | None = None
    headers: Headers = ()  # the application's own, without the request headers
    delay_ms: int | None = None  # x-delay, or the delay of the level
    deliver_at_ms: int | None = None  # x-deliver-at
    timer_id: bytes | None = None  # x-deliver-id
    cancels: bytes | None = None  # x-deliver-cancel; a cancel is never delivered itself
    retry_attempt: int | None = None  # x-retry-attempt as it must be delivered, in `topic`
    asks_reply: bool = False  # x-deliver-reply beside a cancel

    @property
    def asks_for_delivery_headers(self) -> bool:
        asked = (self.delay_ms, self.deliver_at_ms, self.timer_id, self.retry_attempt)
        return any(wish is not None for wish in asked)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    message: MessageId
    at_ms: int
    offset: int | None = None  # None: the client cannot know it (a batch with delayed records)


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker answered with an error which says that nothing of the batch is stored."""

    message: MessageId
    at_ms: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer came: the message is stored or not."""

    message: MessageId
    at_ms: int
    error: str = ""  # the client's message, for people


@dataclass(frozen=True, slots=True)
class Consumed:
    """One record as one reader got it; each reader reads each partition from offset 0."""

    reader: str
    place: Place
    at_ms: int
    key: bytes | None
    value: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Restarted:
    killed_ms: int
    ready_ms: int


Outcome = Acknowledged | Refused | Unknown
Event = Attempted | Outcome | Consumed | Restarted


class Rule(Enum):
    LOST = "acknowledged, never delivered"
    DOUBLED = "delivered at more than one offset"
    EARLY = "consumed before it was due"
    WRONG_DUE = "accepted or due at another time than asked for"
    REORDERED = "overtaken by a message that belongs after it"
    INVENTED = "delivered, but nobody sent it"
    CHANGED = "key, body, headers or partition differ from what was sent"
    CANCELLED = "delivered although cancelled or replaced in time"
    REFUSED = "delivered although the broker refused it"
    MOVED = "an offset holds another message than it did, or than was acknowledged"
    GAP = "a reader did not see the next offset"
    VANISHED = "an offset was seen once and is not there at the end"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise; `facts` is for people."""

    rule: Rule
    message: MessageId | None
    place: Place | None
    facts: str


def encode_value(message: MessageId, padding: bytes = b"") -> bytes:
    """Make a body that contains its message's identity and a checksum of the body."""
    name = b"%s/%d" % (message.producer.encode(), message.counter)
    return b"%s/%08x/%s" % (name, zlib.crc32(name + padding), padding)


def decode_value(value: bytes) -> MessageId | None:
    """Parse a body made by `encode_value`; None if its bytes changed."""
    match = _VALUE.match(value)
    if match is None:
        return None
    name = value[: match.end(2)]
    if zlib.crc32(name + value[match.end() :]) != int(match[3], 16):
        return None
    return MessageId(match[1].decode(), int(match[2]))
