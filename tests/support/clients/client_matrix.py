"""The table of clients and features in docs/KAFKA.md.

`python -m tests.support.clients.client_matrix` runs all clients against a broker of its own and
writes what came of it. A test holds the table against what is declared in client_features;
`make regenerate` writes what is declared.
"""

import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.clients.client_features import CLIENTS, FEATURES, Client
from tests.support.clients.client_runs import ClientRun, running_clients
from tests.support.harness.appliance_process import running_appliance

PATH: Final = Path(__file__).parents[3] / "docs" / "KAFKA.md"
_BEGIN: Final = "<!-- table: clients -->\n"
_END: Final = "<!-- end of table -->\n"


def declared_cell(client: Client, feature: str) -> str:
    """Return the cell of a feature if everything works that the client supports."""
    return "-" if feature in client.lacks else "yes"


def matrix(cell: Callable[[Client, str], str] = declared_cell) -> str:
    """Return the table, and the reasons why clients lack features."""
    lines = [
        " | ".join(["", "feature", *(client.title for client in CLIENTS), ""]),
        "| --- " * (len(CLIENTS) + 1) + "|",
    ]
    for feature in FEATURES:
        cells = [cell(client, feature.name) for client in CLIENTS]
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


def main() -> int:
    """Write the table; return 1 if a client is missing or a feature failed."""
    problems: list[str] = []

    def tried_cell(client: Client, feature: str) -> str:
        run = runs[client.name]
        if feature in client.lacks:
            return "-"
        if not isinstance(run, ClientRun):
            problems.append(f"{client.name}: {run}")
            return "not tried"
        outcome = run.outcome(feature)
        if outcome.detail:
            problems.append(f"{client.name} {feature}: {outcome.detail}")
        return "no" if outcome.detail else "yes"

    with (
        tempfile.TemporaryDirectory() as root,
        running_appliance(Path(root)) as broker,
        running_clients(broker.kafka) as runs,
    ):
        table = matrix(tried_cell)
    PATH.write_text(replace_matrix(PATH.read_text(), table))
    sys.stderr.write("".join(f"{problem}\n" for problem in dict.fromkeys(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
