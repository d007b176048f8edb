"""`latermq timers`: delayed records that are pending, from the admin API. Layer 6."""

import enum
import sys
from typing import Annotated, Any, Final

import click

from appliance.commands import admin_client, kafka_client, usage
from appliance.commands.arguments import (
    DEFAULT_ADMIN,
    DEFAULT_BOOTSTRAP,
    Admin,
    Bootstrap,
    Json,
    TopicName,
    format_instant,
    read_ahead,
    to_bytes,
)
from appliance.commands.items import Item, octets_of, text_lines
from appliance.commands.output import (
    complain,
    json_line,
    print_json,
    print_line,
    print_lines,
    print_table,
    printable,
    rough_duration,
)
from appliance.errors import ConfigError
from appliance.system.clock import SystemClock
from appliance.units import counted, format_duration_ms, parse_duration_ms

EXIT_UNKNOWN: Final = 1
EXIT_UNCHANGED: Final = 1

LIST_TIMEOUT_S: Final = 60.0
"""One request reads for a second, and waits for those before it."""

PURGE_TIMEOUT_S: Final = 3_600.0
"""A million takes about a minute."""

PAGE_MAX: Final = 1_000
"""Timers that the broker lists in one answer."""

BAR_WIDTH: Final = 40

EXAMPLES: Final = """\
Examples:

\b
  latermq send orders 'close order 17' --delay 30m --id order-17
  latermq timers list orders --to 1h                 what is due within an hour
  latermq timers list --values --json | jq .key
  latermq timers forecast orders --step 1m --intervals 30
  latermq timers levels                              x-delay-level, as queues
  latermq timers show orders order-17
  latermq timers cancel orders order-17
  latermq timers reschedule orders order-18 --to 2h
  latermq timers deliver-now orders order-19
  latermq timers list orders --places                places name records without an id
  latermq timers reschedule --place 1767225600000.416.3 --to 2h
  latermq timers purge orders --to 1h --yes
  latermq timers pause orders                        due records wait until timers resume
  latermq timers stop dequeue                        the same of all topics, until timers start

A cancelled record is never delivered, as with `latermq send TOPIC --cancel ID`.
"""

app = usage.Group(
    help="List delayed records by their due times, or look one up or cancel it by its id.",
    epilog=EXAMPLES,
)

TimerId = Annotated[str, usage.Argument(metavar="ID", help="The --id that it was sent with.")]
TopicOfId = Annotated[
    str | None, usage.Argument(metavar="TOPIC", help="Its topic, or else --place.")
]
MaybeId = Annotated[
    str | None, usage.Argument(metavar="ID", help="The --id that it was sent with.")
]
Place = Annotated[
    str | None,
    usage.Option(metavar="PLACE", help="Instead of topic and id: its place, as `list` shows it."),
]
MaybeTopic = Annotated[
    str | None, usage.Argument(metavar="TOPIC", help="Only this topic; all if left out.")
]
PartitionNumber = Annotated[
    int | None, usage.Option(min=0, metavar="N", help="Only this partition of the topic.")
]


