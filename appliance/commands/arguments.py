"""Arguments that several commands share, and the handling of Ctrl-C. Layer 6."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

from appliance.commands import usage
from appliance.config.setting import Address, parse_address
from appliance.errors import ConfigError
from appliance.model import STORED_TIMES_FROM
from appliance.system.process import without_modules
from appliance.units import parse_duration_ms

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_ADMIN: Final = "127.0.0.1:9192"

Bootstrap = Annotated[
    str,
    usage.Option(
        metavar="HOST:PORT",
        envvar="LATERMQ_BOOTSTRAP",
        help="The broker's address for Kafka clients.",
    ),
]
Admin = Annotated[
    str,
    usage.Option(
        metavar="HOST:PORT",
        envvar="LATERMQ_ADMIN",
        help="The broker's admin address.",
    ),
]
AcceptLoss = Annotated[
    bool,
    usage.Option(
        "--accept-loss",
        help="Go on without the missing or damaged part of the log, for good. Pass it once, after "
        "a start was refused with this advice.",
    ),
]
Json = Annotated[bool, usage.Option("--json", help="Print JSON, for programs.")]
TopicName = Annotated[str, usage.Argument(metavar="TOPIC", help="Name of the topic.")]


class By(StrEnum):
    """By which time of a record --since searches."""

    DELIVERED = "delivered"
    CREATED = "created"
    DUE = "due"


SEARCHED_BY: Final = (
    "--since searches by the time at which records became visible; --by created or --by due "
    "searches by another one"
)

SearchedBy = Annotated[
    By | None,
    usage.Option(
        "--by",
        help="By which time --since searches: when a record became visible (the default), its "
        "timestamp, or when it was due.",
    ),
]


class Interrupts:
    """Delays Ctrl-C while the client library runs, which swallows exceptions raised inside it."""

    def __init__(self) -> None:
        self._is_shielded = False
        self._is_pending = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle SIGINT while the block runs."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Postpone Ctrl-C to the end of the block; a second Ctrl-C takes effect at once.

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
    """Parse an instant: epoch ms, RFC 3339, or a duration before now.

    Args:
        option: the option's name, for the error message.
        text: such as `1767225600000`, `2026-01-01T00:00:00Z` or `15m`.
        now_ms: the current time, epoch ms.

    Returns:
        Epoch ms.

    Raises:
        ConfigError: the text has none of these forms.
    """
    try:
        return max(0, now_ms - parse_duration_ms(text))
    except ValueError:
        return _read_instant(option, text, "a duration before now (15m)")


def read_ahead(option: str, text: str, now_ms: int) -> int:
    """Parse an instant: epoch ms, RFC 3339, or a duration from now on.

    Args:
        option, text, now_ms: as `read_past`.

    Returns:
        Epoch ms.

    Raises:
        ConfigError: the text has none of these forms.
    """
    try:
        return now_ms + parse_duration_ms(text)
    except ValueError:
        return _read_instant(option, text, "a duration from now (15m)")


def _read_instant(option: str, text: str, other: str) -> int:
    from _core.paths.delay_text import parse

    try:
        return parse("x-deliver-at", to_bytes(text))
    except ValueError as error:
        problem = str(error).replace("x-deliver-at", option)
        raise ConfigError(f"{problem}, or {other}") from None


def asked_time(since_ms: int, by: By | None) -> int:
    """Return the time to ask a broker for, to find the first record since an instant.

    No record is delivered before it is due. So with `By.DUE` none that is due later is missed, but
    some may be found that were due before and delivered late.

    Args:
        since_ms: epoch ms.
        by: None for `By.DELIVERED`.
    """
    return since_ms if by is By.CREATED else STORED_TIMES_FROM + since_ms


def check_by(by: By | None, since: str | None) -> None:
    """Raise ConfigError if there is no --since for --by."""
    if by is not None and since is None:
        raise ConfigError("--by says how --since searches: give --since as well")


def read_place(option: str, text: str) -> str | int:
    """Parse a place in a partition: `earliest`, `latest`, or an offset, which becomes a number.

    Raises:
        ConfigError: the text has none of these forms.
    """
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise ConfigError(
        f"{option} {text!r} is not a place: use earliest, latest or an offset, or --since for a "
        "time"
    )


def read_address(option: str, text: str) -> Address:
    """Parse the address of a broker.

    Raises:
        ConfigError: the text is not HOST:PORT.
    """
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is invalid: {error}") from None


def check_group(name: str) -> None:
    """Raise ConfigError if a group name is empty, as an unset shell variable makes it."""
    if not name:
        raise ConfigError("the group name is empty: give a name")


def read_pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """Parse the `NAME=VALUE` texts of an option that may be repeated.

    Raises:
        ConfigError: a text has no `=` or no name.
    """
    pairs = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {text!r} is invalid: use NAME=VALUE")
        pairs.append((name, value))
    return pairs


def to_bytes(text: str) -> bytes:
    """Return the bytes of an argument as the process received them."""
    return text.encode("utf-8", "surrogateescape")


def format_instant(epoch_ms: int) -> str:
    """Return an instant as RFC 3339 in UTC, with milliseconds."""
    try:
        instant = datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"  # beyond the year 9999: producers choose their timestamps
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def load_pyarrow(need: str) -> None:
    """Load the library for Parquet, if possible without numpy, which takes as long again.

    Args:
        need: what needs it, the beginning of the message.

    Raises:
        ConfigError: it is not installed.
    """
    import importlib  # which other commands do not need
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{need}: install it with pip install latermq[spark]")
    with without_modules("numpy"):
        importlib.import_module("pyarrow")
