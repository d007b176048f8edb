"""What `check`, `dump` and `rebuild` share: a directory, progress, exit statuses. Layer 6."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TypeVar

import typer

from appliance.commands.output import complain
from appliance.errors import DataDirectoryLockedError, LatermqError, StorageError
from appliance.fs import OsFileSystem
from appliance.offline.findings import Fault, Findings, Note
from appliance.units import MIB

if TYPE_CHECKING:
    from appliance.offline.data_dir import DataDir

P = ParamSpec("P")
R = TypeVar("R")

EXIT_FAULTS: Final = 1
EXIT_NOT_RUN: Final = 2

DirArgument = Annotated[
    str, typer.Argument(metavar="DIR", help="The data directory (--data-dir of serve).")
]
Live = Annotated[
    bool,
    typer.Option(
        "--live", help="Also if a broker is running: look at what it has flushed up to now."
    ),
]


def reports_failure(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command that could not do its work end with EXIT_NOT_RUN and a sentence."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return command(*arguments, **options)
        except LatermqError as error:
            complain(error.message + _hint(error))
            raise typer.Exit(EXIT_NOT_RUN) from None

    return run


def _hint(error: LatermqError) -> str:
    if isinstance(error, StorageError) and error.is_forbidden:
        return (
            "; run it as the user that owns the directory, or as a member of its group, who may "
            "read it"
        )
    return ""


@contextmanager
def opened(root: Path, findings: Findings, *, may_be_live: bool) -> Iterator["DataDir"]:
    """Open a data directory for reading, and keep brokers out meanwhile.

    Raises:
        LatermqError: it cannot be opened; see `DataDir.open`.
    """
    # Not at the top: it takes time to load, and help and mistakes are answered at once.
    from appliance.offline.data_dir import DataDir

    data = DataDir(OsFileSystem(), root, findings)
    try:
        data.open(may_be_live=may_be_live)
        yield data
    except DataDirectoryLockedError as error:
        raise InUseError(error) from None
    finally:
        data.close()


class InUseError(LatermqError):
    """A broker holds the directory that a command was to look at."""

    def __init__(self, error: DataDirectoryLockedError) -> None:
        holder = "a broker" if error.pid is None else f"a broker (pid {error.pid})"
        super().__init__(
            f"{holder} is running on {error.directory}: stop it, or say --live to see what it has "
            "flushed up to now"
        )


class Meter:
    """How far a long command is, on standard error if that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, done: int, total: int) -> None:
        """Show bytes of the log done, of all."""
        if sys.stderr.isatty():
            share = 100 * done // total if total else 100
            sys.stderr.write(f"\r{done // MIB} of {total // MIB} MiB, {share} % ")
            sys.stderr.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Take it away, so that a line can be printed."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_shown = False


def finding_in_json(finding: Fault | Note) -> dict[str, Any]:
    """A fault or a note as a JSON object."""
    if isinstance(finding, Note):
        return {
            "type": "note",
            "file": str(finding.path),
            "offset": finding.offset,
            "text": finding.text,
        }
    return {
        "type": "fault",
        "file": str(finding.path),
        "offset": finding.offset,
        "size": finding.size,
        "position": finding.position,
        "expected": finding.expected,
        "found": finding.found,
    }
