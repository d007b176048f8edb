"""`latermq import`: sends the rows of Parquet files or JSON lines to topics, with delays. Layer 6.

A row of `messages`, or any row without a due time, is sent as it is. A pending row of `timers`, or
any row with a due time and without a state, is sent to be delivered then. One with a `cron` is sent
to recur.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

from appliance.commands import kafka_client, usage
from appliance.commands.arguments import DEFAULT_BOOTSTRAP, Bootstrap, Json, load_pyarrow
from appliance.commands.output import complain, print_json, printable
from appliance.commands.send import IN_FLIGHT_MAX, outcome_of
from appliance.commands.table_rows import STDIN, Row, Rows, octets
from appliance.errors import ConfigError, LatermqError, RequestError
from appliance.system.clock import SystemClock
from appliance.units import MIB, counted

LINGER_MS: Final = 5
BATCH_BYTES: Final = MIB // 4

NS_PER_S: Final = 1_000_000_000
USER_ID_SIZE_MAX_BYTES: Final = 255

BROKERS_HEADERS: Final = frozenset({"x-accepted-at", "x-due-at", "x-due-id"})
"""What a broker added when it delivered a record; the next one adds its own."""

REQUEST_HEADERS: Final = frozenset(
    {
        *("x-delay", "x-deliver-at", "x-delay-level", "x-deliver-id", "x-deliver-cancel"),
        *("x-cron", "x-cron-zone", "x-cron-missed", "x-retry-group", "x-deliver-reply"),
    }
)
"""What a broker would act on."""

NO_DELAY: Final = {"x-delay": (-1, -2), "x-delay-level": (0,)}
"""What `parse` returns for a header that asks for no delay: negative, null, level 0."""

RULE_HEADERS: Final = {"cron": "x-cron", "zone": "x-cron-zone", "missed": "x-cron-missed"}
"""By column."""

TIMER_COLUMNS: Final = frozenset({"id", "index", "level", "completed_at", *RULE_HEADERS})
"""Only the table of timers has them: what is delivered there is in the table of messages, too."""


class NullHeaders(StrEnum):
    """What becomes of a header whose value is null."""

    REFUSE = "refuse"
    EMPTY = "empty"
    DROP = "drop"


EXAMPLES: Final = """\
Examples:

\b
  latermq import messages/ --create-topics
  latermq import messages/ timers.parquet --topic-prefix restored- --create-topics
  latermq import rows.jsonl --dry-run
  latermq export DIR --table timers --format jsonl | latermq import -

