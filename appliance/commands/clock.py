"""`latermq clock`: the clock of a broker that applications are tested with. Layer 6."""

from typing import Annotated, Final

from appliance.commands import admin_client, usage
from appliance.commands.arguments import DEFAULT_ADMIN, Admin, Json, format_instant
from appliance.commands.output import print_json, print_line
from appliance.errors import ConfigError
from appliance.units import counted, format_duration_ms, parse_duration_ms

ADVANCE_TIMEOUT_S: Final = 60.0

EXAMPLES: Final = """\
Examples:

\b
  latermq serve --data-dir test-data --clock virtual
  latermq send orders 'close order 17' --delay 30m
  latermq clock advance 30m
  latermq tail orders

Sessions, long polls and time-outs stay on real time.
"""

app = usage.Group(
    help="Show the clock of a broker, or advance it if the broker runs with --clock virtual.",
    epilog=EXAMPLES,
)


@app.command("show")
def show(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Show the clock by which records are due."""
    found = admin_client.get(admin, "clock")
    if json:
        print_json(found)
    elif found["kind"] == "system":
        print_line(f"{format_instant(found['now_at'])}, the clock of the machine")
    else:
        ahead = format_duration_ms(found["ahead_ms"])
        print_line(f"{format_instant(found['now_at'])}, {ahead} ahead of the machine")


@app.command("advance")
def advance(
    duration: Annotated[
        str, usage.Argument(metavar="DURATION", help="By how much, such as 250ms, 30m or 7d.")
    ],
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Advance the clock; return once consumers see the records that are due by then."""
    try:
        by_ms = parse_duration_ms(duration)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    body = {"by_ms": by_ms}
    found = admin_client.post(admin, "clock", "advance", body=body, timeout_s=ADVANCE_TIMEOUT_S)
    if json:
        print_json(found)
        return
    delivered = counted(found["delivered"], "record")
    print_line(f"{format_instant(found['now_at'])}: {delivered} delivered")
