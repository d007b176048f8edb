"""`latermq dlq`: the dead letters of a consumer group. Layer 6."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import click

from appliance.commands import dlq_client, kafka_client, usage
from appliance.commands.arguments import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    check_group,
    format_instant,
)
from appliance.commands.dlq_client import DeadLetters, headers_of, place_of
from appliance.commands.output import (
    complain,
    octets_in_json,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
)
from appliance.dead_letters import Place, dead_item, parse_place, retry_topic
from appliance.errors import ConfigError
from appliance.units import counted

EXIT_UNCHANGED: Final = 1

ROWS_TOGETHER: Final = 1_000
"""Rows of one table; what follows is another table, so that the memory is bounded."""

CELL_CHARS: Final = 60
"""What a table shows of a key, an origin or a reason; `show` shows all of it."""

HEAD: Final = ("PLACE", "CAME", "KEY", "ATTEMPTS", "ORIGIN", "REASON")

EXAMPLES: Final = """\
Examples:

\b
  latermq dlq list billing                       what consumers of billing gave up
  latermq dlq list billing --json | jq .reason
  latermq dlq show billing 0:17                  all of the record at partition 0, offset 17
  latermq dlq replay billing 0:17 0:18           try again, from the first attempt
  latermq dlq replay billing --all               what was not replayed by --all before
  latermq dlq purge billing --before 0:17
  latermq dlq purge billing --yes

The dead letters of a group are in the topic GROUP.dlq. docs/DELAY.md says how a record gets there.
"""

app = usage.Group(
    help="List, show, replay and delete the records that a group could not process.",
    epilog=EXAMPLES,
)

GroupName = Annotated[
    str, usage.Argument(metavar="GROUP", help="The group whose dead letters they are.")
]
PartitionNumber = Annotated[
    int | None, usage.Option("--partition", "-p", min=0, metavar="N", help="Only this partition.")
]


@app.command("list")
def list_dead(  # noqa: PLR0917 (these are flags: click passes them by name)
    group: GroupName,
    partition: PartitionNumber = None,
    after: Annotated[
        str | None, usage.Option(metavar="PLACE", help="Go on after this record: 0:17.")
    ] = None,
    limit: Annotated[int, usage.Option(min=1, metavar="N", help="Show this many at most.")] = 20,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List dead records in order of partition and offset, with the reason of the last failure."""
    check_group(group)
    begin = None if after is None else _read_place("--after", after)
    if begin is not None and partition not in (None, begin.partition):
        raise ConfigError(f"--after {begin} is not in partition {partition}: leave one of them out")
    with dlq_client.dead_letters(bootstrap, group) as letters:
        if not letters.bounds:
            complain(letters.missing)
            return
        if begin is not None:
            letters.chosen(begin.partition)
        rows: list[tuple[object, ...]] = []
        count = 0
        last: Place | None = None
        for record in _records(letters, partition, begin):
            if count == limit:
                break
            count, last = count + 1, place_of(record)
            if json:
                print_json(_json(_item(record)))
            else:
                rows.append(_row(_item(record)))
            if len(rows) == ROWS_TOGETHER:
                print_table(HEAD, rows, empty="")
                rows.clear()
        else:
            last = None
    if rows:
        print_table(HEAD, rows, empty="")
    if not count:
        complain(f"there is no record in {printable(letters.topic)}" + _where(partition, begin))
    if last is not None:
        complain(f"there are more: continue with --after {last}")


def _where(partition: int | None, begin: Place | None) -> str:
    if begin is not None:
        return f" after {begin}"
    return "" if partition is None else f" in partition {partition}"


def _records(letters: DeadLetters, partition: int | None, after: Place | None) -> Iterator[Any]:
    """Yield dead records in order, those after a place."""
    for index in letters.chosen(partition):
        start, end = letters.bounds[index]
        if after is not None:
            if index < after.partition:
                continue
            if index == after.partition:
                start = max(start, after.offset + 1)
        for records in letters.read(index, start, end):
            yield from records


def _item(record: Any) -> dict[str, Any]:
    return dead_item(place_of(record), record.timestamp, record.key, headers_of(record))


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    return (
        item["place"],
        format_instant(item["came_at"]),
        _cell(item["key"]),
        item["attempts"],
        _cell(item["origin"]),
        _cell(item["reason"]),
    )


def _cell(value: bytes | None) -> str | None:
    if value is None:
        return None
    # A character takes four bytes at most.
    text = printable(value[: 4 * CELL_CHARS + 4])
    return text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 3] + "..."


def _json(item: dict[str, Any]) -> dict[str, Any]:
    return {
        name: octets_in_json(value) if isinstance(value, bytes) else value
        for name, value in item.items()
    }