docs/EXPORT.md says which columns count.
"""


class RowError(ConfigError):
    """A row cannot be sent.

    Args:
        row: the row.
        fault: what is wrong with it.
    """

    def __init__(self, row: Row, fault: str) -> None:
        super().__init__(f"{printable(row.place)}: {fault}")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send; `is_delayed` if it has a due time, `recurs` if it has a schedule."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int | None
    is_delayed: bool
    recurs: bool


@dataclass(slots=True)
class Counts:
    """What was sent, or would be.

    Attributes:
        records, timers: sent to be visible at once, and later.
        skipped: rows of timers that are completed.
        partitions: by topic, how many its rows need.
    """

    records: int = 0
    timers: int = 0
    skipped: int = 0
    partitions: dict[str, int] = field(default_factory=dict)

    def add(self, record: Outgoing | None) -> None:
        """Count a row; None is one that is left out."""
        if record is None:
            self.skipped += 1
            return
        if record.is_delayed:
            self.timers += 1
        else:
            self.records += 1
        needed = 1 if record.partition is None else record.partition + 1
        self.partitions[record.topic] = max(self.partitions.get(record.topic, 0), needed)

    @property
    def sentence(self) -> str:
        skipped = counted(self.skipped, "row")
        left_out = f"; {skipped} of completed timers left out" if self.skipped else ""
        return (
            f"{counted(self.records, 'record')} and {counted(self.timers, 'delayed record')}, "
            f"{counted(len(self.partitions), 'topic')}{left_out}"
        )


Files = Annotated[
    list[str],
    usage.Argument(
        metavar="FILE",
        help="Parquet files, directories of them, or files of JSON lines; - for JSON lines on "
        "standard input.",
    ),
]
Prefix = Annotated[
    str, usage.Option(metavar="TEXT", help="Send to topics of this prefix and the row's topic.")
]
CreateTopics = Annotated[
    bool,
    usage.Option(
        "--create-topics", help="Create missing topics, with as many partitions as the rows need."
    ),
]
DryRun = Annotated[
    bool, usage.Option("--dry-run", help="Read and check all rows, and send nothing.")
]
NullHeadersOption = Annotated[
    NullHeaders,
    usage.Option(
        "--null-headers",
        help="The client cannot send a header that is null: refuse the row, send the header "
        "empty, or drop it.",
    ),
]
Rate = Annotated[int | None, usage.Option(min=1, metavar="N", help="Send at most N rows a second.")]


def import_rows(  # noqa: PLR0917 (these are flags: click passes them by name)
    files: Files,
    topic_prefix: Prefix = "",
    create_topics: CreateTopics = False,
    dry_run: DryRun = False,
    rate: Rate = None,
    null_headers: NullHeadersOption = NullHeaders.REFUSE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Send rows that `latermq export` wrote, or others of that form, to the topics they name.

    Nothing is sent if a row cannot be; standard input is checked row by row.
    """
    if any(not name.endswith((".jsonl", ".json")) and name != STDIN for name in files):
        load_pyarrow("Parquet needs pyarrow, JSON lines (.jsonl) do not")
    rows = Rows(files)
    if rows.is_stream and create_topics:
        raise ConfigError("--create-topics reads the rows twice: give a file in place of -")
    make = partial(to_record, prefix=topic_prefix, null_headers=null_headers)
    needed = Counts()
    if dry_run or not rows.is_stream:
        for row in rows:
            needed.add(make(row))
    if dry_run:
        _report(needed, "would be sent", as_json=json)
        return
    known = _ensure_topics(bootstrap, needed.partitions, creates=create_topics)
    sent = Counts()
    with kafka_client.producer(
        bootstrap,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        max_request_size=kafka_client.REQUEST_MAX_BYTES,
        value_serializer=kafka_client.null_serializer(),
    ) as producer:
        _send_all(producer, _paced(rows, rate), make, known, sent)
    _report(sent, "sent", as_json=json)


COMMAND: Final = usage.Command(import_rows, EXAMPLES)


def _report(counts: Counts, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "records": counts.records,
                "timers": counts.timers,
                "skipped": counts.skipped,
                "partitions": counts.partitions,
            }
        )
    else:
        complain(f"{what}: {counts.sentence}")


# Rows


def to_record(
    row: Row, prefix: str = "", null_headers: NullHeaders = NullHeaders.REFUSE
) -> Outgoing | None:
    """Return the record of a row; None if it is of a timer that is completed.

    Args:
        row: the row.
        prefix: of the topic's name.
        null_headers: what becomes of a header whose value is null.

    Raises:
        RowError: it has what cannot be sent.
    """
    fields = row.fields
    topic, partition = fields["topic"], fields.get("partition")
    if not isinstance(topic, str) or not topic:
        raise RowError(row, "the topic is not a text")
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise RowError(row, "the partition is not a number")
    due_at = _due_at(row)
    if due_at == _COMPLETED:
        return None
    headers = _headers(row, null_headers)
    schedule = _schedule(row) if due_at is not None else []
    if due_at is not None:
        headers += schedule or [("x-deliver-at", b"%d" % due_at)]
        user_id = _octets(row, "id")
        if user_id is not None:
            if not 1 <= len(user_id) <= USER_ID_SIZE_MAX_BYTES:
                raise RowError(row, f"the id has {len(user_id)} bytes, not 1 to 255")
            headers.append(("x-deliver-id", user_id))
    return Outgoing(
        topic=prefix + topic,
        partition=partition,
        key=_octets(row, "key"),
        value=_octets(row, "value"),
        headers=headers,
        timestamp=_instant(row, "timestamp"),
        is_delayed=due_at is not None,
        recurs=bool(schedule),
    )


