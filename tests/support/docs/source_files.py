"""The files that the tests of style, layers and types check."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]

PACKAGES: Final = ("_core", "appliance", "compat")
"""The installed packages. `build/` holds copies of them, so nothing searches from ROOT down."""

_TREES: Final = (*PACKAGES, "tests", "perf", "examples", "docs", "systemd", ".ci")
CODE_SUFFIXES: Final = (".py", ".pyi", ".pyx", ".pxd", ".c", ".h", ".js", ".java")
_OTHER_SUFFIXES: Final = (".md", ".toml", ".in", ".xml", ".service", ".sysusers", ".tmpfiles", "")
# Made by tools and checked by them: the pinned versions, the text of the licence, measurements.
_NOT_OURS: Final = frozenset(
    {"requirements-demo.txt", "requirements-dev.txt", "requirements-spark.txt", "LICENSE"}
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text file of the project."""

    path: str
    """From the top of the project, with slashes."""
    text: str

    @property
    def suffix(self) -> str:
        return Path(self.path).suffix

    @property
    def module(self) -> str:
        """The dotted name of the Python or Cython module that the file belongs to."""
        name = str(Path(self.path).with_suffix("")).replace("/", ".")
        return name.removesuffix(".__init__")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines without their ends, numbered from 1."""
        yield from enumerate(self.text.splitlines(), start=1)


def project_files() -> list[SourceFile]:
    """Return the text files that people write, in the order of their paths."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for tree in _TREES:
        paths += [path for path in (ROOT / tree).rglob("*") if path.is_file()]
    return [
        SourceFile(path.relative_to(ROOT).as_posix(), path.read_text())
        for path in sorted(paths)
        if path.suffix in CODE_SUFFIXES + _OTHER_SUFFIXES and path.name not in _NOT_OURS
    ]


def package_files(suffixes: tuple[str, ...]) -> list[SourceFile]:
    """Return the files of the installed packages that have one of the suffixes."""
    return [
        file
        for file in project_files()
        if file.path.split("/")[0] in PACKAGES and file.suffix in suffixes
    ]


def enum_numbers(path: str) -> dict[str, int]:
    """Return the constants of the enumerations in a Cython file, given from the project's top."""
    found = re.findall(
        r"^    ([A-Z][A-Z0-9_]*) = (-?(?:0x)?[0-9A-F]+)\b", (ROOT / path).read_text(), re.MULTILINE
    )
    return {name: int(value, 0) for name, value in found}