@app.command("show")
def show_dead(
    group: GroupName,
    place: Annotated[
        str, usage.Argument(metavar="PLACE", help="Partition and offset of the record: 0:17.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show all of a dead record: what is known of it, its headers, key and value."""
    check_group(group)
    wanted = _read_place("PLACE", place)
    with dlq_client.dead_letters(bootstrap, group) as letters:
        letters.check_exists()
        letters.check_place(wanted)
        record = letters.record_at(wanted)
    item = _item(record)
    if json:
        headers = [[name, octets_in_json(value)] for name, value in record.headers]
        print_json(_json(item) | {"headers": headers, "value": octets_in_json(record.value)})
        return
    fields: list[tuple[str, object]] = [
        ("place", item["place"]),
        ("came", format_instant(item["came_at"])),
        ("timestamp", format_instant(item["timestamp"])),
        ("attempts", "-" if item["attempts"] is None else item["attempts"]),
        *((name, _text(item[name])) for name in ("origin", "reason", "key")),
        *(("header", f"{printable(name)}={_text(value)}") for name, value in record.headers),
        ("value", _text(record.value)),
    ]
    print_fields(fields)


def _text(value: bytes | None) -> str:
    return "-" if value is None else printable(value)


@app.command("replay")
def replay_dead(  # noqa: PLR0917 (these are flags: click passes them by name)
    group: GroupName,
    places: Annotated[
        list[str] | None,
        usage.Argument(metavar="PLACE", help="Partition and offset of each record: 0:17."),
    ] = None,
    all_: Annotated[
        bool, usage.Option("--all", help="All that were not replayed by --all before.")
    ] = False,
    partition: PartitionNumber = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Give dead records back to their group, at once; attempts are counted from the start again.

    A record stays among the dead letters. What is named by its place is sent however often it was
    replayed. An end in the middle of --all may repeat some records, and loses none.
    """
    check_group(group)
    if bool(places) == all_:
        raise ConfigError("name the records to replay, such as 0:17, or use --all")
    if partition is not None and not all_:
        raise ConfigError("--partition goes with --all: the places name their partitions")
    wanted = [_read_place("PLACE", each) for each in dict.fromkeys(places or ())]
    with (
        dlq_client.dead_letters(bootstrap, group) as letters,
        kafka_client.admin_client(bootstrap) as client,
    ):
        letters.check_exists()
        chosen = letters.chosen(partition)
        for place in wanted:
            letters.check_place(place)
        count = dlq_client.ensure_retry_topic(client, group, len(letters.bounds))
        with dlq_client.replayer(bootstrap) as producer:
            replay = dlq_client.Replay(producer, group, count)
            with _reported(replay):
                if all_:
                    dlq_client.replay_all(letters, client, replay, group, chosen)
                for place in wanted:
                    replay.send([letters.record_at(place)])
    if json:
        print_json({"replayed": replay.count})
    else:
        done = counted(replay.count, "record")
        print_line(f"{done} of {printable(letters.topic)} replayed to {retry_topic(group)}")


@contextmanager
def _reported(replay: dlq_client.Replay) -> Iterator[None]:
    """Say how many were replayed if Ctrl-C ends it."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"stopped: {counted(replay.count, 'record')} replayed")
        raise


@app.command("purge")
def purge_dead(
    group: GroupName,
    before: Annotated[
        str | None,
        usage.Option(metavar="PLACE", help="Only those of this partition before the offset: 0:17."),
    ] = None,
    yes: Annotated[bool, usage.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete the dead records of a group that exist now, or those of a partition before a place."""
    check_group(group)
    limit = None if before is None else _read_place("--before", before)
    if not yes and not sys.stdin.isatty():
        raise ConfigError("standard input is not a terminal: use --yes to delete the records")
    with dlq_client.dead_letters(bootstrap, group) as letters:
        letters.check_exists()
        ends = _ends(letters, limit)
    if ends and not yes:
        # Those that die while somebody reads the question are not deleted.
        count = sum(end - letters.bounds[index][0] for index, end in ends.items())
        question = f"Delete {counted(count, 'record')} of {printable(letters.topic)}?"
        if not click.confirm(question, err=True):
            complain("nothing was deleted")
            raise usage.Exit(EXIT_UNCHANGED)
    deleted = _delete(bootstrap, letters, ends)
    if json:
        print_json({"deleted": deleted})
    else:
        print_line(f"{counted(deleted, 'record')} of {printable(letters.topic)} deleted")


def _ends(letters: DeadLetters, limit: Place | None) -> dict[int, int]:
    """Return below which offset of each partition to delete; those without records are left out."""
    if limit is None:
        return {index: end for index, (begin, end) in letters.bounds.items() if begin < end}
    (index,) = letters.chosen(limit.partition)
    begin, end = letters.bounds[index]
    if limit.offset > end:
        letters.check_place(limit)
    return {index: limit.offset} if begin < limit.offset else {}


def _delete(bootstrap: str, letters: DeadLetters, ends: dict[int, int]) -> int:
    from kafka import TopicPartition  # type: ignore[import-untyped]

    if not ends:
        return 0
    wanted = {TopicPartition(letters.topic, index): end for index, end in ends.items()}
    with kafka_client.admin_client(bootstrap) as client:
        done = client.delete_records(wanted)
    return sum(
        max(0, answer["low_watermark"] - letters.bounds[part.partition][0])
        for part, answer in done.items()
    )


def _read_place(name: str, text: str) -> Place:
    try:
        return parse_place(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
