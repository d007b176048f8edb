"""`latermq tail`: print the records of a topic. Layer 6."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from appliance.clock import SystemClock
from appliance.commands import kafka_client
from appliance.commands.arguments import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Interrupts,
    Json,
    TopicName,
    check_group,
    ends_quietly,
    format_instant,
    read_past,
    read_place,
)
from appliance.commands.output import (
    complain,
    is_terminal,
    json_line,
    octets_in_json,
    print_lines,
    printable,
)
from appliance.errors import ConfigError, UnknownTopicError

POLL_MS: Final = 500
ASSIGNMENT_POLLS: Final = 60
"""So often a member of a group asks for partitions, half a minute in all, before it gives up."""

SILENT_POLLS: Final = 4
"""After so many polls that brought nothing of what is known to be there, ask whether the broker is:
the client itself tries for ever."""

EXAMPLES: Final = """\
Examples:

\b
  latermq tail orders                 all that is there
  latermq tail orders --follow        and what comes; Ctrl-C ends
  latermq tail orders -f --from latest
  latermq tail orders --since 15m     or --since 2026-01-01T00:00:00Z
  latermq tail orders --from 1000 --partition 0 --count 10
  latermq tail orders --group billing --follow

A line is place, time, key and value, with tabs between them when piped. A record that was delayed
says when it was due, and how late it came if it came just now.
"""


@ends_quietly
def tail(  # noqa: PLR0917 (these are flags: typer passes them by name)
    topic: TopicName,
    from_: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, latest, or an offset."),
    ] = "earliest",
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin with records of that time, or so long ago: 15m."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after N records.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this one; may repeat."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of that group: go on where it is, and commit.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print the records of a topic."""
    start = read_place("--from", from_)
    if group is not None:
        check_group(group)
    if group is not None and (since is not None or partition or isinstance(start, int)):
        raise ConfigError(
            "a member of a group begins where the group is: --since, --partition and an offset "
            "do not go with --group (see `latermq groups reset-offsets`)"
        )
    since_ms = None if since is None else read_past("--since", since, SystemClock().wall_ms())
    settings: dict[str, Any] = {"group_id": group}
    if group is not None:
        settings["auto_offset_reset"] = start
    with kafka_client.consumer(bootstrap, **settings) as consumer:
        known = kafka_client.partitions_of(consumer, topic)
        if not known:
            raise UnknownTopicError(
                f"there is no topic {printable(topic)}: `latermq topics create` makes one, and so "
                "does the first record"
            )
        reading = Reading(consumer, topic, is_member=group is not None)
        if group is None:
            reading.assign(_chosen(topic, known, partition), start, since_ms)
        else:
            reading.join()
        awaited = None if follow else bootstrap
        with reading.interrupts.heard():
            _print_records(reading, awaited, count=count, as_json=json)


def _chosen(topic: str, known: set[int], wanted: list[int] | None) -> list[int]:
    for each in wanted or ():
        kafka_client.check_partition(topic, each, known)
    return sorted(set(wanted)) if wanted else sorted(known)


class Reading:
    """A consumer that knows where each of its partitions ended when it began.

    Attributes:
        ends: by partition.
        interrupts: hold Ctrl-C back while the client works.
    """

    def __init__(self, consumer: Any, topic: str, *, is_member: bool) -> None:
        """Read nothing yet; `assign` or `join` comes next.

        Args:
            consumer: a KafkaConsumer.
            topic: what to read.
            is_member: of a group, for which what was printed is committed.
        """
        self._consumer = consumer
        self._topic = topic
        self._is_member = is_member
        self.interrupts = Interrupts()
        self.ends: Mapping[Any, int] = {}

    def assign(self, indexes: list[int], start: str | int, since_ms: int | None) -> None:
        """Read these partitions from there on.

        Args:
            indexes: partitions that exist.
            start: "earliest", "latest" or an offset; beyond either end it is that end.
            since_ms: if not None, begin at the first record of that time or later instead.
        """
        from kafka import TopicPartition  # type: ignore[import-untyped]

        consumer = self._consumer
        partitions = [TopicPartition(self._topic, index) for index in indexes]
        consumer.assign(partitions)
        begins = consumer.beginning_offsets(partitions)
        self.ends = consumer.end_offsets(partitions)
        found: Mapping[Any, Any] = {}
        if since_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        for each in partitions:
            if since_ms is not None:
                offset = self.ends[each] if found[each] is None else found[each].offset
            elif isinstance(start, int):
                offset = min(max(start, begins[each]), self.ends[each])
            else:
                offset = begins[each] if start == "earliest" else self.ends[each]
            consumer.seek(each, offset)

    def join(self) -> None:
        """Read what the group assigns."""
        self._consumer.subscribe([self._topic])

    def poll(self, most: int | None) -> list[Any]:
        """Return the next records, of each partition in order; none if none came for a while."""
        with self.interrupts.held_back():
            found = self._consumer.poll(timeout_ms=POLL_MS, max_records=most)
            if self._is_member and set(self.ends) != self._consumer.assignment():
                self.ends = self._consumer.end_offsets(list(self._consumer.assignment()))
        return [record for records in found.values() for record in records]

    def commit(self) -> None:
        """Note for the group that everything up to here was printed."""
        if self._is_member:
            with self.interrupts.held_back():
                self._consumer.commit()

    @property
    def is_at_end(self) -> bool:
        """All that was there at the beginning was read; false as long as there is no partition."""
        position = self._consumer.position
        return bool(self.ends) and all(position(each) >= end for each, end in self.ends.items())


