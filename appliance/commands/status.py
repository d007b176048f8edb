"""`latermq status` and `latermq timers`: what the admin API tells. Layer 6."""

from typing import Annotated, Any, Final

import typer

from appliance.commands import admin_client
from appliance.commands.arguments import (
    DEFAULT_ADMIN,
    Admin,
    Json,
    TopicName,
    ends_quietly,
    format_instant,
    to_bytes,
)
from appliance.commands.output import (
    complain,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
)
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND

EXIT_NOT_CANCELLED: Final = 1

STATUS_EXAMPLES: Final = """\
Examples:

\b
  latermq status
  latermq status --json | jq .pending_timers
  LATERMQ_ADMIN=127.0.0.1:9292 latermq status
"""

TIMERS_EXAMPLES: Final = """\
Examples:

\b
  latermq send orders 'close order 17' --delay 30m --id order-17
  latermq timers show orders order-17
  latermq timers cancel orders order-17

A record that was cancelled here is never delivered, as with `latermq send TOPIC --cancel ID`.
"""

timers_app = typer.Typer(
    help="Look a delayed record up by its id, or cancel it.",
    epilog=TIMERS_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

TimerId = Annotated[str, typer.Argument(metavar="ID", help="What it was sent with as --id.")]


@ends_quietly
def status(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Show what a running broker holds, and whether all is well."""
    found = admin_client.get(admin, "status")
    if json:
        print_json(found)
        return
    print_fields(list(_status_fields(found)))
    if found["damage_count"]:
        rows = [tuple(each.values()) for each in found["damage"]]
        print_table(("DAMAGED FILE", "AT BYTE", "BYTES", "WHAT"), rows, empty="")


def _status_fields(found: Any) -> list[tuple[str, object]]:
    log = found["log"]
    due = found["next_due_at"]
    next_due = "" if due is None else f", the next one due {format_instant(due)}"
    advertised = found["advertised"]
    told = "" if advertised == found["kafka"] else f" (clients are sent to {advertised})"
    flushed = {
        "sync": "sync: what is acknowledged survives a power cut",
        "async": "async: what is acknowledged survives the process, the last of it no power cut",
    }
    fields: list[tuple[str, object]] = [
        ("version", found["version"]),
        ("kafka", f"{found['kafka']}{told}"),
        ("admin", found["admin"]),
        ("cluster", f"{found['cluster_id']}, epoch {found['epoch']}"),
        ("up", f"{_duration(found['uptime_ms'])}, since {format_instant(found['started_at'])}"),
        ("flush", flushed[found["flush"]]),
        ("log", f"{log['wrote']} bytes, {log['wrote'] - log['flushed']} of them not flushed yet"),
        ("topics", f"{found['topics']} with {found['partitions']} partitions"),
        ("groups", found["groups"]),
        ("connections", found["connections"]),
        ("waiting", f"{found['pending_timers']} delayed records{next_due}"),
        ("damage", f"{found['damage_count']} parts" if found["damage_count"] else "none"),
    ]
    if found["unreadable_timers"]:
        count = found["unreadable_timers"]
        fields.append(("UNREADABLE", f"{count} due records wait until the disk can read them"))
    if found["insecure"]:
        fields.append(("INSECURE", "other machines connect without encryption and password"))
    return fields


def _duration(duration_ms: int) -> str:
    """The two largest units of a duration."""
    units = (("d", MS_PER_DAY), ("h", MS_PER_HOUR), ("m", MS_PER_MINUTE), ("s", MS_PER_SECOND))
    words: list[str] = []
    for name, unit_ms in units:
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count or words:
            words.append(f"{count}{name}")
    return " ".join(words[:2]) or "0s"


@timers_app.command("show")
@ends_quietly
def show_timer(
    topic: TopicName, timer_id: TimerId, admin: Admin = DEFAULT_ADMIN, json: Json = False
) -> None:
    """Show what became of a delayed record: pending, cancelled, delivered or unknown."""
    found = admin_client.get(admin, "topics", topic, "timers", to_bytes(timer_id))
    if json:
        print_json(found)
    else:
        print_line(_timer_line(timer_id, found))


@timers_app.command("cancel")
@ends_quietly
def cancel_timer(
    topic: TopicName, timer_id: TimerId, admin: Admin = DEFAULT_ADMIN, json: Json = False
) -> None:
    """Cancel a delayed record: it is never delivered. Status 1 if there was nothing to cancel."""
    found = admin_client.delete(admin, "topics", topic, "timers", to_bytes(timer_id))
    if json:
        print_json(found)
    elif found["state"] == "cancelled":
        print_line(_timer_line(timer_id, found))
    else:
        complain(f"nothing was cancelled: {_timer_line(timer_id, found)}")
    if found["state"] != "cancelled":
        raise typer.Exit(EXIT_NOT_CANCELLED)


def _timer_line(timer_id: str, found: Any) -> str:
    if found["state"] == "unknown":
        return f"{printable(timer_id)}: unknown, or settled too long ago to be remembered"
    due = format_instant(found["due_at"])
    return f"{printable(timer_id)}: {found['state']}, due {due}, partition {found['partition']}"
