"""The command `latermq`: reads its arguments, runs the broker, says in one line what went wrong.

Exit statuses, as in sysexits.h where it has one: 0 done, or stopped as asked, 2 bad arguments or
settings (of check, dump and rebuild: whatever kept them from running), 69 no broker answers, 73 the
data directory is in use or cannot be made, 74 the storage failed or is damaged, 130 ended by
Ctrl-C, 1 otherwise. Layer 6.
"""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from appliance.commands import check, dump, groups, rebuild, send, status, tail, topics
from appliance.config import Config, settings
from appliance.config_file import load_config
from appliance.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    FormatVersionError,
    LatermqError,
    LogRefusedError,
    StorageError,
    UnreachableError,
)
from appliance.fs import OsFileSystem

EXIT_OTHER: Final = 1
EXIT_CONFIG: Final = 2
EXIT_UNAVAILABLE: Final = 69
EXIT_CANNOT_CREATE: Final = 73
EXIT_STORAGE: Final = 74

_DEFAULTS: Final = Config()

# Plain text in errors and help: a log or a service manager may be what reads it.
_app = typer.Typer(
    name="latermq",
    help="A message broker for Kafka clients that holds records back until they are due.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _flag(name: str, metavar: str, more: str = "") -> typer.models.OptionInfo:
    """Return the option for a field of `Config`, described as in the table of settings."""
    setting = settings()[name]
    option: typer.models.OptionInfo = typer.Option(
        setting.flag,
        metavar=metavar,
        help=f"{setting.reason}{more} Default: {getattr(_DEFAULTS, name) or 'as --listen'}",
        show_default=False,
    )
    return option


_ONLY_LOOPBACK: Final = " Any address but loopback needs --allow-insecure."


@_app.command(
    epilog="A flag beats the file, which beats the default. Then send with any Kafka client; a "
    "record header x-delay: 15m (or x-deliver-at: 2030-01-01T00:00:00Z, or x-delay-level: 3) holds "
    "the record back. Ready when it prints: latermq ready kafka=HOST:PORT admin=HOST:PORT. Stop it "
    "with Ctrl-C or SIGTERM."
)
def serve(  # noqa: PLR0917 (these are flags: typer passes them by name)
    data_dir: Annotated[str | None, _flag("data_dir", "DIR")] = None,
    listen: Annotated[str | None, _flag("listen", "HOST:PORT", _ONLY_LOOPBACK)] = None,
    admin: Annotated[str | None, _flag("admin", "HOST:PORT", _ONLY_LOOPBACK)] = None,
    advertise: Annotated[str | None, _flag("advertise", "HOST:PORT")] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings in TOML; docs/CONFIGURATION.md has them all."),
    ] = None,
    flush: Annotated[str | None, _flag("flush", "sync|async")] = None,
    allow_insecure: Annotated[
        bool,
        typer.Option("--allow-insecure", help=settings()["allow_insecure"].reason),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on without what is missing or damaged of the log, for good. Give it once, "
            "after a start was refused and said so.",
        ),
    ] = False,
) -> None:
    """Run the broker in the foreground."""
    overrides = {
        "data_dir": data_dir,
        "listen": listen,
        "admin": admin,
        "advertise": advertise,
        "flush": flush,
        # Not given is not the same as false: the file may have allowed it.
        "allow_insecure": allow_insecure or None,
    }
    settled = load_config(config, overrides, OsFileSystem())
    # Here and not above, so that help and errors do not wait for all of the broker to load.
    from appliance.main import run

    raise typer.Exit(run(settled, accepts_loss=accept_loss))


_app.command("send", epilog=send.EXAMPLES)(send.send)
_app.command("tail", epilog=tail.EXAMPLES)(tail.tail)
_app.add_typer(topics.app, name="topics")
_app.add_typer(groups.app, name="groups")
_app.command("status", epilog=status.STATUS_EXAMPLES)(status.status)
_app.add_typer(status.timers_app, name="timers")
_app.command("check", epilog=check.EXAMPLES)(check.check)
_app.command("dump", epilog=dump.EXAMPLES)(dump.dump)
_app.command("rebuild", epilog=rebuild.EXAMPLES)(rebuild.rebuild)


@_app.command()
def version() -> None:
    """Print the version."""
    import importlib.metadata

    typer.echo(f"latermq {importlib.metadata.version('latermq')}")


def main() -> None:
    """Run the command that the process's arguments name, and exit with its status."""
    if not __debug__:
        _complain(
            "Python's -O and PYTHONOPTIMIZE remove checks that keep the data safe: unset them"
        )
        sys.exit(EXIT_CONFIG)
    try:
        _app()
    except LatermqError as error:
        _complain(error.message)
        sys.exit(exit_status(error))


def _complain(sentence: str) -> None:
    sys.stderr.write(f"latermq: {sentence}\n")


def exit_status(error: LatermqError) -> int:
    """Return the status with which a process ends that failed with `error`."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case UnreachableError():
            return EXIT_UNAVAILABLE
        case DataDirectoryLockedError() | StorageError(operation="mkdir"):
            return EXIT_CANNOT_CREATE
        case StorageError() | CorruptionError() | FormatVersionError() | LogRefusedError():
            return EXIT_STORAGE
        case _:
            return EXIT_OTHER
