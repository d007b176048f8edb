"""Writes every generated document, golden file and picture: `make regenerate`.

It prints the files that changed. A changed frame in tests/golden is a change of the format on the
disk, which docs/FORMAT.md allows only in certain ways, so that is said as well.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.clients import client_matrix
from tests.support.docs import (
    doc_tables,
    example_config,
    golden_dump,
    golden_frames,
    kafka_doc_tables,
    pictures,
)
from tests.support.docs.source_files import ROOT


def write_client_matrix() -> None:
    """Write the table as declared; the tests of the clients try each row of it."""
    path = client_matrix.PATH
    path.write_text(client_matrix.replace_matrix(path.read_text(), client_matrix.matrix()))


GENERATORS: Final[dict[str, Callable[[], None]]] = {
    "doc_tables": doc_tables.main,
    "example_config": example_config.main,
    "kafka_doc_tables": kafka_doc_tables.main,
    "client_matrix": write_client_matrix,
    "golden_frames": golden_frames.main,
    "golden_dump": golden_dump.main,
    "pictures": pictures.main,
}
"""Module -> what writes its files. Golden frames come before what shows them."""

WRITTEN: Final = (
    *("docs", "systemd", "tests/golden"),
    golden_dump.GOLDEN.relative_to(ROOT).as_posix(),
)
"""Directories that hold generated files."""


def contents() -> dict[str, bytes]:
    """Return the bytes of every file that may be generated, by path."""
    files = (path for tree in WRITTEN for path in sorted((ROOT / tree).rglob("*")))
    return {_shown(path): path.read_bytes() for path in files if path.is_file()}


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def main() -> None:
    """Run all generators and print what changed."""
    before = contents()
    for generate in GENERATORS.values():
        generate()
    after = contents()
    changed = [path for path, data in after.items() if before.get(path) != data]
    sys.stdout.write("".join(f"written: {path}\n" for path in changed) or "all is up to date\n")
    if any(path.startswith("tests/golden/") for path in changed):
        sys.stdout.write(
            "tests/golden changed, and with it the format on the disk: follow docs/FORMAT.md, "
            '"Changing the format", or undo it\n'
        )


if __name__ == "__main__":
    main()
