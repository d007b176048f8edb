"""Units of time and size, and the text form of durations and of counts.

The last word of a quantity's name is its unit (`delay_max_ms`, `segment_size_bytes`).
Layer 1; does no I/O.
"""

import re
from typing import Final

NS_PER_MS: Final = 1_000_000
MS_PER_SECOND: Final = 1_000
MS_PER_MINUTE: Final = 60 * MS_PER_SECOND
MS_PER_HOUR: Final = 60 * MS_PER_MINUTE
MS_PER_DAY: Final = 24 * MS_PER_HOUR

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

PAGE_SIZE_BYTES: Final = 4096
"""Segment sizes are multiples of this: the page and block size of the supported file systems."""

_MS_PER_UNIT: Final = {
    "ms": 1,
    "s": MS_PER_SECOND,
    "m": MS_PER_MINUTE,
    "h": MS_PER_HOUR,
    "d": MS_PER_DAY,
}
# Fifteen digits hold 30,000 years of milliseconds; more digits can only be a mistake.
_DURATION: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)", re.ASCII)


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, which has an `s` unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parse_duration_ms(text: str) -> int:
    """Parse a duration of one number and one unit, such as `250ms`, `30s`, `15m`, `2h` or `7d`.

    Returns:
        Milliseconds, 0 or more.

    Raises:
        ValueError: the text is anything else.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration: expected a number with ms, s, m, h or d, such as 30s"
        )
    return int(match[1]) * _MS_PER_UNIT[match[2]]


def format_duration_ms(duration_ms: int) -> str:
    """Format a duration of 0 ms or more in the largest unit that keeps it a whole number."""
    assert duration_ms >= 0
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % _MS_PER_UNIT[unit] == 0:
            return f"{duration_ms // _MS_PER_UNIT[unit]}{unit}"
    return f"{duration_ms}ms"
