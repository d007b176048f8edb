"""`latermq restore`: make a data directory from a backup, and say what that means. Layer 6."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from appliance.commands import usage
from appliance.commands.arguments import AcceptLoss, Json, format_instant
from appliance.commands.offline import (
    EXIT_FAULTS,
    Meter,
    finding_printer,
    interruptible,
    reports_failure,
)
from appliance.commands.output import print_json, print_line, print_table, printable
from appliance.errors import BackupError, DataDirectoryLockedError
from appliance.offline.findings import Findings
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import counted

if TYPE_CHECKING:
    from appliance.offline.file_copies import Step
    from appliance.offline.restore import Plan, Restore

EXAMPLES: Final = """\
Examples:

\b
  latermq restore /backups/monday --data-dir /var/lib/latermq-new --dry-run
  latermq restore /backups/monday --data-dir /var/lib/latermq-new

Run it as the broker's user, who then owns the files. Then start the broker on the new directory.
docs/BACKUP.md goes through all of it. Exit status: 0 done, 1 the backup is damaged, 2 nothing was
restored for another reason.
"""

PARTITIONS_SHOWN: Final = 20
"""Of the partitions with their offsets; --json has all."""


@reports_failure
def restore(  # noqa: PLR0917 (these are flags: click passes them by name)
    directory: Annotated[str, usage.Argument(metavar="DIR", help="The directory of the backup.")],
    data_dir: Annotated[
        str, usage.Option(metavar="DIR", help="The new data directory, missing or empty.")
    ],
    dry_run: Annotated[
        bool,
        usage.Option("--dry-run", help="Check the backup and say what would be; change nothing."),
    ] = False,
    copy: Annotated[
        bool,
        usage.Option("--copy", help="Copy every file, also what could be a hard link."),
    ] = False,
    accept_loss: AcceptLoss = False,
    json: Json = False,
) -> None:
    """Make a data directory from a backup, and say what a broker on it does.

    The backup is checked first, and stays as it is.
    """

    # Imported here so that help and argument errors do not wait for it.
    from appliance.offline.restore import Restore

    meter = Meter()
    run = Restore(
        OsFileSystem(),
        SystemClock(),
        Path(directory),
        Path(data_dir),
        accepts_loss=accept_loss,
        may_link=not copy,
    )
    try:
        _exhaust(run.examine(Findings(finding_printer(meter, json=json, wants_notes=False))), meter)
    except DataDirectoryLockedError as error:
        raise BackupError(f"a broker is running on {error.directory}: choose another") from None
    if not json:
        for sentence in sentences(run.plan):
            print_line(sentence)
        _print_partitions(run.plan)
    is_refused = run.plan.faults > 0 and not accept_loss
    if not dry_run and not is_refused:
        _exhaust(run.run(), meter)
    is_done = not (dry_run or is_refused)
    _print_end(Path(data_dir), run, is_done=is_done, is_refused=is_refused, json=json)
    if is_refused:
        raise usage.Exit(EXIT_FAULTS)


COMMAND: Final = usage.Command(restore, EXAMPLES)


def _exhaust(steps: "Generator[Step, None, None]", meter: Meter) -> None:
    with interruptible(), closing(steps):
        for what, done, total in steps:
            meter.show(done, total, what)
    meter.clear()


def sentences(plan: "Plan") -> list[str]:
    """Return what the first start on the restored directory does, as text for people."""
    made = plan.manifest
    at = format_instant(made.created_at)
    said = [
        f"backup of cluster {made.cluster_id}, made at {at} by latermq {made.latermq}: the log "
        f"from position {made.start} to {made.end}, {made.size_bytes} bytes",
        f"lost is everything acknowledged after {at}: records, delayed records, cancels, committed "
        "offsets, topics and settings",
        f"epoch: the first start begins epoch {plan.epoch} or a later one, after {made.epoch}; "
        "offsets are given again from the next offsets of the backup, and consumers that have read "
        "further notice it by the epoch",
        f"producer ids continue at {plan.producer_id} or above, so that none is given twice; "
        "generations of groups and topic ids skip a million",
        _timers_sentence(plan, at),
        f"consumer groups ({len(plan.groups)} in the backup) continue from its offsets: they read "
        "again what they have committed since",
        "records age from the first start on: they are kept longer than their topic says, never "
        "shorter",
    ]
    if made.faults:
        said.append(f"the log was damaged when the backup was made: {made.faults} faults")
    if plan.is_clock_behind:
        said.append(
            "warning: the clock of this machine is before the time of the backup. The epoch may "
            "have been used before, and consumers may not notice the restore: set the clock first"
        )
    return said


def _timers_sentence(plan: "Plan", at: str) -> str:
    if plan.next_due_at is None:
        return "no delayed record is pending in the backup"
    return (
        f"{counted(plan.pending_timers, 'delayed record')} pending in the backup, the first due at "
        f"{format_instant(plan.next_due_at)}: those due by now are delivered at once, also the "
        f"ones that were delivered, or cancelled, after {at}"
    )


def _print_partitions(plan: "Plan") -> None:
    rows = [
        (printable(each.topic), each.partition, each.start_offset, each.next_offset, pending)
        for each in plan.partitions[:PARTITIONS_SHOWN]
        for pending in (each.pending_timers,)
    ]
    head = ("TOPIC", "PARTITION", "START", "NEXT OFFSET", "PENDING")
    print_table(head, rows, empty="the backup has no topics")
    more = len(plan.partitions) - PARTITIONS_SHOWN
    if more > 0:
        print_line(f"and {counted(more, 'partition')} more, which --json shows")


def _print_end(
    target: Path, run: "Restore", *, is_done: bool, is_refused: bool, json: bool
) -> None:
    plan = run.plan
    if json:
        fields = {**asdict(plan), "manifest": {**asdict(plan.manifest)}}
        fields["manifest"].pop("files")
        more = {"path": str(target), "is_done": is_done, "linked_bytes": run.linked_bytes}
        print_json({"type": "restore", **fields, **more})
    elif is_done:
        print_line(f"restored {printable(str(target))}: start the broker with --data-dir")
    elif is_refused:
        print_line(
            f"{counted(plan.faults, 'fault')}: nothing was restored. Use another backup; or "
            "restore what is whole, for good, with --accept-loss"
        )
    else:
        print_line("nothing was restored: --dry-run")
