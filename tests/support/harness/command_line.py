"""`latermq` commands run in this process, as if typed.

A process for each would take most of the time of their tests.
"""

import contextlib
import io
import json
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from appliance import cli

with warnings.catch_warnings():
    # It reads its schemas by deprecated functions of importlib.resources. Import it here, so that
    # no command raises the warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]  # noqa: F401


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did.

    Attributes:
        status: the exit status.
        stdout, stderr: what it printed.
    """

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    def json(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.stdout)

    def json_lines(self) -> list[Any]:
        """The JSON documents on standard output, one a line."""
        return [json.loads(line) for line in self.lines]


class CommandLine:
    """A shell whose environment names one broker.

    Args:
        patch: restores the environment at the end of the test.
        kafka, admin: addresses of the broker.
    """

    def __init__(self, patch: pytest.MonkeyPatch, kafka: str, admin: str) -> None:
        patch.setenv("LATERMQ_BOOTSTRAP", kafka)
        patch.setenv("LATERMQ_ADMIN", admin)
        patch.setenv("COLUMNS", "120")
        patch.setenv("TERM", "xterm")

    def run(self, command: str, stdin: bytes = b"", *, on_terminal: bool = False) -> Outcome:
        """Run a command that ends by itself.

        Args:
            command: what is typed after `latermq`, with quotes as in a shell.
            stdin: its standard input.
            on_terminal: whether standard output is a terminal.
        """
        return self.run_words(shlex.split(command), stdin, on_terminal=on_terminal)

    def run_words(
        self, words: Sequence[str], stdin: bytes = b"", *, on_terminal: bool = False
    ) -> Outcome:
        """Run a command given as words."""
        stdout = _Terminal() if on_terminal else io.StringIO()
        stderr = io.StringIO()
        with (
            _arguments(["latermq", *words], stdin),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            try:
                cli.main()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 0
        return Outcome(status, stdout.getvalue(), stderr.getvalue())

    def ok(self, command: str, stdin: bytes = b"") -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(command, stdin)
        assert outcome.status == 0, outcome
        return outcome

    def fails(self, command: str, status: int = 1) -> str:
        """Run a command that must fail; return its one line of standard error."""
        outcome = self.run(command)
        assert outcome.status == status, outcome
        assert outcome.stdout == "", outcome
        assert outcome.stderr.startswith("latermq: "), outcome
        assert outcome.stderr.count("\n") == 1, outcome
        return outcome.stderr


@contextlib.contextmanager
def _arguments(words: list[str], stdin: bytes) -> Iterator[None]:
    old_words, old_stdin = sys.argv, sys.stdin
    sys.argv, sys.stdin = words, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        yield
    finally:
        sys.argv, sys.stdin = old_words, old_stdin
