"""`latermq rebuild`: make anew what follows from a log. Layer 6."""

from pathlib import Path
from typing import Annotated, Final

import typer

from appliance.clock import SystemClock
from appliance.commands.arguments import Json, ends_quietly
from appliance.commands.offline import EXIT_FAULTS, DirArgument, Meter, reports_failure
from appliance.commands.output import print_json, print_line, printable
from appliance.config_file import load_config
from appliance.fs import OsFileSystem

EXAMPLES: Final = """\
Examples:

\b
  latermq rebuild /var/lib/latermq
  latermq rebuild /var/lib/latermq --config /etc/latermq/latermq.toml

The log is kept as it is, but for a torn tail, which any start cuts off. Give the configuration of
the broker, if it has one, and run it as the user that the broker runs as: that user will own the
files. Exit status: 0 done, 1 done and the log is damaged (it says where), 2 it could not be done.
"""


@ends_quietly
@reports_failure
def rebuild(
    directory: DirArgument,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings of the broker, in TOML.")
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on without what is missing or damaged of the log, for good."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Remove every file that follows from the log, and make it anew from the log.

    No broker may be running.
    """
    # Here, so that help and errors do not wait for all of the broker to load.
    from appliance.main import KAFKA_FACADE
    from appliance.offline.rebuild import Rebuild

    settled = load_config(config, {"data_dir": directory}, OsFileSystem())
    fs, clock = OsFileSystem(), SystemClock()
    run = Rebuild(fs, clock, settled, KAFKA_FACADE, accepts_loss=accept_loss)
    meter = Meter()
    for progress in run.run():
        meter.show(progress.recovered_bytes, progress.total_bytes)
    meter.clear()
    report = run.report
    if json:
        for damage in report.damage:
            place = {"file": str(damage.path), "offset": damage.offset, "size": damage.size}
            print_json({"type": "damage", **place, "found": damage.fault})
        print_json(
            {
                "type": "report",
                "frames": report.frames,
                "end": report.end_pos,
                "cut_bytes": report.cut_bytes,
                "damage": len(report.damage),
                "epoch": report.epoch,
            }
        )
    else:
        for damage in report.damage:
            print_line(printable(str(damage)))
        print_line(f"rebuilt: {report}")
    if report.damage:
        raise typer.Exit(EXIT_FAULTS)
