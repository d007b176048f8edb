"""What is wrong in a data directory, and what is worth knowing of it. Layer 4."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KEPT_MAX: Final = 10_000
"""Faults that are told one by one; of more only the number is known."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Bytes that are not what they should be.

    Attributes:
        path: the file.
        offset: position in it of the first thing that is wrong, bytes.
        expected, found: in words.
        size: bytes that are concerned; None if nobody can say.
        position: the same place as a position of the log, if the file is a part of it.
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
    """Something that is as it may be, and that an operator may want to know.

    Attributes:
        path: the file or directory.
        offset: position in the file, bytes; None if it is about the whole of it.
        text: what is to be known.
    """

    path: Path
    offset: int | None
    text: str

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}{place}: {self.text}"


class Findings:
    """Faults and notes in the order in which they were found.

    Args:
        tell: called with each, as soon as it is known.

    Attributes:
        fault_count: all faults, also those beyond KEPT_MAX.
    """

    def __init__(self, tell: Callable[[Fault | Note], None]) -> None:
        self._tell = tell
        self.fault_count = 0

    def fault(self, fault: Fault) -> None:
        """Take note of a fault."""
        self.fault_count += 1
        if self.fault_count <= KEPT_MAX:
            self._tell(fault)

    def note(self, path: Path, offset: int | None, text: str) -> None:
        """Take note of what is no fault."""
        self._tell(Note(path, offset, text))
