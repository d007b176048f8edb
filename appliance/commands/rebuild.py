"""`latermq rebuild`: rebuild the files that are derived from the log. Layer 6."""

from pathlib import Path
from typing import Annotated, Final

from appliance.commands import usage
from appliance.commands.arguments import AcceptLoss, Json
from appliance.commands.offline import EXIT_FAULTS, DirArgument, Meter, reports_failure
from appliance.commands.output import print_json, print_line, printable
from appliance.config.config_file import load_config
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem

EXAMPLES: Final = """\
Examples:

\b
  latermq rebuild /var/lib/latermq
  latermq rebuild /var/lib/latermq --config /etc/latermq/latermq.toml

The log is left as it is, except for a torn tail, which every start cuts off. Give the broker's
configuration file, if it has one, and run the command as the broker's user, who then owns the
files. Exit status: 0 done, 1 done but the log is damaged (it prints where), 2 nothing was rebuilt.
"""


@reports_failure
def rebuild(
    directory: DirArgument,
    config: Annotated[
        Path | None, usage.Option(metavar="FILE", help="Settings of the broker, in TOML.")
    ] = None,
    accept_loss: AcceptLoss = False,
    json: Json = False,
) -> None:
    """Remove every file that is derived from the log, and rebuild it from the log.

    No broker may run on the directory.
    """
    # Imported here so that help and argument errors do not wait for the whole broker.
    from appliance.kafka_facade import KAFKA_FACADE
    from appliance.offline.rebuild import Rebuild

    completed = load_config(config, {"data_dir": directory}, OsFileSystem())
    fs, clock = OsFileSystem(), SystemClock()
    run = Rebuild(fs, clock, completed, KAFKA_FACADE, accepts_loss=accept_loss)
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
        raise usage.Exit(EXIT_FAULTS)


COMMAND: Final = usage.Command(rebuild, EXAMPLES)
