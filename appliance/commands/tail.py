"""`latermq tail`: print the records of a topic. Layer 6."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from appliance.commands import kafka_client, usage
from appliance.commands.arguments import (
    DEFAULT_BOOTSTRAP,
    SEARCHED_BY,
    Bootstrap,
    By,
    Interrupts,
    Json,
    SearchedBy,
    TopicName,
    asked_time,
    check_by,
    check_group,
    format_instant,
    read_past,
    read_place,
)
from appliance.commands.output import (
    complain,
    drop_output,
    is_reader_gone,
    is_terminal,
    json_line,
    octets_in_json,
    print_lines,
    printable,
)
from appliance.errors import ConfigError, UnknownTopicError
from appliance.system.clock import SystemClock

POLL_MS: Final = 500
ASSIGNMENT_POLLS: Final = 60
"""Polls that a group member waits for partitions before it gives up: half a minute in all."""

SILENT_POLLS: Final = 4
"""Polls without any of the records known to exist, after which to check that the broker answers:
the client itself retries for ever."""

EXAMPLES: Final = """\
Examples:

\b
  latermq tail orders                 all records up to now
  latermq tail orders --follow        and new ones, until Ctrl-C
  latermq tail orders -f --from latest
  latermq tail orders --since 15m     or --since 2026-01-01T00:00:00Z
  latermq tail orders --from 1000 --partition 0 --count 10
  latermq tail orders --group billing --follow

A line has place, time, key and value, separated by tabs when piped. For a delayed record it also
says when the record was due, and how late it arrived if it arrived during this command.
"""


def tail(  # noqa: PLR0917 (these are flags: click passes them by name)
    topic: TopicName,
    from_: Annotated[
        str,
        usage.Option("--from", metavar="WHERE", help="earliest, latest, or an offset."),
    ] = "earliest",
    since: Annotated[
        str | None,
        usage.Option(
            metavar="TIME",
            help="Start with what became visible at this time, or this long ago: 15m; see --by.",
        ),
    ] = None,
    by: SearchedBy = None,
    follow: Annotated[
        bool, usage.Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")
    ] = False,
    count: Annotated[
        int | None, usage.Option("--count", "-n", min=1, metavar="N", help="Stop after N records.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        usage.Option("--partition", "-p", min=0, metavar="N", help="Only this one; may repeat."),
    ] = None,
    group: Annotated[
        str | None,
        usage.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, from its offsets, and commit.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print the records of a topic."""
    start = read_place("--from", from_)
    check_by(by, since)
    _check_group(group, is_placed=since is not None or bool(partition) or isinstance(start, int))
    since_ms = None if since is None else read_past("--since", since, SystemClock().wall_ms())
    settings: dict[str, Any] = {"group_id": group}
    if group is not None:
        settings["auto_offset_reset"] = start
    with kafka_client.consumer(bootstrap, **settings) as consumer:
        known = kafka_client.partitions_of(consumer, topic)
        if not known:
            raise UnknownTopicError(
                f"there is no topic {printable(topic)}: create it with `latermq topics create`, or "
                "send a record to it"
            )
        reading = Reading(consumer, topic, is_member=group is not None)
        if group is None:
            asked = None if since_ms is None else asked_time(since_ms, by)
            reading.assign(_chosen(topic, known, partition), start, asked)
        else:
            reading.join()
        if since is not None and by is None and not json:
            complain(SEARCHED_BY)
        awaited = None if follow else bootstrap
        reading.due_from_ms = since_ms if by is By.DUE else None
        with reading.interrupts.heard():
            try:
                _print_records(reading, awaited, count=count, as_json=json)
            except BrokenPipeError:
                drop_output()  # whoever reads it, such as `head`, has enough


COMMAND: Final = usage.Command(tail, EXAMPLES)


def _check_group(group: str | None, *, is_placed: bool) -> None:
    """Raise ConfigError if a group has no name, or if its offsets would not count."""
    if group is None:
        return
    check_group(group)
    if is_placed:
        raise ConfigError(
            "--since, --partition and an offset cannot be used with --group: a member starts at "
            "the group's offsets (`latermq groups reset-offsets` changes them)"
        )


def _chosen(topic: str, known: set[int], wanted: list[int] | None) -> list[int]:
    for each in wanted or ():
        kafka_client.check_partition(topic, each, known)
    return sorted(set(wanted)) if wanted else sorted(known)


