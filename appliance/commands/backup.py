"""`latermq backup`: copy the log of a broker, running or not. Layer 6."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from appliance.commands import admin_client, usage
from appliance.commands.admin_client import SNAPSHOT_TIMEOUT_S
from appliance.commands.arguments import DEFAULT_ADMIN, Admin, Json
from appliance.commands.offline import (
    EXIT_FAULTS,
    Meter,
    finding_printer,
    interruptible,
    opened,
    reports_failure,
)
from appliance.commands.output import complain, print_json, print_line, printable
from appliance.errors import BackupError, LatermqError
from appliance.offline.findings import Findings
from appliance.store.log_snapshots import name_of_instant
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import counted

if TYPE_CHECKING:
    from appliance.offline.backup import Backup

EXAMPLES: Final = """\
Examples:

\b
  latermq backup /backups/monday
  latermq backup /backups/tuesday --base /backups/monday
  latermq backup /backups/moved --data-dir /var/lib/latermq

Run it on the broker's machine, as its user or as a member of its group. Everything that the broker
acknowledged before is in the backup. docs/BACKUP.md says how to restore it. Exit status: 0 done, 1
done but the log is damaged (it prints where), 2 no backup was made.
"""

SNAPSHOT_PREFIX: Final = "backup-"
"""Of the snapshots that hold the log of a running broker while it is copied."""


@reports_failure
def backup(  # noqa: PLR0917 (these are flags: click passes them by name)
    directory: Annotated[
        str, usage.Argument(metavar="DIR", help="The new directory of the backup.")
    ],
    data_dir: Annotated[
        str | None,
        usage.Option(
            metavar="DIR", help="Back up this data directory, on which no broker is running."
        ),
    ] = None,
    base: Annotated[
        str | None,
        usage.Option(
            metavar="DIR",
            help="An earlier backup on the same disk: what has not changed since is linked.",
        ),
    ] = None,
    copy: Annotated[
        bool,
        usage.Option("--copy", help="Share no file with the data directory."),
    ] = False,
    admin: Admin = DEFAULT_ADMIN,
    json: Json = False,
) -> None:
    """Copy the log of a broker up to now, and check the copy.

    The broker goes on meanwhile. Full segments are hard links where DIR is on the disk of the data.
    """

    # Imported here so that help and argument errors do not wait for it.
    from appliance.offline.backup import Backup

    meter = Meter()
    findings = Findings(finding_printer(meter, json=json))
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        root = Path(data_dir) if data_dir is not None else stack.enter_context(_held(admin))
        source = stack.enter_context(opened(root, Findings(lambda _: None), may_be_live=False))
        if source.is_backup:
            raise BackupError(f"{root} is a backup: copy it with cp -r, and check the copy")
        run = Backup(
            OsFileSystem(),
            SystemClock(),
            source,
            Path(directory),
            version=version("latermq"),
            base=None if base is None else Path(base),
            may_link=not copy,
        )
        with closing(run.run(findings)) as steps:
            for what, done, total in steps:
                meter.show(done, total, what)
        meter.clear()
    _print_made(Path(directory), run, json=json)
    if run.made.faults:
        raise usage.Exit(EXIT_FAULTS)


COMMAND: Final = usage.Command(backup, EXAMPLES)


@contextmanager
def _held(admin: str) -> Iterator[Path]:
    """Let the broker hold its log as it is now; yield the directory of the snapshot.

    Raises:
        BackupError: the broker is on another machine.
        LatermqError: it does not answer, or refuses.
    """
    name = SNAPSHOT_PREFIX + name_of_instant(SystemClock().wall_ms())
    try:
        made = _ask(admin, name)
    except LatermqError as error:
        raise BackupError(
            f"{error.message}; for the directory of a stopped broker, give --data-dir"
        ) from None
    path = Path(made["path"])
    try:
        if not OsFileSystem().exists(path):
            where = "" if path.is_absolute() else ", in the directory in which it was started"
            raise BackupError(
                f"{path} is not here: run the command on the machine of the broker at {admin}"
                f"{where}"
            )
        yield path
    finally:
        _release(admin, name)


def _ask(admin: str, name: str) -> Any:
    found = admin_client.get(admin, "snapshots", timeout_s=SNAPSHOT_TIMEOUT_S)["snapshots"]
    left = [each["name"] for each in found if each["name"].startswith(SNAPSHOT_PREFIX)]
    if left:
        complain(
            f"{counted(len(left), 'snapshot')} of earlier backups exist, {printable(left[0])} "
            "first: unless another backup is running, delete them with `latermq snapshot delete`"
        )
    return admin_client.post(admin, "snapshots", body={"name": name}, timeout_s=SNAPSHOT_TIMEOUT_S)


def _release(admin: str, name: str) -> None:
    try:
        admin_client.delete(admin, "snapshots", name, timeout_s=SNAPSHOT_TIMEOUT_S)
    except LatermqError as error:
        complain(
            f"{error.message}; the snapshot {name} is left: delete it with `latermq snapshot "
            f"delete {name}`, because it keeps disk space"
        )


def _print_made(directory: Path, run: "Backup", *, json: bool) -> None:
    made = run.made
    if json:
        fields = asdict(made)
        fields["files"] = len(made.files)
        sizes = {"size_bytes": made.size_bytes, "linked_bytes": run.linked_bytes}
        print_json({"type": "backup", "path": str(directory), **fields, **sizes})
        return
    verdict = f"{made.faults} faults in" if made.faults else "made and checked"
    print_line(
        f"{verdict} {printable(str(directory))}: the log of cluster {made.cluster_id} from "
        f"position {made.start} to {made.end}, epoch {made.epoch}, {made.size_bytes} bytes"
    )
    if run.linked_bytes:
        print_line(
            f"{run.linked_bytes} bytes of it are hard links to files of the data or of the base: "
            "damage to one damages the other"
        )
