"""`latermq send`: produce records, delayed or not. Layer 6."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from appliance.commands import kafka_client, usage
from appliance.commands.arguments import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    TopicName,
    format_instant,
    read_pairs,
    to_bytes,
)
from appliance.commands.output import complain, print_json, print_line, printable
from appliance.errors import ConfigError, LatermqError
from appliance.system.clock import SystemClock
from appliance.units import counted

IN_FLIGHT_MAX: Final = 10_000
"""Unacknowledged records from standard input; bounds the memory."""

EXAMPLES: Final = """\
Examples:

\b
  latermq send orders hello
  latermq send orders 'close order 17' --delay 30m --id order-17
  latermq send orders --cancel order-17
  latermq send orders late --at 2030-01-01T00:00:00Z
  latermq send orders retry --level 3 --key customer-5 --header trace=abc
  seq 1000 | latermq send numbers --delay 10s
  latermq send reports nightly --cron '0 2 * * *' --zone Europe/Berlin --id nightly

A delay is 1500ms, 30s, 15m, 2h, 7d or PT15M. docs/DELAY.md has the details.
"""

Headers = list[tuple[str, bytes]]

UserId = Annotated[
    str | None,
    usage.Option("--id", metavar="ID", help="An id to look up, replace or cancel the record."),
]
Cron = Annotated[
    str | None, usage.Option(metavar="EXPR", help="Deliver at each instant of '0 9 * * MON-FRI'.")
]
Zone = Annotated[
    str | None, usage.Option(metavar="ZONE", help="The time zone of --cron: Europe/Berlin.")
]
Missed = Annotated[
    str | None,
    usage.Option(metavar="once|all|none", help="Which missed instants of --cron are delivered."),
]


@dataclass(frozen=True, slots=True)
class Wish:
    """The properties that all records of one command share.

    Attributes:
        topic, partition, key, headers: of each record; None lets the client choose.
        delay_words: the requested delay as text for the output, empty for none.
        delay_ms: the delay; None if there is none, or if only the broker knows it.
        other_words: what else was requested.
    """

    topic: str
    partition: int | None
    key: bytes | None
    headers: Headers
    delay_words: str
    delay_ms: int | None
    other_words: str

    def words(self, *, is_held: bool) -> str:
        """What became of the request, as the end of a line.

        Args:
            is_held: the broker holds the record back: it was acknowledged without an offset.
        """
        if not is_held:
            return (self.delay_words and ", not delayed") + self.other_words
        due = ""
        if self.delay_ms is not None:
            # The broker counts from its receipt, just before the acknowledgement: not from the
            # start of a command that may read its input for hours.
            due = f", due {format_instant(SystemClock().wall_ms() + self.delay_ms)}"
        return self.delay_words + due + self.other_words


def send(  # noqa: PLR0917 (these are flags: click passes them by name)
    topic: TopicName,
    values: Annotated[
        list[str] | None,
        usage.Argument(metavar="VALUE", help="One record each; none: one for each input line."),
    ] = None,
    key: Annotated[str | None, usage.Option("--key", "-k", help="The key of the records.")] = None,
    header: Annotated[
        list[str] | None,
        usage.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
    delay: Annotated[
        str | None, usage.Option(metavar="TIME", help="Deliver this much later: 30s, 15m, 2h, 7d.")
    ] = None,
    at: Annotated[
        str | None,
        usage.Option(metavar="INSTANT", help="Deliver at: 2030-01-01T00:00:00Z, or epoch ms."),
    ] = None,
    level: Annotated[
        int | None, usage.Option(metavar="N", help="Deliver after the delay of this level.")
    ] = None,
    cron: Cron = None,
    zone: Zone = None,
    missed: Missed = None,
    id_: UserId = None,
    cancel: Annotated[
        str | None,
        usage.Option(metavar="ID", help="Cancel the pending record with this id; takes no VALUE."),
    ] = None,
    reply: Annotated[
        str | None,
        usage.Option(metavar="TOPIC", help="Where to say what became of --id or --cancel."),
    ] = None,
    partition: Annotated[
        int | None,
        usage.Option("--partition", "-p", min=0, metavar="N", help="Send to it whatever the key."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Send records; delayed ones appear in the topic when they are due."""
    if cancel is not None and values:
        raise ConfigError("--cancel sends no record: remove VALUE")
    headers = [(name, to_bytes(value)) for name, value in read_pairs("--header", header)]
    delay_ms = None if delay is None else _read_delay(delay)
    delay_asked, delay_words = _asked(*_delays(delay, at, level), *_recurrence(cron, zone, missed))
    id_asked, id_words = _asked(*_ids(id_, cancel, reply))
    headers += delay_asked + id_asked
    octets = None if key is None else to_bytes(key)
    wish = Wish(topic, partition, octets, headers, delay_words, delay_ms, id_words)
    records: Iterable[bytes] = map(to_bytes, values or ()) if values else _input_lines()
    is_counted = not (values or cancel or json)
    count = 0
    is_held = False
    with kafka_client.producer(bootstrap) as producer:
        known = kafka_client.partitions_of(producer, topic)
        if partition is not None:
            kafka_client.check_partition(topic, partition, known)
        for metadata in _acknowledged(producer, [b""] if cancel else records, wish):
            count += 1
            is_held = metadata.offset < 0
            if json:
                # A delayed record has no offset yet.
                offset = metadata.offset if metadata.offset >= 0 else None
                print_json({"topic": topic, "partition": metadata.partition, "offset": offset})
            elif not is_counted:
                print_line(_line(metadata, wish))
    if is_counted:
        words = wish.words(is_held=is_held) if count else ""
        complain(f"{counted(count, 'record')} sent to {printable(topic)}{words}")