class Reading:
    """A consumer that remembers the end offsets of its partitions at the start.

    Attributes:
        ends: the end offset by partition.
        interrupts: postpones Ctrl-C while the client works.
        due_from_ms: records that were due before are passed over, epoch ms; None for none.
    """

    def __init__(self, consumer: Any, topic: str, *, is_member: bool) -> None:
        """Read nothing yet; `assign` or `join` comes next.

        Args:
            consumer: a KafkaConsumer.
            topic: the topic to read.
            is_member: the consumer is in a group, so offsets are committed after printing.
        """
        self._consumer = consumer
        self._topic = topic
        self._is_member = is_member
        self.interrupts = Interrupts()
        self.ends: Mapping[Any, int] = {}
        self.due_from_ms: int | None = None

    def assign(self, indexes: list[int], start: str | int, asked: int | None) -> None:
        """Read these partitions from `start` on.

        Args:
            indexes: existing partitions.
            start: "earliest", "latest" or an offset, which is limited to what the partition holds.
            asked: a time to ask the broker for; if not None, start at the first record since then.
        """
        from kafka import TopicPartition  # type: ignore[import-untyped]

        consumer = self._consumer
        partitions = [TopicPartition(self._topic, index) for index in indexes]
        consumer.assign(partitions)
        begins = consumer.beginning_offsets(partitions)
        self.ends = consumer.end_offsets(partitions)
        found: Mapping[Any, Any] = {}
        if asked is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, asked))
        for each in partitions:
            if asked is not None:
                offset = self.ends[each] if found[each] is None else found[each].offset
            elif isinstance(start, int):
                offset = min(max(start, begins[each]), self.ends[each])
            else:
                offset = begins[each] if start == "earliest" else self.ends[each]
            consumer.seek(each, offset)

    def join(self) -> None:
        """Read the partitions that the group assigns."""
        self._consumer.subscribe([self._topic])

    def poll(self, most: int | None) -> list[Any]:
        """Return the next records, each partition's in order; none if none arrive in POLL_MS.

        Raises:
            UnknownTopicError: the topic was deleted.
        """
        with self.interrupts.held_back():
            found = self._consumer.poll(timeout_ms=POLL_MS, max_records=most)
            if self._is_member and set(self.ends) != self._consumer.assignment():
                self.ends = self._consumer.end_offsets(list(self._consumer.assignment()))
        records = [record for records in found.values() for record in records]
        # Known without a request, unless the client learned that it is gone.
        if not records and not kafka_client.partitions_of(self._consumer, self._topic):
            raise UnknownTopicError(f"topic {printable(self._topic)} was deleted")
        return records

    def shows(self, record: Any) -> bool:
        """Return whether a record is not passed over: it was due late enough, or never delayed."""
        if self.due_from_ms is None:
            return True
        due_at = _header(record, "x-due-at")
        return due_at is None or due_at >= self.due_from_ms

    def commit(self) -> None:
        """Commit for the group that everything up to here was printed."""
        if self._is_member:
            with self.interrupts.held_back():
                self._consumer.commit()

    @property
    def is_at_end(self) -> bool:
        """Everything up to `ends` was read; false while no partition is assigned."""
        position = self._consumer.position
        return bool(self.ends) and all(position(each) >= end for each, end in self.ends.items())


def _print_records(
    reading: Reading, awaited: str | None, *, count: int | None, as_json: bool
) -> None:
    """Print until `count` is reached.

    With the address of a broker in `awaited`, stop once everything that existed at the start was
    read, and fail if that broker does not answer any more.

    Raises:
        BrokenPipeError: nobody reads standard output any longer.
    """
    clock = SystemClock()
    printed = idle_polls = silent_polls = 0
    while count is None or printed < count:
        if awaited is not None and reading.is_at_end:
            return
        if is_reader_gone():
            raise BrokenPipeError
        records = reading.poll(None if count is None else count - printed)
        now_ms = clock.wall_ms()
        shown = [each for each in records if reading.shows(each)]
        print_lines(
            json_line(_fields(record, came_ms)) if as_json else _line(record, came_ms)
            for record, came_ms in _with_arrival(reading, shown, now_ms)
        )
        printed += len(shown)
        if records:
            reading.commit()
        if awaited is None:
            continue
        silent_polls = 0 if records else silent_polls + 1
        if silent_polls >= SILENT_POLLS:
            kafka_client.check_reachable(awaited)
        idle_polls = 0 if reading.ends else idle_polls + 1
        if idle_polls == ASSIGNMENT_POLLS:
            complain("the group assigned no partition to this member: other members have them all")
            return


def _with_arrival(
    reading: Reading, records: list[Any], now_ms: int
) -> Iterator[tuple[Any, int | None]]:
    """Yield records with their arrival time; None if a record existed before the start."""
    for record in records:
        end = reading.ends.get((record.topic, record.partition), record.offset)
        yield record, now_ms if record.offset >= end else None


def _header(record: Any, name: str) -> int | None:
    """Return the number in a header that the broker adds to delayed records."""
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