_COMPLETED: Final = -1


def _due_at(row: Row) -> int | None:
    """Return when a row is to be delivered, epoch ms; None for at once, or _COMPLETED."""
    state, due_at = row.fields.get("delay_state"), _instant(row, "due_at")
    match state:
        case None:
            return due_at
        case "pending":
            if due_at is None:
                raise RowError(row, "it is pending and has no due_at")
            return due_at
        case "immediate" | "delivered" | "cancelled" | "replaced":
            return None if TIMER_COLUMNS.isdisjoint(row.fields) else _COMPLETED
        case _:
            raise RowError(row, f"the delay_state {state!r} is not known")


def _schedule(row: Row) -> list[tuple[str, bytes]]:
    """Return the headers by which the record of a row recurs; none if it does not."""
    if row.fields.get("cron") is None:
        return []
    found = []
    for column, header in RULE_HEADERS.items():
        value = row.fields.get(column)
        if value is not None and (not isinstance(value, str) or not value):
            raise RowError(row, f"{column} is not a text")
        if value is not None:
            found.append((header, value.encode()))
    if row.fields.get("id") is None:
        raise RowError(row, "it has a cron and no id, by which it could be cancelled")
    return found


def _instant(row: Row, name: str) -> int | None:
    value = row.fields.get(name)
    if value is not None and (not isinstance(value, int) or value < 0):
        raise RowError(row, f"{name} is not a time after 1970 in milliseconds")
    return value


def _octets(row: Row, name: str) -> bytes | None:
    try:
        return octets(row.fields.get(name))
    except ValueError as error:
        raise RowError(row, f"{name} {error}") from None


def _headers(row: Row, null_headers: NullHeaders) -> list[tuple[str, bytes]]:
    found = []
    given = row.fields.get("headers") or ()
    if not isinstance(given, list | tuple):
        raise RowError(row, "the headers are not a list")
    for each in given:
        pair = (each.get("key"), each.get("value")) if isinstance(each, Mapping) else each
        try:
            name, value = pair
            content = octets(value)
        except (TypeError, ValueError):
            raise RowError(row, "a header is not a pair of a name and bytes") from None
        if not isinstance(name, str):
            raise RowError(row, "the name of a header is not a text")
        # The broker reads these names without regard to case.
        if name.lower() in BROKERS_HEADERS:
            continue
        if name.lower() in REQUEST_HEADERS and not _asks_nothing(name.lower(), content):
            raise RowError(row, f"it has the header {name}, which the broker would act on")
        if content is None and null_headers is NullHeaders.REFUSE:
            raise RowError(
                row,
                f"the header {printable(name)} is null, which the client cannot send: use "
                "--null-headers empty or drop",
            )
        # An empty delay is malformed, where a null one asks for nothing.
        may_be_empty = null_headers is NullHeaders.EMPTY and name.lower() not in REQUEST_HEADERS
        if content is not None or may_be_empty:
            found.append((name, content or b""))
    return found


def _asks_nothing(name: str, value: bytes | None) -> bool:
    """Return whether the broker leaves a header as it is: a negative delay, or level 0."""
    from _core.paths.delay_text import parse

    if name not in NO_DELAY:
        return False
    try:
        return parse(name, value) in NO_DELAY[name]
    except ValueError:
        return False


# Sending


