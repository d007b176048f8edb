"""What `latermq dump` prints of a directory that is always the same.

`python -m tests.support.golden_dump` writes tests/offline/golden/ anew.
"""

import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.support import offline_scene as scene
from tests.support.command_line import CommandLine

GOLDEN: Final = Path(__file__).parents[1] / "offline" / "golden"

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
"""File -> the arguments behind the directory."""


def make(root: Path) -> Path:
    """Make the directory."""
    with pytest.MonkeyPatch.context() as patch:
        scene.same_random_numbers(patch)
        return scene.export(scene.stopped(), root)


def dumped(command: CommandLine, directory: Path, arguments: str) -> str:
    """What is printed."""
    return command.ok(f"dump {directory} {arguments}").stdout


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        directory = make(Path(root))
        command = CommandLine(patch, "127.0.0.1:1", "127.0.0.1:1")
        for name, arguments in DUMPS.items():
            (GOLDEN / name).write_text(dumped(command, directory, arguments))


if __name__ == "__main__":
    main()
