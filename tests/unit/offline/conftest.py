"""A directory that a broker has left, and a shell."""

from pathlib import Path

import pytest

from tests.support.docs import golden_dump
from tests.support.harness.command_line import CommandLine


@pytest.fixture(scope="session")
def left_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a broker has left it; not to be changed."""
    return golden_dump.make(tmp_path_factory.mktemp("left"))


@pytest.fixture
def directory(left_directory: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    target = tmp_path / "data"
    for path in left_directory.rglob("*"):
        copy = target / path.relative_to(left_directory)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return target


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """A shell for commands that ask no broker."""
    return CommandLine(monkeypatch, "127.0.0.1:1", "127.0.0.1:1")
