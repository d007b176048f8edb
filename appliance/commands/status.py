"""`latermq status`: the state of a broker, from the admin API. Layer 6."""

from typing import Any, Final

from appliance.commands import admin_client, usage
from appliance.commands.arguments import (
    DEFAULT_ADMIN,
    Admin,
    Json,
    format_instant,
)
from appliance.commands.output import (
    print_fields,
    print_json,
    print_table,
    rough_duration,
)
from appliance.units import MS_PER_SECOND, counted

NEARLY_FULL_PART: Final = 0.9
"""Of a limit: what uses more is shown."""

STATUS_EXAMPLES: Final = """\
Examples:

\b
  latermq status
  latermq status --json | jq .pending_timers
  LATERMQ_ADMIN=127.0.0.1:9292 latermq status
"""

STOPPED: Final = {
    "enqueue": "delayed records are refused, until latermq timers start enqueue",
    "dequeue": "due records wait, until latermq timers start dequeue",
    "enqueue, dequeue": "delayed records are refused, and due ones wait: latermq timers start",
}


def status(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Show the state of a running broker."""
    found = admin_client.get(admin, "status")
    if json:
        print_json(found)
        return
    print_fields(list(_status_fields(found)))
    if found["damage_count"]:
        rows = [tuple(each.values()) for each in found["damage"]]
        print_table(("DAMAGED FILE", "AT BYTE", "BYTES", "WHAT"), rows, empty="")


COMMAND: Final = usage.Command(status, STATUS_EXAMPLES)


def _status_fields(found: Any) -> list[tuple[str, object]]:
    log = found["log"]
    due = found["next_due_at"]
    next_due = "" if due is None else f", the next one due {format_instant(due)}"
    unloaded = found["unloaded_timers"]
    loading = f"; about {unloaded} of them are on the disk alone" if unloaded else ""
    advertised = found["advertised"]
    note = "" if advertised == found["kafka"] else f" (advertised as {advertised})"
    flushed = {
        "sync": "sync: acknowledged records survive a power cut",
        "async": "async: acknowledged records survive a crash; a power cut may lose the newest",
    }
    up = rough_duration(found["uptime_ms"])
    fields: list[tuple[str, object]] = [
        ("version", found["version"]),
        ("kafka", f"{found['kafka']}{note}"),
        ("admin", found["admin"]),
        ("cluster", f"{found['cluster_id']}, epoch {found['epoch']}"),
        ("up", f"{up}, since {format_instant(found['started_at'])}"),
        ("flush", flushed[found["flush"]]),
        (
            "log",
            f"{log['wrote'] - log['start']} bytes, {log['wrote'] - log['flushed']} of them not "
            f"flushed yet; {log['start']} were freed",
        ),
        ("keys", _index_line(found["key_index"])),
        ("disk", _disk_line(found["disk"])),
        ("freeing", _freeing_line(found["freeing"])),
        ("topics", f"{found['topics']} with {counted(found['partitions'], 'partition')}"),
        ("groups", found["groups"]),
        ("connections", found["connections"]),
        ("waiting", f"{found['pending_timers']} delayed records{next_due}{loading}"),
        ("damage", f"{found['damage_count']} parts" if found["damage_count"] else "none"),
    ]
    if found["unreadable_timers"]:
        count = found["unreadable_timers"]
        fields.append(("UNREADABLE", f"{count} due records wait until the disk can read them"))
    if found["stopped_stages"]:
        fields.append(("STOPPED", STOPPED[", ".join(found["stopped_stages"])]))
    if found["held_timers"]:
        fields.append(
            (
                "HELD BACK",
                f"{found['held_timers']} due records of topics with delay.paused, "
                "delay.max.per.second or delay.spread.ms",
            )
        )
    count, count_max = found["pending_timers"], found["pending_timers_max"]
    if count >= NEARLY_FULL_PART * count_max:
        percent = 100 * count // count_max
        fields.append(
            ("NEARLY FULL", f"{percent}% of limits.pending_timers_max = {count_max} are used")
        )
    if found["disk"]["refusal"] is not None:
        fields.append(("REFUSING", found["disk"]["refusal"]))
    if found["freeing"]["expires_early"]:
        count = found["freeing"]["early_expired_records"]
        fields.append(
            ("EXPIRING", f"{count} records expired early, the disk is too full (expire_percent)")
        )
    if found["clock_ahead_ms"] is not None:
        ahead = rough_duration(found["clock_ahead_ms"])
        fields.append(("VIRTUAL CLOCK", f"{ahead} ahead of the machine: for tests only"))
    if found["insecure"]:
        fields.append(("INSECURE", "other machines can connect without encryption or password"))
    return fields


def _index_line(index: Any) -> str:
    if not index["on"]:
        return "not indexed"
    size = f"{index['rows']} rows in {index['runs']} runs"
    return f"indexed, {index['lag_bytes']} bytes behind; {size}"


def _disk_line(disk: Any) -> str:
    free, total = disk["free_bytes"], disk["total_bytes"]
    line = f"{disk['state']}: {disk['used_percent']}% used, {free} of {total} bytes free"
    seconds = disk["seconds_until_full"]
    if seconds is None:
        return line
    return f"{line}, full in {rough_duration(seconds * MS_PER_SECOND)} at this rate"


def _freeing_line(freeing: Any) -> str:
    line = f"about {freeing['dead_bytes']} bytes of the log are needed no longer"
    if freeing["reclaimable_bytes"]:
        line += f", {freeing['reclaimable_bytes']} of them are freed next"
    if freeing["held_back"]:
        line += "; what lives on is not moved at this hour (store.delete_when)"
    return line