def _ensure_topics(bootstrap: str, needed: Mapping[str, int], *, creates: bool) -> dict[str, int]:
    """Check that the topics have the partitions that are needed; create topics if asked.

    Returns:
        The number of partitions by topic.

    Raises:
        ConfigError: a topic is missing, or has too few partitions.
        RequestError: the broker refuses to create one.
    """
    with kafka_client.admin_client(bootstrap) as client:
        known = {each["name"]: len(each["partitions"]) for each in client.describe_topics(None)}
        missing = sorted(set(needed) - set(known))
        if missing and not creates:
            raise ConfigError(
                f"there is no topic {printable(missing[0])}: create it with `latermq topics "
                "create`, or use --create-topics"
            )
        for topic, count in sorted(needed.items()):
            if topic in known and known[topic] < count:
                raise ConfigError(
                    f"{printable(topic)} has {counted(known[topic], 'partition')}, and the rows "
                    f"need {count}"
                )
        for topic in missing:
            wanted = {topic: {"num_partitions": needed[topic]}}
            (made,) = client.create_topics(wanted, raise_errors=False)["topics"]
            kafka_client.check_code(made["error_code"], made.get("error_message"))
            known[topic] = needed[topic]
    return known


def _paced(rows: Rows, rate: int | None) -> Iterator[Row]:
    """Yield the rows, at most `rate` in a second."""
    clock, pause = SystemClock(), threading.Event()
    began_ns = clock.monotonic_ns()
    for count, row in enumerate(rows):
        if rate is not None:
            early_ns = began_ns + count * NS_PER_S // rate - clock.monotonic_ns()
            if early_ns > 0:
                pause.wait(early_ns / NS_PER_S)
        yield row


def _send_all(
    producer: Any,
    rows: Iterator[Row],
    make: Callable[[Row], Outgoing | None],
    known: Mapping[str, int],
    sent: Counts,
) -> None:
    """Send the rows in order, as `make` says, and wait until all are acknowledged.

    Raises:
        LatermqError: a row was refused; the message says how many were sent.
    """
    waiting: deque[tuple[Row, Outgoing, Any]] = deque()

    def settle() -> None:
        _check_accepted(waiting)
        sent.add(waiting.popleft()[1])

    try:
        for row in rows:
            record = make(row)
            if record is None:
                sent.add(None)
                continue
            _check_place(row, record, known)
            future = producer.send(
                record.topic,
                kafka_client.NULL if record.value is None else record.value,
                record.key,
                record.headers,
                record.partition,
                record.timestamp,
            )
            waiting.append((row, record, future))
            if record.recurs:
                producer.flush()  # a batch may have some schedules only
            while waiting and (waiting[0][2].is_done or len(waiting) > IN_FLIGHT_MAX):
                settle()
        while waiting:
            settle()
    except LatermqError as error:
        count = counted(sent.records + sent.timers, "row")
        error.message += f"; {count} acknowledged, and later ones may have been sent"
        raise


def _check_accepted(waiting: Sequence[tuple[Row, Outgoing, Any]]) -> None:
    """Wait for the acknowledgement of the first of some records.

    Raises:
        RequestError: the broker refused it, or another record of its batch.
        UnreachableError: there was no answer.
    """
    from kafka import errors  # type: ignore[import-untyped]

    is_refused_with_others = False
    for row, _, future in waiting:
        try:
            outcome_of(future)
        except RequestError as error:
            error.message = f"{printable(row.place)} was refused: {error.message}"
            raise
        except errors.KafkaError as error:
            # The client's error for a record whose batch was refused for the sake of another.
            if type(error) is not errors.KafkaError:
                raise
            is_refused_with_others = True
        if not is_refused_with_others:
            return
    raise RequestError(f"{printable(waiting[0][0].place)} was refused with its batch")


def _check_place(row: Row, record: Outgoing, known: Mapping[str, int]) -> None:
    count = known.get(record.topic)
    if count is None:
        raise RowError(row, f"there is no topic {printable(record.topic)}")
    if record.partition is not None and record.partition >= count:
        raise RowError(row, f"{printable(record.topic)} has no partition {record.partition}")
