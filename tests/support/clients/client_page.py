"""The code of docs/CLIENTS.md: the programs, and the functions that have a record again later."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.clients.client_setup import ROOT

RETRY: Final = "Retry with "
"""How the headings of the functions begin."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of code.

    Args:
        language: as the page says.
        text: as it stands there.
    """

    language: str
    text: str


def programs() -> Mapping[str, Snippet]:
    """Return the program below each heading of level 2 that has one."""
    return _first_blocks("##")


def retry_functions() -> Mapping[str, Snippet]:
    """Return the function for each client, by the name of the client."""
    found = _first_blocks("###").items()
    return {name.removeprefix(RETRY): one for name, one in found if name.startswith(RETRY)}


def _first_blocks(level: str) -> Mapping[str, Snippet]:
    """Return the first block of each section of a level, without the sections in it."""
    text = (ROOT / "docs" / "CLIENTS.md").read_text()
    found = {}
    # A heading has a space after its `#`; a comment in a block of code has one `#`.
    for section in re.split(r"^(?=##+ )", text, flags=re.M):
        heading = section.splitlines()[0]
        match = re.search(r"^```(\w+)\n(.*?)^```", section, flags=re.M | re.S)
        if heading.startswith(f"{level} ") and match is not None:
            found[heading.removeprefix(f"{level} ")] = Snippet(match[1], match[2])
    return found