COMMAND: Final = usage.Command(send, EXAMPLES)


def _delays(
    delay: str | None, at: str | None, level: int | None
) -> tuple[tuple[str, str | None, str], ...]:
    """Return header, value and text of each way to ask for a delay."""
    return (
        ("x-delay", delay, "delayed by {}"),
        ("x-deliver-at", at, "to be delivered at {}"),
        ("x-delay-level", None if level is None else str(level), "delayed by level {}"),
    )


def _recurrence(
    cron: str | None, zone: str | None, missed: str | None
) -> tuple[tuple[str, str | None, str], ...]:
    """Return header, value and text of what asks for a recurring record."""
    return (
        ("x-cron", cron, "recurs at {}"),
        ("x-cron-zone", zone, "in {}"),
        ("x-cron-missed", missed, "missed: {}"),
    )


def _ids(
    id_: str | None, cancel: str | None, reply: str | None
) -> tuple[tuple[str, str | None, str], ...]:
    """Return header, value and text of what is asked about an id."""
    return (
        ("x-deliver-id", id_, "id {}"),
        ("x-deliver-cancel", cancel, "cancels {}"),
        ("x-deliver-reply", reply, "reply in {}"),
    )


def _read_delay(text: str) -> int | None:
    """Return a delay in ms, below 0 for none; None if the broker will refuse it.

    Raises:
        ConfigError: it is a number without a unit, of which the header has milliseconds.
    """
    from _core.paths.delay_text import parse

    number = text.strip('"')  # which the header allows
    if number.isascii() and number.isdigit() and number.strip("0"):
        raise ConfigError(f"--delay {number} is {number}ms or {number}s? Give the unit")
    try:
        return parse("x-delay", to_bytes(text))
    except ValueError:
        return None


def _asked(*asked: tuple[str, str | None, str]) -> tuple[Headers, str]:
    """Return the headers that have a value, and their text; the broker checks them.

    Args:
        asked: name, value and text of each header.
    """
    headers: Headers = []
    words = ""
    for name, value, saying in asked:
        if value is not None:
            headers.append((name, to_bytes(value)))
            words += ", " + saying.format(printable(value))
    return headers, words


def _line(metadata: Any, wish: Wish) -> str:
    place = f"{printable(wish.topic)}/{metadata.partition}"
    offset = f", offset {metadata.offset}" if metadata.offset >= 0 else ""
    return f"{place}{offset}{wish.words(is_held=metadata.offset < 0)}"


def _input_lines() -> Iterator[bytes]:
    if sys.stdin.isatty():
        complain("type a record and Enter; Ctrl-D ends")
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


def _acknowledged(producer: Any, records: Iterable[bytes], wish: Wish) -> Iterator[Any]:
    """Send records, and yield the metadata of each in order, once it is acknowledged.

    Raises:
        LatermqError: a record was refused; the message says how many were sent before it.
    """
    waiting: deque[Any] = deque()
    count = 0
    try:
        for value in records:
            future = producer.send(wish.topic, value, wish.key, wish.headers, wish.partition)
            waiting.append(future)
            while waiting and (waiting[0].is_done or len(waiting) > IN_FLIGHT_MAX):
                yield outcome_of(waiting.popleft())
                count += 1
        while waiting:
            yield outcome_of(waiting.popleft())
            count += 1
    except LatermqError as error:
        error.message = f"record {count + 1} was refused: {error.message}"
        if count:
            error.message += f"; {count} before it were sent"
        raise


def outcome_of(future: Any) -> Any:
    """Wait for the acknowledgement of a record, and return its metadata.

    Raises:
        RequestError: the broker refused the record.
    """
    from kafka import errors  # type: ignore[import-untyped]

    try:
        return future.get(timeout=2 * kafka_client.REQUEST_MS / 1000)
    except errors.BrokerResponseError as error:
        raise kafka_client.refusal(error) from None
