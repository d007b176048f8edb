"""The command `latermq`: reads its arguments, runs the broker, reports an error in one line.

Exit statuses, from sysexits.h where it defines one: 0 done, or stopped by a signal; 2 bad arguments
or settings (for check, dump and rebuild: anything that kept them from running); 69 no broker
answers; 73 the data directory is in use or cannot be made; 74 the storage failed or is damaged; 75
an address is in use or not up yet: try again later; 130 ended by Ctrl-C; 1 otherwise. Layer 6.
"""

import enum
import gc
import sys
from pathlib import Path
from typing import Annotated, Final

from appliance.commands import usage
from appliance.commands.arguments import AcceptLoss
from appliance.config.config import Config, settings
from appliance.errors import (
    AddressError,
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    FormatVersionError,
    LatermqError,
    LogRefusedError,
    StorageError,
    UnreachableError,
)

EXIT_OTHER: Final = 1
EXIT_CONFIG: Final = 2
EXIT_UNAVAILABLE: Final = 69
EXIT_CANNOT_CREATE: Final = 73
EXIT_STORAGE: Final = 74
EXIT_TEMPORARY: Final = 75

_DEFAULTS: Final = Config()

# Plain text in errors and help: a log or a service manager may read it.
_app = usage.Group(
    name="latermq",
    help="A message broker for Kafka clients that holds records back until they are due.",
)


def _flag(name: str, metavar: str, more: str = "") -> usage.Option:
    """Return the option for a field of `Config`; its help is the text of the settings table."""
    setting = settings()[name]
    value = getattr(_DEFAULTS, name)
    default = " Default: as --listen" if name == "advertise" else f" Default: {value}"
    if value is None and name != "advertise":
        default = ""
    return usage.Option(
        setting.flag,
        metavar=metavar,
        help=f"{setting.reason}{more}{default}",
    )


_ONLY_LOOPBACK: Final = " Any address but loopback needs --allow-insecure."