@app.command("list")
def list_timers(  # noqa: PLR0917 (these are flags: click passes them by name)
    topic: MaybeTopic = None,
    partition: PartitionNumber = None,
    from_: Annotated[
        str | None,
        usage.Option(
            "--from", metavar="INSTANT", help="Due from this time on, or this long from now: 10m."
        ),
    ] = None,
    to: Annotated[str | None, usage.Option(metavar="INSTANT", help="Due before this time.")] = None,
    limit: Annotated[int, usage.Option(min=1, metavar="N", help="Show this many at most.")] = 20,
    after: Annotated[
        str | None, usage.Option(metavar="PLACE", help="Go on where an earlier list has ended.")
    ] = None,
    values: Annotated[
        bool, usage.Option("--values", help="With the values and headers of the records.")
    ] = False,
    places: Annotated[
        bool, usage.Option("--places", help="With the place of each, for reschedule --place.")
    ] = False,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """List pending delayed records, those that are due first before the others."""
    now_ms = SystemClock().wall_ms()
    query: dict[str, str | bytes | int | None] = {
        "topic": topic,
        "partition": partition,
        "from": None if from_ is None else read_ahead("--from", from_, now_ms),
        "to": None if to is None else read_ahead("--to", to, now_ms),
        "values": "true" if values else None,
        "after": after,
    }
    shown_count = 0
    rows: list[Item] = []
    while True:
        query["limit"] = min(limit - shown_count, PAGE_MAX)
        answer = admin_client.get(admin, "timers", query=query, timeout_s=LIST_TIMEOUT_S)
        shown_count += len(answer["timers"])
        if json:
            print_lines(map(json_line, answer["timers"]))
        elif values:
            for item in answer["timers"]:
                print_lines(text_lines("timer", octets_of(item)))
        else:
            rows += answer["timers"]
        query["after"] = answer["next"]
        if answer["next"] is None or shown_count >= limit:
            break
    if not json and not values:
        head: tuple[str, ...] = ("DUE", "IN", "TOPIC", "PARTITION", "ID", "KEY")
        cells = [_row(octets_of(item), now_ms) for item in rows]
        if any("cron" in item for item in rows):
            head += ("RECURS",)
            cells = [(*row, _rule(item)) for row, item in zip(cells, rows, strict=True)]
        if places:
            head += ("PLACE",)
            cells = [(*row, item["place"]) for row, item in zip(cells, rows, strict=True)]
        print_table(head, cells, empty="nothing is pending there")
    if answer["next"] is not None:
        complain(f"there are more: continue with --after {answer['next']}")


def _row(item: Item, now_ms: int) -> tuple[object, ...]:
    due_ms = item["due"]
    left = rough_duration(due_ms - now_ms) if due_ms > now_ms else "overdue"
    key = printable(item.get("key")) if "problem" not in item else f"({item['problem']})"
    user_id = printable(item["id"]) if "id" in item else None
    return format_instant(due_ms), left, printable(item["topic"]), item["partition"], user_id, key


def _rule(item: Item) -> str | None:
    return f"{printable(item['cron'])} {printable(item['zone'])}" if "cron" in item else None


@app.command("forecast")
def forecast(  # noqa: PLR0917 (these are flags: click passes them by name)
    topic: MaybeTopic = None,
    partition: PartitionNumber = None,
    step: Annotated[
        str, usage.Option(metavar="DURATION", help="Length of an interval, such as 1s or 1h.")
    ] = "1m",
    intervals: Annotated[int, usage.Option(min=1, metavar="N", help="How many of them.")] = 60,
    from_: Annotated[
        str | None,
        usage.Option("--from", metavar="INSTANT", help="Where the first begins; now if left out."),
    ] = None,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Show how many delayed records are due when. They are counted, not estimated."""
    now_ms = SystemClock().wall_ms()
    try:
        step_ms = parse_duration_ms(step)
    except ValueError as error:
        raise ConfigError(f"--step {step!r} is invalid: {error}") from None
    if step_ms < 1:
        raise ConfigError("--step is less than 1ms: use a longer interval")
    query: dict[str, str | bytes | int | None] = {
        "topic": topic,
        "partition": partition,
        "from": None if from_ is None else read_ahead("--from", from_, now_ms),
        "step_ms": step_ms,
        "count": intervals,
    }
    found = admin_client.get(admin, "timers", "counts", query=query, timeout_s=LIST_TIMEOUT_S)
    if json:
        print_json(found)
        return
    print_table(("DUE FROM", "RECORDS", ""), list(_bars(found)), empty="")


def _bars(found: Any) -> "list[tuple[object, ...]]":
    most = max(found["counts"])
    rows: list[tuple[object, ...]] = [("before", found["before"], "")]
    for number, count in enumerate(found["counts"]):
        begin = format_instant(found["from_at"] + number * found["step_ms"])
        rows.append((begin, count, "#" * -(-count * BAR_WIDTH // most) if count else ""))
    rows.append(("later", found["after"], ""))
    return rows


@app.command("levels")
def show_levels(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Show the delay levels as the queues that RocketMQ has for them, with offsets and lag."""
    found = admin_client.get(admin, "timers", "levels")
    if json:
        print_json(found)
        return
    rows = [
        (
            each["level"],
            "-" if each["delay_ms"] is None else format_duration_ms(each["delay_ms"]),
            f"{each['topic']}/{each['queue_id']}",
            *(_known(each[name]) for name in ("offset", "max_offset", "lag")),
        )
        for each in found["levels"]
    ]
    print_table(("LEVEL", "DELAY", "QUEUE", "OFFSET", "MAX OFFSET", "LAG"), rows, empty="")


def _known(number: int | None) -> object:
    return "?" if number is None else number


@app.command("show")
def show_timer(
    topic: TopicName, timer_id: TimerId, admin: Admin = DEFAULT_ADMIN, json: Json = False
) -> None:
    """Show the state of a delayed record. Exit status 1 if the broker knows no such id."""
    found = admin_client.get(admin, "topics", topic, "timers", to_bytes(timer_id))
    is_unknown = found["state"] == "unknown"
    if json:
        print_json(found)
    elif is_unknown:
        complain(_timer_line(timer_id, found))
    else:
        print_line(_timer_line(timer_id, found))
    if is_unknown:
        raise usage.Exit(EXIT_UNKNOWN)


@app.command("cancel")
def cancel_timer(
    topic: TopicName, timer_id: TimerId, admin: Admin = DEFAULT_ADMIN, json: Json = False
) -> None:
    """Cancel a delayed record: it is never delivered. Exit status 1 if nothing was cancelled."""
    found = admin_client.delete(admin, "topics", topic, "timers", to_bytes(timer_id))
    if json:
        print_json(found)
    elif found["state"] == "cancelled":
        print_line(_timer_line(timer_id, found))
    else:
        complain(f"nothing was cancelled: {_timer_line(timer_id, found)}")
    if found["state"] != "cancelled":
        raise usage.Exit(EXIT_UNCHANGED)


@app.command("reschedule")
def reschedule_timer(  # noqa: PLR0917 (these are flags: click passes them by name)
    to: Annotated[str, usage.Option(metavar="INSTANT", help="The new due time, or 10m from now.")],
    topic: TopicOfId = None,
    timer_id: MaybeId = None,
    place: Place = None,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Give a delayed record another due time. Exit status 1 if it is no longer pending."""
    due_ms = read_ahead("--to", to, SystemClock().wall_ms())
    _reschedule(topic, timer_id, place, due_ms, admin, json=json)


@app.command("deliver-now")
def deliver_now(
    topic: TopicOfId = None,
    timer_id: MaybeId = None,
    place: Place = None,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Deliver a delayed record now. Exit status 1 if it is no longer pending."""
    _reschedule(topic, timer_id, place, None, admin, json=json)


def _reschedule(
    topic: str | None,
    timer_id: str | None,
    place: str | None,
    due_ms: int | None,
    admin: str,
    *,
    json: bool,
) -> None:
    if place is not None and topic is None:
        _reschedule_placed(place, due_ms, admin, json=json)
        return
    if place is not None or topic is None or timer_id is None:
        raise ConfigError("name the record by TOPIC and ID, or else by --place")
    found = admin_client.post(
        admin,
        "topics",
        topic,
        "timers",
        to_bytes(timer_id),
        "reschedule",
        body={"due_at": due_ms},
        timeout_s=LIST_TIMEOUT_S,
    )
    if json:
        print_json(found)
    elif "error" in found:
        complain(f"{printable(timer_id)}: {found['error']}")
    else:
        print_line(_timer_line(timer_id, found))
    if "error" in found:
        raise usage.Exit(EXIT_UNCHANGED)


def _reschedule_placed(place: str, due_ms: int | None, admin: str, *, json: bool) -> None:
    body = {"place": place, "due_at": due_ms}
    found = admin_client.post(admin, "timers", "reschedule", body=body, timeout_s=LIST_TIMEOUT_S)
    if json:
        print_json(found)
    elif "error" in found:
        complain(f"{printable(place)}: {found['error']}")
    else:
        where = f"{printable(found['topic'])}, partition {found['partition']}"
        print_line(f"{found['place']}: due {format_instant(found['due_at'])}, {where}")
    if "error" in found:
        raise usage.Exit(EXIT_UNCHANGED)


@app.command("purge")
def purge_timers(  # noqa: PLR0917 (these are flags: click passes them by name)
    topic: TopicName,
    partition: PartitionNumber = None,
    from_: Annotated[
        str | None,
        usage.Option(
            "--from", metavar="INSTANT", help="Only those due from this time on, or 10m from now."
        ),
    ] = None,
    to: Annotated[
        str | None, usage.Option(metavar="INSTANT", help="Only those due before this time.")
    ] = None,
    yes: Annotated[bool, usage.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Cancel all pending delayed records of a topic, or those due in a range of time."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("standard input is not a terminal: use --yes to cancel all of them")
        if not click.confirm(f"Cancel these delayed records of {printable(topic)}?", err=True):
            complain("nothing was cancelled")
            raise usage.Exit(EXIT_UNCHANGED)
    now_ms = SystemClock().wall_ms()
    body = {
        "topic": topic,
        "partition": partition,
        "from_at": None if from_ is None else read_ahead("--from", from_, now_ms),
        "to_at": None if to is None else read_ahead("--to", to, now_ms),
    }
    found = admin_client.post(admin, "timers", "purge", body=body, timeout_s=PURGE_TIMEOUT_S)
    if json:
        print_json(found)
        return
    print_line(f"{counted(found['cancelled'], 'delayed record')} of {printable(topic)} cancelled")
    if found["left"]:
        complain(f"{found['left']} are left: they are being delivered, or cannot be read")


@app.command("pause")
def pause_topic(topic: TopicName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Let due records of a topic wait until `timers resume`: sets delay.paused=true."""
    kafka_client.change_topic(bootstrap, topic, {"delay.paused": "true"})
    print_line(f"{printable(topic)} is paused: due records wait for latermq timers resume")


@app.command("resume")
def resume_topic(topic: TopicName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Deliver what waits in a paused topic, in order: unsets delay.paused."""
    kafka_client.change_topic(bootstrap, topic, {"delay.paused": None})
    print_line(f"{printable(topic)} delivers again")


class StageName(enum.Enum):
    """What can be stopped."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"


StageArgument = Annotated[
    StageName,
    usage.Argument(metavar="STAGE", help="enqueue: accept records; dequeue: deliver them."),
]


@app.command("stages")
def show_stages(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Show how far the broker is behind in accepting and delivering delayed records."""
    _print_stages(admin_client.get(admin, "timers", "stages"), json=json)


@app.command("stop")
def stop_stage(stage: StageArgument, admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Stop a stage of all topics: refuse delayed records, or let due ones wait.

    It is stopped until `timers start`, or until the broker starts again.
    """
    _change_stage(admin, stage, is_stopped=True, json=json)


@app.command("start")
def start_stage(stage: StageArgument, admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Start a stage that was stopped; what waited is delivered in order."""
    _change_stage(admin, stage, is_stopped=False, json=json)


def _change_stage(admin: str, stage: StageName, *, is_stopped: bool, json: bool) -> None:
    body = {"stage": stage.value, "stopped": is_stopped}
    _print_stages(admin_client.post(admin, "timers", "stages", body=body), json=json)


def _print_stages(found: Any, *, json: bool) -> None:
    if json:
        for each in found["stages"]:
            print_json(each)
        return
    rows = [
        [
            each["stage"],
            "stopped" if each["stopped"] else "runs",
            str(each["backlog"]),
            rough_duration(each["behind_ms"]),
        ]
        for each in found["stages"]
    ]
    print_table(["STAGE", "STATE", "BACKLOG", "BEHIND"], rows, empty="no stages")


def _timer_line(timer_id: str, found: Any) -> str:
    if found["state"] == "unknown":
        return f"{printable(timer_id)}: unknown, or completed so long ago that it was forgotten"
    due = format_instant(found["due_at"])
    place = f"partition {found['partition']}"
    if found.get("offset") is not None:
        place += f", offset {found['offset']}"
    return f"{printable(timer_id)}: {found['state']}, due {due}, {place}"
