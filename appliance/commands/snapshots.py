"""`latermq snapshot`: make, list and delete snapshots of the log of a running broker. Layer 6."""

from typing import Annotated, Final

from appliance.commands import admin_client, usage
from appliance.commands.admin_client import SNAPSHOT_TIMEOUT_S
from appliance.commands.arguments import DEFAULT_ADMIN, Admin, Json, format_instant
from appliance.commands.output import print_json, print_line, print_table, printable

EXAMPLES: Final = """\
Examples:

\b
  latermq snapshot create before-migration
  latermq snapshot list
  latermq dump /var/lib/latermq/snapshots/before-migration records
  latermq snapshot delete before-migration

A snapshot has everything that the broker accepted before it. It is a directory that the commands
check, dump and export read like a data directory.
"""

app = usage.Group(
    help="Make, list and delete snapshots of the log of a running broker.",
    epilog=EXAMPLES,
)

Name = Annotated[str, usage.Argument(metavar="NAME", help="Name of the snapshot.")]


@app.command("create")
def create_snapshot(
    name: Annotated[
        str | None,
        usage.Argument(
            metavar="NAME",
            help="1 to 64 letters, digits, dots, dashes and underscores; the time if left out.",
        ),
    ] = None,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Make a snapshot, and print its directory on the broker's machine."""
    found = admin_client.post(admin, "snapshots", body={"name": name}, timeout_s=SNAPSHOT_TIMEOUT_S)
    if json:
        print_json(found)
    else:
        print_line(printable(found["path"]))


@app.command("list")
def list_snapshots(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """List all snapshots; KEPT is what of their BYTES the log no longer has."""
    found = admin_client.get(admin, "snapshots", timeout_s=SNAPSHOT_TIMEOUT_S)["snapshots"]
    if json:
        print_json(found)
        return
    rows = [
        (
            printable(each["name"]),
            format_instant(each["created_at"]),
            each["end"],
            each["size_bytes"],
            each["kept_bytes"],
            printable(each["path"]),
        )
        for each in found
    ]
    head = ("SNAPSHOT", "CREATED", "LOG POSITION", "BYTES", "KEPT", "DIRECTORY")
    print_table(head, rows, empty="there are no snapshots: make one with `latermq snapshot create`")


@app.command("delete")
def delete_snapshot(name: Name, admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Delete a snapshot, and nothing else."""
    found = admin_client.delete(admin, "snapshots", name, timeout_s=SNAPSHOT_TIMEOUT_S)
    if json:
        print_json(found)
    else:
        print_line(f"deleted {printable(found['name'])}")
