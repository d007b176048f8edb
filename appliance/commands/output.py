"""Command output: coloured tables on a terminal, plain columns elsewhere, or JSON.

Text from records and names is escaped first, so that it cannot control the terminal. Layer 6.
"""

import base64
import json
import re
import select
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from appliance.commands.arguments import to_bytes
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\\\\]"
)
r"""Characters that control a terminal, end a line or change the direction of text; lone surrogates,
to which bytes that are not UTF-8 are decoded; and the backslash, which escapes all of them."""

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": "\\\\"}


def printable(value: str | bytes | None) -> str:
    """Return escaped text that fits on one line.

    Args:
        value: text, or bytes that may be text; None becomes the empty text.
    """
    if value is None:
        return ""
    octets = to_bytes(value) if isinstance(value, str) else value
    return _UNPRINTABLE.sub(_escaped, octets.decode("utf-8", "surrogateescape"))


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # how Python decodes a byte that is not UTF-8
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def octets_in_json(value: bytes | None) -> str | dict[str, str] | None:
    """Return a record's bytes for JSON: text if they are UTF-8, else `{"base64": ...}`."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def json_line(value: Any) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print_lines([json_line(value)])


def print_line(text: str) -> None:
    """Print a line."""
    print_lines([text])


def print_lines(lines: Iterable[str]) -> None:
    """Print lines and flush them: the reader of a pipe may wait for them."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def complain(sentence: str) -> None:
    """Print an error or a hint to standard error."""
    sys.stderr.write(f"latermq: {sentence}\n")


def is_reader_gone() -> bool:
    """Return whether nobody reads standard output any longer: the reader of a pipe has ended."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False  # it is no file of the system
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def drop_output() -> None:
    """Discard what standard output still has, so that the end of the process does not fail."""
    with suppress(BrokenPipeError):
        sys.stdout.close()


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print a table; columns of numbers are right-aligned.

    Args:
        head: the column names.
        rows: the cells; foreign text is already `printable`; None is shown as a dash.
        empty: the message on standard error if there are no rows.
    """
    if not rows:
        complain(empty)
        return
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    is_number = [all(isinstance(row[at], int | None) for row in rows) for at in range(len(head))]
    if is_terminal():
        _print_rich_table(head, cells, is_number)
        return
    lines = [list(head), *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        columns = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ]
        print_line("  ".join(columns).rstrip())


def _print_rich_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in zip(head, is_number, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    width = max(len(name) for name, _ in fields)
    bold, plain = ("\x1b[1m", "\x1b[0m") if is_terminal() else ("", "")
    for name, value in fields:
        print_line(f"{bold}{name.ljust(width)}{plain}  {value}".rstrip())


def rough_duration(duration_ms: int) -> str:
    """Return a duration in its two largest units."""
    units = (("d", MS_PER_DAY), ("h", MS_PER_HOUR), ("m", MS_PER_MINUTE), ("s", MS_PER_SECOND))
    words: list[str] = []
    for name, unit_ms in units:
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count or words:
            words.append(f"{count}{name}")
    return " ".join(words[:2]) or "0s"
