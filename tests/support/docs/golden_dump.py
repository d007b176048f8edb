"""What `latermq dump` prints for a directory that is always the same.

`make regenerate` writes tests/unit/offline/golden/.
"""

import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.harness import offline_scenario as scenario
from tests.support.harness.command_line import CommandLine

GOLDEN: Final = Path(__file__).parents[2] / "unit" / "offline" / "golden"

DUMPS: Final = {
    "frames.txt": "frames",
    "frames.json": "frames --json --kind accept --kind deliver --topic orders --offsets :1",
    "content.txt": "frames --content --to 8192",
    "content.json": "frames --content --json --from 608 --to 2500",
    "records.txt": "records --topic orders --offsets 0:2",
    "records.json": "records --topic orders --partition 1 --json",
    "timers.txt": "timers",
    "pending.json": "timers --pending --json",
    "queues.txt": "queues",
    "queues.json": "queues --json --partition 1",
    "state.txt": "state",
    "state.json": "state --json",
    "checkpoint.txt": "checkpoint",
}
"""File -> the arguments after the directory."""


def make(root: Path) -> Path:
    """Make the directory."""
    with pytest.MonkeyPatch.context() as patch:
        scenario.same_random_numbers(patch)
        return scenario.export(scenario.stopped(), root)


def dumped(command: CommandLine, directory: Path, arguments: str) -> str:
    """Return what is printed."""
    return command.ok(f"dump {directory} {arguments}").stdout


def main() -> None:
    """Write every file."""
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        directory = make(Path(root))
        command = CommandLine(patch, "127.0.0.1:1", "127.0.0.1:1")
        for name, arguments in DUMPS.items():
            (GOLDEN / name).write_text(dumped(command, directory, arguments))


if __name__ == "__main__":
    main()
