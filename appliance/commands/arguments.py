"""What several commands take: addresses, times, and how Ctrl-C ends them. Layer 6."""

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final, ParamSpec, TypeVar

import typer

from appliance.errors import ConfigError
from appliance.setting import Address, parse_address
from appliance.units import parse_duration_ms

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_ADMIN: Final = "127.0.0.1:9192"

EXIT_INTERRUPTED: Final = 130
"""As a shell says it of a process that SIGINT ended."""

Bootstrap = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="LATERMQ_BOOTSTRAP",
        help="The broker, where Kafka clients connect.",
    ),
]
Admin = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="LATERMQ_ADMIN",
        help="The broker's admin address.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


def ends_quietly(command: Callable[P, R]) -> Callable[P, R]:
    """Let Ctrl-C end a command without a word."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return run


class Interrupts:
    """Ctrl-C where it can be heard: the client library swallows what is raised inside of it."""

    def __init__(self) -> None:
        self._is_shielded = False
        self._is_pending = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen while the block runs."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let Ctrl-C end the command behind the block and not inside; a second one does not wait.

        Raises:
            KeyboardInterrupt: at the end of the block.
        """
        self._is_shielded = True
        try:
            yield
        finally:
            self._is_shielded = False
        if self._is_pending:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        is_first, self._is_pending = not self._is_pending, True
        if not (self._is_shielded and is_first):
            raise KeyboardInterrupt


def read_past(option: str, text: str, now_ms: int) -> int:
    """Read an instant: epoch ms, RFC 3339, or how long ago it was.

    Args:
        option: whose value it is, for the message.
        text: such as `1767225600000`, `2026-01-01T00:00:00Z` or `15m`.
        now_ms: epoch ms.

    Returns:
        Epoch ms.

    Raises:
        ConfigError: it is none of them.
    """
    from _core.delay_text import parse

    try:
        return max(0, now_ms - parse_duration_ms(text))
    except ValueError:
        pass
    try:
        return parse("x-deliver-at", to_bytes(text))
    except ValueError as error:
        problem = str(error).replace("x-deliver-at", option)
        raise ConfigError(f"{problem}, or how long ago (15m)") from None


def read_place(option: str, text: str) -> str | int:
    """Read where in a partition: `earliest`, `latest`, or an offset, which becomes a number.

    Raises:
        ConfigError: it is none of them.
    """
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise ConfigError(
        f"{option} {text!r} is none of earliest, latest and an offset; a time goes with --since"
    )


def read_address(option: str, text: str) -> Address:
    """Read where a broker is.

    Raises:
        ConfigError: it is no HOST:PORT.
    """
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is refused: {error}") from None


def check_group(name: str) -> None:
    """Raise ConfigError for an empty name of a group, which a variable may have been."""
    if not name:
        raise ConfigError("the name of the group is empty")


def read_pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """Read `NAME=VALUE` of an option that may be repeated.

    Raises:
        ConfigError: one has no `=`, or no name.
    """
    pairs = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {text!r} has the wrong form: expected NAME=VALUE")
        pairs.append((name, value))
    return pairs


def to_bytes(text: str) -> bytes:
    """Return an argument as it was given to the process."""
    return text.encode("utf-8", "surrogateescape")


def format_instant(epoch_ms: int) -> str:
    """Write an instant as RFC 3339 in UTC, with milliseconds."""
    try:
        instant = datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"  # beyond the year 9999; timestamps are the producers' own
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
