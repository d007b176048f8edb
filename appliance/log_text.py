"""Facts in a line of the log: `key=value`, so that no client can forge a line or a fact.

Layer 1; does no I/O.
"""

from typing import Final

SHOWN_MAX_CHARS: Final = 100
"""Of a text that a client chose: enough to know it by, and no way to fill the disk."""


def quoted(text: str, *, char_count_max: int = SHOWN_MAX_CHARS) -> str:
    """Write a text in double quotes, as one line of printable ASCII.

    Args:
        text: anything, also from the network.
        char_count_max: most characters between the quotes.

    Returns:
        The text with Python's escapes. One that was cut is followed by `...` behind the quotes,
        where no text can stand.
    """
    parts: list[str] = []
    room = char_count_max
    for char in text:
        part = '\\"' if char == '"' else ascii(char)[1:-1]
        room -= len(part)
        if room < 0:
            return f'"{"".join(parts)}"...'
        parts.append(part)
    return f'"{"".join(parts)}"'


def quoted_bytes(data: bytes) -> str:
    """Write bytes that should be UTF-8 as `quoted` does; others are \\udc80 to \\udcff."""
    # A character takes at most four bytes, so that this cuts none of what is shown.
    shown = data[: 4 * (SHOWN_MAX_CHARS + 1)]
    return quoted(shown.decode(errors="surrogateescape"))