@_app.command(
    "serve",
    epilog="A flag beats the file, which beats the default. Then send with any Kafka client; a "
    "record header x-delay: 15m (or x-deliver-at: 2030-01-01T00:00:00Z, or x-delay-level: 3) holds "
    "the record back. Ready when it prints: latermq ready kafka=HOST:PORT admin=HOST:PORT. Stop it "
    "with Ctrl-C or SIGTERM.",
)
def serve(  # noqa: PLR0917 (these are flags: click passes them by name)
    data_dir: Annotated[str | None, _flag("data_dir", "DIR")] = None,
    listen: Annotated[str | None, _flag("listen", "HOST:PORT", _ONLY_LOOPBACK)] = None,
    admin: Annotated[str | None, _flag("admin", "HOST:PORT", _ONLY_LOOPBACK)] = None,
    advertise: Annotated[str | None, _flag("advertise", "HOST:PORT")] = None,
    config: Annotated[
        Path | None,
        usage.Option(metavar="FILE", help="Settings in TOML; docs/CONFIGURATION.md has them all."),
    ] = None,
    flush: Annotated[str | None, _flag("flush", "sync|async")] = None,
    role: Annotated[str | None, _flag("role", "master|slave")] = None,
    master: Annotated[str | None, _flag("master", "HOST:PORT")] = None,
    replication: Annotated[str | None, _flag("replication", "none|async|sync")] = None,
    replication_listen: Annotated[str | None, _flag("replication_listen", "HOST:PORT")] = None,
    allow_insecure: Annotated[
        bool,
        usage.Option("--allow-insecure", help=settings()["allow_insecure"].reason),
    ] = False,
    clock: Annotated[str | None, _flag("clock", "system|virtual")] = None,
    accept_loss: AcceptLoss = False,
    alone: Annotated[
        bool,
        usage.Option(
            "--alone",
            help="Of a pair's master: the other node is off, so compare no logs before serving.",
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
        "role": role,
        "master": master,
        "replication": replication,
        "replication_listen": replication_listen,
        "clock": clock,
        # An absent flag is not the same as false: the file may have set it.
        "allow_insecure": allow_insecure or None,
    }
    # Imported here so that help and errors do not wait for the whole broker to load.
    from appliance.config.config_file import load_config
    from appliance.system.files import OsFileSystem

    completed = load_config(config, overrides, OsFileSystem())
    # Imported modules stay: searching them for garbage takes a tenth of a start.
    gc.disable()
    from appliance.main import run

    gc.freeze()
    gc.enable()
    raise usage.Exit(run(completed, accepts_loss=accept_loss, is_alone=alone))


# Each module is imported when its command is asked for.
_app.later("send", "appliance.commands.send", "COMMAND")
_app.later("tail", "appliance.commands.tail", "COMMAND")
_app.later("topics", "appliance.commands.topics", "app")
_app.later("groups", "appliance.commands.groups", "app")
_app.later("status", "appliance.commands.status", "COMMAND")
_app.later("timers", "appliance.commands.timers", "app")
_app.later("dlq", "appliance.commands.dlq", "app")
_app.later("clock", "appliance.commands.clock", "app")
_app.later("find", "appliance.commands.find", "COMMAND")
_app.later("cleanup", "appliance.commands.cleanup", "COMMAND")
_app.later("snapshot", "appliance.commands.snapshots", "app")
_app.later("replication", "appliance.commands.replication", "REPLICATION")
_app.later("promote", "appliance.commands.replication", "PROMOTE")
_app.later("handover", "appliance.commands.replication", "HANDOVER")
_app.later("alone", "appliance.commands.replication", "ALONE")
_app.later("solo", "appliance.commands.replication", "SOLO")
_app.later("backup", "appliance.commands.backup", "COMMAND")
_app.later("restore", "appliance.commands.restore", "COMMAND")
_app.later("check", "appliance.commands.check", "COMMAND")
_app.later("dump", "appliance.commands.dump", "COMMAND")
_app.later("export", "appliance.commands.export", "COMMAND")
_app.later("import", "appliance.commands.import_rows", "COMMAND")
_app.later("rebuild", "appliance.commands.rebuild", "COMMAND")
_app.later("pipeline", "appliance.commands.pipeline", "app")


@_app.command("version")
def version() -> None:
    """Print the version."""
    import importlib.metadata

    from appliance.commands.output import print_line

    print_line(f"latermq {importlib.metadata.version('latermq')}")


class Shell(enum.Enum):
    """A shell that completes commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@_app.command(
    "completion",
    epilog="For bash: latermq completion bash > ~/.local/share/bash-completion/completions/latermq"
    ' (or: eval "$(latermq completion bash)" in ~/.bashrc). For zsh: eval "$(latermq completion '
    'zsh)" in ~/.zshrc. For fish: latermq completion fish > '
    "~/.config/fish/completions/latermq.fish",
)
def completion(
    shell: Annotated[Shell, usage.Argument("The shell that is to complete commands.")],
) -> None:
    """Print a script with which a shell completes commands and options."""
    from appliance.commands.output import print_line

    print_line(_app.completion_script(shell.value))


def main() -> None:
    """Run the command that the process's arguments name, and exit with its status."""
    if not __debug__:
        _complain("Python's -O and PYTHONOPTIMIZE remove checks that protect the data: unset them")
        sys.exit(EXIT_CONFIG)
    try:
        _app.run()
    except LatermqError as error:
        _complain(error.message)
        sys.exit(exit_status(error))


def _complain(sentence: str) -> None:
    sys.stderr.write(f"latermq: {sentence}\n")


def exit_status(error: LatermqError) -> int:
    """Return the exit status of a process that failed with `error`."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case AddressError():
            return EXIT_TEMPORARY
        case UnreachableError():
            return EXIT_UNAVAILABLE
        case DataDirectoryLockedError() | StorageError(operation="mkdir"):
            return EXIT_CANNOT_CREATE
        case StorageError() | CorruptionError() | FormatVersionError() | LogRefusedError():
            return EXIT_STORAGE
        case _:
            return EXIT_OTHER
