"""Units of time and size, and durations as people write them.

A quantity carries its unit as the last word of its name (`delay_max_ms`, `segment_size_bytes`).
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
"""The grain of segment sizes: page and block size of the file systems that latermq runs on."""

_MS_PER_UNIT: Final = {
    "ms": 1,
    "s": MS_PER_SECOND,
    "m": MS_PER_MINUTE,
    "h": MS_PER_HOUR,
    "d": MS_PER_DAY,
}
# Fifteen digits hold 30,000 years of milliseconds; more digits can only be a mistake.
_DURATION: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)", re.ASCII)


def parse_duration_ms(text: str) -> int:
    """Read a duration of one number and one unit, such as `250ms`, `30s`, `15m`, `2h` or `7d`.

    Returns:
        Milliseconds, 0 or more.

    Raises:
        ValueError: the text is anything else.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no duration: expected a number with ms, s, m, h or d, such as 30s"
        )
    return int(match[1]) * _MS_PER_UNIT[match[2]]


def format_duration_ms(duration_ms: int) -> str:
    """Write a duration of 0 ms or more with the largest unit that keeps it a whole number."""
    assert duration_ms >= 0
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % _MS_PER_UNIT[unit] == 0:
            return f"{duration_ms // _MS_PER_UNIT[unit]}{unit}"
    return f"{duration_ms}ms"
