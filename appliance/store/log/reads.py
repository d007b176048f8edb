"""Reads a file except for the parts that the disk cannot read. Layer 2.

A single bad sector makes a read fail as a whole, or stop early, while the sectors around it are
good. So reading continues page by page there.
"""

from typing import Final

from appliance.errors import StorageError
from appliance.system.files import File
from appliance.units import KIB, PAGE_SIZE_BYTES

Unreadable = tuple[int, int, str]
"""From, to, and why that part cannot be read."""

FILE_ENDS: Final = "the file ends"

WRITTEN_STEP_BYTES: Final = 64 * KIB
"""The step in which recovery checks what was ever written after the end of the log."""


def read_around(file: File, memory: memoryview, offset: int) -> list[Unreadable]:
    """Fill memory with bytes of a file, and with zeros where they cannot be read.

    Args:
        file: read up to its size; bytes after its end count as unreadable.
        memory: filled completely.
        offset: position in the file of the first byte.

    Returns:
        The unreadable parts, ascending, as positions in the file.

    Raises:
        StorageError: the read failed for a reason other than a bad place of the disk.
    """
    lost: list[Unreadable] = []
    done = 0
    while done < len(memory):
        at = offset + done
        try:
            count = file.pread_into(memory[done:], at)
            why = FILE_ENDS
            lost_size = len(memory) - done
        except StorageError as error:
            if not error.is_unreadable:
                raise
            why = error.reason
            lost_size = min(PAGE_SIZE_BYTES - at % PAGE_SIZE_BYTES, len(memory) - done)
            count = _read_page(file, memory[done : done + lost_size], at)
        if count == 0:
            count = lost_size
            memory[done : done + count] = bytes(count)
            begin = lost.pop()[0] if lost and lost[-1][1:] == (at, why) else at
            lost.append((begin, at + count, why))
        done += count
    return lost


def _read_page(file: File, memory: memoryview, offset: int) -> int:
    """Read one page where a larger read failed; return 0 if it is unreadable."""
    try:
        return file.pread_into(memory, offset)
    except StorageError as error:
        if not error.is_unreadable:
            raise
        return 0


def written_ranges(file: File, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of a part of a file that may be written, as (from, to) offsets.

    Call it before those pages are read: a page counts as written once it was read.
    """
    ranges: list[tuple[int, int]] = []
    at = start
    while at < end:
        found = file.next_data(at)
        if found is None or found >= end:
            break
        at = min((found // WRITTEN_STEP_BYTES + 1) * WRITTEN_STEP_BYTES, end)
        if ranges and ranges[-1][1] == found:
            found = ranges.pop()[0]
        ranges.append((found, at))
    return ranges
