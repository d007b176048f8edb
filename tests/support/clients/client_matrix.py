"""The table of clients and features in docs/KAFKA.md.

`make regenerate` writes what is declared in client_features. Tests try all of it, and compare the
table with it.
"""

import textwrap
from pathlib import Path
from typing import Final

from tests.support.clients.client_features import CLIENTS, FEATURES, Client

PATH: Final = Path(__file__).parents[3] / "docs" / "KAFKA.md"
_BEGIN: Final = "<!-- table: clients -->\n"
_END: Final = "<!-- end of table -->\n"


def declared_cell(client: Client, feature: str) -> str:
    """Return the cell of a feature if everything works that the client supports."""
    return "-" if feature in client.lacks else "yes"


def matrix() -> str:
    """Return the table, and the reasons why clients lack features."""
    lines = [
        " | ".join(["", "feature", *(client.title for client in CLIENTS), ""]),
        "| --- " * (len(CLIENTS) + 1) + "|",
    ]
    for feature in FEATURES:
        cells = [declared_cell(client, feature.name) for client in CLIENTS]
        lines.append(" | ".join(["", feature.text, *cells, ""]))
    text = "".join(line.strip() + "\n" for line in lines)
    return f"{text}\n{_reasons()}"


def _reasons() -> str:
    texts = {feature.name: feature.text for feature in FEATURES}
    lines = []
    for client in CLIENTS:
        by_reason: dict[str, list[str]] = {}
        for feature, reason in client.lacks.items():
            by_reason.setdefault(reason, []).append(texts[feature])
        for reason, features in by_reason.items():
            what = "most of the rows" if len(features) > 5 else "; ".join(features)
            lines.append(f"- {client.title} {reason}: {what}.")
    return "".join(textwrap.fill(line, 100, subsequent_indent="  ") + "\n" for line in lines)


def replace_matrix(text: str, table: str) -> str:
    """Return the document with its table replaced by this one.

    Raises:
        ValueError: a mark is missing.
    """
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + table + text[text.index(_END, start) :]
