"""What every client is tested with: ways to ask for a delay, and what a delivery looks like."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

Header = tuple[str, bytes]

OWN_HEADERS: Final[tuple[Header, ...]] = (("a", b"1"), ("b", b"\x00\xff"), ("a", b""))

LEVEL_1_MS: Final = 450  # the first level of the broker that these tests use

# An overdue record on a busy machine; in the usual case the lateness is a few milliseconds.
LATE_MAX_MS: Final = 60_000

CODECS: Final = ("gzip", "snappy", "lz4", "zstd")

BAD: Final[Header] = ("x-delay", b"soon")


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a client gave it to the application."""

    value: bytes
    key: bytes | None
    headers: tuple[Header, ...]
    partition: int
    offset: int
    timestamp_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A record with one way to ask for a delay; the time asked for is one of the last two."""

    value: bytes
    request: tuple[Header, ...]
    delay_ms: int | None = None
    due_ms: int | None = None

    def headers(self, own: Sequence[Header] = OWN_HEADERS) -> list[Header]:
        """As sent: the request between the application's own headers."""
        return [own[0], *self.request, *own[1:]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wishes() -> list[Wish]:
    """Return one record for each form of request; the first two are delivered at once."""
    now = now_ms()
    instant = datetime.fromtimestamp((now + 500) / 1000, UTC).isoformat(timespec="milliseconds")
    past, epoch = now - 60_000, now + 550
    return [
        Wish(b"not delayed", ()),
        Wish(b"instant in the past", (("x-deliver-at", b"%d" % past),), due_ms=past),
        Wish(b"milliseconds", (("x-delay", b"50"),), delay_ms=50),
        Wish(b"unit", (("x-delay", b"100ms"),), delay_ms=100),
        Wish(b"ISO 8601", (("x-delay", b"PT0.15S"),), delay_ms=150),
        Wish(b"Java long", (("x-delay", (200).to_bytes(8, "big")),), delay_ms=200),
        Wish(b"RFC 3339", (("x-deliver-at", instant.encode()),), due_ms=now + 500),
        Wish(b"epoch", (("x-deliver-at", b"%d" % epoch),), due_ms=epoch),
        Wish(b"level", (("x-delay-level", b"1"),), delay_ms=LEVEL_1_MS),
    ]


def check_wishes(
    sent: Sequence[Wish],
    sent_ms: int,
    received: Sequence[Received],
    own: Sequence[Header] = OWN_HEADERS,
) -> None:
    """Check that all came out of one partition, in order of their due times and none early.

    What is not delayed, the first two, is sent last.
    """
    first = received[0].offset
    assert [one.offset for one in received] == list(range(first, first + len(sent)))
    wish_of = {wish.value: wish for wish in sent}
    at_once = [one.value for one in received if one.value in (sent[0].value, sent[1].value)]
    assert at_once == [wish.value for wish in sent[:2]]
    due_times_ms, accept_times_ms = [], set()
    for one in received:
        wish = wish_of.pop(one.value)
        if wish.request:
            check_delivery(one, sent_ms, delay_ms=wish.delay_ms, due_ms=wish.due_ms, own=own)
            added = dict(one.headers)
            accept_times_ms.add(int(added["x-accepted-at"]))
            # On a busy machine an instant may have passed before the record was accepted.
            if int(added["x-due-at"]) > int(added["x-accepted-at"]):
                due_times_ms.append(int(added["x-due-at"]))
        else:
            assert one.headers == tuple(own)
    assert due_times_ms == sorted(due_times_ms)
    # A busy machine may send one batch as two, and when an instant has passed.
    is_in_time = len(accept_times_ms) == 1 and len(due_times_ms) == len(sent) - 2
    assert not is_in_time or [one.value for one in received[:2]] == at_once


def check_delivery(
    one: Received,
    sent_ms: int,
    *,
    delay_ms: int | None = None,
    due_ms: int | None = None,
    timer_id: bytes | None = None,
    own: Sequence[Header] = OWN_HEADERS,
) -> None:
    """Check headers and time of a record that was sent not before `sent_ms` with a request."""
    assert one.headers[: len(own)] == tuple(own)
    added = dict(one.headers[len(own) :])
    accepted_ms, due_header_ms = int(added.pop("x-accepted-at")), int(added.pop("x-due-at"))
    assert added == ({} if timer_id is None else {"x-due-id": timer_id})
    assert sent_ms <= accepted_ms <= one.at_ms
    if due_ms is not None:
        assert due_header_ms == due_ms
    else:
        # A delay counts from the end of the millisecond in which the record was accepted.
        assert due_header_ms - accepted_ms - (delay_ms or 0) in (0, 1 if delay_ms else 0)
    late_ms = one.at_ms - max(due_header_ms, accepted_ms)
    assert 0 <= late_ms < LATE_MAX_MS
