"""Parts that `check`, `dump` and `rebuild` share: directory, progress, exit status. Layer 6."""

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TypeVar

from appliance.commands import usage
from appliance.commands.output import complain, print_json, print_line, printable
from appliance.errors import DataDirectoryLockedError, LatermqError, StorageError
from appliance.offline.findings import Fault, Findings, Note
from appliance.system.files import OsFileSystem
from appliance.units import MIB

if TYPE_CHECKING:
    from appliance.offline.data_dir import DataDir

P = ParamSpec("P")
R = TypeVar("R")

EXIT_FAULTS: Final = 1
EXIT_NOT_RUN: Final = 2

DirArgument = Annotated[
    str, usage.Argument(metavar="DIR", help="The data directory (--data-dir of serve).")
]
Live = Annotated[
    bool,
    usage.Option(
        "--live", help="Read the directory of a running broker: what it has flushed up to now."
    ),
]


def reports_failure(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command that fails exit with EXIT_NOT_RUN and an error message."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return command(*arguments, **options)
        except LatermqError as error:
            complain(error.message + _hint(error))
            raise usage.Exit(EXIT_NOT_RUN) from None

    return run


def _hint(error: LatermqError) -> str:
    if isinstance(error, StorageError) and error.is_forbidden:
        return (
            "; run the command as the owner of the directory, or as a member of its group, which "
            "may read it"
        )
    return ""


@contextmanager
def opened(root: Path, findings: Findings, *, may_be_live: bool) -> Iterator["DataDir"]:
    """Open a data directory for reading; no broker can start on it until the block ends.

    Raises:
        LatermqError: the directory cannot be opened; see `DataDir.open`.
    """
    # Imported here so that help and argument errors do not wait for it.
    from appliance.offline.data_dir import DataDir

    data = DataDir(OsFileSystem(), root, findings)
    try:
        data.open(may_be_live=may_be_live)
        yield data
    except DataDirectoryLockedError as error:
        raise InUseError(error) from None
    finally:
        data.close()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that nothing is left of what it began."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class InUseError(LatermqError):
    """A broker holds the lock of the directory that a command is to read."""

    def __init__(self, error: DataDirectoryLockedError) -> None:
        holder = "a broker" if error.pid is None else f"a broker (pid {error.pid})"
        super().__init__(
            f"{holder} is running on {error.directory}: stop it, or use --live to read what it has "
            "flushed up to now"
        )


class Meter:
    """The progress of a long command, on standard error if that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, done: int, total: int, what: str = "") -> None:
        """Show how many bytes of the log are done, of how many, and what is done with them."""
        if sys.stderr.isatty():
            share = 100 * done // total if total else 100
            text = f"{done // MIB} of {total // MIB} MiB, {share} % "
            sys.stderr.write(f"\r\x1b[K{what}: {text}" if what else f"\r{text}")
            sys.stderr.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Erase the progress, so that a line can be printed."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_shown = False


def finding_printer(
    meter: Meter, *, json: bool, wants_notes: bool = True
) -> Callable[[Fault | Note], None]:
    """Return a function that prints a finding as a line, or as a JSON document.

    Args:
        meter: is cleared before it.
        json: print documents, also of notes.
        wants_notes: print a line for a note as well.
    """

    def report_finding(finding: Fault | Note) -> None:
        meter.clear()
        if json:
            print_json(finding_in_json(finding))
        elif isinstance(finding, Fault):
            print_line(f"fault: {printable(str(finding))}")
        elif wants_notes:
            print_line(f"note: {printable(str(finding))}")

    return report_finding


def finding_in_json(finding: Fault | Note) -> dict[str, Any]:
    """Return a fault or a note as a JSON object."""
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
