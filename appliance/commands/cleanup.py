"""`latermq cleanup`: expire records of a running broker now. Layer 6."""

from typing import Annotated, Final

from appliance.commands import admin_client, usage
from appliance.commands.admin_client import SNAPSHOT_TIMEOUT_S
from appliance.commands.arguments import DEFAULT_ADMIN, Admin, Json, read_past
from appliance.commands.output import print_json, print_line, print_table, printable
from appliance.errors import ConfigError
from appliance.system.clock import SystemClock
from appliance.units import MS_PER_SECOND, format_duration_ms

EXAMPLES: Final = """\
Examples:

\b
  latermq cleanup --dry-run
  latermq cleanup --topic orders --before 7d
  latermq cleanup --confirm-clock

Records that expire cannot be read again. Delayed records that are not due yet never expire.
"""


def cleanup(  # noqa: PLR0917 (these are flags: click passes them by name)
    topic: Annotated[
        str | None, usage.Option(metavar="TOPIC", help="Only the records of this topic.")
    ] = None,
    before: Annotated[
        str | None,
        usage.Option(
            metavar="TIME",
            help="Expire what became visible before it, whatever the limits say: epoch ms, RFC "
            "3339, or a duration before now (7d).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, usage.Option("--dry-run", help="Expire nothing; print what would expire.")
    ] = False,
    confirm_clock: Annotated[
        bool,
        usage.Option(
            "--confirm-clock",
            help="The clock of the machine is right: records age by its jump at once, not after "
            "an hour.",
        ),
    ] = False,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Expire records now that are beyond the limits of their topics, or older than TIME."""
    if dry_run and confirm_clock:
        raise ConfigError("--confirm-clock changes the age of records: leave out --dry-run")
    now_ms = SystemClock().wall_ms()
    body = {
        "topic": topic,
        "before_at": None if before is None else read_past("--before", before, now_ms),
        "dry_run": dry_run,
        "confirm_clock": confirm_clock,
    }
    found = admin_client.post(admin, "cleanup", body=body, timeout_s=SNAPSHOT_TIMEOUT_S)
    if json:
        print_json(found)
        return
    if found["age_jump_ms"]:
        print_line(f"all records aged by {_rounded(found['age_jump_ms'])}")
    if found["clock_jump_ms"]:
        print_line(
            f"the clock of the machine is {_rounded(found['clock_jump_ms'])} ahead of the age of "
            "records: this counts after an hour, or with --confirm-clock"
        )
    rows = [(printable(each["topic"]), each["expired_records"]) for each in found["topics"]]
    head = ("TOPIC", "WOULD EXPIRE" if dry_run else "EXPIRED")
    print_table(head, rows, empty="nothing would expire" if dry_run else "nothing has expired")


def _rounded(duration_ms: int) -> str:
    return format_duration_ms(duration_ms // MS_PER_SECOND * MS_PER_SECOND)


COMMAND: Final = usage.Command(cleanup, EXAMPLES)
