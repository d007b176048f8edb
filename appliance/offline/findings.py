"""Faults and notes about a data directory. Layer 4."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KEPT_MAX: Final = 10_000
"""Faults that are reported one by one; further faults are only counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Bytes that are not what they should be.

    Attributes:
        path: the file.
        offset: position of the first wrong byte in the file.
        expected, found: descriptions for the report.
        size: number of affected bytes; None if unknown.
        position: the same place as a log position, if the file is a segment of the log.
    """

    path: Path
    offset: int
    expected: str
    found: str
    size: int | None = None
    position: int | None = None

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return (
            f"{self.path} at byte {self.offset}{size}: expected {self.expected}, found {self.found}"
        )


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is not a fault, but that an operator may want to know.

    Attributes:
        path: the file or directory.
        offset: position in the file, bytes; None if the note is about the whole file.
        text: the note.
    """

    path: Path
    offset: int | None
    text: str

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}{place}: {self.text}"


class Findings:
    """Reports faults and notes in the order in which they are found.

    Args:
        report: called with each finding as soon as it is known.

    Attributes:
        fault_count: all faults, also those beyond KEPT_MAX.
    """

    def __init__(self, report: Callable[[Fault | Note], None]) -> None:
        self._report = report
        self.fault_count = 0

    def fault(self, fault: Fault) -> None:
        """Report a fault."""
        self.fault_count += 1
        if self.fault_count <= KEPT_MAX:
            self._report(fault)

    def note(self, path: Path, offset: int | None, text: str) -> None:
        """Report a note."""
        self._report(Note(path, offset, text))
