"""The query of a URL, as requests to the admin API have it. Layer 5."""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from appliance.errors import FindError

INSTANT_END_MS: Final = 1 << 48
"""The year 10889."""

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Fields:
    """The fields of a query, each given once at most.

    Args:
        query: percent-encoded; values are bytes of any kind, and `+` is a plus.
        known: the names that it may have.

    Raises:
        FindError: it is something else.
    """

    def __init__(self, query: str, known: tuple[str, ...]) -> None:
        self._values: dict[str, bytes] = {}
        for pair in query.split("&") if query else ():
            name, equals, value = pair.partition("=")
            if name not in known or not equals or _BAD_ESCAPE.search(value) or name in self:
                raise FindError("request", f"the query is not one with some of: {', '.join(known)}")
            self._values[name] = unquote_to_bytes(value)

    def __contains__(self, name: str) -> bool:
        """Whether a field is given."""
        return name in self._values

    def octets(self, name: str) -> bytes | None:
        """Return the value of a field; None if it is not given."""
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """Return the value of a field as text; None if it is not given."""
        octets = self._values.get(name)
        return None if octets is None else octets.decode(errors="replace")

    def number(self, name: str, least: int, greatest: int) -> int | None:
        """Return the value of a field as a number; None if it is not given.

        Raises:
            FindError: it is no whole number in these bounds.
        """
        text = self.text(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= greatest:
            raise FindError("request", f"{name} is not a whole number from {least} to {greatest}")
        return int(text)

    def instant(self, name: str) -> int | None:
        """Return the value of a field as epoch ms; None if it is not given.

        Raises:
            FindError: it is something else.
        """
        return self.number(name, 0, INSTANT_END_MS)
