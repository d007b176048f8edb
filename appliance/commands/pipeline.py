"""`latermq pipeline`: keep Parquet tables of a data directory up to date, on Spark. Layer 6."""

from pathlib import Path
from typing import Annotated, Final

from appliance.commands import usage
from appliance.commands.offline import reports_failure
from appliance.commands.output import complain, printable

EXAMPLES: Final = """\
Examples:

\b
  latermq pipeline run --data-dir /var/lib/latermq --out /srv/tables
  latermq pipeline run --data-dir /var/lib/latermq --out /srv/tables --every 5m

It needs Java and latermq[spark]. A broker may be running on the directory. docs/PIPELINE.md has the
tables. Exit status: 0 done, 2 the tables are not up to date (it prints why).
"""

app: Final = usage.Group(
    help="Keep Parquet tables of a data directory up to date, on Spark.", epilog=EXAMPLES
)


@app.command("run", epilog=EXAMPLES)
@reports_failure
def run(
    data_dir: Annotated[
        Path, usage.Option(metavar="DIR", help="The data directory, which is only read.")
    ],
    out: Annotated[
        Path,
        usage.Option(
            metavar="DIR", help="The directory of the tables: empty, or of an earlier run."
        ),
    ],
    every: Annotated[
        str | None,
        usage.Option(metavar="DURATION", help="Run again after so long, until Ctrl-C."),
    ] = None,
    accept_data_loss: Annotated[
        bool, usage.Option("--accept-data-loss", help="Go on without damaged parts of the log.")
    ] = False,
    master: Annotated[
        str | None,
        usage.Option(metavar="URL", help="Spark's master. Default: local[*], this machine."),
    ] = None,
) -> None:
    """Add what the log has gained to the tables, and correct what it changes."""
    # Imported here so that help and argument errors do not wait for it.
    from compat.pipeline.session import Request, parse_every, run_pipeline

    request = Request(
        data_dir=data_dir,
        out=out,
        every_ms=parse_every(every),
        accepts_loss=accept_data_loss,
        master=master,
    )
    run_pipeline(request, lambda line: complain(printable(line)))
