"""`latermq check`: verify a data directory. Layer 6."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.commands import usage
from appliance.commands.arguments import Json
from appliance.commands.offline import (
    EXIT_FAULTS,
    DirArgument,
    Live,
    Meter,
    finding_printer,
    opened,
    reports_failure,
)
from appliance.commands.output import complain, print_json, print_line
from appliance.offline.findings import Findings

if TYPE_CHECKING:
    from appliance.offline.check import CheckReport

EXAMPLES: Final = """\
Examples:

\b
  latermq check /var/lib/latermq
  latermq check ./restored --json
  latermq check /var/lib/latermq --live

Exit status: 0 no faults, 1 faults were found, 2 the directory could not be checked.
"""


@reports_failure
def check(directory: DirArgument, live: Live = False, json: Json = False) -> None:
    """Verify every frame of the log, and every file that is derived from it.

    Read-only: it creates and changes nothing in the directory.
    """

    # Imported here so that help and argument errors do not wait for it.
    from appliance.offline.check import Check

    meter = Meter()
    findings = Findings(finding_printer(meter, json=json))
    with opened(Path(directory), findings, may_be_live=live) as data:
        if data.is_live:
            complain("a broker is running: this checks what it has flushed up to now")
        run = Check(data, findings)
        for done, total in run.run():
            meter.show(done, total)
        meter.clear()
        report = run.report
    _print_report(report, json=json)
    if report.faults:
        raise usage.Exit(EXIT_FAULTS)


COMMAND: Final = usage.Command(check, EXAMPLES)


def _print_report(report: "CheckReport", *, json: bool) -> None:
    if json:
        print_json({"type": "report", **asdict(report)})
        return
    stop = "is running" if report.is_live else "stopped cleanly" if report.is_clean else "crashed"
    said = "this is a snapshot" if report.is_snapshot else f"the broker {stop}"
    if report.is_backup:
        said = "this is a backup"
    verdict = f"{report.faults} faults" if report.faults else "whole"
    looked_at = f"{report.frames} frames from log position {report.start} to {report.end}"
    followed = f"{report.units} queue units, {report.states} saved states"
    print_line(f"{verdict}: {looked_at}, {followed}, epoch {report.epoch}; {said}")