def _print_records(
    reading: Reading, awaited: str | None, *, count: int | None, as_json: bool
) -> None:
    """Print until `count` is reached.

    Args:
        reading: where the records come from.
        awaited: the broker that has to bring all that was there at the beginning, which is the end
            then; None goes on for ever.
        count: how many records; None for no matter.
        as_json: print JSON.

    Raises:
        UnreachableError: the broker that is awaited has gone.
    """
    clock = SystemClock()
    printed = idle_polls = silent_polls = 0
    while count is None or printed < count:
        if awaited is not None and reading.is_at_end:
            return
        records = reading.poll(None if count is None else count - printed)
        now_ms = clock.wall_ms()
        print_lines(
            json_line(_fields(record, came_ms)) if as_json else _line(record, came_ms)
            for record, came_ms in _with_arrival(reading, records, now_ms)
        )
        printed += len(records)
        if records:
            reading.commit()
        if awaited is None:
            continue
        silent_polls = 0 if records else silent_polls + 1
        if silent_polls >= SILENT_POLLS:
            kafka_client.check_reachable(awaited)
        idle_polls = 0 if reading.ends else idle_polls + 1
        if idle_polls == ASSIGNMENT_POLLS:
            complain("the group gave this member no partition: others read all of them")
            return


def _with_arrival(
    reading: Reading, records: list[Any], now_ms: int
) -> Iterator[tuple[Any, int | None]]:
    """Records, and when each came; of what was there before nobody knows."""
    for record in records:
        end = reading.ends.get((record.topic, record.partition), record.offset)
        yield record, now_ms if record.offset >= end else None


def _header(record: Any, name: str) -> int | None:
    """The number in a header that the broker adds to delayed records."""
    for key, value in reversed(record.headers):
        if key == name and value and value.isdigit() and len(value) <= 15:
            return int(value)
    return None


def _fields(record: Any, came_ms: int | None) -> dict[str, Any]:
    due_at = _header(record, "x-due-at")
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": octets_in_json(record.key),
        "value": octets_in_json(record.value),
        "headers": [[name, octets_in_json(value)] for name, value in record.headers],
        "due_at": due_at,
        "late_ms": None if due_at is None or came_ms is None else came_ms - due_at,
    }


def _line(record: Any, came_ms: int | None) -> str:
    columns = list(_columns(record, came_ms))
    if not is_terminal():
        return "\t".join(columns)
    place, time, key, value, note = columns
    dim, plain = "\x1b[2m", "\x1b[0m"
    shown_key = f"  \x1b[36m{key}{plain}" if key else ""
    shown_note = f"  \x1b[33m{note}{plain}" if note else ""
    return f"{dim}{place}  {time}{plain}{shown_key}  {value}{shown_note}"


def _columns(record: Any, came_ms: int | None) -> Iterator[str]:
    yield f"{record.topic}/{record.partition}@{record.offset}"
    yield format_instant(record.timestamp)
    yield printable(record.key)
    yield printable(record.value)
    due_at = _header(record, "x-due-at")
    if due_at is None:
        yield ""
    elif came_ms is None:
        yield f"due {format_instant(due_at)}"
    else:
        yield f"due {format_instant(due_at)}, {came_ms - due_at} ms late"
